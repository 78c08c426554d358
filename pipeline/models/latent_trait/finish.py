"""What a latent-trait fit ends with: weights to be read, what is in doubt, standard errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import Notice
from pipeline.learning.held_out import held_out_scores
from pipeline.models.latent_trait.checks import doubts, stronger_prior
from pipeline.models.latent_trait.em import on_principal_axes, rotated_for_reading
from pipeline.models.latent_trait.fit_statistics import fit_statistics, item_statistics
from pipeline.models.latent_trait.information import MOST_PARAMETERS, form_of, n_parameters
from pipeline.models.latent_trait.nodes import grid_of
from pipeline.models.latent_trait.standard_errors import standard_errors
from pipeline.models.state import FitState
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, Nodes, heavy_nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_FARTHEST = 1e6  # difficulty
_LEAST_ROWS = 3  # a parameter, for products of scores to have an inverse that tells errors


def finished(model: Any, state: FitState, statistics: Sums, estimator: str) -> FitState:
    """Turn the weights of a `LatentTrait`, and say what is in doubt.

    Parameters
    ----------
    model
        Hyperparameters.
    state, statistics
        Of the last pass.
    estimator
        Its E-step.
    """
    params, working = on_principal_axes(state.params), state.working
    rotated, correlation = rotated_for_reading(params.weights, model.rotation)
    params = replace(params, rotated=rotated, component_correlation=correlation)
    if "points" in working and params.axes is not None:
        working = {**working, "points": working["points"] @ params.axes}
    sums = statistics.values
    diagnostics = {
        "n_components": params.weights.shape[1],
        "rows_without_values": int(sums["empty_rows"]),
        "held_out_scores": held_out_scores(state.auxiliary).tolist(),
        "estimator": estimator,
    }
    if estimator == "variational":
        diagnostics["objective_is"] = "lower bound"
    if "rounds" in sums:
        diagnostics["rounds_per_row"] = float(sums["rounds"]) / statistics.n_samples
    prior = stronger_prior(model.prior_precision)
    noted = [*state.warnings, *doubts(params.weights, state.auxiliary, diagnostics, prior)]
    if (grid := grid_of(working)) is not None:
        peak = float(sums["peak"]) / statistics.n_samples
        noted += grid.doubts(state.params.weights, state.auxiliary["diverging"], peak, prior)
        diagnostics["nodes_an_axis"] = grid.an_axis
    done = replace(state, params=params, working=working)
    return replace(done, diagnostics=diagnostics, warnings=tuple(noted))


def informed(model: Any, state: FitState, statistics: Sums) -> FitState:
    """Add standard errors to a fit of a `LatentTrait`; by quadrature how well items, pairs fit."""
    n_features, q = state.params.weights.shape
    varying = np.setdiff1d(np.arange(n_features), state.auxiliary["constant"])
    if grid_of(state.working) is not None:
        state = _with_fit(model, state, statistics, varying)
    if n_features * (q + 1) > MOST_PARAMETERS:
        return _without_errors(state, f"more than {MOST_PARAMETERS} parameters")
    rank = n_parameters(len(varying), q, model.equal_slopes == "yes")
    if q > MAX_COMPONENTS and statistics.values["rows_informing"] < _LEAST_ROWS * rank:
        return _without_errors(state, f"fewer than {_LEAST_ROWS} rows a parameter")
    diagnostics = {**state.diagnostics, "errors": form_of(model.errors, q)}
    state = replace(state, diagnostics=diagnostics)
    return _with_errors(model, state, statistics, varying)


def _without_errors(state: FitState, why: str) -> FitState:
    return replace(state, warnings=(*state.warnings, Notice(f"no standard errors: {why}")))


def _with_fit(model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]) -> FitState:
    params, q = state.params, state.params.weights.shape[1]
    nodes = heavy_nodes(Nodes(state.working["points"], state.working["log_weights"]))
    found = item_statistics(params, statistics.values, nodes, varying)
    rank = n_parameters(len(varying), q, model.equal_slopes == "yes")
    told = fit_statistics(params, statistics, nodes, rank, varying)
    diagnostics = {**state.diagnostics, "fit_statistics": told}
    return replace(state, params=replace(params, **found), diagnostics=diagnostics)


def _with_errors(
    model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]
) -> FitState:
    params, grid = state.params, grid_of(state.working)
    without = [*state.auxiliary["diverging"]]
    without += [] if grid is None else [*grid.too_steep(params.weights @ params.axes.T)]
    fixed = np.ones(len(params.offsets), bool)
    fixed[np.setdiff1d(varying, without)] = False
    settings = (state.diagnostics["errors"], model.prior_precision)
    is_equal = model.equal_slopes == "yes"
    errors = standard_errors(params.weights, _scaled(state, statistics), *settings, fixed, is_equal)
    found = {"weights_error": errors.weights, "offsets_error": errors.offsets}
    if params.weights.shape[1] == 1:
        slopes = params.weights[:, 0]
        found["difficulty"] = _difficulties(slopes, params.offsets)
        found["difficulty_error"] = errors.difficulties(slopes, params.offsets)
    params = replace(params, **found)
    noted = state.warnings
    if errors.unknown.size:  # of others a warning says already why they have none
        text = "the data do not tell their parameters, so there are no standard errors: {features}"
        noted = (*noted, Notice(text, tuple(errors.unknown.tolist())))
    return replace(state, params=params, warnings=noted)


def _scaled(state: FitState, statistics: Sums) -> dict[str, Array]:
    """Scale what is of some rows to all; by quadrature curvature is of all.

    An inverse of products of so many scores of normal errors is too large by a known factor, which
    matters where parameters are many.
    """
    sums, q = statistics.values, state.params.weights.shape[1]
    n_informing = max(int(sums["rows_informing"]), 1)
    scale = np.full(3, statistics.n_samples / n_informing)
    if grid_of(state.working) is not None:
        scale[2] = 1.0
    if q > MAX_COMPONENTS:
        scale *= n_informing / (n_informing - state.params.packed.size - 1)
    names = ("spread", "products", "curvature")
    return {name: by * sums[name] for name, by in zip(names, scale, strict=True) if name in sums}


def _difficulties(slopes: Array, offsets: Array) -> Array:
    """Give −b / w, where P is one half; beyond `_FARTHEST` that, for slopes next to 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(-offsets / slopes, -_FARTHEST, _FARTHEST))
