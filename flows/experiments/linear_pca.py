"""Linear PCA of the bits: the baseline of the experiments.

As a model of bits it is a Gaussian with the means of the bits, the leading components, and
independent noise that restores each feature's variance; a bit is 1 if the Gaussian exceeds ½.
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
        Mean and variance of each bit, (n_features,).
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
        """Project rows on the leading components and return P(s = 1), (n_samples, n_features).

        Missing values are replaced by the mean of their feature.
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
        """Compute the variance of each bit that the leading components do not explain."""
        leading = self.vectors[:, :n_components]
        explained = (leading**2 * self.eigenvalues[:n_components]).sum(axis=1)
        noise: Array = np.maximum(self.variance - explained, _MIN_VARIANCE)
        return noise


def fit_linear_pca(counts: PairCounts, n_components: int) -> LinearPCA:
    """Compute linear PCA exactly from pair counts, without reading the rows again.

    Parameters
    ----------
    counts
        Pooled pair counts.
    n_components
        Minimum number of components; with few features all are returned.
    """
    table = counts.table(0)
    n = np.maximum(np.broadcast_to(table.n, table.joint.shape), 1)
    covariance = table.joint / n - (table.ones_i / n) * (table.ones_j / n)
    with limit_blas_threads():
        values, vectors = leading_eigenpairs(covariance, n_components)
    return LinearPCA(np.diag(table.joint) / np.diag(n), np.diag(covariance), values, vectors)
