"""Gibbs sampling of noisy-OR networks, a row at a time.

A unit is off with probability e = e^−u, a product over the units above it that are on. It is kept
while units flip: a flip multiplies or divides e of what is below by e^−w, and all are made afresh
in every sweep, so that rounding does not add up. With e at hand, what a unit's flip does to those
below it (M. S. Lewicki, T. J. Sejnowski, NIPS 1996, eqs 6 and 7) is a product of ratios, of which
one logarithm is taken for as many as do not overflow; divisions are left to vectors.

Features that are off add −Σ w to the log-odds of a unit whatever the others are. That is summed
once a row, and sweeps see the features that are on alone: sparse rows take little time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.row_random import draw_uniform, make_row_state

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
Integers = NDArray[np.int64]
RowWorkspace = tuple[Array, Array, Array, Array, Array, Array]

MAX_PROBABILITY = 1 - 1e-6
"""What f is at the most: ratios of 32 factors do not overflow."""
MISSING = 2
"""What stands for a value that was not observed."""
_ROWS_AT_ONCE = 32
_MIN_PRODUCT = 1e-280
_SMALL_PRODUCT = 1e-200
_CERTAIN_VARIANCE = 1e-12  # variance: shares near 0 and 1 differ by rounding
_N_RUNS = 8  # of the sweeps that means are taken over

_kernel = njit(nogil=True, cache=True, error_model="numpy")
# Products of ratios may be taken in any order: vectors do. The order is that of the code compiled.
_vector_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})


class NoisyOrNetwork(NamedTuple):
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


def make_network(probabilities: tuple[Array, ...], leaks: tuple[Array, ...]) -> NoisyOrNetwork:
    """Take f of each layer's units, (n_above, n_below), and leaks as probabilities, (n_units,)."""
    misses = [1 - np.minimum(f, MAX_PROBABILITY).ravel() for f in probabilities]
    off = [1 - np.minimum(leak, MAX_PROBABILITY) for leak in leaks]
    sizes = np.array([len(leak) for leak in leaks])
    return NoisyOrNetwork(sizes, np.concatenate(misses), np.concatenate(off))


def sample_states(
    network: NoisyOrNetwork,
    X: Bits,
    states: Bits,
    key: np.uint64,
    rows: Integers,
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
    settled
        Largest probability of a flip in a sweep at which a row's sweeps end.
    powers
        Power of P(x | units) in each sweep, as many as there are at the most: below 1 chains are
        freer.

    Returns
    -------
    ndarray
        Mean probability of a flip in each layer in the last sweep, (n_samples, n_layers).
    """
    flips = np.empty((len(X), len(network.sizes) - 1))
    _sample_rows(*network, X, states, key, rows, settled, powers, flips)
    return flips


def sample_posterior_means(
    network: NoisyOrNetwork, X: Bits, key: np.uint64, rows: Integers, n_first: int, n_sweeps: int
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
    _average_sweeps(*network, X, key, rows, n_first, n_sweeps, means, worth)
    return means, worth


@_kernel
def make_workspace(sizes: Integers, misses: Array, off: Array) -> RowWorkspace:
    """Lay out a network for its rows: hidden units and what is above first, features last.

    Returns
    -------
    tuple
        Misses, their inverses, off, values of the units, e of each, and `silent`, the log of the
        misses of features that are off for each unit above them; `load_row` fills in what is of
        features.
    """
    n_features, n_pairs = sizes[0], sizes[0] * sizes[1]
    of_units = np.concatenate((misses[n_pairs:], misses[:n_pairs]))
    ordered = np.concatenate((off[n_features:], off[:n_features]))
    n_units, n_above = len(off), sizes[1]
    return of_units, 1 / of_units, ordered, np.zeros(n_units), np.empty(n_units), np.empty(n_above)


@_kernel
def load_row(sizes: Integers, misses: Array, off: Array, x: Bits, space: RowWorkspace) -> int:
    """Fill in the features of a row that are on, and give their number."""
    of_units, inverses, ordered, units, _, silent = space
    n_features, n_above = sizes[0], sizes[1]
    first, n_hidden, n_on = len(misses) - n_features * n_above, len(off) - n_features, 0
    for j in range(n_features):
        if x[j] == 1:
            ordered[n_hidden + n_on] = off[j]
            units[n_hidden + n_on] = 1.0
            n_on += 1
    for i in range(n_above):
        missed, silent[i], at, product = misses[i * n_features :], 0.0, first + i * n_on, 1.0
        for j in range(n_features):
            if x[j] == 1:
                of_units[at], inverses[at] = missed[j], 1 / missed[j]
                at += 1
            elif x[j] == 0:
                product *= missed[j]
                if product < _SMALL_PRODUCT:
                    silent[i], product = silent[i] + math.log(product), 1.0
        silent[i] += math.log(product)
    return n_on


@_kernel
def fill_off_probabilities(sizes: Integers, n_on: int, space: RowWorkspace) -> None:
    """Give the probability that each unit is off, given those above."""
    of_units, _, ordered, units, e, _ = space
    n_hidden = sizes[1:].sum()
    e[:] = ordered
    start, first, lowest = 0, 0, len(of_units) - sizes[0] * sizes[1]
    for k in range(1, len(sizes)):
        below, n_below = (n_hidden, n_on) if k == 1 else (start - sizes[k - 1], sizes[k - 1])
        at = lowest if k == 1 else first
        for i in range(start, start + sizes[k]):
            if units[i] == 1:
                for j in range(n_below):
                    e[below + j] *= of_units[at + j]
            at += n_below
        first = 0 if k == 1 else at
        start += sizes[k]
    for i in range(n_hidden + n_on):
        e[i] = max(e[i], _MIN_PRODUCT)


@_vector_kernel
def _log_ratio(misses: Array, hits: Array, below: Array, e: Array) -> float:
    """Give log P(those below | unit on) − log P(those below | unit off).

    `hits` are 1 / `misses` where the unit is on, else 1: they bring e to where it is off.
    """
    total = 0.0
    for start in range(0, len(below), _ROWS_AT_ONCE):
        product = 1.0
        for j in range(start, min(start + _ROWS_AT_ONCE, len(below))):
            off = e[j] * hits[j]
            ratio = (1.0 - off * misses[j]) / (1.0 - off)
            product *= ratio if below[j] == 1 else misses[j]
        total += math.log(product)
    return total


@_kernel
def gibbs_sweep(
    sizes: Integers,
    n_on: int,
    space: RowWorkspace,
    state: np.uint64,
    first_draw: int,
    power: float,
    shares: Array,
    flips: Array,
) -> float:
    """Draw every hidden unit given all others, the lowest layer first.

    Parameters
    ----------
    sizes, n_on, space
        As `make_workspace` and `load_row` leave them; units and e are changed in place.
    state, first_draw
        Of the draws.
    power
        Of P(x | units).
    shares
        Is filled with the probabilities that units were drawn with, (n_hidden,).
    flips
        Is filled with the mean probability of a flip in each layer, (n_layers,).

    Returns
    -------
    float
        The largest probability of a flip.
    """
    of_units, inverses, _, units, e, silent = space
    fill_off_probabilities(sizes, n_on, space)
    ones, n_hidden = np.ones(max(n_on, sizes[1:].max())), len(shares)
    most, start, first, lowest = 0.0, 0, 0, len(of_units) - sizes[0] * sizes[1]
    for k in range(1, len(sizes)):
        low, n_below = (n_hidden, n_on) if k == 1 else (start - sizes[k - 1], sizes[k - 1])
        below, e_below, at = units[low : low + n_below], e[low : low + n_below], first
        if k == 1:
            at = lowest
        flips[k - 1] = 0.0
        for i in range(start, start + sizes[k]):
            missed, inverse = of_units[at : at + n_below], inverses[at : at + n_below]
            is_on = units[i] == 1
            log_odds = _log_ratio(missed, inverse if is_on else ones, below, e_below)
            if k == 1:
                log_odds = power * (log_odds + silent[i])
            log_odds += math.log((1 - e[i]) / e[i])
            share = 1 / (1 + math.exp(-log_odds))
            flip = 1 - share if is_on else share
            most, flips[k - 1] = max(most, flip), flips[k - 1] + flip / sizes[k]
            goes_on = draw_uniform(state, first_draw + i) < share
            shares[i] = share
            if goes_on != is_on:
                units[i] = 1.0 if goes_on else 0.0
                change = missed if goes_on else inverse
                for j in range(n_below):
                    e_below[j] *= change[j]
            at += n_below
        first = 0 if k == 1 else at
        start += sizes[k]
    return most


@_kernel
def _sample_rows(
    sizes: Integers,
    misses: Array,
    off: Array,
    X: Bits,
    states: Bits,
    key: np.uint64,
    rows: Integers,
    settled: float,
    powers: Array,
    flips: Array,
) -> None:
    n_hidden, space = states.shape[1], make_workspace(sizes, misses, off)
    units, shares = space[3], np.empty(n_hidden)
    for n in range(len(X)):
        state, n_on = make_row_state(key, rows[n]), load_row(sizes, misses, off, X[n], space)
        units[:n_hidden] = states[n]
        for t in range(len(powers)):
            draw, power = t * n_hidden, powers[t]
            most = gibbs_sweep(sizes, n_on, space, state, draw, power, shares, flips[n])
            if most < settled and power == 1:
                break
        for i in range(n_hidden):
            states[n, i] = units[i] == 1


@_kernel
def _average_sweeps(
    sizes: Integers,
    misses: Array,
    off: Array,
    X: Bits,
    key: np.uint64,
    rows: Integers,
    n_first: int,
    n_sweeps: int,
    means: Array,
    worth: Array,
) -> None:
    n_hidden, space = means.shape[1], make_workspace(sizes, misses, off)
    units, shares, flips = space[3], np.empty(n_hidden), np.empty(len(sizes) - 1)
    runs, n_of_chain = np.empty((_N_RUNS, n_hidden)), _N_RUNS // 2
    for n in range(len(X)):
        state, n_on, draw = (
            make_row_state(key, rows[n]),
            load_row(sizes, misses, off, X[n], space),
            0,
        )
        runs[:] = 0.0
        for chain in range(2):
            units[:n_hidden] = chain
            for t in range(n_first + n_sweeps):
                gibbs_sweep(sizes, n_on, space, state, draw, 1.0, shares, flips)
                draw += n_hidden
                if t >= n_first:
                    runs[chain * n_of_chain + (t - n_first) * n_of_chain // n_sweeps] += shares
        runs *= n_of_chain / n_sweeps
        _summarize_runs(runs, 2.0 * n_sweeps, means[n], worth[n])


@_kernel
def _summarize_runs(runs: Array, n_draws: float, mean: Array, worth: Array) -> None:
    """Give means, and the draws that they are worth: their variance is that of runs over eight."""
    for i in range(len(mean)):
        mean[i] = runs[:, i].mean()
        spread = ((runs[:, i] - mean[i]) ** 2).sum() / (len(runs) - 1) / len(runs)
        own = max(mean[i] * (1 - mean[i]), _CERTAIN_VARIANCE)
        worth[i] = n_draws if spread * n_draws <= own else own / spread
