"""Solutions with known parameters, their exact moments, and rows drawn from them."""

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

STAY = 0.99
"""Probability to stay in a hidden segment."""


def draw_solution(
    n_features: int, n_components: int, n_segments: int, seed: int = 0
) -> MatchSolution:
    """Draw mixing entries from (-1, 1) and standard deviations of the sources from (½, 2)."""
    rng = np.random.default_rng(seed)
    mixing = rng.uniform(-1, 1, (n_features, n_components))
    return make_solution(mixing, rng.uniform(0.5, 2, (n_segments, n_components)) ** 2)


def make_solution(mixing: Floats, variances: Floats) -> MatchSolution:
    """Make a solution whose scales give correlation matrices with unit diagonals."""
    return MatchSolution(mixing, np.log(variances), 0.5 * np.log1p(variances @ mixing.T**2))


def compute_correlations(solution: MatchSolution) -> Floats:
    """Return the correlations of signal plus unit noise in every segment."""
    mixing, variances = solution.mixing, np.exp(solution.log_variances)
    covariance = np.eye(len(mixing)) + np.einsum("ik,uk,jk->uij", mixing, variances, mixing)
    deviations = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    return covariance / deviations[:, :, None] / deviations[:, None, :]


def make_moments(
    solution: MatchSolution, ridge: float = 0.0, model_ridge: float = 0.0
) -> SegmentMoments:
    """Return moments with exact correlations and segments of equal weight."""
    n_segments, n_features = solution.log_precisions.shape
    return SegmentMoments(
        compute_correlations(solution),
        np.ones((n_segments, n_features), np.bool_),
        np.full(n_segments, 1 / n_segments),
        np.full(n_segments, ridge),
        np.full(n_segments, model_ridge),
    )


def make_exact_segments(solution: MatchSolution, n_rows: int = 1000) -> SegmentCorrelations:
    """Return segments with `n_rows` rows each, without sampling error and all in use."""
    shape = solution.log_precisions.shape
    correlation = compute_correlations(solution)
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


def draw_rows(
    solution: MatchSolution, n_rows: int, rng: np.random.Generator, share: float = 0.5
) -> DenseData:
    """Draw `n_rows` rows per segment; each feature is 1 with probability `share`."""
    deviations = np.exp(0.5 * solution.log_variances)
    n_segments, n_components = deviations.shape
    segments = np.repeat(np.arange(n_segments), n_rows)
    signal = rng.standard_normal((len(segments), n_components)) * deviations[segments]
    output = signal @ solution.mixing.T
    output += rng.standard_normal(output.shape)
    scales = np.sqrt(1 + np.exp(solution.log_variances) @ solution.mixing.T**2)
    return DenseData((output > norm.isf(share) * scales[segments]).astype(np.uint8), None, segments)


def count_pairs(data: DenseData, n_groups: int = 1) -> PairCounts:
    parts = (PairCounts.from_groups(block, n_groups) for block in make_memory_blocks(data))
    return reduce(lambda a, b: a.merge(b), parts)


def fit_blica(data: DenseData, seed: int = 0, **more: Any) -> FitState:
    return fit_model(BLICA(**more), make_memory_rows(data), SerialExecutor(), seed)


def draw_nonstationary_data(truth: NonstationaryTruth, n_rows: int, seed: int = 1) -> DenseData:
    X = np.vstack([batch.X for batch in draw_nonstationary_rows(truth, n_rows, seed)])
    return DenseData(X, None, np.arange(len(X)) // n_rows)


@lru_cache
def draw_truth_and_data(
    n_features: int, n_components: int, n_segments: int, n_rows: int
) -> tuple[NonstationaryTruth, DenseData]:
    truth = draw_nonstationary_truth(n_features, n_components, n_segments, seed=1)
    return truth, draw_nonstationary_data(truth, n_rows)


def draw_hidden(
    n_rows: int, n_segments: int, seed: int, n_features: int = 6, n_components: int = 2
) -> tuple[NonstationaryTruth, DenseData]:
    """Draw rows of the model of the paper, whose segments follow a Markov chain."""
    truth = draw_nonstationary_truth(n_features, n_components, n_segments, seed)
    rng = np.random.default_rng([seed, 7])
    steps = np.where(rng.random(n_rows) < STAY, 0, rng.integers(1, n_segments, n_rows))
    segments = np.cumsum(steps) % n_segments
    z = rng.standard_normal((n_rows, n_components)) * np.sqrt(truth.source_variances[segments])
    z += truth.source_means[segments]
    latent = np.sqrt(np.pi / 8) * z @ truth.mixing.T + rng.standard_normal((n_rows, n_features))
    return truth, DenseData((latent > 0).astype(np.uint8), None, segments)


def draw_small_data(n_rows: int = 200) -> DenseData:
    """Return rows of 5 features, 2 sources and 6 segments in arrays that a test may modify."""
    data = draw_truth_and_data(5, 2, 6, n_rows)[1]
    return DenseData(data.X.copy(), None, data.segments)
