"""One pass of EM for the latent-trait model: parameters, E-steps, M-step and rotations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import Nodes, node_statistics
from pipeline.numerics.logistic.logistic_bound import (
    VariationalPosterior,
    variational_e_step,
    variational_m_step,
    variational_row_posterior,
)
from pipeline.numerics.logistic.logistic_regression import logistic_m_step
from pipeline.numerics.logistic.logistic_sites import ep_e_step, ep_m_step
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import array_field, optional_array_field
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_SLOPE = 20.0  # weights longer than this count as diverging
_MAX_VARIMAX_ROUNDS, _VARIMAX_TOLERANCE = 1000, 1e-13
PROMAX_POWER = 4


@dataclass(frozen=True)
class LatentTraitParams:
    """Parameters; the table in the docstring of `model` gives the shapes of weights and offsets.

    Attributes
    ----------
    rotated, component_correlation
        Weights after the rotation of the setting `rotation`, and the correlations of the rotated
        components.
    axes
        Orthogonal matrix that turned the weights of the last pass to their principal axes. A warm
        start turns them back to the axes of the quadrature nodes.
    weights_error, offsets_error
        Standard errors; NaN if the data do not determine them, None if they were not computed.
    difficulty, difficulty_error
        Position −b / w on the only component where P is one half, and its standard error.
    infit, outfit
        Mean squared residuals at the codes, weighted by information and unweighted.
    s_x2, s_x2_df, s_x2_p
        Misfit by sum score (S-X²), its degrees of freedom and p-value.
    """

    weights: Array = array_field("feature", "component")
    offsets: Array = array_field("feature")
    rotated: Array = array_field("feature", "component")
    component_correlation: Array = array_field("component", "component_j")
    axes: Array = array_field("component", "component_j")
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
        """Weights and offsets, as the kernels take them."""
        return TraitItems(self.weights, self.offsets)

    def with_free_parameters(self, values: Array) -> LatentTraitParams:
        """Return a copy with other weights and offsets, side by side."""
        return replace(self, weights=values[:, :-1].copy(), offsets=values[:, -1].copy())


def make_params(weights: Array, offsets: Array) -> LatentTraitParams:
    """Make unrotated parameters."""
    n_components = weights.shape[1]
    return LatentTraitParams(weights, offsets, weights, np.eye(n_components), np.eye(n_components))


def e_step(
    params: LatentTraitParams, nodes: Nodes | None, by_sites: bool, block: BinaryBlock
) -> Sums:
    """Compute the sums of the M-step: on nodes, by expectation propagation, or variationally."""
    if nodes is not None:
        return _e_step_on_nodes(params, nodes, block)
    if by_sites:
        return _e_step_by_sites(params, block)
    moments = variational_e_step(
        block.words, block.observed_words, block.n_samples, params.weights, params.offsets
    )
    values = {
        "curvature": moments.curvature,
        "target": moments.target,
        "rounds": np.array(moments.rounds),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, moments.bound, values)


def _e_step_on_nodes(params: LatentTraitParams, nodes: Nodes, block: BinaryBlock) -> Sums:
    X, observed = block.unpack_values(), block.unpack_mask()
    counts = node_statistics(X, observed, params.weights, params.offsets, nodes)
    values = {
        "ones": counts.ones,
        "mass": counts.mass,
        "peak": np.array(counts.peak),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, counts.log_likelihood, values)


def _e_step_by_sites(params: LatentTraitParams, block: BinaryBlock) -> Sums:
    moments = ep_e_step(block.unpack_values(), block.unpack_mask(), params.weights, params.offsets)
    values = {
        "gradient": moments.gradient,
        "curvature": moments.curvature,
        "rounds": np.array(moments.rounds),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums(block.n_samples, moments.log_likelihood, values)


def m_step(
    params: LatentTraitParams,
    nodes: Nodes | None,
    sums: Sums,
    prior_precision: float,
    equal_slopes: bool,
) -> tuple[Array, NDArray[np.bool_]]:
    """Maximize over weights and offsets.

    Returns
    -------
    free_parameters, diverging
        Weights and offsets side by side, (n_features, n_components + 1), and whether the weights of
        each feature grow without bound, (n_features,).
    """
    values = sums.values
    if "gradient" in values:
        gradient, curvature = values["gradient"], values["curvature"]
        free = ep_m_step(gradient, curvature, params.free_parameters, prior_precision)
        return free, np.linalg.norm(free[:, :-1], axis=1) > _MAX_SLOPE
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
    """Compute the variational posterior of each row."""
    words, observed = block.words, block.observed_words
    return variational_row_posterior(
        words, observed, block.n_samples, params.weights, params.offsets
    )


def turn_to_principal_axes(params: LatentTraitParams) -> LatentTraitParams:
    """Rotate the weights to their principal axes, and record the rotation in `axes`."""
    weights = principal_axes(params.weights)
    left, _, right = np.linalg.svd(params.weights.T @ weights)
    return replace(params, weights=weights, axes=left @ right)


def rotate_weights(weights: Array, rotation: str) -> tuple[Array, Array]:
    """Rotate weights by `principal`, `varimax` or `promax`; also return component correlations."""
    if rotation == "promax":
        return promax(weights)
    rotated = varimax(weights) if rotation == "varimax" else weights
    return rotated, np.eye(weights.shape[1])


def principal_axes(loadings: Array) -> Array:
    """Rotate loadings so that columns are orthogonal, longest first, with signs by `fix_signs`.

    Parameters
    ----------
    loadings
        (n_features, n_components).
    """
    left, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    return fix_signs(left * lengths)


def varimax(loadings: Array) -> Array:
    """Rotate loadings to maximize the variance of their squares within columns.

    H. F. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika
    23, 1958, with rows scaled to length 1. Columns are ordered by their sum of squares.

    Parameters
    ----------
    loadings
        (n_features, n_components).
    """
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    scaled = loadings / np.where(lengths > 0, lengths, 1.0)
    rotation, criterion = np.eye(loadings.shape[1]), 0.0
    for _ in range(_MAX_VARIMAX_ROUNDS):
        rotated = scaled @ rotation
        target = rotated**3 - rotated * (rotated**2).mean(axis=0)
        left, values, right = np.linalg.svd(scaled.T @ target)
        rotation = left @ right
        if values.sum() <= criterion * (1 + _VARIMAX_TOLERANCE):
            break
        criterion = values.sum()
    rotated = loadings @ rotation
    return fix_signs(rotated[:, np.argsort(-(rotated**2).sum(axis=0), kind="stable")])


def promax(loadings: Array) -> tuple[Array, Array]:
    """Simplify varimax loadings by letting the components correlate.

    A. E. Hendrickson, P. O. White, "Promax: a quick method for rotation to oblique simple
    structure", British Journal of Statistical Psychology 17, 1964, with power 4.

    Parameters
    ----------
    loadings
        (n_features, n_components).

    Returns
    -------
    pattern, correlation
        Loadings, (n_features, n_components), and correlations of the components, (n_components,
        n_components).
    """
    start = varimax(loadings)
    target = start * np.abs(start) ** (PROMAX_POWER - 1)
    transform = np.linalg.lstsq(start, target, rcond=None)[0]
    # Scale the columns of the transform so that all components have variance 1.
    transform = transform * np.sqrt(np.diag(np.linalg.inv(transform.T @ transform)))
    inverse = np.linalg.inv(transform)
    return start @ transform, inverse @ inverse.T
