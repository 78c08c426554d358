"""Standard errors of the latent-trait model in groups.

The information about the slopes and offsets of u in each group, I_g, is that of the model without
groups. With J_g the derivatives of these by the parameters φ of the fit, and s_g the score of group
g in them, the observed information is

    Σ_g J_gᵀ I_g J_g − Σ_g Σ_k s_gk ∂²(L_gᵀ w, b + w·μ_g)_k / ∂φ ∂φᵀ.

The second derivatives are 1 for w_im and L_ma, and for w_im and μ_m. Only the sum over all groups
of the scores in φ is 0 at the maximum, not that of each group.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.group_design import GroupDesign, factorize, list_changes
from pipeline.numerics.information import invert_constrained_information, invert_information

Array = NDArray[np.float64]


class GroupErrors(NamedTuple):
    """Standard errors; 0 for parameters that were not estimated, NaN if the data do not tell.

    Attributes
    ----------
    items
        Of slopes, offsets and logits of asymptotes, (n_groups, n_features, width).
    mean, covariance
        Of μ_g, (n_groups, q), and Σ_g, (n_groups, q, q).
    first_items
        Covariances of the slopes and the offset of each item in the first group, (n_features,
        width, width).
    coefficients
        Of the coefficients of covariates, (n_covariates, q); None without covariates.
    """

    items: Array
    mean: Array
    covariance: Array
    first_items: Array
    coefficients: Array | None = None


class TraitPlaces(NamedTuple):
    """Places of the free entries of μ_g and L_g among the parameters of a fit, -1 if not free.

    Attributes
    ----------
    mean, root
        (n_groups, q) and (n_groups, q, q).
    n_parameters
        Number of all parameters, with the slopes and offsets, which come first.
    """

    mean: NDArray[np.int64]
    root: NDArray[np.int64]
    n_parameters: int


def place_traits(design: GroupDesign, n_item_parameters: int | None = None) -> TraitPlaces:
    """Number the free entries of the distributions of the traits.

    They follow the parameters of items: those of the design, or another number.
    """
    n_groups, q = len(design.index), design.n_components
    n = design.n_free if n_item_parameters is None else n_item_parameters
    mean = np.full((n_groups, q), -1)
    root = np.full((n_groups, q, q), -1)
    rows, columns = np.tril_indices(q)
    for group in range(n_groups):
        if design.has_free_mean[group]:
            mean[group] = np.arange(n, n + q)
            n += q
        if design.has_free_covariance[group] and design.is_orthogonal:
            root[group, range(q), range(q)] = np.arange(n, n + q)
            n += q
        elif design.has_free_covariance[group] or design.has_free_correlation[group]:
            root[group, rows, columns] = np.arange(n, n + len(rows))
            n += len(rows)
    return TraitPlaces(mean, root, n)


def count_group_parameters(design: GroupDesign) -> int:
    """Count the identifiable parameters, that is, without rotations of the traits."""
    n_groups = len(design.index)
    n_axes = (1 if design.are_axes_shared else n_groups) if design.is_rotatable else 0
    n_variances = design.n_components * int(np.count_nonzero(design.has_free_correlation))
    n_constraints: int = n_axes * math.comb(design.n_components, 2) + n_variances
    n_identified: int = place_traits(design).n_parameters - n_constraints
    return n_identified


def differentiate_items(
    design: GroupDesign, places: TraitPlaces, items: Array, mean: Array, root: Array, group: int
) -> Array:
    """Return J_g, (n_features width, n_parameters)."""
    _, n_features, width = items.shape
    q = mean.shape[1]
    derivatives = np.zeros((n_features, width, places.n_parameters + 1))  # -1 is the last place
    change = list_changes(mean, root, design.n_asymptotes)[group]
    index, weights = design.index[group], items[group, :, :q]
    items_in_order = np.arange(n_features)
    for a in range(width):
        for m in range(width):
            derivatives[items_in_order, a, index[:, m]] += change[a, m]
    for m in range(q):
        derivatives[:, q, places.mean[group, m]] += weights[:, m]
        for a in range(m + 1):
            derivatives[:, a, places.root[group, m, a]] += weights[:, m]
    return derivatives[:, :, :-1].reshape(n_features * width, places.n_parameters)


def sum_second_derivatives(design: GroupDesign, places: TraitPlaces, score: Array) -> Array:
    """Return Σ_g Σ_k s_gk ∂²(…)_k / ∂φ ∂φᵀ, given s_g, (n_groups, n_features, width)."""
    size = places.n_parameters + 1  # -1 is the last place
    total = np.zeros((size, size))
    n_groups, q = places.mean.shape
    for group in range(n_groups):
        for m in range(q):
            slopes = design.index[group, :, m]
            np.add.at(total, (slopes, places.mean[group, m]), score[group, :, q])
            for a in range(m + 1):
                np.add.at(total, (slopes, places.root[group, m, a]), score[group, :, a])
    return (total + total.T)[:-1, :-1]


def compute_group_errors(
    design: GroupDesign,
    items: Array,
    mean: Array,
    covariance: Array,
    information: Array,
    score: Array,
    products: Array | None,
    prior_curvature: Array,
) -> GroupErrors:
    """Invert the observed information.

    Parameters
    ----------
    design
        Which parameters are estimated.
    items, mean, covariance
        Slopes, offsets and asymptotes, (n_groups, n_features, width), μ_g and Σ_g.
    information, score
        I_g, (n_groups, p, p) with p = n_features width, and s_g, (n_groups, n_features, width).
    products
        Σ_n s sᵀ in the parameters of the fit, (n_parameters, n_parameters), for the sandwich; None
        for the inverse of the information.
    prior_curvature
        Minus the second derivatives of the log prior of the free parameters of items, (n_free,).
    """
    root, places = factorize(covariance), place_traits(design)
    total, slope = -sum_second_derivatives(design, places, score), np.zeros(places.n_parameters)
    for group, own in enumerate(information):
        derivatives = differentiate_items(design, places, items, mean, root, group)
        total += derivatives.T @ own @ derivatives
        slope += score[group].reshape(-1) @ derivatives
    item_places = np.arange(design.n_free)
    total[item_places, item_places] += prior_curvature
    constraints = np.zeros((0, len(total)))
    if design.is_rotatable:
        constraints = list_axis_constraints(design, items, len(total))
    elif design.has_free_correlation.any():
        constraints = list_variance_constraints(design, places, root)
        total[np.diag_indices_from(total)] += sum_multipliers(constraints, slope)
    inverse, is_unknown = invert_group_information(total, constraints)
    if products is not None:
        inverse = inverse @ products @ inverse
    return collect_errors(design, places, root, inverse, is_unknown)


def invert_group_information(
    information: Array, constraints: Array
) -> tuple[Array, NDArray[np.bool_]]:
    """Return the covariance of all parameters, and which of them the data do not determine.

    `constraints` are the gradients of what stays 0, (n_constraints, n_parameters).
    """
    inverse: Array | None = information
    if len(information):
        inverse = invert_constrained_information(information, constraints)
    if inverse is not None:
        return inverse, np.zeros(len(information), np.bool_)
    directions = (
        scipy.linalg.null_space(constraints) if len(constraints) else np.eye(len(information))
    )
    result = invert_information(information, directions)
    return result.covariance, result.find_unidentified((len(information), 1))


def collect_errors(
    design: GroupDesign,
    places: TraitPlaces,
    root: Array,
    covariance: Array,
    is_unknown: NDArray[np.bool_],
) -> GroupErrors:
    """Return the standard errors, given the covariance of all parameters."""
    variance = np.append(np.where(is_unknown, np.nan, np.diag(covariance)), 0.0)
    padded = np.pad(np.where(is_unknown, np.nan, covariance), (0, 1))
    first = design.index[0]
    return GroupErrors(
        np.sqrt(variance[design.index]),
        np.sqrt(variance[places.mean]),
        compute_covariance_errors(design, places, root, covariance, is_unknown),
        padded[first[:, :, None], first[:, None]],
    )


def compute_covariance_errors(
    design: GroupDesign,
    places: TraitPlaces,
    root: Array,
    covariance: Array,
    is_unknown: NDArray[np.bool_],
) -> Array:
    """Return the standard errors of Σ_g, (n_groups, q, q), given the covariance of parameters."""
    n_groups, q, _ = root.shape
    errors = np.zeros((n_groups, q, q))
    for group in range(n_groups):
        place = places.root[group]
        if (place < 0).all():
            continue
        # dΣ = dL Lᵀ + L dLᵀ
        used = [(m, a) for m in range(q) for a in range(m + 1)]
        which = np.array([place[m, a] for m, a in used])
        for b in range(q):
            for c in range(b + 1):
                gradient = np.array(
                    [(m == b) * root[group, c, a] + (m == c) * root[group, b, a] for m, a in used]
                )
                value = gradient @ np.pad(covariance, (0, 1))[np.ix_(which, which)] @ gradient
                value = np.nan if np.append(is_unknown, False)[which].any() else value
                errors[group, b, c] = errors[group, c, b] = np.sqrt(max(value, 0.0))
        if design.has_free_correlation[group]:
            np.fill_diagonal(errors[group], 0.0)
    return errors


def list_axis_constraints(design: GroupDesign, items: Array, n_parameters: int) -> Array:
    """Return the gradients of Σ_i w_ia w_ib for a < b, in the groups that define axes."""
    n_groups = 1 if design.are_axes_shared else len(items)
    q = design.n_components
    constraints = []
    for group in range(n_groups):
        for a, b in combinations(range(q), 2):
            gradient, index = np.zeros(n_parameters + 1), design.index[group]
            np.add.at(gradient, index[:, a], items[group, :, b])
            np.add.at(gradient, index[:, b], items[group, :, a])
            constraints.append(gradient[:-1])
    return np.array(constraints).reshape(-1, n_parameters)


def sum_multipliers(constraints: Array, slope: Array) -> Array:
    """Return what the constraints of `list_variance_constraints` add to the diagonal, (p,).

    Each row of L has a length of 1. Where the prior of slopes resists, this has a multiplier.
    `slope` is the gradient of the log-likelihood, (p,).
    """
    return np.asarray(((constraints @ slope)[:, None] * (constraints != 0)).sum(axis=0))


def list_variance_constraints(design: GroupDesign, places: TraitPlaces, root: Array) -> Array:
    """Return the gradients of Σ_a L_ma² in the groups whose traits have variance 1."""
    constraints = []
    for group in np.flatnonzero(design.has_free_correlation).tolist():
        for place, row in zip(places.root[group], root[group], strict=True):
            gradient = np.zeros(places.n_parameters)
            gradient[place[place >= 0]] = row[place >= 0]
            constraints.append(gradient)
    return np.reshape(constraints, (len(constraints), places.n_parameters))
