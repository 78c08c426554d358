"""Gibbs sampling of noisy-OR networks, one row at a time, and log P(x) of rows.

A unit is off with probability e = e^−u, a product over the units above it that are on. e is updated
while units flip: a flip multiplies or divides the e of the units below by e^−w. Every sweep
recomputes all e, so that rounding errors do not accumulate. Given e, the effect of a flip on the
units below (M. S. Lewicki, T. J. Sejnowski, NIPS 1996, eqs 6 and 7) is a product of ratios; one
logarithm is taken of as many factors as do not overflow, and the divisions are vectorized.

Of the units of an exclusive group, at most one is on. A sweep draws in one move which one, or none.

A feature that is off adds −w to the log-odds of a unit, whatever the other units are. This is
summed once per row, and the sweeps visit only the features that are on. So sparse rows take little
time.

log P(x) is computed by enumeration or estimated by annealed importance sampling (R. M. Neal,
Statistics and Computing 11, 2001). The chains of a row start from units drawn without the features
and end at the posterior of the units given the features, through p_β ∝ P(units) P(x | units)^β.
Each chain accumulates the log weight Σ (β' − β) log P(x | units); the mean of the weights is an
unbiased estimate of P(x).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array, Bits
from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.networks.boltzmann_rows import log_mean_exp
from pipeline.numerics.networks.unit_states import list_states
from pipeline.numerics.row_random import draw_uniform, make_row_state
from pipeline.random import RowRandom

Integers = NDArray[np.int64]
RowWorkspace = tuple[Array, Array, Array, Array, Array, Array]

MAX_PROBABILITY = 1 - 1e-6
"""Largest f: products of 32 ratios do not overflow."""
MISSING = 2
"""Code of a missing value."""
MAX_ENUMERATED_HIDDEN = 20
"""Number of hidden units up to which log P(x) is exact."""
_FACTORS_PER_LOG = 32
_MIN_PRODUCT = 1e-280
_SMALL_PRODUCT = 1e-200
_CERTAIN_VARIANCE = 1e-12  # below it, a variance is rounding error
_N_RUNS = 8  # runs of consecutive sweeps whose means are compared
_ROWS_AT_ONCE = 64
_SCHEDULE_STEEPNESS = 3  # puts most temperatures near β = 0, where the chains first depend on x
_NEGLIGIBLE = 45.0  # nats below the largest term
# For scoring passes and choices of layers, where less precision is enough:
_MAX_CHEAP_UNITS, _CHAINS, _TEMPERATURES = 10, 10, 100

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
    groups
        Number of units of each exclusive group of the top layer, (n_groups,); an independent unit
        is a group of 1. 1 − `off` of its units are the probabilities that each is the one on.
        Sweeps do not change groups whose number is negative.
    """

    sizes: Integers
    misses: Array
    off: Array
    groups: Integers

    @property
    def n_hidden(self) -> int:
        """Number of hidden units."""
        return int(self.sizes[1:].sum())


def make_network(
    probabilities: tuple[Array, ...], leaks: tuple[Array, ...], groups: Integers | None = None
) -> NoisyOrNetwork:
    """Make a network from f, (n_above, n_below), and leak probabilities, (n_units,), per layer.

    By default, the units of the top layer are independent.
    """
    misses = [1 - np.minimum(f, MAX_PROBABILITY).ravel() for f in probabilities]
    off = [1 - np.minimum(leak, MAX_PROBABILITY) for leak in leaks]
    sizes = np.array([len(leak) for leak in leaks])
    groups = np.ones(sizes[-1], np.int64) if groups is None else groups
    return NoisyOrNetwork(sizes, np.concatenate(misses), np.concatenate(off), groups)


def find_group_starts(groups: Integers) -> Integers:
    """Return the first unit of each exclusive group, (n_groups,)."""
    starts: Integers = np.cumsum(groups) - groups
    return starts


def compute_none_on(off: Array, groups: Integers) -> Array:
    """Return the probability that no unit of each exclusive group is on, (n_groups,).

    1 − `off`, (n_top,), are the probabilities that each unit is the one on.
    """
    starts = find_group_starts(groups)
    others = np.add.reduceat(1 - off, starts) - (1 - off[starts])  # exactly 0 for a single unit
    none: Array = off[starts] - others
    return none


def log_top_probabilities(off: Array, groups: Integers, states: NDArray[Any]) -> Array:
    """Return log P of states of the top layer, (n_states, n_top); −inf if two in a group are on."""
    none = compute_none_on(off, groups)
    logs: Array = np.log(none).sum() + states @ (np.log1p(-off) - np.log(np.repeat(none, groups)))
    return np.where(is_exclusive(states, groups), logs, -np.inf)


def is_exclusive(states: NDArray[Any], groups: Integers) -> NDArray[np.bool_]:
    """Return whether at most one unit of each exclusive group is on, (n_states,)."""
    n_on = np.add.reduceat(states, find_group_starts(groups), axis=1, dtype=np.int64)
    return np.asarray((n_on <= 1).all(axis=1))


def draw_top_units(p: Array, groups: Integers, uniform: Array) -> NDArray[np.bool_]:
    """Draw the top layer from uniform numbers, (n_samples, n_top); a group uses its first number.

    `p`, (n_top,), are the probabilities that each unit is on.
    """
    starts = find_group_starts(groups)
    first = np.concatenate([np.cumsum(part) - part for part in np.split(p, starts[1:])])
    number = np.repeat(uniform[:, starts], groups, axis=1)
    return np.logical_and(number >= first, number < first + p)


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
    network: NoisyOrNetwork,
    X: Bits,
    key: np.uint64,
    rows: Integers,
    n_first: int,
    n_sweeps: int,
    starts: Bits | None = None,
) -> tuple[Array, Array]:
    """Average the hidden units over two chains, one started with all units off, one with all on.

    `starts`, (2, n_samples, n_hidden), are other first states. The first `n_first` sweeps of each
    chain are discarded, the next `n_sweeps` averaged. Return the means of P(unit on | all others),
    (n_samples, n_hidden), and their effective number of independent draws, estimated from the
    differences between four runs of sweeps per chain. The other parameters are as for
    `sample_states`.
    """
    means = np.empty((len(X), network.n_hidden))
    effective_draws = np.empty_like(means)
    if starts is None:
        starts = np.repeat([0, 1], means.size).reshape(2, *means.shape).astype(np.uint8)
    _average_sweeps(*network, X, key, rows, starts, n_first, n_sweeps, means, effective_draws)
    return means, effective_draws


@_kernel
def make_workspace(sizes: Integers, misses: Array, off: Array) -> RowWorkspace:
    """Allocate the work space of a row: hidden units and their weights first, features last.

    The result holds the misses, their inverses, `off`, the values of the units, e of each unit, and
    `silent`: for each unit of the lowest layer, the sum of log misses of the features that are off.
    `load_row` fills in the parts that concern features.
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
    groups: Integers,
    n_on: int,
    space: RowWorkspace,
    state: np.uint64,
    first_draw: int,
    power: float,
    shares: Array,
    flips: Array,
) -> float:
    """Draw every hidden unit or exclusive group given all others, the lowest layer first.

    The units and e in `space`, which `make_workspace` and `load_row` made, are changed in place.
    `state` is the random state of the row, `first_draw` the number of the first draw, and `power`
    the power of P(x | units). Fill in `shares` (n_hidden,), the probability with which each unit
    was drawn, and `flips` (n_layers,), the mean flip probability of each layer. Return the largest
    flip probability.
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
        flips[k - 1], i = 0.0, start
        for n_units in groups if k == len(sizes) - 1 else np.ones(sizes[k], np.int64):
            if n_units < 0:
                i, at = i - n_units, at - n_units * n_below
                continue
            if n_units > 1:
                members, pairs = slice(i, i + n_units), slice(at, at + n_units * n_below)
                group_flips = _draw_group(
                    units[members],
                    shares[members],
                    e[members],
                    of_units[pairs],
                    inverses[pairs],
                    silent[members] if k == 1 else np.zeros(n_units),
                    power if k == 1 else 1.0,
                    below,
                    e_below,
                    draw_uniform(state, first_draw + i),
                )
                largest = max(largest, group_flips.max())
                flips[k - 1] += group_flips.sum() / sizes[k]
                i, at = i + n_units, at + n_units * n_below
                continue
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
            i, at = i + 1, at + n_below
        first = 0 if k == 1 else at
        start += sizes[k]
    return largest


@_kernel
def _draw_group(
    units: Array,
    shares: Array,
    off: Array,
    misses: Array,
    inverses: Array,
    silent: Array,
    power: float,
    below: Array,
    e_below: Array,
    uniform: float,
) -> Array:
    """Draw which unit of an exclusive group is on, or none, from a uniform number.

    The arguments are views of the units of the group and of those below. Return the flip
    probability of each unit, (n_units,).
    """
    n_below, none = len(below), 1.0
    for i in range(len(units)):
        none -= 1 - off[i]
        if units[i] == 1:
            for j in range(n_below):
                e_below[j] *= inverses[i * n_below + j]
    ones, largest = np.ones(n_below), 0.0
    for i in range(len(units)):
        log = _log_ratio(misses[i * n_below : (i + 1) * n_below], ones, below, e_below)
        shares[i] = power * (log + silent[i]) + math.log((1 - off[i]) / none)
        largest = max(largest, shares[i])
    shares[:] = np.exp(shares - largest)
    threshold, total, drawn = math.exp(-largest), math.exp(-largest) + shares.sum(), -1
    flips = np.empty(len(units))
    for i in range(len(units)):
        if uniform * total >= threshold:
            drawn = i
        threshold += shares[i]
        shares[i] /= total
        flips[i] = 1 - shares[i] if units[i] == 1 else shares[i]
    units[:] = 0.0
    if drawn >= 0:
        units[drawn] = 1.0
        for j in range(n_below):
            e_below[j] *= misses[drawn * n_below + j]
    return flips


@_kernel
def _sample_rows(
    sizes: Integers,
    misses: Array,
    off: Array,
    groups: Integers,
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
            largest = gibbs_sweep(sizes, groups, n_on, space, state, draw, power, shares, flips[n])
            if largest < settled and power == 1:
                break
        for i in range(n_hidden):
            states[n, i] = units[i] == 1


@_kernel
def _average_sweeps(
    sizes: Integers,
    misses: Array,
    off: Array,
    groups: Integers,
    X: Bits,
    key: np.uint64,
    rows: Integers,
    starts: Bits,
    n_first: int,
    n_sweeps: int,
    means: Array,
    effective_draws: Array,
) -> None:
    n_hidden, space = means.shape[1], make_workspace(sizes, misses, off)
    units, shares, flips = space[3], np.empty(n_hidden), np.empty(len(sizes) - 1)
    runs, n_of_chain = np.empty((_N_RUNS, n_hidden)), _N_RUNS // 2
    for n in range(len(X)):
        state, draw = make_row_state(key, rows[n]), 0
        n_on = load_row(sizes, misses, off, X[n], space)
        runs[:] = 0.0
        for chain in range(2):
            units[:n_hidden] = starts[chain, n]
            for t in range(n_first + n_sweeps):
                gibbs_sweep(sizes, groups, n_on, space, state, draw, 1.0, shares, flips)
                draw += n_hidden
                if t >= n_first:
                    runs[chain * n_of_chain + (t - n_first) * n_of_chain // n_sweeps] += shares
        runs *= n_of_chain / n_sweeps
        _summarize_runs(runs, 2.0 * n_sweeps, means[n], effective_draws[n])


@_kernel
def _summarize_runs(runs: Array, n_draws: float, mean: Array, effective_draws: Array) -> None:
    """Compute means, and their effective draws from the variance between the eight runs."""
    for i in range(len(mean)):
        mean[i] = runs[:, i].mean()
        spread = ((runs[:, i] - mean[i]) ** 2).sum() / (len(runs) - 1) / len(runs)
        own = max(mean[i] * (1 - mean[i]), _CERTAIN_VARIANCE)
        effective_draws[i] = n_draws if spread * n_draws <= own else own / spread


def enumerate_log_probabilities(network: NoisyOrNetwork, X: Bits) -> Array:
    """Return log P(x), (n_samples,), by summing over all states of the hidden units.

    `X` (n_samples, n_features) has values or `MISSING`; the network has at most
    `MAX_ENUMERATED_HIDDEN` hidden units. The states of a layer are the rows of the network above
    it, which is enumerated first.
    """
    off, misses = _get_feature_layer(network)
    _, prior = enumerate_states(network)
    nats, means = np.empty(len(X)), np.empty((len(X), 0))
    table = np.empty((len(prior), 0))
    for rows in _iter_slices(len(X)):
        _enumerate_states(misses, off, X[rows], prior, table, nats[rows], means[rows])
    return nats


def enumerate_posterior_means(network: NoisyOrNetwork, X: Bits) -> Array:
    """Return P(unit on | x) of all hidden units, (n_samples, n_hidden), by enumeration.

    Given the units of the lowest layer, the layers above do not depend on the features. Parameters
    are as for `enumerate_log_probabilities`.
    """
    off, misses = _get_feature_layer(network)
    states, prior = enumerate_states(network)
    table = states.astype(np.float64)
    if len(network.sizes) > 2:
        table = np.hstack([table, enumerate_posterior_means(_drop_features(network), states)])
    nats, means = np.empty(len(X)), np.empty((len(X), network.n_hidden))
    for rows in _iter_slices(len(X)):
        _enumerate_states(misses, off, X[rows], prior, table, nats[rows], means[rows])
    return means


def _get_feature_layer(network: NoisyOrNetwork) -> tuple[Array, Array]:
    """Return `off` of the features, and their misses, (n_above, n_features)."""
    n_features, n_above = network.sizes[:2]
    misses = network.misses[: n_features * n_above].reshape(n_above, n_features)
    return network.off[:n_features], misses


def _drop_features(network: NoisyOrNetwork) -> NoisyOrNetwork:
    """Return the network above the features, whose features are the units of the lowest layer."""
    n_features, n_above = network.sizes[:2]
    return network._replace(
        sizes=network.sizes[1:],
        misses=network.misses[n_features * n_above :],
        off=network.off[n_features:],
    )


def enumerate_states(network: NoisyOrNetwork) -> tuple[Bits, Array]:
    """Return the states of the lowest hidden layer, and their prior log-probabilities."""
    above = _drop_features(network)
    states = list_states(above.sizes[0])
    if len(above.sizes) == 1:
        return states, log_top_probabilities(above.off, above.groups, states)
    return states, enumerate_log_probabilities(above, states)


def _iter_slices(n_rows: int) -> Iterator[slice]:
    """Yield slices of a few rows, and check for cancellation before each."""
    for first in range(0, n_rows, _ROWS_AT_ONCE):
        check_cancelled()
        yield slice(first, first + _ROWS_AT_ONCE)


@_kernel
def _enumerate_states(
    misses: Array, off: Array, X: Bits, prior: Array, table: Array, nats: Array, means: Array
) -> None:
    """Count through the states, reusing the products of all bits above the lowest one set.

    Fill in `nats`, log P(x), and `means`, (n_samples, n_columns): the posterior means of the
    columns of `table`, (n_states, n_columns).
    """
    n_above = len(misses)
    for n in range(len(X)):
        on = np.flatnonzero(X[n] == 1)
        e, logs = np.empty((n_above + 1, len(on))), np.zeros(n_above + 1)
        of_off = np.zeros(n_above)
        for i in range(len(off)):
            if X[n, i] == 0:
                logs[n_above] += math.log(off[i])
                for j in range(n_above):
                    of_off[j] += math.log(misses[j, i])
        e[n_above] = off[on]
        largest, total, sums = -np.inf, 0.0, np.zeros(table.shape[1])
        for s in range(len(prior)):
            top = 0
            while s >> top & 1 == 0 and top < n_above - 1:
                top += 1
            for j in range(n_above - 1 if s == 0 else top, -1, -1):
                is_on = s >> j & 1
                logs[j] = logs[j + 1] + (of_off[j] if is_on else 0.0)
                for i in range(len(on)):
                    e[j, i] = e[j + 1, i] * (misses[j, on[i]] if is_on else 1.0)
            log = prior[s] + logs[0]
            if log < largest - _NEGLIGIBLE:
                continue
            log += _log_on_probability(e[0])
            if log > largest:
                shrink = math.exp(largest - log)
                total, sums, largest = total * shrink, sums * shrink, log
            share = math.exp(log - largest)
            total += share
            for column in range(len(sums)):
                sums[column] += share * table[s, column]
        nats[n], means[n] = largest + math.log(total), sums / total


@_kernel
def _log_on_probability(e: Array) -> float:
    """Return Σ log(1 − e), with one logarithm per 32 factors."""
    total, product = 0.0, 1.0
    for i in range(len(e)):
        product *= 1.0 - e[i]
        if i % 32 == 31:
            total, product = total + math.log(product), 1.0
    return total + math.log(product)


def estimate_log_probabilities(
    network: NoisyOrNetwork,
    X: Bits,
    key: np.uint64,
    rows: Integers,
    n_chains: int,
    n_temperatures: int,
) -> tuple[Array, Array]:
    """Estimate log P(x) of each row by annealed importance sampling.

    `key` and `rows` (n_samples,) key the random draws. Each row has `n_chains` chains of
    `n_temperatures` steps. Return the estimates and their standard errors, (n_samples,) each.
    """
    powers = np.linspace(0, 1, n_temperatures + 1) ** _SCHEDULE_STEEPNESS
    nats, errors = np.empty(len(X)), np.empty(len(X))
    for at in _iter_slices(len(X)):
        _anneal_rows(*network, X[at], key, rows[at], n_chains, powers, nats[at], errors[at])
    return nats, errors


def estimate_row_likelihoods(
    network: NoisyOrNetwork, X: Bits, rows: Integers, rng: RowRandom
) -> Array:
    """Return a cheap estimate of log P(x), (n_samples,), nats; exact for small networks."""
    if network.n_hidden <= _MAX_CHEAP_UNITS:
        return enumerate_log_probabilities(network, X)
    key = rng.stream("judged").key
    return estimate_log_probabilities(network, X, key, rows, _CHAINS, _TEMPERATURES)[0]


@_kernel
def _anneal_rows(
    sizes: Integers,
    misses: Array,
    off: Array,
    groups: Integers,
    X: Bits,
    key: np.uint64,
    rows: Integers,
    n_chains: int,
    powers: Array,
    nats: Array,
    errors: Array,
) -> None:
    n_hidden, space = len(off) - sizes[0], make_workspace(sizes, misses, off)
    shares, flips, logs = np.empty(n_hidden), np.empty(len(sizes) - 1), np.empty(n_chains)
    for n in range(len(X)):
        state, draw = make_row_state(key, rows[n]), 0
        n_on = load_row(sizes, misses, off, X[n], space)
        of_leaks = np.log(off[: sizes[0]][X[n] == 0]).sum()
        for chain in range(n_chains):
            _draw_downward(sizes, groups, n_on, space, state, draw)
            draw += n_hidden
            logs[chain] = 0.0
            for t in range(1, len(powers)):
                fill_off_probabilities(sizes, n_on, space)
                log = of_leaks + _log_feature_likelihood(n_hidden, n_on, sizes[1], space)
                logs[chain] += (powers[t] - powers[t - 1]) * log
                if t < len(powers) - 1:
                    sweep = (draw, powers[t], shares, flips)
                    gibbs_sweep(sizes, groups, n_on, space, state, *sweep)
                    draw += n_hidden
        nats[n], errors[n] = log_mean_exp(logs)


@_kernel
def _draw_downward(
    sizes: Integers,
    groups: Integers,
    n_on: int,
    space: RowWorkspace,
    state: np.uint64,
    first_draw: int,
) -> None:
    """Draw the hidden units from the top layer down."""
    units, e, start = space[3], space[4], sizes[1:].sum()
    units[:start] = 0.0
    for k in range(len(sizes) - 1, 0, -1):
        start -= sizes[k]
        fill_off_probabilities(sizes, n_on, space)  # recomputes all layers, but layers are few
        i = start
        for n_units in groups if k == len(sizes) - 1 else np.ones(sizes[k], np.int64):
            threshold, drawn = e[i] - (1 - e[i + 1 : i + n_units]).sum(), -1
            for j in range(i, i + n_units):
                if draw_uniform(state, first_draw + i) >= threshold:
                    drawn = j
                threshold += 1 - e[j]
            if drawn >= 0:
                units[drawn] = 1.0
            i += n_units


@_kernel
def _log_feature_likelihood(n_hidden: int, n_on: int, n_above: int, space: RowWorkspace) -> float:
    """Return log P(x | units) without the leaks of features that are off."""
    _, _, _, units, e, silent = space
    log = _log_on_probability(e[n_hidden : n_hidden + n_on])
    for i in range(n_above):
        log += units[i] * silent[i]
    return log
