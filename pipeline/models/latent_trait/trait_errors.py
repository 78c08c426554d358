"""Derivatives by the parameters of the distribution of the traits, and their standard errors.

With covariates, u ~ N(Θ_gᵀz, I) with Θ_g = Γ L_g⁻ᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.models.latent_trait.group_design import GroupDesign, factorize
from pipeline.models.latent_trait.regression_design import Regression

Array = NDArray[np.float64]


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


def place_traits(design: GroupDesign, n: int) -> TraitPlaces:
    """Number the free entries of the distributions of the traits, after n parameters of items."""
    n_groups, q = len(design.has_free_mean), design.n_components
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


def differentiate_theta(places: TraitPlaces, regression: Regression, group: int) -> Array:
    """Return the derivatives of Θ_g by all parameters, (p q, n_parameters)."""
    own = np.linalg.inv(factorize(regression.covariance)[group])
    (p, q), n = regression.coefficients.shape, places.n_parameters
    derivatives = np.zeros((p * q, n + p * q))
    derivatives[:, n:] = np.kron(np.eye(p), own)
    theta = regression.coefficients @ own.T
    for m, a in _iter_free_roots(places.root[group]):
        derivatives[:, places.root[group, m, a]] = -np.outer(theta[:, a], own[:, m]).ravel()
    return derivatives


def _iter_free_roots(places: NDArray[np.int64]) -> list[tuple[int, int]]:
    rows, columns = np.nonzero(places >= 0)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def sum_theta_scores(regression: Regression, sums: Mapping[str, NDArray[Any]]) -> Array:
    """Return the scores of Θ_g, (n_groups, p, q).

    They follow from the sums `covariate_codes` and `covariate_products`.
    """
    p, root = len(regression.coefficients), factorize(regression.covariance)
    theta = regression.coefficients @ np.linalg.inv(root).transpose(0, 2, 1)
    return np.asarray(sums["covariate_codes"] - sums["covariate_products"][:, :p, :p] @ theta)


def sum_theta_derivatives(
    places: TraitPlaces, regression: Regression, sums: Mapping[str, NDArray[Any]]
) -> Array:
    """Return Σ_g Σ_jk s_gjk ∂²Θ_gjk / ∂φ ∂φᵀ, (n_parameters, n_parameters)."""
    root, score = factorize(regression.covariance), sum_theta_scores(regression, sums)
    (p, q), n = regression.coefficients.shape, places.n_parameters
    total = np.zeros((n + p * q, n + p * q))
    coefficients = n + np.arange(p * q).reshape(p, q)
    for group, own in enumerate(np.linalg.inv(root)):
        theta, by_trait = regression.coefficients @ own.T, score[group] @ own
        free = _iter_free_roots(places.root[group])
        for m, a in free:
            place = places.root[group, m, a]
            change = -np.outer(by_trait[:, m], own[a])
            total[coefficients, place] += change
            total[place, coefficients] += change
            for r, b in free:
                second = (theta[:, a] @ by_trait[:, r]) * own[b, m]
                second += (theta[:, b] @ by_trait[:, m]) * own[a, r]
                total[place, places.root[group, r, b]] += second
    return total
