"""Standardized loadings and communalities of items on the traits of a loading pattern.

Behind the answers to an item is a continuous response y* = aᵀx + e, which the levels cut. With
traits x of variance 1 and correlations Φ, the variance of y* is t = aᵀΦa + r, and

    λ = a / √t    (standardized loadings),    h² = aᵀΦa / t    (communality),

where r is the square of a continuous item's deviation, and otherwise 1.702², of the normal curve
that is nearest to the logistic one (Y. Takane, J. de Leeuw, Psychometrika 52, 1987, eq. 7).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.params import LatentTraitParams, Loadings
from pipeline.models.latent_trait.starts import LOGISTIC_SCALE

Array = NDArray[np.float64]


def standardize_loadings(params: LatentTraitParams) -> Loadings:
    """Return the standardized loadings of all items, with groups those in the first one."""
    explained, total = _divide_variance(params)
    loadings = params.weights / np.sqrt(total)[:, None]
    return Loadings(loadings, explained / total)


def differentiate_loadings(params: LatentTraitParams) -> tuple[Array, Array, Array]:
    """Differentiate the loadings and the communality of each item, side by side.

    Returns
    -------
    by_slopes : (n_features, q + 1, q)
        Derivatives by the slopes of the item.
    by_correlations : (n_features, q + 1, q, q)
        Derivatives by the correlations Φ_bc with b > c; others are 0.
    by_deviation : (n_features, q + 1)
        Derivatives by the logarithm of the deviation of a continuous item; 0 of others.
    """
    explained, total = _divide_variance(params)
    a, rest = params.weights, total - explained
    q, size = a.shape[1], np.sqrt(total)
    along = a @ params.component_correlation
    # λ = a t^(−1/2) and h² = 1 − r / t depend on Φ, r and partly on a through t.
    by_total = np.column_stack([-a / (2 * total * size)[:, None], rest / total**2])
    by_slopes = 2 * by_total[:, :, None] * along[:, None]
    by_slopes[:, :q] += np.eye(q) / size[:, None, None]
    pairs = 2 * np.tril(a[:, :, None] * a[:, None, :], -1)
    by_correlations = by_total[:, :, None, None] * pairs[:, None]
    by_rest = by_total + np.column_stack([np.zeros(a.shape), -1 / total])
    by_deviation = 2 * by_rest * np.where(_are_continuous(params), rest, 0.0)[:, None]
    return by_slopes, by_correlations, by_deviation


def join_derivatives(
    derivatives: tuple[Array, Array, Array],
    to_weights: scipy.sparse.csr_array,
    deviations: scipy.sparse.csr_array,
    root: Array,
    places: NDArray[np.int64],
    n_parameters: int,
) -> scipy.sparse.csr_array:
    """Return the derivatives by all parameters of a fit, (n_features (q + 1), n_parameters).

    Parameters
    ----------
    derivatives
        Derivatives from `differentiate_loadings`.
    to_weights, deviations
        Derivatives of slopes, (n_features q, n), and of the logarithms of deviations,
        (n_continuous, n), by the parameters of the items, which come first.
    root, places
        Cholesky factor L of Φ, (q, q), and the places of its entries, -1 if they are not free.
    n_parameters
        Number of all parameters.
    """
    by_slopes, by_correlations, by_deviation = derivatives
    n_features, n_values, q = by_slopes.shape
    blocks: list[Any] = [*by_slopes]
    linear = scipy.sparse.block_diag(blocks, format="csr") @ to_weights
    if deviations.shape[0]:
        own = np.flatnonzero(by_deviation.any(axis=1))
        spread = np.zeros((n_features, n_values, deviations.shape[0]))
        spread[own, :, np.arange(len(own))] = by_deviation[own]
        linear = linear + scipy.sparse.csr_array(spread.reshape(-1, len(own))) @ deviations
    by_traits = np.zeros((n_features * n_values, n_parameters - to_weights.shape[1] + 1))
    # Φ = L Lᵀ
    symmetric = by_correlations + by_correlations.swapaxes(-1, -2)
    by_root = (symmetric @ root).reshape(-1, q, q)
    for m, c in zip(*np.nonzero(places >= 0), strict=True):
        by_traits[:, places[m, c] - to_weights.shape[1]] += by_root[:, m, c]
    joined = scipy.sparse.hstack([linear, scipy.sparse.csr_array(by_traits[:, :-1])])
    return scipy.sparse.csr_array(joined)


def _are_continuous(params: LatentTraitParams) -> NDArray[np.bool_]:
    return np.equal(params.n_planes, 0)


def _divide_variance(params: LatentTraitParams) -> tuple[Array, Array]:
    """Return the variance of each response that the traits explain, and all of it."""
    explained = np.einsum(
        "ik,kl,il->i", params.weights, params.component_correlation, params.weights
    )
    rest = np.full(len(explained), LOGISTIC_SCALE**2)
    if params.items.deviations is not None:
        rest[_are_continuous(params)] = params.items.deviations**2
    return explained, explained + rest
