"""Parameter-expanded EM for latent traits (C. Liu, D. B. Rubin, Y. N. Wu, Biometrika 85 (1998)).

If the items determine the traits of each row well, plain EM hardly moves the scale and origin of
the traits: the E-step places the rows by the current items, and the M-step fits the items to these
places. The expanded model has traits x ~ N(m, S) with free m and S. Its M-step also estimates

    m = Σ_n ⟨x_n⟩ / N,   S = Σ_n ⟨(x_n − m)(x_n − m)ᵀ⟩ / N,

and then absorbs them: with x = m + L z, S = L Lᵀ and z ~ N(0, I), w·x + b = (Lᵀ w)·z + (b + w·m).
The likelihood rises in every pass, as in EM.

A normal prior on the weights of z costs ½ λ Σ_i w_iᵀ S w_i. S then maximizes the sum of both,
−½ N log det S − ½ tr S⁻¹ A − ½ λ tr S B, with A = Σ_n ⟨(x_n − m)(x_n − m)ᵀ⟩ and B = Σ_i w_i w_iᵀ.
Its derivative is 0 for S = A^½ V⁻¹ A^½ with V² = N V + λ A^½ B A^½.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MIN_VARIANCE = 1e-12  # of a trait; no row informs about a trait without weights


class TraitGaussian(NamedTuple):
    """The distribution of the traits in the expanded model.

    Attributes
    ----------
    mean, root
        m, (q,), and the symmetric root L of S, (q, q).
    """

    mean: Floats
    root: Floats

    @property
    def covariance(self) -> Floats:
        """S, (q, q)."""
        return np.asarray(self.root @ self.root)

    def standardize(self, points: Floats) -> Floats:
        """Return z = L⁻¹ (x − m) of points x, (n_points, q)."""
        return np.asarray(np.linalg.solve(self.root, (points - self.mean).T).T)

    @property
    def standardization(self) -> Floats:
        """A with ẑ = A x̂, (q + 1, q + 1), for ẑ = (z, 1) and x̂ = (x, 1)."""
        matrix = np.eye(len(self.mean) + 1)
        matrix[:-1] = np.linalg.solve(
            self.root, np.column_stack([np.eye(len(self.mean)), -self.mean])
        )
        return matrix

    def absorb(self, weights: Floats, offsets: Floats) -> tuple[Floats, Floats]:
        """Return the weights, (n_features, q), and offsets, (n_features,), of z."""
        return weights @ self.root, offsets + weights @ self.mean


def sum_trait_moments(
    mean: Floats, covariance: Floats, row_weights: Floats | None = None
) -> Floats:
    """Return Σ_n r_n ⟨x̂ x̂ᵀ⟩ with x̂ = (x, 1), (q + 1, q + 1).

    `mean`, (n_samples, q), and `covariance`, (n_samples, q, q), are those of each row, and r_n its
    weight, (n_samples,), or 1.
    """
    extended = np.column_stack([mean, np.ones(len(mean))])
    if row_weights is None:
        moments: Floats = extended.T @ extended
        moments[:-1, :-1] += covariance.sum(axis=0)
    else:
        moments = (extended * row_weights[:, None]).T @ extended
        moments[:-1, :-1] += np.tensordot(row_weights, covariance, 1)
    return moments


def estimate_trait_gaussian(
    moments: Floats, weights: Floats, prior_precision: float = 0.0
) -> TraitGaussian:
    """M-step of the expanded model for m and S.

    Parameters
    ----------
    moments
        Σ_n ⟨x̂ x̂ᵀ⟩ over all rows, (q + 1, q + 1).
    weights
        Weights of the E-step, (n_features, q).
    prior_precision
        λ.
    """
    n_rows = moments[-1, -1]
    mean = moments[:-1, -1] / n_rows
    scatter = moments[:-1, :-1] - n_rows * np.outer(mean, mean)
    if prior_precision == 0:
        return TraitGaussian(mean, _symmetric_root(scatter / n_rows))
    half = _symmetric_root(scatter)
    values, vectors = np.linalg.eigh(half @ (weights.T @ weights) @ half)
    v = (n_rows + np.sqrt(n_rows**2 + 4 * prior_precision * np.maximum(values, 0.0))) / 2
    return TraitGaussian(mean, _symmetric_root(half @ (vectors / v) @ vectors.T @ half))


def _symmetric_root(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    root: Floats = (vectors * np.sqrt(np.maximum(values, _MIN_VARIANCE))) @ vectors.T
    return root
