"""The end of a latent-trait fit: rotated weights, warnings, fit statistics, standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.learning.held_out import get_held_out_scores
from pipeline.models.latent_trait.em import rotate_weights, turn_to_principal_axes
from pipeline.models.latent_trait.fit_statistics import (
    compute_fit_statistics,
    compute_item_statistics,
)
from pipeline.models.latent_trait.em import grid_from_working
from pipeline.models.latent_trait.standard_errors import (
    MAX_PARAMETERS,
    choose_error_form,
    count_parameters,
    standard_errors,
)
from pipeline.models.state import FitState
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, Nodes, drop_light_nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_DIFFICULTY = 1e6
_MIN_ROWS_PER_PARAMETER = 3  # with fewer, the inverse of the products of scores is meaningless
_ZERO_WEIGHT = 0.02  # components and features whose largest weight is below this count as empty


def finish_fit(model: Any, state: FitState, statistics: Sums, estimator: str) -> FitState:
    """Rotate the weights, and add the diagnostics and warnings of a `LatentTrait`.

    Parameters
    ----------
    model
        Hyperparameters.
    state, statistics
        State and statistics of the last pass.
    estimator
        E-step of the last pass.
    """
    params, working = turn_to_principal_axes(state.params), state.working
    rotated, correlation = rotate_weights(params.weights, model.rotation)
    params = replace(params, rotated=rotated, component_correlation=correlation)
    if "points" in working:
        working = {**working, "points": working["points"] @ params.axes}
    sums = statistics.values
    diagnostics = {
        "n_components": params.weights.shape[1],
        "rows_without_values": int(sums["empty_rows"]),
        "held_out_scores": get_held_out_scores(state.auxiliary).tolist(),
        "estimator": estimator,
    }
    if estimator == "variational":
        diagnostics["objective_is"] = "lower bound"
    if "rounds" in sums:
        diagnostics["rounds_per_row"] = float(sums["rounds"]) / statistics.n_samples
    prior = f"{{prior_precision={max(1.0, 10 * model.prior_precision):g}}}"
    warnings = [*state.warnings, *_warn_about_fit(params.weights, state, diagnostics, prior)]
    if (grid := grid_from_working(working)) is not None:
        peak = float(sums["peak"]) / statistics.n_samples
        warnings += grid.warn_about_nodes(
            state.params.weights, state.auxiliary["diverging"], peak, prior
        )
        diagnostics["nodes_an_axis"] = grid.nodes_per_axis
    state = replace(state, params=params, working=working)
    return replace(state, diagnostics=diagnostics, warnings=tuple(warnings))


def _warn_about_fit(
    weights: Array, state: FitState, diagnostics: Mapping[str, Any], prior: str
) -> list[FitWarning]:
    """Return warnings about the fit; `prior` is a setting that keeps the weights smaller."""
    constant, diverging = state.auxiliary["constant"], state.auxiliary["diverging"]
    warnings = _warn_about_zero_weights(weights, constant, diagnostics["estimator"])
    if diverging.size:
        text = (
            "the data separate these features, so that their weights diverge and must not be "
            f"interpreted: {{features}}; {prior} keeps them finite"
        )
        warnings.append(FitWarning(text, tuple(diverging.tolist())))
    if empty := diagnostics["rows_without_values"]:
        warnings.append(FitWarning(f"rows without any value: {empty}; their codes are 0"))
    return warnings


def _warn_about_zero_weights(
    weights: Array, constant: NDArray[np.int64], estimator: str
) -> list[FitWarning]:
    """Warn about components and features without weight."""
    size, q = np.abs(weights), weights.shape[1]
    empty, warnings = int((size.max(axis=0) < _ZERO_WEIGHT).sum()), []
    if empty:
        remedy = "sparse data have this effect on the variational fit; try {estimator=auto}"
        advice = remedy if estimator == "variational" else "fewer would describe the rows as well"
        warnings.append(FitWarning(f"components without weight: {empty} of {q}; {advice}"))
    idle = np.setdiff1d(np.flatnonzero(size.max(axis=1) < _ZERO_WEIGHT), constant)
    if empty < q and idle.size:
        warnings.append(FitWarning("features without weight: {features}", tuple(idle.tolist())))
    return warnings


def add_fit_information(model: Any, state: FitState, statistics: Sums) -> FitState:
    """Add standard errors and, with quadrature, fit statistics to a fit of a `LatentTrait`."""
    n_features, q = state.params.weights.shape
    varying = np.setdiff1d(np.arange(n_features), state.auxiliary["constant"])
    if grid_from_working(state.working) is not None:
        state = _add_fit_statistics(model, state, statistics, varying)
    if n_features * (q + 1) > MAX_PARAMETERS:
        return _warn_no_errors(state, f"more than {MAX_PARAMETERS} parameters")
    rank = count_parameters(len(varying), q, model.equal_slopes == "yes")
    if q > MAX_COMPONENTS and statistics.values["rows_informing"] < _MIN_ROWS_PER_PARAMETER * rank:
        return _warn_no_errors(state, f"fewer than {_MIN_ROWS_PER_PARAMETER} rows per parameter")
    diagnostics = {**state.diagnostics, "errors": choose_error_form(model.errors, q)}
    state = replace(state, diagnostics=diagnostics)
    return _add_errors(model, state, statistics, varying)


def _warn_no_errors(state: FitState, reason: str) -> FitState:
    return replace(state, warnings=(*state.warnings, FitWarning(f"no standard errors: {reason}")))


def _add_fit_statistics(
    model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]
) -> FitState:
    params, q = state.params, state.params.weights.shape[1]
    nodes = drop_light_nodes(Nodes(state.working["points"], state.working["log_weights"]))
    item_statistics = compute_item_statistics(params, statistics.values, nodes, varying)
    rank = count_parameters(len(varying), q, model.equal_slopes == "yes")
    fit_statistics = compute_fit_statistics(params, statistics, nodes, rank, varying)
    diagnostics = {**state.diagnostics, "fit_statistics": fit_statistics}
    return replace(state, params=replace(params, **item_statistics), diagnostics=diagnostics)


def _add_errors(
    model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]
) -> FitState:
    params, grid = state.params, grid_from_working(state.working)
    unreliable = [*state.auxiliary["diverging"]]
    if grid is not None:
        unreliable += [*grid.find_steep_features(params.weights @ params.axes.T)]
    fixed = np.ones(len(params.offsets), bool)
    fixed[np.setdiff1d(varying, unreliable)] = False
    errors = standard_errors(
        params.weights,
        _scale_sums(state, statistics),
        state.diagnostics["errors"],
        model.prior_precision,
        fixed,
        model.equal_slopes == "yes",
    )
    arrays = {"weights_error": errors.weights, "offsets_error": errors.offsets}
    if params.weights.shape[1] == 1:
        slopes = params.weights[:, 0]
        arrays["difficulty"] = _difficulties(slopes, params.offsets)
        arrays["difficulty_error"] = errors.difficulties(slopes, params.offsets)
    warnings = state.warnings
    if errors.unknown.size:  # other warnings explain why the fixed features have none
        text = (
            "the data do not determine these features' parameters; no standard errors: {features}"
        )
        warnings = (*warnings, FitWarning(text, tuple(errors.unknown.tolist())))
    return replace(state, params=replace(params, **arrays), warnings=warnings)


def _scale_sums(state: FitState, statistics: Sums) -> dict[str, Array]:
    """Scale sums over some rows to all rows; with quadrature, the curvature is already over all.

    The inverse of a sample covariance of normal scores is too large by a known factor. The
    correction matters if there are many parameters.
    """
    sums, q = statistics.values, state.params.weights.shape[1]
    n_informing = max(int(sums["rows_informing"]), 1)
    scale = np.full(3, statistics.n_samples / n_informing)
    if grid_from_working(state.working) is not None:
        scale[2] = 1.0
    if q > MAX_COMPONENTS:
        scale *= n_informing / (n_informing - state.params.free_parameters.size - 1)
    names = ("spread", "products", "curvature")
    return {name: c * sums[name] for name, c in zip(names, scale, strict=True) if name in sums}


def _difficulties(slopes: Array, offsets: Array) -> Array:
    """Return −b / w, where P is one half, clipped at `_MAX_DIFFICULTY` for slopes near 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(-offsets / slopes, -_MAX_DIFFICULTY, _MAX_DIFFICULTY))
