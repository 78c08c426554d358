"""Gibbs sampling of noisy-OR networks, one row at a time.

A unit is off with probability e = e^−u, a product over the units above it that are on. e is updated
while units flip: a flip multiplies or divides the e of the units below by e^−w. Every sweep
recomputes all e, so that rounding errors do not accumulate. Given e, the effect of a flip on the
units below (M. S. Lewicki, T. J. Sejnowski, NIPS 1996, eqs 6 and 7) is a product of ratios; one
logarithm is taken of as many factors as do not overflow, and the divisions are vectorized.

A feature that is off adds −w to the log-odds of a unit, whatever the other units are. This is
summed once per row, and the sweeps visit only the features that are on. So sparse rows take little
time.
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
"""Largest f: products of 32 ratios do not overflow."""
MISSING = 2
"""Code of a missing value."""
_FACTORS_PER_LOG = 32
_MIN_PRODUCT = 1e-280
_SMALL_PRODUCT = 1e-200
_CERTAIN_VARIANCE = 1e-12  # below it, a variance is rounding error
_N_RUNS = 8  # runs of consecutive sweeps whose means are compared

_kernel = njit(nogil=True, cache=True, error_model="numpy")
# Vectorization needs to reorder the products of ratios; the compiled code then fixes the order.
_vector_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})


class NoisyOrNetwork(NamedTuple):
    """Parameters, as the kernels take them.

    Attributes
    ----------
    sizes
        Number of features, then of units of each layer upward, (n_layers + 1,).
    misses
        e^−w = 1 − f, flat: layer after layer upward, one row per unit of the layer above.
    off
        e^−leak of every unit, features first, (n_units,): the probability that it is off if all
        units above are off.
    """

    sizes: Integers
    misses: Array
    off: Array

    @property
    def n_hidden(self) -> int:
        """Number of hidden units."""
        return int(self.sizes[1:].sum())


def make_network(probabilities: tuple[Array, ...], leaks: tuple[Array, ...]) -> NoisyOrNetwork:
    """Make a network from f, (n_above, n_below), and leak probabilities, (n_units,), per layer."""
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
    """Take sweeps of the hidden units of each row, starting from `states`, in place.

    Parameters
    ----------
    network
        Parameters.
    X
        Values or `MISSING`, (n_samples, n_features).
    states
        Hidden units, layer by layer upward, (n_samples, n_hidden).
    key, rows
        Key of the random draws, and the number of each row, (n_samples,).
    settled
        A row's sweeps end once the largest flip probability is below this.
    powers
        Power of P(x | units) in each sweep; below 1, the chains move more freely.

    Returns
    -------
    ndarray
        Mean flip probability of each layer in the last sweep, (n_samples, n_layers).
    """
    flips = np.empty((len(X), len(network.sizes) - 1))
    _sample_rows(*network, X, states, key, rows, settled, powers, flips)
    return flips


def sample_posterior_means(
    network: NoisyOrNetwork, X: Bits, key: np.uint64, rows: Integers, n_first: int, n_sweeps: int
) -> tuple[Array, Array]:
    """Average the hidden units over two chains, one started with all units off, one with all on.

    Parameters
    ----------
    network, X, key, rows
        As for `sample_states`.
    n_first
        Sweeps of each chain that are discarded.
    n_sweeps
        Sweeps of each chain that are averaged.

    Returns
    -------
    tuple
        Means of P(unit on | all others), (n_samples, n_hidden), and their effective number of
        independent draws, estimated from the differences between four runs of sweeps per chain.
    """
    means = np.empty((len(X), network.n_hidden))
    worth = np.empty_like(means)
    _average_sweeps(*network, X, key, rows, n_first, n_sweeps, means, worth)
    return means, worth


@_kernel
def make_workspace(sizes: Integers, misses: Array, off: Array) -> RowWorkspace:
    """Allocate the work space of a row: hidden units and their weights first, features last.

    Returns
    -------
    tuple
        Misses, their inverses, off, values of the units, e of each, and `silent`: per unit of the
        lowest layer, the sum of log misses of the features that are off. `load_row` fills in the
        parts that concern features.
    """
    n_features, n_pairs = sizes[0], sizes[0] * sizes[1]
    of_units = np.concatenate((misses[n_pairs:], misses[:n_pairs]))
    ordered = np.concatenate((off[n_features:], off[:n_features]))
    n_units, n_above = len(off), sizes[1]
    return of_units, 1 / of_units, ordered, np.zeros(n_units), np.empty(n_units), np.empty(n_above)


@_kernel
def load_row(sizes: Integers, misses: Array, off: Array, x: Bits, space: RowWorkspace) -> int:
    """Fill in the features of a row that are on, and return their number."""
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
    """Compute the probability that each unit is off, given the units above."""
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
    """Return log P(units below | unit on) − log P(units below | unit off).

    `hits` is 1 / `misses` if the unit is on, else 1; e times `hits` is e with the unit off.
    """
    total = 0.0
    for start in range(0, len(below), _FACTORS_PER_LOG):
        product = 1.0
        for j in range(start, min(start + _FACTORS_PER_LOG, len(below))):
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
        From `make_workspace` and `load_row`; units and e are changed in place.
    state, first_draw
        Random state of the row, and the number of the first draw.
    power
        Power of P(x | units).
    shares
        Output: the probability with which each unit was drawn, (n_hidden,).
    flips
        Output: the mean flip probability of each layer, (n_layers,).

    Returns
    -------
    float
        The largest flip probability.
    """
    of_units, inverses, _, units, e, silent = space
    fill_off_probabilities(sizes, n_on, space)
    ones, n_hidden = np.ones(max(n_on, sizes[1:].max())), len(shares)
    largest, start, first, lowest = 0.0, 0, 0, len(of_units) - sizes[0] * sizes[1]
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
            largest, flips[k - 1] = max(largest, flip), flips[k - 1] + flip / sizes[k]
            is_drawn_on = draw_uniform(state, first_draw + i) < share
            shares[i] = share
            if is_drawn_on != is_on:
                units[i] = 1.0 if is_drawn_on else 0.0
                change = missed if is_drawn_on else inverse
                for j in range(n_below):
                    e_below[j] *= change[j]
            at += n_below
        first = 0 if k == 1 else at
        start += sizes[k]
    return largest


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
            largest = gibbs_sweep(sizes, n_on, space, state, draw, power, shares, flips[n])
            if largest < settled and power == 1:
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
    """Compute means, and their effective draws from the variance between the eight runs."""
    for i in range(len(mean)):
        mean[i] = runs[:, i].mean()
        spread = ((runs[:, i] - mean[i]) ** 2).sum() / (len(runs) - 1) / len(runs)
        own = max(mean[i] * (1 - mean[i]), _CERTAIN_VARIANCE)
        worth[i] = n_draws if spread * n_draws <= own else own / spread
