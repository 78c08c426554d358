"""Which parameters of items and traits are equal in several groups, known, or estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.latent_trait.params import LatentTraitParams, Traits, make_params
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.numerics.spectra.rotations import principal_axes

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

MIN_VARIANCE = 1e-12  # of a trait; no row informs about a trait without weights
_MIN_ROOT = 1e-3  # of the diagonal of a Cholesky factor after an extrapolation
_MAX_SCORING_STEPS, _SCORING_TOLERANCE = 20, 1e-12


def turn_to_principal_axes(params: LatentTraitParams) -> LatentTraitParams:
    """Rotate the weights to their principal axes, and record the rotation in `axes`."""
    weights = principal_axes(params.weights)
    left, _, right = np.linalg.svd(params.weights.T @ weights)
    return replace(params.with_items(weights=weights), axes=left @ right)


@dataclass(frozen=True)
class GroupDesign:
    """What is estimated of the distribution of the traits in each group.

    Attributes
    ----------
    n_components
        Number of traits.
    has_free_mean, has_free_covariance
        Whether the distribution of the traits is estimated, (n_groups,) each.
    has_free_correlation
        Whether only the correlations of the traits are estimated and their variances are 1,
        (n_groups,).
    is_orthogonal
        Whether the traits are uncorrelated in every group.
    are_axes_shared
        Whether slopes of several groups are equal, so that all groups have the same axes.
    are_means_absorbed
        Whether offsets differ by group, so that a group's mean can be absorbed in them.
    is_rotatable
        Whether the axes of the traits are free: no item is known, and all load on all traits.
    is_expanded
        Whether the traits of the first group are estimated too, and absorbed in its items. The
        objective must not depend on their scale and origin.
    origin
        Which parameters can absorb a shift of all traits; None if none can.
    """

    n_components: int
    has_free_mean: Flags
    has_free_covariance: Flags
    has_free_correlation: Flags
    is_orthogonal: bool
    are_axes_shared: bool
    are_means_absorbed: bool
    is_rotatable: bool
    is_expanded: bool
    origin: Literal["offsets", "means"] | None


def make_group_design(
    n_groups: int,
    known_items: Array,
    free_items: Indices,
    invariance: str,
    traits: str,
    prior_precision: float,
    slopes: Indices | None = None,
    is_correlated: bool = True,
) -> GroupDesign:
    """Translate the settings of a fit.

    Parameters
    ----------
    n_groups
        Number of groups.
    known_items
        Known slopes and offsets, (n_features, q + 1), NaN where the fit estimates them.
    free_items
        Items with parameters of their own in each group.
    invariance, traits, prior_precision
        As in the settings of the model.
    slopes
        Numbers of the slopes of a loading pattern, see `LoadingPattern.slopes`; None if all items
        load on all traits.
    is_correlated
        Whether the traits of a loading pattern may be correlated.
    """
    n_features, width = known_items.shape
    has_slope = (np.nan_to_num(known_items[:, :-1]) != 0).any(axis=1)
    known_slopes = known_items[:, :-1]
    has_known_scale = _span_traits(known_slopes[~np.isnan(known_slopes).any(axis=1)])
    has_known_place = _span_traits(known_slopes[~np.isnan(known_items).any(axis=1)])
    is_pinned = ~np.isnan(known_items).any(axis=1) & ~has_slope
    has_known_items = bool((~np.isnan(known_items).all(axis=1) & ~is_pinned).any())
    is_later = np.arange(n_groups) > 0
    are_slopes_equal = invariance != "configural" and len(free_items) < n_features
    are_offsets_equal = are_slopes_equal and invariance != "metric"
    has_free_covariance = (has_known_scale | (is_later & are_slopes_equal)) & (traits == "free")
    has_correlations = slopes is not None and is_correlated and width > 2
    has_scales = slopes is None or not has_equal_slopes_across_traits(slopes)
    has_free_mean = (has_known_place | (is_later & are_offsets_equal)) & (traits != "standard")
    loads = np.isnan(known_slopes) if slopes is None else np.isnan(known_slopes) & (slopes >= 0)
    origin: Literal["offsets", "means"] | None = "means" if has_free_mean.all() else None
    if (np.isnan(known_items[:, -1]) | ~(loads.any(axis=1) | has_slope)).all():
        origin = "offsets"
    return GroupDesign(
        width - 1,
        has_free_mean,
        has_free_covariance,
        ~has_free_covariance & has_correlations,
        slopes is not None and not is_correlated,
        are_slopes_equal,
        invariance in ("configural", "metric"),
        not has_known_items and slopes is None,
        not has_known_items and prior_precision == 0 and has_scales,
        origin,
    )


def _span_traits(slopes: Array) -> bool:
    """Return whether the slopes of some items, (n_items, q), depend on all q traits."""
    n_items, q = slopes.shape
    return bool(n_items >= q and np.linalg.matrix_rank(slopes) == q)


def has_equal_slopes_across_traits(slopes: Indices) -> bool:
    """Return whether a slope on a trait is equal to a slope on another one."""
    traits = np.broadcast_to(np.arange(slopes.shape[1]), slopes.shape)
    pairs = np.unique(np.stack([slopes[slopes >= 0], traits[slopes >= 0]]), axis=1)
    return bool(len(np.unique(pairs[0])) < pairs.shape[1])


def factorize(covariance: Array) -> Array:
    """Return the Cholesky factors L of covariances, (n_groups, q, q)."""
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


def list_changes(mean: Array, root: Array) -> Array:
    """Return the matrices D_g with (L_gᵀ w, b + w·μ_g) = D_g (w, b), (n_groups, q + 1, q + 1)."""
    n_groups, q = mean.shape
    change = np.tile(np.eye(q + 1), (n_groups, 1, 1))
    change[:, :q, :q] = root.transpose(0, 2, 1)
    change[:, q, :q] = mean
    return change


def estimate_traits(
    design: GroupDesign, mean: Array, covariance: Array, moments: Array
) -> tuple[Array, Array]:
    """M-step for the distribution of the traits.

    Parameters
    ----------
    mean, covariance
        Before the step: μ_g, (n_groups, q), and Σ_g, (n_groups, q, q).
    moments
        Σ_n ⟨û ûᵀ⟩ of each group with û = (u, 1), (n_groups, q + 1, q + 1).

    Returns
    -------
    tuple
        μ_g and Σ_g. If the model is expanded, they are estimated in all groups; see
        `absorb_traits`.
    """
    root, rows = factorize(covariance), moments[:, -1, -1]
    shift = np.einsum("gab,gb->ga", root, moments[:, :-1, -1] / rows[:, None])
    square = root @ (moments[:, :-1, :-1] / rows[:, None, None]) @ root.transpose(0, 2, 1)
    share = rows / rows.sum()
    is_free, new_mean = design.has_free_mean, mean + shift
    if not design.is_expanded:
        new_mean = np.where(is_free[:, None], new_mean, mean)
    elif design.are_axes_shared and not design.are_means_absorbed and not is_free.any():
        new_mean = np.broadcast_to(share @ new_mean, mean.shape)
    # Second moments about the new means.
    distance = new_mean - mean
    cross = distance[:, :, None] * shift[:, None]
    scatter = square - cross - cross.transpose(0, 2, 1) + distance[:, :, None] * distance[:, None]
    scatter += MIN_VARIANCE * np.eye(mean.shape[1])
    if design.is_orthogonal:
        scatter = scatter * np.eye(mean.shape[1])
    has_free = design.has_free_covariance
    if not design.is_expanded:
        new_covariance = np.where(has_free[:, None, None], scatter, covariance)
        for group in np.flatnonzero(design.has_free_correlation):
            new_covariance[group] = _estimate_correlation(covariance[group], scatter[group])
        return new_mean, new_covariance
    if design.are_axes_shared and not has_free.any():
        scatter = np.broadcast_to(np.tensordot(share, scatter, 1), scatter.shape)
    return new_mean, scatter


def absorb_traits(
    design: GroupDesign, items: Array, mean: Array, covariance: Array
) -> tuple[Array, Array, Array]:
    """Make the traits of the first group standard, those of all groups if their axes differ.

    With a loading pattern, their correlations stay.

    Takes and returns the parameters of items, (n_groups, n_features, width), μ_g and Σ_g. The
    probabilities of all rows stay the same.
    """
    items, mean, q = items.copy(), mean.copy(), mean.shape[1]
    if design.are_means_absorbed:
        items[:, :, q] += np.einsum("gik,gk->gi", items[:, :, :q], mean)
        mean[:] = 0.0
    first = slice(0, 1) if design.are_axes_shared else slice(None)
    origin = mean[first].copy()
    if design.is_rotatable:
        root = factorize(covariance[first])
    else:  # only scales can be absorbed
        root = np.sqrt(covariance[first] * np.eye(q))
    items[:, :, q] += (items[:, :, :q] @ origin[:, :, None])[:, :, 0]
    items[:, :, :q] = items[:, :, :q] @ root
    inverse = np.linalg.inv(root)
    mean = (inverse @ (mean - origin)[:, :, None])[:, :, 0]
    covariance = inverse @ covariance @ inverse.transpose(0, 2, 1)
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    if design.is_rotatable or design.is_orthogonal:
        covariance[first] = np.eye(q)  # without rounding errors
    else:
        covariance[first] = convert_to_correlation(covariance[first])
    return items, mean, covariance


def update_traits(
    design: GroupDesign,
    items: Array,
    mean: Array,
    covariance: Array,
    moments: Array,
    is_resolved: bool,
) -> tuple[Array, Array, Array]:
    """M-step for the traits: estimate them, and if the model is expanded, absorb them in the items.

    Parameters
    ----------
    items
        New slopes and offsets of all groups, (n_groups, n_features, width).
    mean, covariance, moments
        See `estimate_traits`.
    is_resolved
        Whether the nodes resolve the items, so that the scale of the traits can be estimated.

    Returns
    -------
    tuple
        The items, μ_g and Σ_g.
    """
    if is_resolved or not design.is_expanded:
        mean, covariance = estimate_traits(design, mean, covariance, moments)
    if design.is_expanded and is_resolved:
        return absorb_traits(design, items, mean, covariance)
    return items, mean, covariance


def compose_covariances(root: Array, n_standard: int) -> Array:
    """Return covariances, (n_groups, q, q), given Cholesky factors L_g after an extrapolation.

    The traits of the first `n_standard` groups have variances of 1.
    """
    root, q = root.copy(), root.shape[1]
    root[:, range(q), range(q)] = np.maximum(root[:, range(q), range(q)], _MIN_ROOT)
    root[:n_standard] /= np.linalg.norm(root[:n_standard], axis=2, keepdims=True)
    covariance = np.asarray(root @ root.transpose(0, 2, 1))
    covariance[:n_standard, range(q), range(q)] = 1.0  # without rounding errors
    return covariance


def convert_to_correlation(covariance: Array) -> Array:
    """Return the correlations that belong to covariances, (n_groups, q, q)."""
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    correlation: Array = covariance / (scale[:, :, None] * scale[:, None])
    correlation[:, range(scale.shape[1]), range(scale.shape[1])] = 1.0  # without rounding errors
    return correlation


def _estimate_correlation(correlation: Array, scatter: Array) -> Array:
    """Maximize −log|R| − tr(R⁻¹ S) over correlation matrices R by Fisher scoring, from R, (q, q).

    Unlike for a covariance matrix, S with its variances set to 1 is not the maximum.
    """
    rows, columns = np.tril_indices(len(correlation), -1)
    for _ in range(_MAX_SCORING_STEPS):
        inverse = np.linalg.inv(correlation)
        slope = (inverse @ (scatter - correlation) @ inverse)[rows, columns]
        across = inverse[np.ix_(rows, rows)] * inverse[np.ix_(columns, columns)]
        across += inverse[np.ix_(rows, columns)] * inverse[np.ix_(columns, rows)]
        step, moved = np.linalg.solve(across, slope), correlation.copy()
        if np.abs(step).max() < _SCORING_TOLERANCE:
            break
        while True:
            moved[rows, columns] = moved[columns, rows] = correlation[rows, columns] + step
            if np.linalg.eigvalsh(moved)[0] > MIN_VARIANCE:
                break
            step = step / 2
        correlation = moved
    return correlation


def find_free_items(free: str, features: Sequence[str]) -> NDArray[np.intp]:
    """Return the items that the setting `free` names."""
    names = [name.strip() for name in free.split(",") if name.strip()]
    if unknown := [name for name in names if name not in features]:
        raise FitError(
            f"{{free}} names {unknown[0]!r}, but the dataset has no such feature. "
            "Separate names of features by commas.",
            parameter="free",
        )
    return np.array([features.index(name) for name in names], np.intp)


def describe_traits(params: LatentTraitParams) -> dict[str, list[float]]:
    """Return mean and covariance of the traits of all rows, and their standard errors."""
    found = {"": params.traits, "_error": params.traits_error}
    values = {
        f"trait_{name}{suffix}": getattr(traits, name)[0].ravel()
        for suffix, traits in found.items()
        if traits is not None
        for name in ("mean", "covariance")
    }
    return {name: array.tolist() for name, array in values.items() if np.isfinite(array).all()}


def get_traits(params: LatentTraitParams) -> tuple[Array, Array]:
    """Return μ_g, (n_groups, q), and Σ_g, (n_groups, q, q)."""
    if params.traits is None:
        q = params.weights.shape[1]
        return np.zeros((1, q)), np.eye(q)[None]
    return params.traits.mean, params.traits.covariance


def choose_group_axes(
    params: LatentTraitParams, design: GroupDesign, pattern: LoadingPattern | None
) -> LatentTraitParams:
    """Turn the traits to the principal axes of the first group, unless slopes fix them.

    With a loading pattern, only the signs of the traits are free. Groups with axes of their own
    have the signs with which their slopes agree best with those of the first group.
    """
    groups = params.group_items
    slopes = params.weights[None] if groups is None else groups.weights
    if pattern is not None and not has_equal_slopes_across_traits(pattern.slopes):
        # The slopes of a trait in the first group have a positive sum.
        signs = np.where(params.weights.sum(axis=0) < 0, -1.0, 1.0) * np.ones((len(slopes), 1))
        if not design.are_axes_shared:
            signs = signs * _compare_with_first(slopes)
        return _turn_traits(params, slopes, np.eye(signs.shape[1]) * signs[:, None])
    if not design.is_rotatable:
        return params
    directions = _find_directions(params, slopes)
    none = np.zeros(directions.shape[1])
    axes = np.stack(
        [
            turn_to_principal_axes(make_params(own, none)).axes
            for own in (directions[:1] if design.are_axes_shared else directions)
        ]
    )
    signs = _compare_with_first(directions @ axes)[: len(axes)]
    return _turn_traits(params, slopes, axes * signs[:, None])


def _find_directions(params: LatentTraitParams, slopes: Array) -> Array:
    """Return the slopes that decide the axes, (n_groups, n, q): those of items with an order.

    If no item has one, cubes of the centred slopes of categories decide, whatever their order.
    """
    if params.is_nominal is None:
        return slopes
    if not params.is_nominal.all():
        return np.where(params.is_nominal[:, None], 0.0, slopes)
    items = params.items if params.group_items is None else params.group_items
    assert items.level_weights is not None
    by_plane, n_planes = items.level_weights.reshape(len(slopes), -1, 1), params.n_planes
    totals = np.add.reduceat(by_plane, np.cumsum(n_planes) - n_planes, axis=1)
    mean = totals / (n_planes + 1)[:, None]
    return np.concatenate([by_plane - np.repeat(mean, n_planes, axis=1), -mean], axis=1) ** 3


def _turn_traits(params: LatentTraitParams, slopes: Array, axes: Array) -> LatentTraitParams:
    """Return the parameters on other axes, (n_groups, q, q) or (1, q, q)."""
    slopes = slopes @ axes
    turned = replace(params.with_items(weights=slopes[0].copy()), axes=axes[0])
    if params.group_items is not None:
        turned = replace(turned, group_items=replace(params.group_items, weights=slopes))
    if params.traits is None:
        return turned
    mean, covariance = get_traits(params)
    mean = (mean[:, None] @ axes)[:, 0]
    return replace(turned, traits=Traits(mean, axes.transpose(0, 2, 1) @ covariance @ axes))


def _compare_with_first(slopes: Array) -> Array:
    """Return −1 for traits whose slopes in a group oppose those in the first, (n_groups, q)."""
    return np.where((slopes * slopes[:1]).sum(axis=1) < 0, -1.0, 1.0)
