"""Parameters of factor models: checks of weights, and inverses of information matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError

Array = NDArray[np.float64]

# Of the largest eigenvalue, with the diagonal scaled to 1. Where parameters are not identified, the
# tolerance of a fit leaves eigenvalues of up to 5e-6.
_SINGULAR_SHARE = 1e-5
_POWER_ITERATIONS = 20
_INVOLVED_SHARE = 0.1  # largest share of an identified parameter in directions without information


class InformationInverse(NamedTuple):
    """Covariance of estimates, and which of them are identified."""

    covariance: Array  # (p, p)
    unidentified_share: Array  # share of each parameter in directions without information, (p,)

    def find_unidentified(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return which groups of parameters have no standard error; groups are the last axis."""
        shares = self.unidentified_share.reshape(shape).sum(axis=-1)
        return np.asarray(shares > _INVOLVED_SHARE)


def invert_information(information: Array, directions: Array) -> InformationInverse:
    """Invert the information, (p, p), within the free directions, a basis (p, n_directions)."""
    scale = 1 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    basis = scipy.linalg.qr(directions / scale[:, None], mode="economic")[0]
    values, vectors = scipy.linalg.eigh(basis.T @ (scale[:, None] * information * scale) @ basis)
    is_informative = values > _SINGULAR_SHARE * values.max(initial=0.0)
    root = scale[:, None] * (basis @ vectors[:, is_informative]) / np.sqrt(values[is_informative])
    unidentified = ((basis @ vectors[:, ~is_informative]) ** 2).sum(axis=1)
    return InformationInverse(root @ root.T, unidentified)


def invert_constrained_information(information: Array, constraints: Array) -> InformationInverse:
    """Invert the information, (p, p), where `constraints`, (n_constraints, p), are 0.

    The result is that of `invert_information` for a basis of the free directions, several times as
    fast: only directions without information need eigenvectors.
    """
    scale = 1 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    normals = scipy.linalg.qr((constraints * scale).T, mode="economic")[0]
    scaled, unidentified = scale[:, None] * information * scale, np.zeros(len(scale))
    # A parameter that no direction moves may have any information.
    lifted = scaled + normals @ normals.T
    inverse = _invert_positive(lifted)
    if (
        inverse is None
        or not _estimate_norm(inverse) * _estimate_norm(lifted) < 1 / _SINGULAR_SHARE
    ):
        across = scaled @ normals
        scaled -= normals @ across.T + (across - normals @ (normals.T @ across)) @ normals.T
        largest = _estimate_norm(scaled) if scaled.any() else 1.0
        lifted = scaled + largest * normals @ normals.T
        bounds = (-np.inf, _SINGULAR_SHARE * largest)
        values, empty = scipy.linalg.eigh(lifted, subset_by_value=bounds)
        inverse = _invert_positive(lifted + (empty * (largest - values)) @ empty.T)
        assert inverse is not None
        normals, unidentified = np.hstack([normals, empty]), (empty**2).sum(axis=1)
    across = inverse @ normals
    inverse -= across @ np.linalg.solve(normals.T @ across, across.T)
    return InformationInverse(scale[:, None] * inverse * scale, unidentified)


def _invert_positive(matrix: Array) -> Array | None:
    """Invert a positive definite matrix; return None if it is not."""
    factor, has_failed = scipy.linalg.lapack.dpotrf(matrix, lower=True)
    if has_failed:
        return None
    inverse = np.tril(scipy.linalg.lapack.dpotri(factor, lower=True)[0])
    inverse += np.tril(inverse, -1).T
    return np.asarray(inverse)


def _estimate_norm(matrix: Array) -> float:
    """Estimate the largest eigenvalue of a positive definite matrix by power iterations."""
    vector, norm = np.linspace(1.0, 2.0, len(matrix)), 0.0  # contrasts of equal features, too
    for _ in range(_POWER_ITERATIONS):
        vector = matrix @ vector
        norm = float(np.linalg.norm(vector))
        vector /= norm
    return norm


def check_weights(n_features: int, weights: Array, offsets: Array) -> None:
    """Check that weights and offsets are finite and have `n_features` rows."""
    if weights.shape[:-1] != (n_features,) or offsets.shape != (n_features,):
        raise FitError(
            f"Weights and offsets have the shapes {weights.shape} and {offsets.shape}, but there "
            f"are {n_features} features. Pass the parameters of these features."
        )
    if not (np.isfinite(weights).all() and np.isfinite(offsets).all()):
        raise FitError("Weights or offsets are NaN or infinite. Check the fit.")
