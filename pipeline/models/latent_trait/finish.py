"""What a latent-trait fit ends with: weights to be read, what is in doubt, standard errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.learning.held_out import get_held_out_scores
from pipeline.models.latent_trait.checks import suggest_stronger_prior, warn_about_fit
from pipeline.models.latent_trait.em import rotate_weights, turn_to_principal_axes
from pipeline.models.latent_trait.fit_statistics import (
    compute_fit_statistics,
    compute_item_statistics,
)
from pipeline.models.latent_trait.information import (
    MAX_PARAMETERS,
    choose_error_form,
    count_parameters,
)
from pipeline.models.latent_trait.nodes import grid_from_working
from pipeline.models.latent_trait.standard_errors import standard_errors
from pipeline.models.state import FitState
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, Nodes, drop_light_nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_DIFFICULTY = 1e6  # difficulty
_MIN_ROWS_PER_PARAMETER = (
    3  # a parameter, for products of scores to have an inverse that tells errors
)


def finish_fit(model: Any, state: FitState, statistics: Sums, estimator: str) -> FitState:
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
    params, working = turn_to_principal_axes(state.params), state.working
    rotated, correlation = rotate_weights(params.weights, model.rotation)
    params = replace(params, rotated=rotated, component_correlation=correlation)
    if "points" in working and params.axes is not None:
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
    prior = suggest_stronger_prior(model.prior_precision)
    noted = [*state.warnings, *warn_about_fit(params.weights, state.auxiliary, diagnostics, prior)]
    if (grid := grid_from_working(working)) is not None:
        peak = float(sums["peak"]) / statistics.n_samples
        noted += grid.warn_about_nodes(
            state.params.weights, state.auxiliary["diverging"], peak, prior
        )
        diagnostics["nodes_an_axis"] = grid.nodes_per_axis
    done = replace(state, params=params, working=working)
    return replace(done, diagnostics=diagnostics, warnings=tuple(noted))


def add_fit_information(model: Any, state: FitState, statistics: Sums) -> FitState:
    """Add standard errors to a fit of a `LatentTrait`; by quadrature how well items, pairs fit."""
    n_features, q = state.params.weights.shape
    varying = np.setdiff1d(np.arange(n_features), state.auxiliary["constant"])
    if grid_from_working(state.working) is not None:
        state = _add_fit_statistics(model, state, statistics, varying)
    if n_features * (q + 1) > MAX_PARAMETERS:
        return _warn_no_errors(state, f"more than {MAX_PARAMETERS} parameters")
    rank = count_parameters(len(varying), q, model.equal_slopes == "yes")
    if q > MAX_COMPONENTS and statistics.values["rows_informing"] < _MIN_ROWS_PER_PARAMETER * rank:
        return _warn_no_errors(state, f"fewer than {_MIN_ROWS_PER_PARAMETER} rows a parameter")
    diagnostics = {**state.diagnostics, "errors": choose_error_form(model.errors, q)}
    state = replace(state, diagnostics=diagnostics)
    return _add_errors(model, state, statistics, varying)


def _warn_no_errors(state: FitState, why: str) -> FitState:
    return replace(state, warnings=(*state.warnings, FitWarning(f"no standard errors: {why}")))


def _add_fit_statistics(
    model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]
) -> FitState:
    params, q = state.params, state.params.weights.shape[1]
    nodes = drop_light_nodes(Nodes(state.working["points"], state.working["log_weights"]))
    found = compute_item_statistics(params, statistics.values, nodes, varying)
    rank = count_parameters(len(varying), q, model.equal_slopes == "yes")
    told = compute_fit_statistics(params, statistics, nodes, rank, varying)
    diagnostics = {**state.diagnostics, "fit_statistics": told}
    return replace(state, params=replace(params, **found), diagnostics=diagnostics)


def _add_errors(
    model: Any, state: FitState, statistics: Sums, varying: NDArray[np.intp]
) -> FitState:
    params, grid = state.params, grid_from_working(state.working)
    without = [*state.auxiliary["diverging"]]
    without += [] if grid is None else [*grid.find_steep_features(params.weights @ params.axes.T)]
    fixed = np.ones(len(params.offsets), bool)
    fixed[np.setdiff1d(varying, without)] = False
    settings = (state.diagnostics["errors"], model.prior_precision)
    is_equal = model.equal_slopes == "yes"
    errors = standard_errors(
        params.weights, _scale_sums(state, statistics), *settings, fixed, is_equal
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
        noted = (*noted, FitWarning(text, tuple(errors.unknown.tolist())))
    return replace(state, params=params, warnings=noted)


def _scale_sums(state: FitState, statistics: Sums) -> dict[str, Array]:
    """Scale what is of some rows to all; by quadrature curvature is of all.

    An inverse of products of so many scores of normal errors is too large by a known factor, which
    matters where parameters are many.
    """
    sums, q = statistics.values, state.params.weights.shape[1]
    n_informing = max(int(sums["rows_informing"]), 1)
    scale = np.full(3, statistics.n_samples / n_informing)
    if grid_from_working(state.working) is not None:
        scale[2] = 1.0
    if q > MAX_COMPONENTS:
        scale *= n_informing / (n_informing - state.params.free_parameters.size - 1)
    names = ("spread", "products", "curvature")
    return {name: by * sums[name] for name, by in zip(names, scale, strict=True) if name in sums}


def _difficulties(slopes: Array, offsets: Array) -> Array:
    """Give −b / w, where P is one half; beyond `_MAX_DIFFICULTY` that, for slopes next to 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(-offsets / slopes, -_MAX_DIFFICULTY, _MAX_DIFFICULTY))
