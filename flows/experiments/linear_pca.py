"""Linear PCA of the bits themselves: what experiments set other models beside.

As a model of bits it is read as a Gaussian with the bits' means: the components kept, plus
independent noise that restores each feature's variance; a bit is 1 where the Gaussian exceeds ½.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.base import limit_blas_threads
from pipeline.numerics.spectra.linalg import leading_eigenpairs
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

_MIN_VARIANCE = 1e-3


@dataclass(frozen=True)
class LinearPCA:
    """Leading principal components of the bits' covariance.

    Attributes
    ----------
    mean, variance
        Of each bit, (n_features,).
    eigenvalues, vectors
        Largest first, (k,) and (n_features, k).
    """

    mean: Array
    variance: Array
    eigenvalues: Array
    vectors: Array

    def reconstruct(
        self, X: NDArray[np.uint8], observed: NDArray[np.uint8] | None, n_components: int
    ) -> Array:
        """Project rows on the leading components and give P(s = 1): (n_samples, n_features).

        A value that is not observed counts as its mean.
        """
        projected = self.project(X, observed, n_components)
        probabilities: Array = scipy.special.ndtr(
            (projected - 0.5) / np.sqrt(self._noise_variance(n_components))
        )
        return probabilities

    def project(
        self, X: NDArray[np.uint8], observed: NDArray[np.uint8] | None, n_components: int
    ) -> Array:
        """Project rows on the leading components, and back: (n_samples, n_features)."""
        leading = self.vectors[:, :n_components]
        centred = X - self.mean
        kept = centred if observed is None else centred * observed
        projected: Array = self.mean + kept @ leading @ leading.T
        return projected

    def sample(
        self, n_components: int, n_samples: int, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Draw rows: (n_samples, n_features)."""
        scales = np.sqrt(np.maximum(self.eigenvalues[:n_components], 0.0))
        codes = rng.standard_normal((n_samples, n_components)) * scales
        noise = rng.standard_normal((n_samples, len(self.mean)))
        latent = self.mean + codes @ self.vectors[:, :n_components].T
        return (latent + noise * np.sqrt(self._noise_variance(n_components)) > 0.5).astype(np.uint8)

    def _noise_variance(self, n_components: int) -> Array:
        """Variance of each bit that the leading components leave."""
        leading = self.vectors[:, :n_components]
        explained = (leading**2 * self.eigenvalues[:n_components]).sum(axis=1)
        noise: Array = np.maximum(self.variance - explained, _MIN_VARIANCE)
        return noise


def fit_linear_pca(counts: PairCounts, n_components: int) -> LinearPCA:
    """Compute it from the pair counts of all rows; exact, and no row is read again.

    Parameters
    ----------
    counts
        Pooled pair counts.
    n_components
        Components at the least; with few features all are given.
    """
    table = counts.table(0)
    n = np.maximum(np.broadcast_to(table.n, table.joint.shape), 1)
    covariance = table.joint / n - (table.ones_i / n) * (table.ones_j / n)
    with limit_blas_threads():
        values, vectors = leading_eigenpairs(covariance, n_components)
    return LinearPCA(np.diag(table.joint) / np.diag(n), np.diag(covariance), values, vectors)
