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
_MIN_VARIANCE = 1e-12  # of a trait; no row informs about a trait without weights


@dataclass(frozen=True)
class GroupDesign:
    """Which parameters are estimated, and which are equal.

    Attributes
    ----------
    index
        Number of the free parameter that each slope and offset is, (n_groups, n_features, q + 1);
        -1 if it is known. Equal numbers are equal parameters.
    known
        Values of known parameters, of the same shape; any value elsewhere.
    has_free_mean, has_free_covariance
        Whether the distribution of the traits is estimated, (n_groups,) each.
    are_axes_shared
        Whether slopes of several groups are equal, so that all groups have the same axes.
    are_means_absorbed
        Whether offsets differ by group, so that a group's mean can be absorbed in them.
    is_rotatable
        Whether no item is known, so that the axes of the traits are free.
    is_expanded
        Whether the traits of the first group are estimated too, and absorbed in its items. The
        objective must not depend on their scale and origin.
    """

    index: Indices
    known: Array
    has_free_mean: Flags
    has_free_covariance: Flags
    are_axes_shared: bool
    are_means_absorbed: bool
    is_rotatable: bool
    is_expanded: bool

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
    """
    n_features, width = known_items.shape
    key = np.arange(n_features * width).reshape(n_features, width)
    if equal_slopes:
        key[:, :-1] = 0
    is_own = np.zeros((n_features, width), np.bool_)
    is_own[:, :-1] = invariance == "configural"
    is_own[:, -1] = invariance in ("configural", "metric")
    is_own[free_items, -1] = True
    if not equal_slopes:
        is_own[free_items, :-1] = True
    group = np.arange(n_groups)[:, None, None]
    keys = np.where(is_own, key + key.size * group, key)
    is_known = np.broadcast_to(~np.isnan(known_items), keys.shape)
    index = np.full(keys.shape, -1)
    index[~is_known] = np.unique(keys[~is_known], return_inverse=True)[1]
    has_slope = (np.nan_to_num(known_items[:, :-1]) != 0).any(axis=1)
    has_known_scale = bool((has_slope & ~np.isnan(known_items[:, :-1]).any(axis=1)).any())
    has_known_place = bool((has_slope & ~np.isnan(known_items).any(axis=1)).any())
    is_pinned = ~np.isnan(known_items).any(axis=1) & ~has_slope
    has_known_items = bool((~np.isnan(known_items).all(axis=1) & ~is_pinned).any())
    is_later = np.arange(n_groups) > 0
    are_slopes_equal = invariance != "configural" and len(free_items) < n_features
    are_offsets_equal = are_slopes_equal and invariance != "metric"
    return GroupDesign(
        index,
        np.broadcast_to(np.nan_to_num(known_items), keys.shape),
        (has_known_place | (is_later & are_offsets_equal)) & (traits != "standard"),
        (has_known_scale | (is_later & are_slopes_equal)) & (traits == "free"),
        are_slopes_equal,
        invariance in ("configural", "metric"),
        not has_known_items,
        not has_known_items and prior_precision == 0,
    )


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
    n_groups, n_features, width = items.shape
    change = list_changes(mean, root)
    matrices = unpack_triangles(curvature.reshape(-1, curvature.shape[-1]), width)
    matrices = matrices.reshape(n_groups, n_features, width, width)
    own_gradient = np.einsum("gab,gia->gib", change, gradient)
    own_curvature = np.einsum("gab,giac,gcd->gibd", change, matrices, change)
    free, is_free = design.collect(items), design.index >= 0
    is_slope = np.zeros(design.n_free, np.bool_)
    is_slope[design.index[:, :, :-1][is_free[:, :, :-1]]] = True
    prior = prior_precision * is_slope
    slope = np.bincount(design.index[is_free], own_gradient[is_free], design.n_free) - prior * free
    rows, columns = np.broadcast_arrays(design.index[..., :, None], design.index[..., None, :])
    are_free = (rows >= 0) & (columns >= 0)
    entries = (own_curvature[are_free], (rows[are_free], columns[are_free]))
    hessian = scipy.sparse.coo_array(entries, shape=(design.n_free,) * 2).tocsc()
    diagonal = prior + np.finfo(float).tiny
    ridge = np.zeros(design.n_free)
    trace = np.einsum("giaa->gi", own_curvature)
    np.add.at(ridge, design.index[is_free], np.broadcast_to(trace[..., None], items.shape)[is_free])
    hessian = hessian + scipy.sparse.diags_array(diagonal + _RIDGE * ridge)
    step = scipy.sparse.linalg.spsolve(hessian.tocsc(), slope)
    by_item = np.where(is_free, np.append(step, 0.0)[design.index], 0.0)
    length = np.linalg.norm(np.einsum("gab,gib->gia", change, by_item), axis=2)
    scale = np.ones(design.n_free)
    limit = np.minimum(1.0, _MAX_STEP_LENGTH / np.maximum(length, _MAX_STEP_LENGTH))
    limits = np.broadcast_to(limit[..., None], items.shape)
    np.minimum.at(scale, design.index[is_free], limits[is_free])
    return design.fill(free + scale * step)


def factorize(covariance: Array) -> Array:
    """Return the Cholesky factors L of covariances, (n_groups, q, q)."""
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


def list_changes(mean: Array, root: Array) -> Array:
    """Return the matrices D_g with (L_gᵀ w, b + w·μ_g) = D_g (w, b), (n_groups, q + 1, q + 1)."""
    n_groups, q = mean.shape
    change = np.zeros((n_groups, q + 1, q + 1))
    change[:, :q, :q] = root.transpose(0, 2, 1)
    change[:, q, :q], change[:, q, q] = mean, 1.0
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
    scatter += _MIN_VARIANCE * np.eye(mean.shape[1])
    has_free = design.has_free_covariance
    if not design.is_expanded:
        return new_mean, np.where(has_free[:, None, None], scatter, covariance)
    if design.are_axes_shared and not has_free.any():
        scatter = np.broadcast_to(np.tensordot(share, scatter, 1), scatter.shape)
    return new_mean, scatter


def absorb_traits(
    design: GroupDesign, items: Array, mean: Array, covariance: Array
) -> tuple[Array, Array, Array]:
    """Make the traits of the first group standard, those of all groups if their axes differ.

    Takes and returns slopes and offsets, (n_groups, n_features, q + 1), μ_g and Σ_g. The
    probabilities of all rows stay the same.
    """
    items, mean = items.copy(), mean.copy()
    if design.are_means_absorbed:
        items[:, :, -1] += np.einsum("gik,gk->gi", items[:, :, :-1], mean)
        mean[:] = 0.0
    first = slice(0, 1) if design.are_axes_shared else slice(None)
    root, origin = factorize(covariance[first]), mean[first].copy()
    items[:, :, -1] += (items[:, :, :-1] @ origin[:, :, None])[:, :, 0]
    items[:, :, :-1] = items[:, :, :-1] @ root
    inverse = np.linalg.inv(root)
    mean = (inverse @ (mean - origin)[:, :, None])[:, :, 0]
    covariance = inverse @ covariance @ inverse.transpose(0, 2, 1)
    return items, mean, 0.5 * (covariance + covariance.transpose(0, 2, 1))
