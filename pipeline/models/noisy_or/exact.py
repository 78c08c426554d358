"""Exact EM of noisy-OR networks with few hidden units, by enumeration of their states.

A row depends on the other layers only through the units of the lowest one. So its E-step sums over
the 2^n states of this layer, whose prior probabilities come from the layers above. The sums over
rows are kept by state, and the upper layers take them as rows: a state of the lowest layer is a row
of the network above it, as frequent as its expected number of rows. So the passes over the data
need no states of the upper layers.

Given these sums, the M-step maximizes the expected log-likelihood and the log prior of f by
iterations of eq. 9, none of which reads the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.arrays import Array, Bits
from pipeline.executors.cancellation import check_cancelled
from pipeline.learning.convergence import (
    AccelerationMemory,
    ObjectiveCriterion,
    choose_squarem_step,
    is_stage_over,
)
from pipeline.models.noisy_or.estimation import (
    MIN_LEAK,
    NoisyOrParams,
    log_prior,
    reestimate,
)
from pipeline.models.noisy_or.gibbs import (
    MISSING,
    compute_none_on,
    find_group_starts,
    is_exclusive,
    log_top_probabilities,
)
from pipeline.numerics.networks.unit_states import list_states

CELLS_AT_ONCE = 1 << 18
"""Rows in memory times states and features."""
MAX_STATE_VALUES = 1 << 18
"""States of a layer times units below it."""
MAX_STATES = 1 << 12
"""Largest number of states of a layer that is summed over."""
SEARCH_STATES = 1 << 10
"""Largest number of them during the search for a network, which takes many sums."""
_MAX_LAST_SHARE = 1e-2  # of rows in states with as many units on as are summed over
_STEPS = 5  # iterations of eq. 9 per M-step


def can_enumerate(sizes: Sequence[int]) -> bool:
    """Return whether exact EM is possible; `sizes` are the units of each layer, features first."""
    is_small = all(1 << min(n, 63) <= MAX_STATES for n in sizes[1:])
    return is_small and can_sum_states(sizes, MAX_STATES)


@lru_cache
def choose_states(n_units: int, max_states: int) -> Bits:
    """Return all states of a layer, (n_states, n_units); of many units, those with few of them on.

    Sums over the latter are a lower bound of the likelihood, which EM raises as well. It is close
    if causes are rare (J. Lücke, J. Eggert, "Expectation truncation and the benefits of
    preselection in training generative models", JMLR 11, 2010).
    """
    if 1 << min(n_units, 63) <= max_states:
        return list_states(n_units)
    n_states, n_on = n_units + 1, 1
    while (n_more := math.comb(n_units, n_on + 1)) + n_states <= max_states:
        n_states, n_on = n_states + n_more, n_on + 1
    places = [c for k in range(n_on + 1) for c in itertools.combinations(range(n_units), k)]
    states = np.zeros((len(places), n_units), np.uint8)
    for state, on in zip(states, places, strict=True):
        state[list(on)] = 1
    return states


def list_layer_states(params: NoisyOrParams, layer: int, max_states: int) -> Bits:
    """Return the states of a layer that are summed over, (n_states, n_units)."""
    states = choose_states(params.sizes[layer], max_states)
    is_grouped = layer == len(params.weights) and params.exclusive_groups is not None
    return states[is_exclusive(states, params.group_sizes)] if is_grouped else states


def choose_max_states(sizes: Sequence[int]) -> int:
    """Return over how many states of a layer passes may sum; wide layers take fewer."""
    return MAX_STATES if can_sum_states(sizes, MAX_STATES) else SEARCH_STATES


def can_sum_states(sizes: Sequence[int], max_states: int = SEARCH_STATES) -> bool:
    """Return whether EM is possible by sums over the states of `choose_states`."""
    return all(
        n_below * len(choose_states(n, max_states)) <= MAX_STATE_VALUES
        for n_below, n in pairwise(sizes)
    )


def has_few_on(params: NoisyOrParams, X: Bits) -> bool:
    """Return whether the states of `choose_states` are nearly all that explain rows."""
    if can_enumerate(params.sizes) or not can_sum_states(params.sizes):
        return can_enumerate(params.sizes)
    max_states = choose_max_states(params.sizes)
    sums = sum_by_state(params, *WeightedRows.from_sample(X, max_states))[1]
    by_layer = _sum_layers(params, sums, max_states)
    for layer, layer_sums in enumerate(by_layer, 1):
        n_on, rows = list_layer_states(params, layer, max_states).sum(axis=1), layer_sums.rows
        is_last = (n_on == n_on.max()) & (n_on.max() < _count_groups(params, layer))
        if rows[is_last].sum() > _MAX_LAST_SHARE * rows.sum():
            return False
    return True


def sums_all_states(params: NoisyOrParams) -> bool:
    """Return whether sums are over all states that units can have, so that they are exact.

    Many units of an exclusive group have few states.
    """
    if can_enumerate(params.sizes) or not can_sum_states(params.sizes):
        return can_enumerate(params.sizes)
    max_states, layers = choose_max_states(params.sizes), range(1, len(params.sizes))
    n_on = [list_layer_states(params, k, max_states).sum(axis=1).max() for k in layers]
    return all(n == _count_groups(params, k) for k, n in zip(layers, n_on, strict=True))


def _count_groups(params: NoisyOrParams, layer: int) -> int:
    """Return the largest number of units of a layer that can be on."""
    return len(params.group_sizes) if layer == len(params.weights) else params.sizes[layer]


class WeightedRows(NamedTuple):
    """Distinct rows, (n_distinct, n_features), with `MISSING`; and how often each one occurs.

    E-steps of the rows sum over at most `max_states` states of a layer.
    """

    X: Bits
    times: Array
    max_states: int

    @classmethod
    def from_sample(cls, X: Bits, max_states: int) -> WeightedRows:
        """Merge equal rows."""
        distinct, times = np.unique(X, axis=0, return_counts=True)
        return cls(distinct, times.astype(np.float64), max_states)

    @property
    def n_rows(self) -> float:
        """Number of all rows."""
        return float(self.times.sum())


class StateSums(NamedTuple):
    """Expected numbers of rows by state of a layer.

    Attributes
    ----------
    rows
        Number of rows in each state, (n_states,).
    ones, missing
        Of these, the number in which each unit below is on, and in which it is not observed,
        (n_states, n_below).
    """

    rows: Array
    ones: Array
    missing: Array


def sum_by_state(
    params: NoisyOrParams, X: Bits, times: Array | None, max_states: int, layer: int = 0
) -> tuple[Array, StateSums]:
    """Run the E-step of rows over the states of the layer above `layer`.

    `X`, (n_samples, n_units), has the units of `layer`, by default the features, with `MISSING` for
    missing values; `times` is how often each row occurs, None for once. Return log P(x) of each
    row, (n_samples,), and the sums.
    """
    states, above = list_layer_states(params, layer + 1, max_states), params.leaks[layer + 1]
    if layer + 1 == len(params.weights):
        prior = log_top_probabilities(np.exp(-above), params.group_sizes, states)
    else:
        prior = sum_by_state(params, states, None, max_states, layer + 1)[0]
    u = _compute_inputs(params, layer, states)
    by_one, by_observed = np.log(-np.expm1(-u)) + u, u.sum(axis=1)
    nats, n_states = np.empty(len(X)), len(states)
    rows, ones, missing = np.zeros(n_states), np.zeros_like(u), np.zeros_like(u)
    size = max(CELLS_AT_ONCE // (n_states + X.shape[1]), 1)
    for first in range(0, len(X), size):
        check_cancelled()
        part = slice(first, first + size)
        on, lost = (X[part] == 1).astype(np.float64), X[part] == MISSING
        log_joint = on @ by_one.T + (prior - by_observed)
        if lost.any():
            log_joint += lost @ u.T
        largest = log_joint.max(axis=1, keepdims=True)
        posterior = np.exp(log_joint - largest)
        total = posterior.sum(axis=1, keepdims=True)
        nats[part] = (largest + np.log(total))[:, 0]
        posterior *= (1.0 if times is None else times[part, None]) / total
        rows += posterior.sum(axis=0)
        ones += posterior.T @ on
        if lost.any():
            missing += posterior.T @ lost
    return nats, StateSums(rows, ones, missing)


def _compute_inputs(params: NoisyOrParams, layer: int, states: Bits) -> Array:
    """Return u of the units of a layer in each state of the layer above, (n_states, n_units)."""
    inputs: Array = params.leaks[layer] + states @ params.weights[layer].T
    return inputs


def _sum_layers(params: NoisyOrParams, sums: StateSums, max_states: int) -> list[StateSums]:
    """Return the sums of the E-step of each hidden layer, given the sums of the lowest layer."""
    sums_by_layer = [sums]
    for layer in range(1, len(params.weights)):
        states, times = list_layer_states(params, layer, max_states), sums_by_layer[-1].rows
        sums_by_layer.append(sum_by_state(params, states, times, max_states, layer)[1])
    return sums_by_layer


def maximize(
    params: NoisyOrParams,
    sums: StateSums,
    alpha: float,
    beta: float,
    learns_leaks: bool,
    max_states: int,
) -> NoisyOrParams:
    """Run the M-step of all layers, given the sums of the E-step of the features."""
    sums_by_layer = _sum_layers(params, sums, max_states)
    activity = np.concatenate(
        [
            layer_sums.rows @ list_layer_states(params, layer, max_states)
            for layer, layer_sums in enumerate(sums_by_layer, 1)
        ]
    )
    layers = range(len(sums_by_layer))
    for _ in range(_STEPS):
        values: dict[str, NDArray[Any]] = {}
        for layer, layer_sums in enumerate(sums_by_layer):
            values |= _sum_unit_statistics(params, layer, layer_sums, max_states)
        params = reestimate(params, values, alpha, beta, layers, learns_leaks)
    return replace(params, activity=activity / max(float(sums.rows.sum()), 1.0))


def _sum_unit_statistics(
    params: NoisyOrParams, layer: int, sums: StateSums, max_states: int
) -> dict[str, NDArray[Any]]:
    """Return the sums of eq. 9 of a layer's units; of the top layer, those of its prior too."""
    states = list_layer_states(params, layer + 1, max_states)
    share = sums.ones / -np.expm1(-_compute_inputs(params, layer, states))
    observed = sums.rows[:, None] - sums.missing
    values = {
        f"alone_{layer}": share.sum(axis=0),
        f"seen_{layer}": observed.sum(axis=0),
        f"hits_{layer}": share.T @ states,
        f"on_{layer}": observed.T @ states,
    }
    if layer + 1 == len(params.weights):
        top = layer + 1
        n_rows, on = sums.rows.sum(), sums.rows @ states
        values |= {f"alone_{top}": on / -np.expm1(-params.leaks[top]), f"seen_{top}": n_rows}
    return values


def pack_params(params: NoisyOrParams, learns_leaks: bool) -> Array:
    """Return the log-odds of all f that are learned, as one array.

    In an exclusive group, they are those of each unit against none of them on.
    """
    *leaks, prior = params.f_of_leaks
    none = np.repeat(compute_none_on(1 - prior, params.group_sizes), params.group_sizes)
    parts = (*params.f, *(leaks if learns_leaks else ()))
    return np.concatenate([*(logit(part).ravel() for part in parts), np.log(prior / none)])


def unpack_params(params: NoisyOrParams, packed: Array, learns_leaks: bool) -> NoisyOrParams:
    """Return the parameters with these log-odds."""
    n_fixed = 0 if learns_leaks else len(params.leaks) - 1
    parts = [*params.f, *params.f_of_leaks[n_fixed:]]
    ends = np.cumsum([part.size for part in parts])
    values = [
        expit(own).reshape(part.shape)
        for own, part in zip(np.split(packed, ends[:-1]), parts, strict=True)
    ]
    *_, log_odds = np.split(packed, ends[:-1])
    values[-1] = _share_among_groups(log_odds, params.group_sizes)
    n_layers = len(params.weights)
    learned = [np.maximum(leak, -np.expm1(-MIN_LEAK)) for leak in values[n_layers:]]
    unpacked = params.replace_probabilities(
        values[:n_layers], [*params.f_of_leaks[:n_fixed], *learned]
    )
    return replace(unpacked, leaks=(*params.leaks[:n_fixed], *unpacked.leaks[n_fixed:]))


def _share_among_groups(log_odds: Array, groups: NDArray[np.int64]) -> Array:
    # The inverse of the last part of `pack_params`.
    starts = find_group_starts(groups)
    largest = np.maximum(np.maximum.reduceat(log_odds, starts), 0)
    odds = np.exp(log_odds - np.repeat(largest, groups))
    prior: Array = odds / np.repeat(np.add.reduceat(odds, starts) + np.exp(-largest), groups)
    return prior


class ExactFit(NamedTuple):
    """A network after exact EM, with the mean of log P(x) plus the log prior per row."""

    params: NoisyOrParams
    history: tuple[float, ...]

    @property
    def score(self) -> float:
        """The objective of the last step."""
        return self.history[-1]


def run_exact_em(
    model: Any, params: NoisyOrParams, rows: WeightedRows, criterion: ObjectiveCriterion
) -> ExactFit:
    """Run accelerated EM on rows in memory until the criterion ends it.

    `model` has the settings. The history has the mean of log P(x) plus the log prior, nats per row.
    """
    learns_leaks = model.learns_leaks(params.sizes)
    prior = (model.alpha, model.beta, learns_leaks)
    memory: AccelerationMemory = {}
    history: list[float] = []
    while not is_stage_over(criterion, history):
        nats, sums = sum_by_state(params, *rows)
        objective = float(rows.times @ nats + log_prior(params, *prior)) / rows.n_rows
        mapped = maximize(params, sums, *prior, rows.max_states)
        start, end = (pack_params(p, learns_leaks) for p in (params, mapped))
        step = choose_squarem_step(start, end, objective, memory)
        memory, params = step.memory, unpack_params(mapped, step.parameters, learns_leaks)
        if step.accepted:
            history.append(objective)
    return ExactFit(mapped, tuple(history))
