"""log P(x) of noisy-OR networks: by enumeration, or by annealed importance sampling.

The chains of a row start from units drawn without the features and end at the posterior of the
units given the features, through p_β ∝ P(units) P(x | units)^β (R. M. Neal, Statistics and
Computing 11, 2001). Each accumulates the log weight Σ (β' − β) log P(x | units); the mean of the
weights is an unbiased estimate of P(x).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.models.noisy_or.gibbs import (
    NoisyOrNetwork,
    RowWorkspace,
    fill_off_probabilities,
    gibbs_sweep,
    load_row,
    make_workspace,
)
from pipeline.numerics.networks.boltzmann_rows import log_mean_exp
from pipeline.numerics.row_random import draw_uniform, make_row_state
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
Integers = NDArray[np.int64]

MAX_ENUMERATED_HIDDEN = 20
"""Number of hidden units up to which log P(x) is exact."""
_ROWS_AT_ONCE = 64
_SCHEDULE_STEEPNESS = 3  # puts most temperatures near β = 0, where the chains first depend on x
_NEGLIGIBLE = 45.0  # nats below the largest term
# For judging fits, where less precision is enough:
_MAX_CHEAP_UNITS, _CHAINS, _TEMPERATURES = 10, 10, 100

_kernel = njit(nogil=True, cache=True, error_model="numpy")


def enumerate_log_probabilities(network: NoisyOrNetwork, X: Bits) -> Array:
    """Return log P(x), (n_samples,), by summing over all states of the hidden units.

    The states of a layer are the rows of the network above it, which is enumerated first.

    Parameters
    ----------
    network
        Parameters, with at most `MAX_ENUMERATED_HIDDEN` hidden units.
    X
        Values or `MISSING`, (n_samples, n_features).
    """
    n_features, n_above = network.sizes[:2]
    off = network.off[:n_features]
    misses = network.misses[: n_features * n_above].reshape(n_above, n_features)
    above = (network.sizes[1:], network.misses[misses.size :], network.off[n_features:])
    states = (np.arange(1 << n_above)[:, None] >> np.arange(n_above) & 1).astype(np.uint8)
    is_top = len(network.sizes) == 2
    prior = (
        _log_independent(above[2], states)
        if is_top
        else enumerate_log_probabilities(NoisyOrNetwork(*above), states)
    )
    nats = np.empty(len(X))
    for rows in _iter_slices(len(X)):
        _enumerate_states(misses, off, X[rows], prior, nats[rows])
    return nats


def _iter_slices(n_rows: int) -> Iterator[slice]:
    """Yield slices of a few rows, and check for cancellation before each."""
    for first in range(0, n_rows, _ROWS_AT_ONCE):
        check_cancelled()
        yield slice(first, first + _ROWS_AT_ONCE)


def _log_independent(off: Array, states: Bits) -> Array:
    logs: Array = np.log(off).sum() + states @ (np.log1p(-off) - np.log(off))
    return logs


@_kernel
def _enumerate_states(misses: Array, off: Array, X: Bits, prior: Array, nats: Array) -> None:
    """Count through the states, reusing the products of all bits above the lowest one set."""
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
        largest, total = -np.inf, 0.0
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
                total = total * math.exp(largest - log) + 1.0
                largest = log
            else:
                total += math.exp(log - largest)
        nats[n] = largest + math.log(total)


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
    """Estimate log P(x) of each row.

    Parameters
    ----------
    network, X
        As for `enumerate_log_probabilities`.
    key, rows
        Key of the random draws, and the number of each row, (n_samples,).
    n_chains, n_temperatures
        Number of chains per row, and of their steps.

    Returns
    -------
    tuple
        The estimates and their standard errors, (n_samples,) each.
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
        state, n_on, draw = (
            make_row_state(key, rows[n]),
            load_row(sizes, misses, off, X[n], space),
            0,
        )
        of_leaks = np.log(off[: sizes[0]][X[n] == 0]).sum()
        for chain in range(n_chains):
            _draw_downward(sizes, n_on, space, state, draw)
            draw += n_hidden
            logs[chain] = 0.0
            for t in range(1, len(powers)):
                fill_off_probabilities(sizes, n_on, space)
                log = of_leaks + _log_feature_likelihood(n_hidden, n_on, sizes[1], space)
                logs[chain] += (powers[t] - powers[t - 1]) * log
                if t < len(powers) - 1:
                    gibbs_sweep(sizes, n_on, space, state, draw, powers[t], shares, flips)
                    draw += n_hidden
        nats[n], errors[n] = log_mean_exp(logs)


@_kernel
def _draw_downward(
    sizes: Integers, n_on: int, space: RowWorkspace, state: np.uint64, first_draw: int
) -> None:
    """Draw the hidden units from the top layer down."""
    units, e, start = space[3], space[4], sizes[1:].sum()
    units[:start] = 0.0
    for k in range(len(sizes) - 1, 0, -1):
        stop = start
        start -= sizes[k]
        fill_off_probabilities(sizes, n_on, space)  # recomputes all layers, but layers are few
        for i in range(start, stop):
            units[i] = 1.0 if draw_uniform(state, first_draw + i) >= e[i] else 0.0


@_kernel
def _log_feature_likelihood(n_hidden: int, n_on: int, n_above: int, space: RowWorkspace) -> float:
    """Return log P(x | units) without the leaks of features that are off."""
    _, _, _, units, e, silent = space
    log = _log_on_probability(e[n_hidden : n_hidden + n_on])
    for i in range(n_above):
        log += units[i] * silent[i]
    return log
