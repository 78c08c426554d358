"""Standard errors for many items, without the information matrix of all parameters.

The observed information of n items has n² blocks. The blocks of each item hold nearly all of it,
except along the few directions V that all items share: a change of the traits' origin, scale or
axes, which changes the forms of all items, a_j·x + d_j, by

    δ(a_j, d_j) = (E a_j, a_j·m)

for a matrix E and a vector m; and parameters that items have in common. Along them the information
is far lower than the blocks say, because the traits of a row are known only through the same items.
With D the sum of the items' own information, G = Vᵀ D V and H = Vᵀ I V, the matrix

    D − D V (G⁻¹ − G⁻¹ H G⁻¹) Vᵀ D

has the information D for changes without part in V (in the metric D) and H along V. Its inverse
where the constraints K δ = 0 hold, which fix the axes, differs from D⁻¹ by a matrix of low rank.
D has one block per item, and rows and columns of common parameters.
"""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.categories.scores import join_blocks

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_MIN_INFORMATION = 1e-6  # of an item, as a share of the information with known traits
_MIN_SHARED_INFORMATION = 1e-9  # along a shared direction, as a share of that of the items


class SharedDirections(NamedTuple):
    """Directions that all items share, (n_forms, q + 1, n_directions) each.

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
    """Return the shared directions at the weights of these forms, (n_forms, q)."""
    n_forms, q = weights.shape
    scales, rotations = [], []
    for a in range(q):
        origin = np.zeros((n_forms, q + 1))
        origin[:, q] = weights[:, a]
        scales.append(origin)
    for a, b in combinations_with_replacement(range(q), 2):
        scale = np.zeros((n_forms, q + 1))
        scale[:, a] += weights[:, b]
        scale[:, b] += weights[:, a] * (a != b)
        scales.append(scale)
    for a, b in combinations(range(q), 2):
        rotation = np.zeros((n_forms, q + 1))
        rotation[:, a], rotation[:, b] = weights[:, b], -weights[:, a]
        rotations.append(rotation)
    empty = np.empty((n_forms, q + 1, 0))
    return SharedDirections(
        np.stack(scales, axis=2), np.stack(rotations, axis=2) if rotations else empty
    )


class ItemCovariance(NamedTuple):
    """Covariance of p estimates: `blocks + factors @ core @ factors.T`.

    Attributes
    ----------
    blocks
        (p, p), sparse, or dense without factors.
    factors, core
        (p, k) and (k, k).
    """

    blocks: Any
    factors: Array
    core: Array

    @classmethod
    def from_array(cls, covariance: Any) -> ItemCovariance:
        """Return a covariance without factors."""
        return cls(covariance, np.zeros((covariance.shape[0], 0)), np.zeros((0, 0)))

    def take_first(self, n: int) -> ItemCovariance:
        """Return the covariance of the first n estimates."""
        return self._replace(blocks=self.blocks[:n, :n], factors=self.factors[:n])

    def transform(self, linear: scipy.sparse.csr_array) -> ItemCovariance:
        """Return the covariance of linear functions of the estimates, (n, p)."""
        return self._replace(blocks=linear @ self.blocks @ linear.T, factors=linear @ self.factors)

    def compute_covariances(
        self, left: scipy.sparse.csr_array, right: scipy.sparse.csr_array
    ) -> Array:
        """Return the covariances of linear functions of the estimates, (n, p) each, in pairs."""
        own = left.multiply(right @ self.blocks).sum(axis=1)
        parts = left @ self.factors, self.core, right @ self.factors
        return np.asarray(own + np.einsum("ik,kl,il->i", *parts, optimize=True))

    def take_blocks(self, places: Indices) -> Array:
        """Return the covariances of sets of estimates, (n_sets, size) → (n_sets, size, size)."""
        factors = self.factors[places]
        own = take_entries(self.blocks, places)
        along = np.einsum("iak,kl,ibl->iab", factors, self.core, factors, optimize=True)
        return np.asarray(own + along)


def take_entries(matrix: Any, places: Indices) -> Array:
    """Return blocks of a matrix, dense or sparse, (n_sets, size, size)."""
    n, size = places.shape
    rows, columns = np.repeat(places, size, axis=1).ravel(), np.tile(places, size).ravel()
    found = np.asarray(matrix[rows, columns]) if rows.size else np.zeros(0)
    return found.reshape(n, size, size)


class ItemInformation(NamedTuple):
    """What is known about the information of p parameters with many items.

    Attributes
    ----------
    known
        The information of each parameter if the traits were known, (p,).
    own
        D, (p, p), sparse.
    directions, shared
        V, (p, k), and H.
    is_common
        Which parameters several items have in common, (p,). They have directions of their own in V.
    constraints
        K, (n_constraints, p).
    """

    known: Array
    own: scipy.sparse.csr_array
    directions: Array
    shared: Array
    is_common: NDArray[np.bool_]
    constraints: Array

    def take(self, is_taken: NDArray[np.bool_]) -> ItemInformation:
        """Return the information of some parameters if the others are known."""
        places = np.flatnonzero(is_taken)
        return ItemInformation(
            self.known[places],
            self.own[places][:, places],
            self.directions[places],
            self.shared,
            self.is_common[places],
            self.constraints[:, places],
        )

    def _hold_common(self) -> ItemInformation:
        """Return information about the constraints of common parameters, which changes nothing.

        Without it, D is singular if items with other scales of the traits are the same.
        """
        K = self.constraints[~self.constraints[:, ~self.is_common].any(axis=1)]
        sizes = (K**2).sum(axis=1)
        K = K * np.sqrt(K**2 @ np.abs(self.own.diagonal()))[:, None] / sizes[:, None]
        along, rows = K @ self.directions, scipy.sparse.csr_array(K)
        return self._replace(own=self.own + rows.T @ rows, shared=self.shared + along.T @ along)

    def invert(self) -> tuple[ItemCovariance, NDArray[np.bool_]]:
        """Return the covariance of the estimates, and which of them the data do not determine."""
        try:
            return self._hold_common()._invert()
        except np.linalg.LinAlgError:  # the items do not determine what they have in common
            return ItemCovariance.from_array(self.own), np.ones(len(self.known), np.bool_)

    def _invert(self) -> tuple[ItemCovariance, NDArray[np.bool_]]:
        inverses, is_unknown = self._invert_own()
        common = np.flatnonzero(self.is_common)
        # D⁻¹ is that of the blocks, plus `border @ core @ border.T`.
        border = -(inverses @ self.own[:, common].toarray())
        border[common] = np.eye(len(common))
        border[is_unknown] = 0.0
        core = np.linalg.inv(border.T @ (self.own @ border))

        def solve(right: Array) -> Array:
            return np.asarray(inverses @ right + border @ (core @ (border.T @ right)))

        known = ~is_unknown[:, None]
        V, H = _orthonormalize(self.directions * known, self.own, self.shared)
        K = self.constraints.T * known
        across = solve(K)
        root = np.linalg.cholesky(K.T @ across)
        K, across = (np.linalg.solve(root, matrix.T).T for matrix in (K, across))
        k, along = V.shape[1], V.T @ K
        if np.linalg.eigvalsh(H + along @ along.T).min(initial=1.0) < _MIN_SHARED_INFORMATION:
            is_unknown[:] = True
        # The information is D + U M Uᵀ with U = (D V, Kᵀ): any part along Kᵀ leaves the same
        # covariance where K δ = 0.
        M = scipy.linalg.block_diag(H - np.eye(k), np.eye(K.shape[1]))
        T = np.block([[np.eye(k), along], [along.T, np.eye(K.shape[1])]])
        low = -np.linalg.solve(np.eye(len(T)) + M @ T, M)
        out = np.eye(len(T))[:, k:] + low @ T[:, k:]
        low -= out @ np.linalg.solve(T[k:] @ out, out.T)
        factors = np.concatenate([border, V, across], axis=1)
        return ItemCovariance(inverses, factors, scipy.linalg.block_diag(core, low)), is_unknown

    def _invert_own(self) -> tuple[scipy.sparse.csr_array, NDArray[np.bool_]]:
        """Return the inverses of the items' blocks, (p, p), and where they are singular, (p,)."""
        own = np.flatnonzero(~self.is_common)
        _, labels = scipy.sparse.csgraph.connected_components(self.own[own][:, own], directed=False)
        sizes, order = np.bincount(labels), own[np.argsort(labels, kind="stable")]
        firsts = np.cumsum(sizes) - sizes
        is_unknown = np.zeros(len(self.known), np.bool_)
        places, inverses = [], []
        for size in np.unique(sizes).tolist():
            alike = order[firsts[sizes == size][:, None] + np.arange(size)]
            scale = 1 / np.sqrt(np.maximum(self.known[alike], np.finfo(float).tiny))
            blocks = take_entries(self.own, alike) * scale[:, :, None] * scale[:, None]
            is_known = np.linalg.eigvalsh(blocks)[:, 0] > _MIN_INFORMATION
            is_unknown[alike[~is_known]] = True
            blocks, alike, scale = blocks[is_known], alike[is_known], scale[is_known]
            places.append(alike)
            inverses.append(np.linalg.inv(blocks) * scale[:, :, None] * scale[:, None])
        return join_blocks(inverses, places, len(self.known)), is_unknown


def _orthonormalize(
    directions: Array, metric: scipy.sparse.csr_array, shared: Array
) -> tuple[Array, Array]:
    """Return a basis of the directions with Vᵀ D V = 1, and the information along it."""
    gram = directions.T @ (metric @ directions)
    lengths, tiny = np.diag(gram), np.finfo(float).tiny
    scale = np.where(lengths > tiny, 1 / np.sqrt(np.maximum(lengths, tiny)), 0.0)
    values, vectors = np.linalg.eigh(gram * scale[:, None] * scale)
    is_kept = values > 1e-10 * values.max(initial=0.0)
    basis = scale[:, None] * vectors[:, is_kept] / np.sqrt(values[is_kept])
    return directions @ basis, basis.T @ shared @ basis
