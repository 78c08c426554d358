"""Which parameters of items and traits are equal in several groups, known, or estimated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.newton_step import unpack_triangles

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MAX_STEP_LENGTH = 1.0  # largest root mean square change of w·x + b in a group
_RIDGE = 1e-9  # of the trace; gives a solution to items with hardly any curvature
MIN_VARIANCE = 1e-12  # of a trait; no row informs about a trait without weights
_MIN_ROOT = 1e-3  # of the diagonal of a Cholesky factor after an extrapolation
_MAX_SCORING_STEPS, _SCORING_TOLERANCE = 20, 1e-12


@dataclass(frozen=True)
class GroupDesign:
    """Which parameters are estimated, and which are equal.

    Attributes
    ----------
    index
        Number of the free parameter that each slope and offset is, (n_groups, n_features, q + 1);
        -1 if it is known. Equal numbers are equal parameters. Further columns are asymptotes.
    known
        Values of known parameters, of the same shape; any value elsewhere.
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
    n_asymptotes
        Number of columns of asymptotes, 0 or 2.
    """

    index: Indices
    known: Array
    has_free_mean: Flags
    has_free_covariance: Flags
    has_free_correlation: Flags
    is_orthogonal: bool
    are_axes_shared: bool
    are_means_absorbed: bool
    is_rotatable: bool
    is_expanded: bool
    n_asymptotes: int = 0

    @property
    def n_components(self) -> int:
        """Number of traits."""
        return int(self.index.shape[2]) - 1 - self.n_asymptotes

    @property
    def n_free(self) -> int:
        """Number of free slopes and offsets."""
        return int(self.index.max(initial=-1)) + 1

    def collect(self, items: Array) -> Array:
        """Return the free parameters, (n_free,), given slopes and offsets of all groups."""
        free, is_free = np.zeros(self.n_free), self.index >= 0
        free[self.index[is_free]] = items[is_free]
        return free

    def fill(self, free: Array) -> Array:
        """Return slopes and offsets of all groups, given the free parameters."""
        padded = np.append(free, 0.0)  # -1 is the last place
        return np.where(self.index >= 0, padded[self.index], self.known)


def make_group_design(
    n_groups: int,
    known_items: Array,
    free_items: Indices,
    invariance: str,
    traits: str,
    equal_slopes: bool,
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
    invariance, traits, equal_slopes, prior_precision
        As in the settings of the model.
    slopes
        Numbers of the slopes of a loading pattern, see `LoadingPattern.slopes`; None if all items
        load on all traits.
    is_correlated
        Whether the traits of a loading pattern may be correlated.
    """
    n_features, width = known_items.shape
    key = np.arange(n_features * width).reshape(n_features, width)
    if equal_slopes:
        key[:, :-1] = 0
    items = known_items.copy()
    if slopes is not None:
        key[:, :-1] = _list_first_places(slopes, key[:, :-1])
        items[:, :-1][slopes < 0] = 0.0
    is_own = np.zeros((n_features, width), np.bool_)
    is_own[:, :-1] = invariance == "configural"
    is_own[:, -1] = invariance in ("configural", "metric")
    is_own[free_items, -1] = True
    if not equal_slopes:
        is_own[free_items, :-1] = True
    group = np.arange(n_groups)[:, None, None]
    keys = np.where(is_own, key + key.size * group, key)
    is_known = np.broadcast_to(~np.isnan(items), keys.shape)
    index = np.full(keys.shape, -1)
    index[~is_known] = np.unique(keys[~is_known], return_inverse=True)[1]
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
    return GroupDesign(
        index,
        np.broadcast_to(np.nan_to_num(items), keys.shape),
        (has_known_place | (is_later & are_offsets_equal)) & (traits != "standard"),
        has_free_covariance,
        ~has_free_covariance & has_correlations,
        slopes is not None and not is_correlated,
        are_slopes_equal,
        invariance in ("configural", "metric"),
        not has_known_items and slopes is None,
        not has_known_items and prior_precision == 0 and has_scales,
    )


def _span_traits(slopes: Array) -> bool:
    """Return whether the slopes of some items, (n_items, q), depend on all q traits."""
    n_items, q = slopes.shape
    return bool(n_items >= q and np.linalg.matrix_rank(slopes) == q)


def _list_first_places(slopes: Indices, places: Indices) -> Indices:
    """Return for each slope the place of the first that is equal to it."""
    _, first, inverse = np.unique(slopes, return_index=True, return_inverse=True)
    return np.where(slopes < 0, places, places.reshape(-1)[first][inverse.reshape(slopes.shape)])


def has_equal_slopes_across_traits(slopes: Indices) -> bool:
    """Return whether a slope on a trait is equal to a slope on another one."""
    traits = np.broadcast_to(np.arange(slopes.shape[1]), slopes.shape)
    pairs = np.unique(np.stack([slopes[slopes >= 0], traits[slopes >= 0]]), axis=1)
    return bool(len(np.unique(pairs[0])) < pairs.shape[1])


def take_group_step(
    design: GroupDesign,
    items: Array,
    mean: Array,
    root: Array,
    gradient: Array,
    curvature: Array,
    prior_precision: float,
) -> Array:
    """Take a Newton step for all free slopes and offsets, shortened where it is long.

    Parameters
    ----------
    items
        Slopes and offsets of all groups, (n_groups, n_features, q + 1).
    mean, root
        μ_g, (n_groups, q), and L_g, (n_groups, q, q).
    gradient, curvature
        Of the slopes and offsets of u in each group, (n_groups, n_features, q + 1) and, as upper
        triangles, (n_groups, n_features, (q + 1)(q + 2) / 2).
    prior_precision
        Precision of the normal prior of every free slope.

    Returns
    -------
    ndarray
        The new slopes and offsets of all groups.
    """
    if not design.n_free:
        return items
    n_groups, n_features, width = items.shape
    change = list_changes(mean, root)
    matrices = unpack_triangles(curvature.reshape(-1, curvature.shape[-1]), width)
    matrices = matrices.reshape(n_groups, n_features, width, width)
    own_curvature = np.einsum("gab,giac,gcd->gibd", change, matrices, change)
    free, is_free = design.collect(items), design.index >= 0
    is_slope = np.zeros(design.n_free, np.bool_)
    is_slope[design.index[:, :, :-1][is_free[:, :, :-1]]] = True
    prior = np.where(is_slope, prior_precision, 0.0)
    own_gradient = np.einsum("gab,gia->gib", change, gradient)
    step = solve_for_step(design, own_gradient, own_curvature, -prior * free, prior)
    return design.fill(free + shorten_step(design, change, step))


def shorten_step(design: GroupDesign, change: Array, step: Array) -> Array:
    """Shorten the step of the free parameters, (n_free,), where an item changes much.

    `change` is the result of `list_changes`.
    """
    is_free = design.index >= 0
    by_item = np.where(is_free, np.append(step, 0.0)[design.index], 0.0)
    length = np.linalg.norm(np.einsum("gab,gib->gia", change, by_item), axis=2)
    scale = np.ones(design.n_free)
    limit = np.minimum(1.0, _MAX_STEP_LENGTH / np.maximum(length, _MAX_STEP_LENGTH))
    limits = np.broadcast_to(limit[..., None], by_item.shape)
    np.minimum.at(scale, design.index[is_free], limits[is_free])
    return np.asarray(scale * step)


def solve_for_step(
    design: GroupDesign,
    gradient: Array,
    curvature: Array,
    prior_gradient: Array,
    prior_curvature: Array,
) -> Array:
    """Return the Newton step of all free parameters, (n_free,).

    Parameters
    ----------
    gradient, curvature
        Of the items of each group, (n_groups, n_features, width) and (..., width, width).
    prior_gradient, prior_curvature
        Of the log prior, (n_free,) each.
    """
    is_free = design.index >= 0
    places = design.index[is_free]
    slope = np.bincount(places, gradient[is_free], design.n_free) + prior_gradient
    rows, columns = np.broadcast_arrays(design.index[..., :, None], design.index[..., None, :])
    are_free = (rows >= 0) & (columns >= 0)
    entries = (curvature[are_free], (rows[are_free], columns[are_free]))
    hessian = scipy.sparse.coo_array(entries, shape=(design.n_free,) * 2).tocsc()
    diagonal = prior_curvature + np.finfo(float).tiny
    ridge = np.zeros(design.n_free)
    trace = np.einsum("giaa->gi", curvature)
    np.add.at(ridge, places, np.broadcast_to(trace[..., None], gradient.shape)[is_free])
    hessian = hessian + scipy.sparse.diags_array(diagonal + _RIDGE * ridge)
    return np.asarray(scipy.sparse.linalg.spsolve(hessian.tocsc(), slope))


def factorize(covariance: Array) -> Array:
    """Return the Cholesky factors L of covariances, (n_groups, q, q)."""
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


def list_changes(mean: Array, root: Array, n_asymptotes: int = 0) -> Array:
    """Return the matrices D_g with (L_gᵀ w, b + w·μ_g) = D_g (w, b), (n_groups, width, width).

    Asymptotes, which follow the offset, do not change.
    """
    n_groups, q = mean.shape
    change = np.tile(np.eye(q + 1 + n_asymptotes), (n_groups, 1, 1))
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
    return np.asarray(root @ root.transpose(0, 2, 1))


def convert_to_correlation(covariance: Array) -> Array:
    """Return the correlations that belong to covariances, (n_groups, q, q)."""
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    correlation: Array = covariance / (scale[:, :, None] * scale[:, None])
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
