"""Intervals of the mixing against what fits of fresh data show, and how columns are matched."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pipeline.executors.threads import ThreadsExecutor
from pipeline.models.binary_ica.moment_matching import optimiser
from pipeline.models.binary_ica.moment_matching.bootstrap import bootstrap_mixing_interval
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import maximise
from pipeline.models.binary_ica.moment_matching.refinement import normalize_solution
from pipeline.models.binary_ica.moment_matching.segments import estimate_segments
from pipeline.numerics.metrics import match_columns
from pipeline.statistics.counts import PairCounts
from tests.pipeline.models.binary_ica.moment_matching import Floats, counts_of, drawn, planted

N_SEGMENTS, N_ROWS, REGULARIZATION = 10, 400, 20.0
N_DATA_SETS = 3
TRUTH = planted(5, 2, N_SEGMENTS, seed=1)


def summed(counts: PairCounts, n_groups: int) -> PairCounts:
    return counts.sum_weighted_groups(n_groups, np.ones((N_SEGMENTS, n_groups), np.int64))


def optimum(counts: PairCounts) -> MatchSolution:
    """The one next to the truth."""
    return maximise(estimate_segments(counts, 20, map).moments(REGULARIZATION), TRUTH).solution


def estimate(counts: PairCounts) -> MatchSolution:
    """The same for reading."""
    return normalize_solution(optimum(counts), estimate_segments(counts, 20, map))


def data_of(seed: int, n_groups: int, n_rows: int = N_ROWS) -> PairCounts:
    return counts_of(drawn(TRUTH, n_rows, np.random.default_rng(seed)), n_groups)


@lru_cache
def interval_of(seed: int, n_groups: int, replicates: int = 40, n_rows: int = N_ROWS) -> Floats:
    """Interval of the mixing, in the order and with the signs of the true columns."""
    counts = data_of(seed, n_groups, n_rows)
    solution = estimate(summed(counts, n_groups))
    segments = estimate_segments(summed(counts, n_groups), 20, map)
    settings_ = (n_groups, [REGULARIZATION] * replicates)
    found = (optimum(summed(counts, n_groups)), solution.mixing, segments)
    lower, upper = bootstrap_mixing_interval(counts, *settings_, *found, range(replicates), map)
    matched = match_columns(solution.mixing, TRUTH.mixing)
    cosines = solution.mixing.T @ matched
    order = np.abs(cosines).argmax(axis=0)
    signs = np.sign(cosines[order, range(2)])
    return np.sort(signs * np.array([lower, upper])[:, :, order], axis=0)


def implied_deviations(n_groups: int) -> Floats:
    """Root mean square over data sets of the standard deviations that intervals stand for."""
    widths = [np.diff(interval_of(seed, n_groups), axis=0)[0] for seed in range(N_DATA_SETS)]
    return np.sqrt(np.mean(np.square(widths), axis=0)) / (2 * norm.ppf(0.975))


@pytest.mark.matrix
def test_intervals_are_as_wide_as_estimates_scatter() -> None:
    estimates = [
        match_columns(estimate(data_of(100 + seed, 1)).mixing, TRUTH.mixing) for seed in range(25)
    ]
    scatter = np.std(estimates, axis=0, ddof=1)
    ratios = implied_deviations(16) / scatter
    assert 1 / 1.5 < np.sqrt((implied_deviations(16) ** 2).mean() / (scatter**2).mean()) < 1.5
    assert 1 / 1.5 < np.median(ratios) < 1.5


def test_intervals_cover_the_truth() -> None:
    truth = TRUTH.mixing / np.linalg.norm(TRUTH.mixing, axis=0)
    inside = []
    for seed in range(N_DATA_SETS):
        # The ridge and the finite sample shift estimates a little, more than 95 % would allow.
        lower, upper = interval_of(seed, 16)
        inside.append((lower <= truth) & (truth <= upper))
    assert np.mean(inside) > 0.75


@pytest.mark.matrix
def test_two_groups_and_sixteen_agree() -> None:
    two, sixteen = implied_deviations(2), implied_deviations(16)
    assert 1 / 1.3 < np.sqrt((two**2).mean() / (sixteen**2).mean()) < 1.3


def test_more_rows_make_narrower_intervals() -> None:
    few, many = (np.diff(interval_of(0, 4, n_rows=n), axis=0).mean() for n in (400, 6400))
    assert 2.5 < few / many < 6.5


def test_without_seeds_there_is_no_interval() -> None:
    counts = data_of(0, 2)
    segments = estimate_segments(summed(counts, 2), 20, map)
    found = (optimum(summed(counts, 2)), estimate(summed(counts, 2)).mixing, segments)
    interval = bootstrap_mixing_interval(counts, 2, [], *found, [], map)
    assert interval.shape == (0, 5, 2)


def test_intervals_are_percentiles_and_the_same_wherever_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = data_of(0, 4)
    segments = estimate_segments(summed(counts, 4), 20, map)
    ridges = [5.0, 20.0, 20.0, 50.0, 20.0]
    found = (optimum(summed(counts, 4)), estimate(summed(counts, 4)).mixing, segments)
    arguments = (counts, 4, ridges, *found)
    single = [
        bootstrap_mixing_interval(counts, 4, [r], *found, [seed], map)
        for seed, r in enumerate(ridges)
    ]
    for lower, upper in single:
        np.testing.assert_array_equal(lower, upper)
    replicates = [lower for lower, _ in single]
    together = bootstrap_mixing_interval(*arguments, range(5), map)
    np.testing.assert_allclose(together, np.percentile(replicates, [2.5, 97.5], axis=0))
    assert np.ptp(replicates, axis=0).min() > 0
    threaded = bootstrap_mixing_interval(*arguments, range(5), ThreadsExecutor(2).map)
    monkeypatch.setattr(optimiser, "_MAX_BYTES_TO_SEND", 0)
    large = bootstrap_mixing_interval(*arguments, range(5), map)
    assert threaded.tobytes() == large.tobytes() == together.tobytes()


# --- matching columns ----------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_columns_take_the_order_and_the_signs_of_the_reference(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns, _ = np.linalg.qr(rng.standard_normal((6, k)))
    lengths = rng.uniform(0.1, 9, k)
    near = columns + 0.05 * rng.standard_normal(columns.shape)
    mixed = (near * rng.choice([-1, 1], k))[:, rng.permutation(k)]
    np.testing.assert_allclose(match_columns(mixed, columns * lengths), near, rtol=1e-12)


def test_the_matching_is_the_best_of_all_not_column_by_column() -> None:
    """The first column is nearest to both; giving it to the first would leave 0 for the second."""
    reference = np.array([[1.0, 0.0], [0.0, 1.0]])
    estimated = np.array([[0.8, 1.0], [0.6, 0.0]])
    np.testing.assert_array_equal(match_columns(estimated, reference), estimated[:, ::-1])


def test_lengths_stay_and_zeros_stay_zeros() -> None:
    estimated = np.array([[0.0, -3.0], [0.0, 0.0]])
    matched = match_columns(estimated, np.eye(2))
    np.testing.assert_array_equal(matched, [[3.0, 0.0], [0.0, 0.0]])
