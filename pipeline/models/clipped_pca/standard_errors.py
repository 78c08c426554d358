"""Standard errors of clipped PCA, from its pair counts alone.

Those of correlations and thresholds follow from the counts. Those of loadings need how the moves of
two correlations go together, which pairs do not tell: they are those of rows drawn from the fitted
Gaussians, so that no row of the data is read again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.state import FitState
from pipeline.numerics.gaussian.loading_errors import (
    CorrelationInfluence,
    correlation_influence,
    correlation_standard_errors,
    loading_standard_errors,
    sum_influence_products,
)
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

MAX_FEATURES = 1000
"""Of more there are no standard errors."""
_MIN_ROWS, _MAX_ROWS = 1_000, 20_000
_MAX_WORK = 2e10  # multiplications


def add_standard_errors(state: FitState, counts: PairCounts, rng: np.random.Generator) -> FitState:
    """Add standard errors to the parameters of a `ClippedPCA`.

    Parameters
    ----------
    state
        Its correlations and loadings are made.
    counts
        All pairs, segments as one.
    rng
        Source of the rows that are drawn.
    """
    params, n_rows = state.params, counts.n_samples
    n, ones_i, ones_j, both = (
        np.broadcast_to(np.asarray(a, np.float64), params.correlation.shape)
        for a in counts.table(0)
    )
    moved = correlation_influence(params.correlation, n, ones_i, ones_j, both, n_rows)
    observed, ones = (counted[0] for counted in counts.margins())
    params = replace(
        params,
        correlation_error=correlation_standard_errors(moved, n, ones_i, ones_j, both, n_rows),
        thresholds_error=compute_threshold_errors(observed, ones),
    )
    constant = state.auxiliary["constant"]
    errors = _estimate_loading_errors(params, moved, observed / n_rows, constant, rng) / np.sqrt(
        n_rows
    )
    return replace(state, params=replace(params, loadings_error=errors))


def _estimate_loading_errors(
    params: Any,
    moved: CorrelationInfluence,
    observed: Array,
    constant: NDArray[np.int64],
    rng: np.random.Generator,
) -> Array:
    """Give standard errors of loadings for one row."""
    n_features, q = params.loadings.shape
    n_rows = int(np.clip(_MAX_WORK / (n_features**2 * max(q, 1)), _MIN_ROWS, _MAX_ROWS))
    X = _draw_rows(params.correlation, params.thresholds, n_rows, rng)
    mask = None
    if (observed < 1).any():
        mask = (rng.random(X.shape) < observed).astype(np.uint8)
    values = params.eigenvalues[:q]
    scale = np.where(values > 0, 1 / np.sqrt(np.where(values > 0, values, 1.0)), 0.0)
    vectors = params.loadings * scale
    varying = params.correlation.copy()
    varying[constant, constant] = 0.0
    moments = sum_influence_products(X, mask, moved, vectors) / n_rows
    errors = loading_standard_errors(varying, values, vectors, moments)
    errors[constant] = np.nan
    return errors


def _draw_rows(
    correlation: Array, thresholds: Array, n_rows: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw bits of Gaussians, (n_rows, n_features); what is indefinite is cut to what is not."""
    values, vectors = scipy.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    root /= np.linalg.norm(root, axis=1)[:, None]
    x = rng.standard_normal((n_rows, len(values))) @ root.T
    return (x > thresholds).astype(np.uint8)


def compute_threshold_errors(observed: NDArray[np.int64], ones: NDArray[np.int64]) -> Array:
    """Give standard errors of −Φ⁻¹(p), (n_features,); not a number of constant features."""
    p = ones / observed
    density = np.exp(-(scipy.special.ndtri(np.clip(p, 1e-300, 1 - 1e-16)) ** 2) / 2)
    errors = np.sqrt(2 * np.pi * p * (1 - p) / observed) / np.maximum(density, 1e-300)
    return np.where((ones == 0) | (ones == observed), np.nan, errors)
