"""Reliability of the sum of items: coefficients of a covariance or correlation matrix.

With the matrix S of k items, the share Σ_i≠j S_ij of the variance of their sum is common:

    α = k / (k − 1) (1 − tr S / Σ S)                                 (L. J. Cronbach, 1951)
    ω = (Σ λ)² / ((Σ λ)² + Σ (1 − λ²))                               (R. P. McDonald, 1999)

with the loadings λ of one factor, by maximum likelihood. Of polychoric correlations, α is ordinal
alpha (B. D. Zumbo, A. M. Gadermann, C. Zeisser, 2007). An item that is turned has −1 in the `signs`
s, and S_ij s_i s_j in place of S_ij.

Gradients G are symmetric: a coefficient moves by Σ_ij G_ij dS_ij, over both orders of a pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.spectra.factor_analysis import fit_factors

Array = NDArray[np.float64]

_LEAST_UNIQUE = 0.005  # variance of an item that the factor does not explain
_MIN_FACTOR_ITEMS = 3
_ROUNDING = 1e-9


class Coefficient(NamedTuple):
    """A coefficient, and its gradient in the matrix, (k, k)."""

    value: float
    gradient: Array


def find_signs(correlation: Array) -> Array:
    """Return −1 for items that point the other way than most by the first principal component."""
    first = np.linalg.eigh(correlation)[1][:, -1]
    return np.where(first * first.sum() < 0, -1.0, 1.0)


def compute_alpha(matrix: Array, signs: Array) -> Coefficient | None:
    """Return α; None if the sum of the items has no variance."""
    products, k = np.outer(signs, signs), len(matrix)
    total, trace = float((matrix * products).sum()), float(np.trace(matrix))
    if k < 2 or total <= _ROUNDING * trace:
        return None
    factor = k / (k - 1)
    gradient = factor * (trace / total**2 * products - np.eye(k) / total)
    return Coefficient(factor * (1 - trace / total), gradient)


def convert_to_covariance_gradient(gradient: Array, covariance: Array) -> Array:
    """Return the gradient in the covariance, given the one in the correlations off the diagonal."""
    deviations = np.sqrt(np.diag(covariance))
    scale = np.outer(deviations, deviations)
    own = gradient * (1 - np.eye(len(gradient))) / scale
    return np.asarray(own - np.diag((own * covariance).sum(axis=1) / np.diag(covariance)))


def fit_factor(correlation: Array) -> Array:
    """Return the likeliest loadings of one factor, (k,)."""
    values, vectors = np.linalg.eigh(correlation)
    start = np.clip(vectors[:, -1:] * np.sqrt(values[-1]), -0.95, 0.95)
    return fit_factors(correlation, start, _LEAST_UNIQUE)[:, 0]


def compute_omega(correlation: Array, loadings: Array, signs: Array) -> Coefficient | None:
    """Return ω, given the result of `fit_factor`; None if the sum of the items has no variance.

    Fewer than three items do not determine the loadings, so they have no ω.

    The loadings move with the correlations R as the stationary point of log |Σ| + tr R Σ⁻¹ does,
    Σ = λ λᵀ + Ψ. Unique variances at their lower bound stay there.
    """
    k, turned = len(loadings), signs * loadings
    common, unique = turned.sum() ** 2, (1 - loadings**2).sum()
    if k < _MIN_FACTOR_ITEMS or common + unique <= _ROUNDING * k:
        return None
    by_loadings = 2 * turned.sum() * signs * unique + 2 * common * loadings
    by_loadings /= (common + unique) ** 2
    is_free = 1 - loadings**2 > _LEAST_UNIQUE * (1 + 1e-6)
    unique_variances = np.maximum(1 - loadings**2, _LEAST_UNIQUE)
    P = np.linalg.inv(np.outer(loadings, loadings) + np.diag(unique_variances))
    Q = P @ correlation @ P
    # The loss has the gradients 2 Ω λ and diag Ω, with Ω = P − Q and dΩ = A dΣ P + P dΣ A.
    A, p = Q - P / 2, P @ loadings
    a = A @ loadings
    crossed = np.outer(a, p)
    own = (loadings @ p) * A + (loadings @ a) * P + crossed + crossed.T + P - Q
    hessian = np.zeros((2 * k, 2 * k))
    hessian[:k, :k] = 2 * own
    mixed = 2 * (A * p + P * a)  # of 2 Ω λ by Ψ
    hessian[:k, k:], hessian[k:, :k] = mixed, mixed.T
    hessian[k:, k:] = 2 * A * P
    is_used = np.concatenate([np.ones(k, np.bool_), is_free])
    right = np.concatenate([by_loadings, np.zeros(k)])[is_used]
    moves = np.zeros(2 * k)
    moves[is_used] = np.linalg.lstsq(hessian[np.ix_(is_used, is_used)], right, rcond=None)[0]
    crossed = np.outer(moves[:k], loadings)
    gradient = P @ (crossed + crossed.T + np.diag(moves[k:])) @ P
    return Coefficient(float(common / (common + unique)), gradient)


def compute_trait_omega(weights: Array, covariance: Array) -> tuple[float, float | None]:
    """Return ω of traits, and hierarchical ω if they are bifactor (R. E. Zinbarg et al., 2005).

    Hierarchical ω is the share of the variance of the sum that is due to the general trait, on
    which all items load; each item may load on one more. The traits are uncorrelated. Items are
    turned so that their general loadings, or else those of the first principal axis, are positive.

    Parameters
    ----------
    weights
        Weights of the normal variables behind the items, (k, q), whose unique variance is 1.
    covariance
        Covariance of the traits, (q, q).
    """
    common = weights @ covariance @ weights.T
    deviations = np.sqrt(1 + np.diag(common))
    common = common / np.outer(deviations, deviations)
    loads, is_diagonal = weights != 0, not (covariance - np.diag(np.diag(covariance))).any()
    general = np.flatnonzero(loads.all(axis=0))
    is_bifactor = is_diagonal and len(general) == 1 and (loads.sum(axis=1) <= 2).all()
    axis = weights[:, general[0]] if is_bifactor else np.linalg.eigh(common)[1][:, -1]
    signs = np.where(axis < 0, -1.0, 1.0)
    explained = float(signs @ common @ signs)
    total = explained + float((1 - np.diag(common)).sum())
    if not is_bifactor or weights.shape[1] == 1:
        return explained / total, None
    loadings = weights[:, general[0]] * np.sqrt(np.diag(covariance)[general[0]]) / deviations
    return explained / total, float(abs(loadings).sum() ** 2 / total)
