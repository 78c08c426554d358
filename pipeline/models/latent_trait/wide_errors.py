"""Standard errors for many items, without the information matrix of all parameters.

The observed information of n items has n² blocks. The blocks of each item hold nearly all of it,
except along the few directions V that all items share: a change of the traits' origin, scale or
axes, which changes all parameters by

    δ(w_i, b_i) = (E w_i, w_i·m)

for a matrix E and a vector m. Along them the information is far lower than the blocks say, because
the traits of a row are known only through the same items. With D the diagonal blocks, G = Vᵀ D V
and H = Vᵀ I V, the matrix D − D V (G⁻¹ − G⁻¹ H G⁻¹) Vᵀ D has the blocks of D for changes without
part in V (in the metric D) and the information H along V. Its inverse is

    D⁻¹ + V (H⁻¹ − G⁻¹) Vᵀ.

Rotations R, which are among the directions V, have no information. The condition that the weights
are on their principal axes, K δ = 0, fixes them: the estimate is projected by 1 − R (K R)⁻¹ K,
which removes their infinite variance.
"""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class SharedDirections(NamedTuple):
    """Directions that all items share, (n_features, q + 1, n_directions) each.

    Attributes
    ----------
    scales
        Changes of origin and of scale, the latter by symmetric matrices.
    rotations
        Rotations.
    """

    scales: Array
    rotations: Array


def list_shared_directions(weights: Array) -> SharedDirections:
    """Return the shared directions at these weights, (n_features, q)."""
    n_features, q = weights.shape
    scales, rotations = [], []
    for a in range(q):
        origin = np.zeros((n_features, q + 1))
        origin[:, q] = weights[:, a]
        scales.append(origin)
    for a, b in combinations_with_replacement(range(q), 2):
        scale = np.zeros((n_features, q + 1))
        scale[:, a] += weights[:, b]
        scale[:, b] += weights[:, a] * (a != b)
        scales.append(scale)
    for a, b in combinations(range(q), 2):
        rotation = np.zeros((n_features, q + 1))
        rotation[:, a], rotation[:, b] = weights[:, b], -weights[:, a]
        rotations.append(rotation)
    empty = np.empty((n_features, q + 1, 0))
    return SharedDirections(
        np.stack(scales, axis=2), np.stack(rotations, axis=2) if rotations else empty
    )


def compute_item_covariances(weights: Array, blocks: Array, shared_information: Array) -> Array:
    """Return the covariance of each item's weights and offset, (n_features, q + 1, q + 1).

    Parameters
    ----------
    weights
        Weights on their principal axes, (n_features, q).
    blocks
        D, (n_features, q + 1, q + 1), positive definite.
    shared_information
        H of `SharedDirections.scales`.
    """
    scales, rotations = list_shared_directions(weights)
    V = np.concatenate([scales, rotations], axis=2)
    shared = -np.linalg.inv(np.einsum("iak,iab,ibl->kl", V, blocks, V))
    n_scales = scales.shape[2]
    shared[:n_scales, :n_scales] += np.linalg.inv(shared_information)
    own = np.linalg.inv(blocks)
    covariance: Array = own + np.einsum("iak,kl,ibl->iab", V, shared, V)
    if not rotations.shape[2]:
        return covariance
    K = _list_constraints(weights)
    along = np.einsum("iar,iab->irb", K, own)
    along += np.einsum("rk,kl,ial->ira", np.einsum("iar,iak->rk", K, V), shared, V)
    turned = rotations @ np.linalg.inv(np.einsum("iar,iak->rk", K, rotations))
    variance = np.einsum("ira,iak->rk", along, K)
    removed = turned @ along
    covariance -= removed + np.swapaxes(removed, 1, 2)
    covariance += turned @ variance @ np.swapaxes(turned, 1, 2)
    return covariance


def _list_constraints(weights: Array) -> Array:
    """Return the gradients of Σ_i w_ia w_ib for a < b, (n_features, q + 1, n_constraints)."""
    n_features, q = weights.shape
    pairs = list(combinations(range(q), 2))
    K = np.zeros((n_features, q + 1, len(pairs)))
    for k, (a, b) in enumerate(pairs):
        K[:, a, k], K[:, b, k] = weights[:, b], weights[:, a]
    return K
