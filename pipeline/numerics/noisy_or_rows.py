"""Gibbs sampling of noisy-OR networks, a row at a time.

Units lie in one vector: features first, then layer by layer upward. A unit is off with probability
e = e^−u, a product over the units above it that are on. It is kept while units flip: a flip
multiplies or divides e of what is below by e^−w, and all are made afresh in every sweep, so that
rounding does not add up. With e at hand, what a unit's flip does to those below it (M. S. Lewicki,
T. J. Sejnowski, NIPS 1996, eqs 6 and 7) is a product of ratios, of which one logarithm is taken for
as many as do not overflow; divisions are left to vectors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.row_random import row_state, uniform_at

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
Integers = NDArray[np.int64]

MOST_SURE = 1 - 1e-6
"""What f is at the most: ratios of 32 factors do not overflow."""
MISSING = 2
"""What stands for a value that was not observed."""
_AT_ONCE = 32
_LEAST = 1e-280
_N_RUNS = 8  # of the sweeps that means are taken over

_kernel = njit(nogil=True, cache=True, error_model="numpy")
# Products of ratios may be taken in any order: vectors do. The order is that of the code compiled.
_vectors = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})


class Network(NamedTuple):
    """Parameters as kernels take them.

    Attributes
    ----------
    sizes
        Features, then units of each layer upward, (n_layers + 1,).
    misses
        e^−w = 1 − f of every unit and those below it: layer after layer upward, a row a unit above.
    off
        e^−leak of every unit, features first: that it is off where all above are, (n_units,).
    """

    sizes: Integers
    misses: Array
    off: Array

    @property
    def n_hidden(self) -> int:
        """Number of units that are no features."""
        return int(self.sizes[1:].sum())


def network_of(probabilities: tuple[Array, ...], leaks: tuple[Array, ...]) -> Network:
    """Take f of each layer's units, (n_above, n_below), and leaks as probabilities, (n_units,)."""
    misses = [1 - np.minimum(f, MOST_SURE).ravel() for f in probabilities]
    off = [1 - np.minimum(leak, MOST_SURE) for leak in leaks]
    sizes = np.array([len(leak) for leak in leaks])
    return Network(sizes, np.concatenate(misses), np.concatenate(off))


def sample_states(
    network: Network,
    X: Bits,
    states: Bits,
    key: np.uint64,
    rows: Integers,
    n_sweeps: int,
    settled: float,
    powers: Array,
) -> Array:
    """Let the hidden units of each row take sweeps, from `states` on, which are changed in place.

    Parameters
    ----------
    network
        Parameters.
    X
        Values, or `MISSING`, (n_samples, n_features).
    states
        Hidden units, layer by layer upward, (n_samples, n_hidden).
    key, rows
        Of the draws, (n_samples,).
    n_sweeps
        Sweeps at the most.
    settled
        Largest probability of a flip in a sweep at which a row's sweeps end.
    powers
        Power of P(x | units) in each sweep, (n_sweeps,): below 1 chains are freer.

    Returns
    -------
    ndarray
        Mean probability of a flip in each layer in the last sweep, (n_samples, n_layers).
    """
    flips = np.empty((len(X), len(network.sizes) - 1))
    _sample(*network, 1 / network.misses, X, states, key, rows, n_sweeps, settled, powers, flips)
    return flips


def posterior_means(
    network: Network, X: Bits, key: np.uint64, rows: Integers, n_first: int, n_sweeps: int
) -> tuple[Array, Array]:
    """Average the hidden units over sweeps of two chains, one from all off, one from all on.

    Parameters
    ----------
    network, X, key, rows
        As for `sample_states`.
    n_first
        Sweeps of each chain that are not averaged.
    n_sweeps
        Those that are.

    Returns
    -------
    tuple
        Means of P(unit on | all others), (n_samples, n_hidden), and how many independent draws they
        are worth, from how means of runs of sweeps, four of each chain, differ.
    """
    means = np.empty((len(X), network.n_hidden))
    worth = np.empty_like(means)
    _average(*network, 1 / network.misses, X, key, rows, n_first, n_sweeps, means, worth)
    return means, worth


@_kernel
def set_off(sizes: Integers, misses: Array, off: Array, units: Array, e: Array) -> None:
    """Give the probability that each unit is off, given those above: `e`, (n_units,)."""
    e[:] = off
    start, first = 0, 0
    for k in range(1, len(sizes)):
        n_below = sizes[k - 1]
        for i in range(sizes[k]):
            if units[start + n_below + i] == 1:
                for j in range(n_below):
                    e[start + j] *= misses[first + j]
            first += n_below
        start += n_below
    for i in range(len(e)):
        e[i] = max(e[i], _LEAST)


@_vectors
def _log_ratio(misses: Array, hits: Array, below: Array, e: Array, power: float) -> float:
    """Give log P(those below | unit on) − log P(those below | unit off).

    `hits` are 1 / `misses` where the unit is on, else 1: they bring e to where it is off.
    """
    total = 0.0
    for start in range(0, len(below), _AT_ONCE):
        product = 1.0
        for j in range(start, min(start + _AT_ONCE, len(below))):
            off = e[j] * hits[j]
            ratio = (1.0 - off * misses[j]) / (1.0 - off)
            ratio = ratio if below[j] > 0.5 else misses[j]
            product *= ratio if below[j] < 1.5 else 1.0
        total += math.log(product)
    return power * total


@_kernel
def sweep(
    sizes: Integers,
    misses: Array,
    inverses: Array,
    off: Array,
    units: Array,
    e: Array,
    state: np.uint64,
    first_draw: int,
    power: float,
    shares: Array,
    flips: Array,
) -> float:
    """Draw every hidden unit given all others, the lowest layer first.

    `units` and `e` are changed in place, `shares` are the probabilities that units were drawn with,
    (n_hidden,), and `flips` those of flips, their mean in each layer.

    Returns
    -------
    float
        The largest probability of a flip.
    """
    set_off(sizes, misses, off, units, e)
    ones = np.ones(sizes.max())
    most, start, first, draw = 0.0, 0, 0, first_draw
    for k in range(1, len(sizes)):
        n_below = sizes[k - 1]
        up = start + n_below
        below, e_below = units[start:up], e[start:up]
        flips[k - 1] = 0.0
        for i in range(up, up + sizes[k]):
            missed, inverse = misses[first : first + n_below], inverses[first : first + n_below]
            is_on = units[i] == 1
            log_odds = math.log((1 - e[i]) / e[i])
            hits = inverse if is_on else ones
            log_odds += _log_ratio(missed, hits, below, e_below, power if k == 1 else 1.0)
            share = 1 / (1 + math.exp(-log_odds))
            flip = 1 - share if is_on else share
            most, flips[k - 1] = max(most, flip), flips[k - 1] + flip / sizes[k]
            goes_on = uniform_at(state, draw) < share
            shares[draw - first_draw] = share
            draw += 1
            if goes_on != is_on:
                units[i] = 1.0 if goes_on else 0.0
                change = missed if goes_on else inverse
                for j in range(n_below):
                    e_below[j] *= change[j]
            first += n_below
        start = up
    return most


@_kernel
def _sample(
    sizes: Integers,
    misses: Array,
    off: Array,
    inverses: Array,
    X: Bits,
    states: Bits,
    key: np.uint64,
    rows: Integers,
    n_sweeps: int,
    settled: float,
    powers: Array,
    flips: Array,
) -> None:
    n_features, n_hidden = X.shape[1], states.shape[1]
    units, e, shares = np.empty(len(off)), np.empty(len(off)), np.empty(n_hidden)
    for n in range(len(X)):
        state = row_state(key, rows[n])
        units[:n_features] = X[n]
        units[n_features:] = states[n]
        for t in range(n_sweeps):
            most = sweep(
                sizes, misses, inverses, off, units, e, state, t * n_hidden, powers[t], shares,
                flips[n],
            )  # fmt: skip
            if most < settled and powers[t] == 1:
                break
        for i in range(n_hidden):
            states[n, i] = units[n_features + i] == 1


@_kernel
def _average(
    sizes: Integers,
    misses: Array,
    off: Array,
    inverses: Array,
    X: Bits,
    key: np.uint64,
    rows: Integers,
    n_first: int,
    n_sweeps: int,
    means: Array,
    worth: Array,
) -> None:
    n_features, n_hidden = X.shape[1], means.shape[1]
    units, e, shares = np.empty(len(off)), np.empty(len(off)), np.empty(n_hidden)
    flips, runs = np.empty(len(sizes) - 1), np.empty((_N_RUNS, n_hidden))
    n_of_chain = _N_RUNS // 2
    for n in range(len(X)):
        state, draw = row_state(key, rows[n]), 0
        runs[:] = 0.0
        for chain in range(2):
            units[:n_features] = X[n]
            units[n_features:] = chain
            for t in range(n_first + n_sweeps):
                sweep(sizes, misses, inverses, off, units, e, state, draw, 1.0, shares, flips)
                draw += n_hidden
                if t >= n_first:
                    runs[chain * n_of_chain + (t - n_first) * n_of_chain // n_sweeps] += shares
        runs *= n_of_chain / n_sweeps
        _judge_runs(runs, 2.0 * n_sweeps, means[n], worth[n])


@_kernel
def _judge_runs(runs: Array, n_draws: float, mean: Array, worth: Array) -> None:
    """Give means, and the draws that they are worth: their variance is that of runs over eight."""
    for i in range(len(mean)):
        mean[i] = runs[:, i].mean()
        spread = ((runs[:, i] - mean[i]) ** 2).sum() / (len(runs) - 1) / len(runs)
        own = mean[i] * (1 - mean[i])
        worth[i] = n_draws if spread * n_draws <= own else own / spread
