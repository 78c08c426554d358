"""Standard errors of the latent-trait model with covariates.

In each group, u ~ N(Θ_gᵀz, I) with Θ_g = Γ L_g⁻ᵀ. I_g is the information about slopes, offsets and
Θ_g, and the observed information about all parameters follows as in `group_errors`. It is that for
standardized covariates, so that it is well-conditioned; the parameters for the covariates as they
are are linear functions of those, up to terms that do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.models.latent_trait.group_design import GroupDesign, factorize
from pipeline.models.latent_trait.group_errors import (
    GroupErrors,
    TraitPlaces,
    collect_errors,
    differentiate_items,
    invert_group_information,
    list_axis_constraints,
    place_traits,
    sum_second_derivatives,
)
from pipeline.models.latent_trait.regression_design import Regression, find_origin

Array = NDArray[np.float64]


def differentiate_regression(
    design: GroupDesign, items: Array, regression: Regression
) -> list[Array]:
    """Return J_g of each group, (n_features width + p q, n_parameters).

    The parameters are those of items and traits, then Γ row by row.
    """
    places, root = place_traits(design), factorize(regression.covariance)
    result = []
    for group in range(len(root)):
        of_items = differentiate_items(design, places, items, regression.mean, root, group)
        of_theta = differentiate_theta(places, regression, group)
        n_others = of_theta.shape[1] - of_items.shape[1]
        result.append(np.vstack([np.pad(of_items, ((0, 0), (0, n_others))), of_theta]))
    return result


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


def sum_theta_derivatives(
    places: TraitPlaces, regression: Regression, sums: Mapping[str, NDArray[Any]]
) -> Array:
    """Return Σ_g Σ_jk s_gjk ∂²Θ_gjk / ∂φ ∂φᵀ, (n_parameters, n_parameters).

    The scores s_g of Θ_g follow from the sums `covariate_codes` and `covariate_products`.
    """
    root = factorize(regression.covariance)
    p = len(regression.coefficients)
    theta = regression.coefficients @ np.linalg.inv(root).transpose(0, 2, 1)
    score = sums["covariate_codes"] - sums["covariate_products"][:, :p, :p] @ theta
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


def compute_regression_errors(
    design: GroupDesign,
    items: Array,
    regression: Regression,
    information: Array,
    score: Array,
    sums: Mapping[str, NDArray[Any]],
    products: Array | None,
    prior_curvature: Array,
    scale: Array,
    center: Array,
) -> GroupErrors:
    """Invert the observed information.

    Parameters
    ----------
    design, information, score, products, prior_curvature
        As for `compute_group_errors`, with the parameters of `differentiate_regression`.
    items, regression
        Items, and traits for standardized covariates.
    sums
        `covariate_codes` and `covariate_products` of each group; see `estimate_regression`.
    scale, center
        Standard deviations of the covariates, and the origin of the standardized ones in units of
        these, (n_covariates,) each.
    """
    places, root = place_traits(design), factorize(regression.covariance)
    n, (p, q) = places.n_parameters, regression.coefficients.shape
    total = -sum_theta_derivatives(places, regression, sums)
    total[:n, :n] -= sum_second_derivatives(design, places, score)
    for own, derivatives in zip(
        information, differentiate_regression(design, items, regression), strict=True
    ):
        total += derivatives.T @ own @ derivatives
    item_places = np.arange(design.n_free)
    total[item_places, item_places] += prior_curvature
    constraints = np.zeros((0, len(total)))
    if design.is_rotatable:
        constraints = list_axis_constraints(design, items, len(total))
    inverse, is_unknown = invert_group_information(total, constraints)
    if products is not None:
        inverse = inverse @ products @ inverse
    moved = _differentiate_origin(design, items, regression, center)
    moved[n:, n:] = np.diag(np.repeat(1 / scale, q))
    errors = collect_errors(design, places, root, moved @ inverse @ moved.T, is_unknown)
    variance = np.where(is_unknown, np.nan, np.diag(inverse))[n:].reshape(p, q)
    return errors._replace(coefficients=np.sqrt(variance) / scale[:, None])


def _differentiate_origin(
    design: GroupDesign, items: Array, regression: Regression, center: Array
) -> Array:
    """Return the derivatives of the parameters where covariates are 0 by those at the center."""
    places, (p, q) = place_traits(design), regression.coefficients.shape
    n = places.n_parameters
    coefficients = n + np.arange(p * q).reshape(p, q)
    moved = np.eye(n + p * q)
    if find_origin(design) == "means":
        for place in places.mean:
            moved[place[:, None], coefficients.T] = -center
        return moved
    shift = center @ regression.coefficients
    padded = np.pad(moved, (0, 1))  # -1 is the last place
    for own, slopes in zip(design.index, items[:, :, :q], strict=True):
        for place, slope_places, w in zip(own[:, q], own[:, :q], slopes, strict=True):
            if place >= 0:
                padded[place, slope_places] = -shift
                padded[place, coefficients] = -np.outer(center, w)
    return padded[:-1, :-1]
