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
from pipeline.models.latent_trait.errors import standard_errors
from pipeline.models.latent_trait.fit_statistics import fit_statistics, item_statistics
from pipeline.models.latent_trait.information import MOST_PARAMETERS, n_parameters
from pipeline.models.latent_trait.nodes import grid_of
from pipeline.models.state import FitState
from pipeline.numerics.latent_nodes import Nodes, heavy_nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_FARTHEST = 1e6  # difficulty


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
    """Add to a fit of a `LatentTrait` standard errors, and how well items and pairs fit."""
    params, auxiliary = state.params, state.auxiliary
    n_features, q = params.weights.shape
    varying = np.setdiff1d(np.arange(n_features), auxiliary["constant"])
    nodes = heavy_nodes(Nodes(state.working["points"], state.working["log_weights"]))
    is_equal = model.equal_slopes == "yes"
    found = item_statistics(params, statistics.values, nodes, varying)
    rank = n_parameters(len(varying), q, is_equal)
    told = fit_statistics(params, statistics, nodes, rank, varying)
    diagnostics = {**state.diagnostics, "errors": model.errors, "fit_statistics": told}
    state = replace(state, params=replace(params, **found), diagnostics=diagnostics)
    if "spread" not in statistics.values:
        text = f"no standard errors: more than {MOST_PARAMETERS} parameters"
        return replace(state, warnings=(*state.warnings, Notice(text)))
    return _with_errors(model, state, statistics, varying)


def _with_errors(
    model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]
) -> FitState:
    params, grid = state.params, grid_of(state.working)
    assert grid is not None  # what is informed was fitted on nodes
    steep = grid.too_steep(params.weights @ params.axes.T)
    fixed = np.ones(len(params.offsets), bool)
    fixed[np.setdiff1d(varying, [*state.auxiliary["diverging"], *steep])] = False
    scale = statistics.n_samples / max(int(statistics.values["rows_informing"]), 1)
    sums = {name: scale * statistics.values[name] for name in ("spread", "products")}
    sums["curvature"] = statistics.values["curvature"]
    is_equal = model.equal_slopes == "yes"
    errors = standard_errors(
        params.weights, sums, model.errors, model.prior_precision, fixed, is_equal
    )
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


def _difficulties(slopes: Array, offsets: Array) -> Array:
    """Give −b / w, where P is one half; beyond `_FARTHEST` that, for slopes next to 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(-offsets / slopes, -_FARTHEST, _FARTHEST))
