"""Pair counts of independent features with given margins, drawn without reading any rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.gaussian.hypergeometric import joint_count_quantiles
from pipeline.statistics.counts import PairTable


def draw_independent_pairs(table: PairTable, rng: np.random.Generator) -> PairTable:
    """Draw joint counts as if the features were independent.

    Each count follows its exact law given the margins (hypergeometric; normal for large counts).
    Pairs are coupled as they are in real data: their normal scores are the entries of the sample
    correlation matrix of independent Gaussians, drawn as a Wishart matrix. With scores drawn pair
    by pair the leading null eigenvalue would come out too low by about n_features / n_samples.

    Parameters
    ----------
    table
        Margins `n`, `ones_i`, `ones_j` of all pairs, broadcastable to (n_features, n_features),
        each feature with itself on the diagonal; `joint` is not looked at.
    rng
        Source of the draw.

    Returns
    -------
    PairTable
        The pairs i < j in the order of `numpy.triu_indices(n_features, 1)`, flat.
    """
    n_features = table.ones_i.shape[0]
    upper = np.triu_indices(n_features, 1)
    margins = (np.broadcast_to(a, (n_features, n_features))[upper] for a in table[:3])
    n, ones_i, ones_j = (np.ascontiguousarray(a, dtype=np.float64) for a in margins)
    n_rows = _count_coupling_rows(np.asarray(table.n))
    scores = _draw_correlation(n_features, n_rows, rng)[upper] * np.sqrt(max(n_rows - 1, 1))
    return PairTable(n, ones_i, ones_j, joint_count_quantiles(n, ones_i, ones_j, scores))


def _count_coupling_rows(n: NDArray[np.int64]) -> int:
    """Rows that couple pairs: all rows if values are missing at random, however few a pair has."""
    if n.ndim == 0:
        return int(n)
    i, j = np.nonzero(np.triu(n, 1))
    own = n.diagonal().astype(np.float64)
    return round(float((own[i] * own[j]).sum() / n[i, j].sum())) if len(i) else 1


def _draw_correlation(
    n_features: int, n_rows: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Sample correlation matrix of independent normals."""
    degrees = n_rows - 1
    if degrees >= n_features:  # Bartlett's decomposition: no need to draw every row
        factor = np.tril(rng.standard_normal((n_features, n_features)), -1)
        np.fill_diagonal(factor, np.sqrt(rng.chisquare(degrees - np.arange(n_features))))
    else:
        factor = rng.standard_normal((n_features, max(degrees, 1)))
    factor /= np.linalg.norm(factor, axis=1, keepdims=True)
    correlation: NDArray[np.float64] = factor @ factor.T
    return correlation
