"""What features have to do with components, of models whose parameters do not say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.image_layout import ImageLayout
from flows.report.figures.marks import Figure
from flows.report.figures.parameters import OF_FEATURES, draw_feature_array
from flows.report.figures.rows import CodedRows
from storage.artifacts.artifacts import Artifact

Array = NDArray[np.float64]

TITLE = "Correlation of features with components"


def correlation_figures(
    artifact: Artifact, coded: CodedRows, values: Array, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Draw correlations of features with codes, where no parameters tell as much.

    Parameters
    ----------
    artifact
        Of a fit.
    coded
        Rows that were coded.
    values
        `correlations` of these.
    layout
        Where every feature lies in an image, if features are pixels.
    """
    told = {frozenset(dims) for dims, _ in OF_FEATURES}
    if not any(frozenset(artifact.dims(name)) in told for name in artifact):
        for figure in draw_feature_array(artifact, "correlation", TITLE, values, layout):
            yield replace(figure, note=f"{figure.note} Of {len(coded.codes):,} rows.".strip())


def correlations(coded: CodedRows) -> Array:
    """Correlate observed features with codes, 0 where either is constant: (n_features, n_codes)."""
    X, codes = coded.values.astype(np.float64), coded.codes
    seen = np.isfinite(X).astype(np.float64)
    n = np.maximum(seen.sum(axis=0), 1.0)[:, None]
    X = np.where(seen == 1, X, 0.0)
    share, mean = X.sum(axis=0)[:, None] / n, seen.T @ codes / n
    covariance = X.T @ codes / n - share * mean
    variances = share * (1 - share), np.maximum(seen.T @ codes**2 / n - mean**2, 0.0)
    scale = np.sqrt(variances[0] * variances[1])
    return np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 1e-12)
