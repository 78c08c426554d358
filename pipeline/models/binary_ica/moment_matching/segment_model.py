"""Binary ICA within one segment, once it is fitted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.gaussian.pair_likelihood import log_cells

Array = NDArray[np.float64]


class SegmentModel(NamedTuple):
    """z ~ N(means, diag variances), P(x_i = 1 | z) = Φ(w_i·(z − means) + offsets_i).

    Attributes
    ----------
    weights
        w, √(π/8) times the mixing, (n_features, n_components).
    thresholds
        Of standard normals with the model's correlations, (n_features,).
    means, variances
        Of the sources, (n_components,).
    """

    weights: Array
    thresholds: Array
    means: Array
    variances: Array

    @property
    def offsets(self) -> Array:
        """What the thresholds are in units of the noise, negative, (n_features,)."""
        return -self.thresholds * np.sqrt(1 + self.weights**2 @ self.variances)

    def correlation(self) -> Array:
        """Correlations of w·z plus noise, (n_features, n_features): of q in the paper, eq. 5."""
        covariance = (self.weights * self.variances) @ self.weights.T
        deviations = np.sqrt(1 + np.diag(covariance))
        correlation: Array = covariance / deviations / deviations[:, None]
        np.fill_diagonal(correlation, 1.0)
        return correlation

    def composite_log_likelihood(
        self, X: NDArray[np.uint8], observed: NDArray[np.uint8] | None
    ) -> Array:
        """Sum log P(x_i, x_j) over the pairs i < j that are observed: nats, (n_samples,)."""
        correlation, t = self.correlation(), self.thresholds
        np.fill_diagonal(correlation, 0.0)  # The diagonal is no pair, and 1 has no density.
        cells = np.moveaxis(log_cells(t[:, None], t, correlation), -1, 0)
        one = X.astype(np.float64)
        zero = (1.0 if observed is None else observed) - one
        pairs = ((one, one), (one, zero), (zero, one), (zero, zero))
        total = np.zeros(len(X))
        for log_cell, (left, right) in zip(np.triu(cells, 1), pairs, strict=True):
            total += (left @ log_cell * right).sum(axis=1)
        return total
