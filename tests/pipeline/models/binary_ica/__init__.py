"""Models of known truth, and what they show: exactly, or in rows drawn from them."""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.gaussian_likelihood import MatchSolution, SegmentMoments
from pipeline.models.binary_ica.segment_correlations import SegmentCorrelations, SegmentStatus
from pipeline.models.state import FitState
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.statistics.counts import PairCounts
from storage.examples import (
    NonstationaryTruth,
    draw_nonstationary_rows,
    draw_nonstationary_truth,
)
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

Floats = NDArray[np.float64]


def planted(n_features: int, n_components: int, n_segments: int, seed: int = 0) -> MatchSolution:
    """Mixing of about unit entries, standard deviations of the sources from ½ to 2."""
    rng = np.random.default_rng(seed)
    mixing = rng.uniform(-1, 1, (n_features, n_components))
    return solution_of(mixing, rng.uniform(0.5, 2, (n_segments, n_components)) ** 2)


def solution_of(mixing: Floats, variances: Floats) -> MatchSolution:
    """The scales are those of unit diagonals."""
    return MatchSolution(mixing, np.log(variances), 0.5 * np.log1p(variances @ mixing.T**2))


def correlations_of(solution: MatchSolution) -> Floats:
    """Correlations of signal plus unit noise in every segment."""
    mixing, variances = solution.mixing, np.exp(solution.log_variances)
    covariance = np.eye(len(mixing)) + np.einsum("ik,uk,jk->uij", mixing, variances, mixing)
    deviations = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    return covariance / deviations[:, :, None] / deviations[:, None, :]


def moments_of(
    solution: MatchSolution, ridge: float = 0.0, model_ridge: float = 0.0
) -> SegmentMoments:
    """Moments with exact correlations, in segments of equal weight."""
    n_segments, n_features = solution.log_precisions.shape
    return SegmentMoments(
        correlations_of(solution),
        np.ones((n_segments, n_features), np.bool_),
        np.full(n_segments, 1 / n_segments),
        np.full(n_segments, ridge),
        np.full(n_segments, model_ridge),
    )


def segments_of_truth(solution: MatchSolution, n_rows: int = 1000) -> SegmentCorrelations:
    """What segments of so many rows would be without sampling error, all of them used."""
    shape = solution.log_precisions.shape
    correlation = correlations_of(solution)
    rows = np.full(len(correlation), n_rows)
    return SegmentCorrelations(
        np.full(len(rows), SegmentStatus.USED, np.uint8),
        rows,
        rows.astype(np.float64),
        np.ones(shape, np.bool_),
        np.zeros(shape),
        np.full(shape, np.sqrt(np.pi / 2 / n_rows)),
        correlation,
        np.full(correlation.shape, PairStatus.PLAIN, np.uint8),
        np.linalg.eigvalsh(correlation)[:, [0, -1]],
    )


def drawn(
    solution: MatchSolution, n_rows: int, rng: np.random.Generator, share: float = 0.5
) -> DenseData:
    """So many rows of every segment, each feature 1 with this probability."""
    deviations = np.exp(0.5 * solution.log_variances)
    n_segments, n_components = deviations.shape
    segments = np.repeat(np.arange(n_segments), n_rows)
    signal = rng.standard_normal((len(segments), n_components)) * deviations[segments]
    output = signal @ solution.mixing.T
    output += rng.standard_normal(output.shape)
    scales = np.sqrt(1 + np.exp(solution.log_variances) @ solution.mixing.T**2)
    return DenseData((output > norm.isf(share) * scales[segments]).astype(np.uint8), None, segments)


def counts_of(data: DenseData, n_groups: int = 1) -> PairCounts:
    parts = (PairCounts.from_groups(block, n_groups) for block in make_memory_blocks(data))
    return reduce(lambda a, b: a.merge(b), parts)


def fitted(data: DenseData, seed: int = 0, **more: Any) -> FitState:
    return fit_model(BLICA(**more), make_memory_rows(data), SerialExecutor(), seed)


def nonstationary(truth: NonstationaryTruth, n_rows: int, seed: int = 1) -> DenseData:
    X = np.vstack([batch.X for batch in draw_nonstationary_rows(truth, n_rows, seed)])
    return DenseData(X, None, np.arange(len(X)) // n_rows)


@lru_cache
def truth_and_data(
    n_features: int, n_components: int, n_segments: int, n_rows: int
) -> tuple[NonstationaryTruth, DenseData]:
    truth = draw_nonstationary_truth(n_features, n_components, n_segments, seed=1)
    return truth, nonstationary(truth, n_rows)


def small(n_rows: int = 200) -> DenseData:
    """Rows of 5 features, 2 sources and 6 segments, which tests may spoil."""
    data = truth_and_data(5, 2, 6, n_rows)[1]
    return DenseData(data.X.copy(), None, data.segments)
