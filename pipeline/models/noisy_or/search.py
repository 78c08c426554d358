"""Search for a network in a sample of rows, which the passes over all rows continue.

Networks whose states can be summed over start EM from several random networks of two kinds: with
small weights, from which units grow apart, and with weights of any size. In the best ones, the unit
that is worth least is restarted as the cause of a row that the other units explain badly, as long
as this raises the likelihood. Where many units may be on at once, so that the sums miss states, the
best network is compared with one that is learned by Gibbs sampling. Other networks are learned by
Gibbs sampling alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.arrays import Array, Bits
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import label_map, make_local_map
from pipeline.learning.convergence import (
    ObjectiveCriterion,
    describe_starts,
    find_reachable_objective,
)
from pipeline.models.noisy_or.estimation import (
    FIRST_WEIGHTS,
    RESTARTED_PRIOR,
    NoisyOrParams,
    draw_first_network,
    exclude_units,
    learn_from_starts,
    remove_units,
    restart_unit_by_row,
)
from pipeline.models.noisy_or.exact import (
    SEARCH_STATES,
    ExactFit,
    WeightedRows,
    can_sum_states,
    choose_max_states,
    choose_states,
    has_few_on,
    run_exact_em,
    sum_by_state,
)
from pipeline.models.noisy_or.gibbs import estimate_row_likelihoods
from pipeline.models.vocabulary import format_count
from pipeline.random import RowRandom

MAX_CHOSEN_UNITS = 64
"""Largest layer that the search for the number of units tries."""
KEPT_NETWORKS = 3
"""Number of networks that are continued."""
_FEW_STARTS = 3
_COMPARED_ROWS = 1000  # that choose between sums over states and drawn units
_SCORED_ROWS = 300  # held-out rows that score a choice of layers
_MAX_FAILURES = 2  # doublings without a gain that end the search
_GAIN_STANDARD_ERRORS = 2  # a gain counts if it is above this many standard errors
_SPREAD_WEIGHTS = (0.05, 2.0)  # range of the weights of every other start
_FIRST_LEARNED_LEAK = 0.05
_MAX_START_CELLS = 1 << 20  # rows times states in each step of a start
_START_STEPS, _START_TOL = 100, 3e-5
_MAX_STEPS = 300
_MAX_FAILED_RESTARTS = 3
_SAME_FIT_NATS = 1.0  # of all rows; networks that differ by less explain them equally well


class SearchResult(NamedTuple):
    """Networks, the best first, and the diagnostics of their starts."""

    networks: tuple[NoisyOrParams, ...]
    diagnostics: dict[str, int | float]


def search_networks(
    model: Any, layers: Sequence[int], X: Bits, seed: int, n_starts: int, map_items: MapFunction
) -> SearchResult:
    """Search for the networks that explain rows best.

    `model` has the settings; `layers` are the units per layer from the data up. `X`, (n_samples,
    n_features), has rows in random order, with `MISSING` for missing values. `seed` is the seed of
    all draws, and `map_items` maps over the `n_starts` starts.
    """
    if not can_sum_states((X.shape[1], *layers)):
        drawn, diagnostics = learn_from_starts(model, layers, X, seed, n_starts, map_items)
        return SearchResult((drawn.params,), diagnostics)
    n_states = _count_states(layers, SEARCH_STATES)
    few = WeightedRows.from_sample(X[: max(_MAX_START_CELLS // n_states, 1)], SEARCH_STATES)
    fit = partial(_fit_start, model, tuple(layers), few, seed)
    units = " + ".join(format_count(n, "unit") for n in layers)
    map_starts = label_map(map_items, f"starts, {units}", n_starts)
    fits: list[ExactFit] = list(map_starts(fit, range(n_starts)))
    fits.sort(key=lambda fit: -fit.score)
    restart, n_kept = partial(_restart_units, model, few, seed), min(KEPT_NETWORKS, n_starts)
    fits[:n_kept] = label_map(map_items, f"restarts, {units}", n_kept)(restart, fits[:n_kept])
    reachable = [_find_reachable_score(fit, few) for fit in fits]
    diagnostics = describe_starts([fit.score for fit in fits], reachable)
    complete = partial(_complete_start, model, WeightedRows.from_sample(X, SEARCH_STATES))
    map_best = label_map(map_items, f"best starts, {units}", n_kept)
    completed: list[ExactFit] = list(map_best(complete, fits[:n_kept]))
    completed.sort(key=lambda fit: -fit.score)
    first, *others = [fit.params for fit in completed]
    max_states = choose_max_states(first.sizes)
    if _count_states(layers, max_states) > n_states:
        complete = partial(_complete_start, model, WeightedRows.from_sample(X, max_states))
        map_best = label_map(make_local_map(map_items), "best start", 1)
        ((first, _),) = map_best(complete, completed[:1])
    if not has_few_on(first, X):
        drawn, of_drawn = learn_from_starts(model, layers, X, seed, n_starts, map_items)
        estimate = partial(_estimate_mean_nats, X[:_COMPARED_ROWS], seed)
        if estimate(drawn.params) > estimate(first):
            return SearchResult((drawn.params,), of_drawn)
        return SearchResult((first,), {})
    return SearchResult((first, *others), diagnostics)


def _estimate_mean_nats(X: Bits, seed: int, params: NoisyOrParams) -> float:
    """Return an estimate of the mean log P(x) of rows."""
    rows = np.arange(len(X))
    return float(estimate_row_likelihoods(params.network, X, rows, RowRandom(seed)).mean())


def _count_states(layers: Sequence[int], max_states: int) -> int:
    """Return the largest number of states of a layer that are summed over."""
    return max(len(choose_states(n, max_states)) for n in layers)


def _make_start_criterion(rows: WeightedRows) -> ObjectiveCriterion:
    return ObjectiveCriterion(_START_STEPS, _START_TOL, rows.n_rows)


def _find_reachable_score(fit: ExactFit, rows: WeightedRows) -> float:
    """Return the score that further steps might reach, plus a difference that does not matter."""
    reachable = find_reachable_objective(_make_start_criterion(rows), fit.history)
    return reachable + _SAME_FIT_NATS / rows.n_rows


def _fit_start(
    model: Any, layers: tuple[int, ...], rows: WeightedRows, seed: int, start: int
) -> ExactFit:
    """Run short EM from random start number `start`."""
    rng = np.random.default_rng([seed, start])
    weights = FIRST_WEIGHTS if start % 2 == 0 else _SPREAD_WEIGHTS
    sizes = (rows.X.shape[1], *layers)
    leak = max(model.leak, _FIRST_LEARNED_LEAK) if model.learns_leaks(sizes) else model.leak
    params = draw_first_network(sizes, weights, leak, rng)
    params = exclude_units(params, model.make_exclusive_groups(layers))
    return run_exact_em(model, params, rows, _make_start_criterion(rows))


def _restart_units(model: Any, rows: WeightedRows, seed: int, fit: ExactFit) -> ExactFit:
    """Restart units as long as that raises the likelihood."""
    rng, n_failures = np.random.default_rng([seed, len(rows.times)]), 0
    while n_failures < _MAX_FAILED_RESTARTS and sum(fit.params.sizes[1:]) > 1:
        first = _restart_unit(fit.params, rows, rng, by_row=n_failures % 2 == 0)
        restarted = run_exact_em(model, first, rows, _make_start_criterion(rows))
        if restarted.score > _find_reachable_score(fit, rows):
            fit, n_failures = restarted, 0
        else:
            n_failures += 1
    return fit


def _complete_start(model: Any, rows: WeightedRows, fit: ExactFit) -> ExactFit:
    """Run EM on all rows of the sample."""
    criterion = ObjectiveCriterion(_MAX_STEPS, model.tol, rows.n_rows)
    return run_exact_em(model, fit.params, rows, criterion)


def _restart_unit(
    params: NoisyOrParams, rows: WeightedRows, rng: np.random.Generator, *, by_row: bool
) -> NoisyOrParams:
    """Restart the unit that is worth least with random weights.

    With `by_row`, a unit of the lowest layer becomes the cause of all ones of a row that is
    improbable without it.
    """
    unit = int(np.argmin(compute_unit_values(params, rows)))
    ends = np.cumsum(params.sizes[1:])
    if unit < ends[0] and by_row:
        others = remove_units(params, np.arange(ends[-1]) == unit)
        nats, _ = sum_by_state(others, *rows)
        shares = rows.times * (nats.max() - nats)
        total = shares.sum()
        row = rng.choice(len(shares), p=shares / total if total > 0 else None)
        return restart_unit_by_row(params, unit, rows.X[row], rng)
    layer = int(np.searchsorted(ends, unit, side="right"))
    place = unit - int(ends[layer] - params.sizes[layer + 1])
    weights, leaks = [*map(np.copy, params.weights)], [*map(np.copy, params.leaks)]
    weights[layer][:, place] = rng.uniform(*_SPREAD_WEIGHTS, len(weights[layer]))
    if layer + 1 == len(weights):
        leaks[-1][place] = RESTARTED_PRIOR
    else:
        weights[layer + 1][place] = rng.uniform(*FIRST_WEIGHTS, weights[layer + 1].shape[1])
    restarted = replace(params, weights=tuple(weights), leaks=tuple(leaks))
    return restarted.replace_probabilities(restarted.f, restarted.f_of_leaks)


def compute_unit_values(params: NoisyOrParams, rows: WeightedRows) -> Array:
    """Return by how much the log-likelihood of rows falls without each hidden unit, nats.

    The result, (n_hidden,), is infinite for the only unit of a layer.
    """
    nats = float(rows.times @ sum_by_state(params, *rows)[0])
    is_unit = np.eye(sum(params.sizes[1:]), dtype=np.bool_)
    alone = np.concatenate([np.full(n, n == 1) for n in params.sizes[1:]])
    values = [
        np.inf
        if is_alone
        else nats - float(rows.times @ sum_by_state(remove_units(params, unit), *rows)[0])
        for unit, is_alone in zip(is_unit, alone, strict=True)
    ]
    return np.array(values)


def prune_units(model: Any, params: NoisyOrParams, X: Bits) -> NoisyOrParams:
    """Remove the unit that is worth least, and run EM again, as long as that raises the BIC."""
    rows = WeightedRows.from_sample(X, choose_max_states(params.sizes))
    criterion = ObjectiveCriterion(_MAX_STEPS, model.tol, rows.n_rows)
    nats = float(rows.times @ sum_by_state(params, *rows)[0])
    while True:
        unit = int(np.argmin(compute_unit_values(params, rows)))
        left = remove_units(params, np.arange(sum(params.sizes[1:])) == unit)
        n_saved = _count_parameters(params) - _count_parameters(left)
        if n_saved == 0:
            return params
        left = run_exact_em(model, left, rows, criterion).params
        nats_left = float(rows.times @ sum_by_state(left, *rows)[0])
        if nats - nats_left > n_saved * np.log(rows.n_rows) / 2:
            return params
        params, nats = left, nats_left


def _count_parameters(params: NoisyOrParams) -> int:
    """Return the number of weights and leaks."""
    return sum(part.size for part in (*params.weights, *params.leaks))


def choose_layers(
    model: Any, X: Bits, held_out: Bits, seed: int, map_items: MapFunction
) -> tuple[tuple[int, ...], list[float]]:
    """Choose the layers by the likelihood of held-out rows.

    A single layer is doubled until two doublings in a row gain nothing; then a second layer of half
    the size is tried. Return the layers, and the score of each choice that was tried, nats per row.
    """
    n_starts, scores = min(model.starts, _FEW_STARTS), []

    def score(layers: tuple[int, ...]) -> Array:
        found = search_networks(model, layers, X, seed, n_starts, map_items).networks[0]
        rows = held_out[:_SCORED_ROWS]
        nats = estimate_row_likelihoods(found.network, rows, np.arange(len(rows)), RowRandom(seed))
        scores.append(float(nats.mean()))
        return nats

    layers: tuple[int, ...] = (1,)
    best, width, n_failures = score(layers), 2, 0
    # A unit may act as a leak by being always on, so that 2 units gain nothing although 4 do.
    while width <= min(MAX_CHOSEN_UNITS, X.shape[1]) and n_failures < _MAX_FAILURES:
        if _is_gain(nats := score((width,)), best):
            layers, best, n_failures = (width,), nats, 0
        else:
            n_failures += 1
        width *= 2
    if (above := layers[0] // 2) > 1 and _is_gain(score((*layers, above)), best):
        layers = (*layers, above)
    return layers, scores


def _is_gain(nats: Array, before: Array) -> bool:
    """Return whether the mean gain is above its sampling noise."""
    gain = nats - before
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return bool(gain.mean() > _GAIN_STANDARD_ERRORS * error)
