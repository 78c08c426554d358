"""One pass of EM for the latent-trait model: its parameters, E-steps, M-step and posteriors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.rotation import principal_axes, promax, varimax
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    node_statistics,
)
from pipeline.numerics.logistic.logistic_bound import (
    VariationalPosterior,
    variational_e_step,
    variational_m_step,
    variational_row_posterior,
)
from pipeline.numerics.logistic.logistic_regression import logistic_m_step
from pipeline.numerics.logistic.logistic_sites import ep_e_step, ep_m_step
from pipeline.params import array_field, optional_array_field
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_SLOPE = 20.0


@dataclass(frozen=True)
class LatentTraitParams:
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    rotated, component_correlation
        Weights for reading, rotated as `rotation` says, and the correlations of their components.
    axes
        What turned the weights of the last pass to their principal axes, an orthogonal matrix: a
        warm start turns them back to where the nodes were. None in artifacts that hold the nodes.
    weights_error, offsets_error
        Standard errors; not a number where the data do not tell, None where none were computed.
    difficulty, difficulty_error
        Where on the only component P is one half, −b / w, and its standard error.
    infit, outfit
        Mean squared residuals at the codes, weighted by information and not.
    s_x2, s_x2_df, s_x2_p
        Misfit by sum score, its degrees of freedom and p-value.
    """

    former: ClassVar[tuple[str, ...]] = ("nodes", "node_log_weights", "held_out")
    weights: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    rotated: Array = array_field("feature", "component")
    component_correlation: Array = array_field("component", "component_j")
    axes: Array | None = optional_array_field("component", "component_j")
    weights_error: Array | None = optional_array_field("feature", "component")
    offsets_error: Array | None = optional_array_field("feature")
    difficulty: Array | None = optional_array_field("feature")
    difficulty_error: Array | None = optional_array_field("feature")
    infit: Array | None = optional_array_field("feature")
    outfit: Array | None = optional_array_field("feature")
    s_x2: Array | None = optional_array_field("feature")
    s_x2_df: Array | None = optional_array_field("feature")
    s_x2_p: Array | None = optional_array_field("feature")

    @property
    def free_parameters(self) -> Array:
        """Weights and offsets side by side, (n_features, n_components + 1)."""
        return np.column_stack([self.weights, self.offsets])

    @property
    def items(self) -> TraitItems:
        """What the likelihood of a row is made of."""
        return TraitItems(self.weights, self.offsets)

    def with_free_parameters(self, packed: Array) -> LatentTraitParams:
        """Undo `packed`; all else stays."""
        return replace(self, weights=packed[:, :-1].copy(), offsets=packed[:, -1].copy())


def make_params(weights: Array, offsets: Array) -> LatentTraitParams:
    """Make parameters whose axes are as they are."""
    n_components = weights.shape[1]
    return LatentTraitParams(weights, offsets, weights, np.eye(n_components), np.eye(n_components))


def e_step(
    params: LatentTraitParams, nodes: Nodes | None, by_sites: bool, block: BinaryBlock
) -> Sums:
    """Sum what the M-step needs: on nodes if there are any, by sites, or variationally."""
    if nodes is not None:
        return _e_step_on_nodes(params, nodes, block)
    if by_sites:
        return _e_step_by_sites(params, block)
    found = variational_e_step(
        block.words, block.observed_words, block.n_samples, params.weights, params.offsets
    )
    values = {
        "curvature": found.curvature,
        "target": found.target,
        "rounds": np.array(found.rounds),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, found.bound, values)


def _e_step_on_nodes(params: LatentTraitParams, nodes: Nodes, block: BinaryBlock) -> Sums:
    observed = block.unpack_mask()
    found = node_statistics(block.unpack_values(), observed, params.weights, params.offsets, nodes)
    values = {
        "ones": found.ones,
        "mass": found.mass,
        "peak": np.array(found.peak),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, found.log_likelihood, values)


def _e_step_by_sites(params: LatentTraitParams, block: BinaryBlock) -> Sums:
    found = ep_e_step(block.unpack_values(), block.unpack_mask(), params.weights, params.offsets)
    values = {
        "gradient": found.gradient,
        "curvature": found.curvature,
        "rounds": np.array(found.rounds),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, found.log_likelihood, values)


def m_step(
    params: LatentTraitParams,
    nodes: Nodes | None,
    sums: Sums,
    prior_precision: float,
    equal_slopes: bool,
) -> tuple[Array, NDArray[np.bool_]]:
    """Maximise over weights and offsets.

    Returns
    -------
    packed, diverging
        As `LatentTraitParams.packed`, and whether a feature's weights grow without bound,
        (n_features,).
    """
    values = sums.values
    if "gradient" in values:
        gradient, curvature = values["gradient"], values["curvature"]
        packed = ep_m_step(gradient, curvature, params.free_parameters, prior_precision)
        return packed, np.linalg.norm(packed[:, :-1], axis=1) > _MAX_SLOPE
    if nodes is None:
        weights, offsets = variational_m_step(
            values["curvature"], values["target"], prior_precision
        )
        diverging = np.linalg.norm(weights, axis=1) > _MAX_SLOPE
        return np.column_stack([weights, offsets]), diverging
    fit = logistic_m_step(
        nodes.points,
        values["ones"],
        values["mass"],
        params.weights,
        params.offsets,
        prior_precision=prior_precision,
        equal_slopes=equal_slopes,
    )
    return np.column_stack([fit.weights, fit.offsets]), fit.diverged


def variational_posterior(params: LatentTraitParams, block: BinaryBlock) -> VariationalPosterior:
    """Bound the posterior of x."""
    words, observed = block.words, block.observed_words
    return variational_row_posterior(
        words, observed, block.n_samples, params.weights, params.offsets
    )


def turn_to_principal_axes(params: LatentTraitParams) -> LatentTraitParams:
    """Turn weights to their principal axes, and note how."""
    weights = principal_axes(params.weights)
    left, _, right = np.linalg.svd(params.weights.T @ weights)
    return replace(params, weights=weights, axes=left @ right)


def rotate_weights(weights: Array, rotation: str) -> tuple[Array, Array]:
    """Give weights for reading, and the correlations of their components."""
    if rotation == "promax":
        return promax(weights)
    rotated = varimax(weights) if rotation == "varimax" else weights
    return rotated, np.eye(weights.shape[1])
