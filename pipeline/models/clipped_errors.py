"""Standard errors of clipped PCA: of correlations from pair counts, of loadings from rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.loading_errors import (
    Influence,
    correlation_errors,
    influence,
    loading_errors,
    moments_of_moves,
)
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

MOST_FEATURES = 1000
"""Of more there are no standard errors: matrices of pairs are sent to where the rows are."""
_LEAST_ROWS, _MOST_ROWS = 2_000, 20_000
_MOST_WORK = 1e11  # multiplications


def with_pair_errors(state: FitState, counts: PairCounts) -> FitState:
    """Add the errors that counts tell, and what rows are to be summed by for those of loadings.

    Parameters
    ----------
    state
        Of a `ClippedPCA` whose correlations are made.
    counts
        All pairs, segments as one.
    """
    params, n_rows = state.params, counts.n_samples
    n, ones_i, ones_j, both = (
        np.broadcast_to(np.asarray(a, np.float64), params.correlation.shape)
        for a in counts.table(0)
    )
    moved = influence(params.correlation, n, ones_i, ones_j, both, n_rows)
    errors = correlation_errors(moved, n, ones_i, ones_j, both, n_rows)
    of_thresholds = threshold_errors(*(counted[0] for counted in counts.margins()))
    params = replace(params, correlation_error=errors, thresholds_error=of_thresholds)
    n_features, q = params.loadings.shape
    if not q:
        return replace(state, params=params)
    share = share_informing(n_rows, n_features, q)
    working = {**moved._asdict(), "n_rows": np.array(n_rows), "share": np.array(share)}
    return replace(state, params=params, working=working)


def summarize_moves(params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom) -> Sums:
    """Sum how rows move eigenvectors."""
    uniform = rng.stream("information").uniform(block.rows, 1)[:, 0]
    block = block.taken(np.flatnonzero(uniform < working["share"]))
    moved = Influence(working["joint"], working["single"], working["constant"])
    vectors = unit_vectors(params.loadings, params.eigenvalues)
    found = moments_of_moves(block.dense(), block.observed(), moved, vectors)
    return Sums(block.n_samples, 0.0, {"moments": found})


def with_loading_errors(state: FitState, statistics: Sums) -> FitState:
    """Add the errors of loadings, and leave what they are made of."""
    params, constant = state.params, state.auxiliary["constant"]
    scale = 1 / (max(statistics.n_samples, 1) * int(state.working["n_rows"]))
    varying = params.correlation.copy()
    varying[constant, constant] = 0.0
    values = params.eigenvalues[: params.loadings.shape[1]]
    vectors = unit_vectors(params.loadings, params.eigenvalues)
    errors = loading_errors(varying, values, vectors, scale * statistics.values["moments"])
    errors[constant] = np.nan
    return replace(state, params=replace(params, loadings_error=errors), working={})


def threshold_errors(observed: NDArray[np.int64], ones: NDArray[np.int64]) -> Array:
    """Give standard errors of −Φ⁻¹(p), (n_features,); not a number of constant features."""
    p = ones / observed
    density = np.exp(-(scipy.special.ndtri(np.clip(p, 1e-300, 1 - 1e-16)) ** 2) / 2)
    errors = np.sqrt(2 * np.pi * p * (1 - p) / observed) / np.maximum(density, 1e-300)
    return np.where((ones == 0) | (ones == observed), np.nan, errors)


def share_informing(n_rows: int, n_features: int, n_components: int) -> float:
    """Give the share of rows whose moves of the correlations are summed."""
    most = _MOST_WORK / (4 * n_features**2 * max(n_components, 1))
    return min(1.0, float(np.clip(most, _LEAST_ROWS, _MOST_ROWS)) / max(n_rows, 1))


def unit_vectors(loadings: Array, eigenvalues: Array) -> Array:
    """Give the eigenvectors that loadings are made of; 0 where the eigenvalue is not above 0."""
    values = eigenvalues[: loadings.shape[1]]
    scale = np.where(values > 0, 1 / np.sqrt(np.where(values > 0, values, 1.0)), 0.0)
    return np.asarray(loadings * scale)
