"""Moment matching after the optimum: gaps, variances, column order, bootstrap intervals."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from pipeline.executors.base import MapFunction, ThreadsExecutor
from pipeline.models.binary_ica import gaussian_likelihood
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    Optimum,
    maximise,
    maximise_from_seeds,
)
from pipeline.models.binary_ica.moment_matching import (
    MAX_ROUNDS,
    MatchSettings,
    bootstrap_mixing_interval,
    calibrate_variances,
    count_surplus_equations,
    estimate_source_means,
    fill_gaps,
    normalize_solution,
)
from pipeline.models.binary_ica.segment_correlations import (
    SegmentCorrelations,
    SegmentStatus,
    estimate_segments,
)
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.metrics import match_columns, mean_cosine_similarity
from pipeline.statistics.counts import PairCounts
from tests.pipeline.models.binary_ica import (
    Floats,
    compute_correlations,
    count_pairs,
    draw_rows,
    draw_solution,
    make_exact_segments,
    make_solution,
)

TRUTH = draw_solution(6, 2, 8)
LOOSE = 1e6
"""A condition number above that of every segment, so that no ridge is added."""


# --- gaps ----------------------------------------------------------------------------------------


def make_segments_with_gaps(*gaps: tuple[int, int, int]) -> SegmentCorrelations:
    """Return exact segments in which the given (segment, i, j) are undefined pairs."""
    segments = make_exact_segments(TRUTH)
    correlation, status = segments.correlation.copy(), segments.pair_status.copy()
    for u, i, j in gaps:
        others = np.delete(segments.correlation[:, i, j], u)
        correlation[u, [i, j], [j, i]] = others.mean()
        status[u, [i, j], [j, i]] = PairStatus.NO_OBSERVATIONS
    return replace(segments, pair_status=status).with_correlation(correlation, map)


def find_best(segments: SegmentCorrelations, regularization: float) -> Optimum:
    return maximise_from_seeds(segments.moments(regularization), 2, range(2), map)[0]


def test_gaps_are_filled_with_model_correlations() -> None:
    gaps = [(0, 0, 1), (0, 2, 3), (3, 0, 5), (7, 1, 4)]
    segments = make_segments_with_gaps(*gaps)
    first = find_best(segments, LOOSE)
    optimum, filled, n_rounds = fill_gaps(first, segments, LOOSE, map)
    assert 1 < n_rounds < MAX_ROUNDS
    truth = compute_correlations(TRUTH)
    for u, i, j in gaps:
        implied = optimum.solution.model_correlation(u)[i, j]
        assert filled.correlation[u, j, i] == pytest.approx(filled.correlation[u, i, j])
        assert filled.correlation[u, i, j] == pytest.approx(implied, abs=2e-3)
        assert filled.correlation[u, i, j] == pytest.approx(truth[u, i, j], abs=0.005)
        assert abs(first.solution.model_correlation(u)[i, j] - truth[u, i, j]) > 0.02
    known = ~segments.find_undefined_pairs()
    np.testing.assert_array_equal(filled.correlation[known], segments.correlation[known])
    np.testing.assert_array_equal(filled.pair_status, segments.pair_status)
    assert mean_cosine_similarity(optimum.solution.mixing, TRUTH.mixing) > 0.9999
    np.testing.assert_allclose(
        filled.extremes, np.linalg.eigvalsh(filled.correlation)[:, [0, -1]], atol=1e-12
    )


def test_filled_gaps_are_corrected_for_the_ridge() -> None:
    gaps = [(0, 0, 1), (3, 0, 5)]
    segments = make_segments_with_gaps(*gaps)
    optimum, filled, _ = fill_gaps(find_best(segments, 4.0), segments, 4.0, map)
    ridge = filled.moments(4.0).ridge
    for u, i, j in gaps:
        assert ridge[u] > 0.2
        stretched = optimum.solution.model_correlation(u)[i, j] * (1 + ridge[u])
        assert filled.correlation[u, i, j] == pytest.approx(stretched, abs=5e-3)


# --- variances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("regularization", [1.5, 4.0, LOOSE])
def test_calibration_recovers_variances_for_any_ridge(regularization: float) -> None:
    """Start from half the variances and true directions, in columns of arbitrary length."""
    segments = make_exact_segments(TRUTH, 10**9)
    lengths = np.array([3.0, 0.4])
    start = make_solution(TRUTH.mixing * lengths, 0.5 * np.exp(TRUTH.log_variances) / lengths**2)
    result = calibrate_variances(start, segments, regularization, map)
    np.testing.assert_array_equal(result.mixing, start.mixing)
    variances = np.exp(result.log_variances) * lengths**2
    np.testing.assert_allclose(variances, np.exp(TRUTH.log_variances), rtol=0.05)
    np.testing.assert_allclose(result.log_precisions, TRUTH.log_precisions, atol=0.02)


def test_refinements_are_identical_on_all_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = make_segments_with_gaps((0, 0, 1))
    optimum = find_best(segments, 4.0)

    def refine(map_items: MapFunction) -> bytes:
        last, filled, _ = fill_gaps(optimum, segments, 4.0, map_items)
        return calibrate_variances(last.solution, filled, 4.0, map_items).to_vector().tobytes()

    expected = refine(map)
    assert refine(ThreadsExecutor(2).map) == expected
    monkeypatch.setattr(gaussian_likelihood, "_MAX_BYTES_TO_SEND", 0)
    assert refine(map) == expected


# --- normalization -------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_columns_are_normalized_and_sorted_by_explained_variance(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    solution = draw_solution(5, k, 6, seed)
    lengths = rng.choice([-1.0, 1.0], k) * rng.uniform(0.1, 9, k)
    solution = solution._replace(mixing=solution.mixing * lengths)
    solution = make_solution(solution.mixing, np.exp(solution.log_variances))
    weights = rng.integers(10, 500, 6).astype(np.float64)
    segments = replace(make_exact_segments(solution), pair_rows=weights)
    result = normalize_solution(solution, segments)
    np.testing.assert_allclose((result.mixing**2).sum(axis=0), 1.0)
    assert ((result.mixing**3).sum(axis=0) > 0).all()
    explained = weights @ np.exp(result.log_variances)
    assert (np.diff(explained) <= 1e-9 * explained[0]).all()
    np.testing.assert_allclose(
        compute_correlations(result), compute_correlations(solution), atol=1e-9
    )
    np.testing.assert_array_equal(result.log_precisions, solution.log_precisions)


def test_excluded_segments_get_weighted_mean_variances() -> None:
    status = np.zeros(8, np.uint8)
    status[[1, 4]] = SegmentStatus.TOO_SMALL
    weights = np.arange(1.0, 9.0)
    segments = replace(make_exact_segments(TRUTH), status=status, pair_rows=weights)
    used = segments.is_used
    inner = MatchSolution(TRUTH.mixing, TRUTH.log_variances[used], TRUTH.log_precisions[used])
    result = normalize_solution(inner, segments)
    variances = np.exp(result.log_variances)
    assert variances.shape == (8, 2)
    np.testing.assert_allclose(
        variances[~used],
        np.tile(np.average(variances[used], axis=0, weights=weights[used]), (2, 1)),
    )
    np.testing.assert_array_equal(result.log_precisions[used], inner.log_precisions)
    expected = 0.5 * np.log1p(variances[~used] @ result.mixing.T**2)
    np.testing.assert_allclose(result.log_precisions[~used], expected)


# --- source means --------------------------------------------------------------------------------


def test_source_means_are_exact_for_consistent_margins() -> None:
    rng = np.random.default_rng(0)
    means = rng.standard_normal((8, 2))
    errors = rng.uniform(0.01, 2, (8, 6))
    errors[3, [0, 5]] = np.inf
    outputs = means @ TRUTH.mixing.T
    outputs[3, [0, 5]] = 99.0  # infinite error, so not used
    result, misfit = estimate_source_means(TRUTH.mixing, outputs, errors)
    np.testing.assert_allclose(result, means, atol=1e-10)
    np.testing.assert_allclose(misfit, 0.0, atol=1e-9)


def test_source_means_match_weighted_least_squares() -> None:
    rng = np.random.default_rng(1)
    outputs, errors = rng.standard_normal((8, 6)), rng.uniform(0.1, 2, (8, 6))
    result, misfit = estimate_source_means(TRUTH.mixing, outputs, errors)
    for u in range(8):
        precision = np.diag(errors[u] ** -2)
        normal = TRUTH.mixing.T @ precision
        expected = np.linalg.solve(normal @ TRUTH.mixing, normal @ outputs[u])
        np.testing.assert_allclose(result[u], expected, rtol=1e-9)
        residuals: Floats = (outputs[u] - TRUTH.mixing @ expected) / errors[u]
        assert misfit[u] == pytest.approx(np.sqrt((residuals**2).mean()))


N_SEGMENTS, N_ROWS, REGULARIZATION = 10, 400, 20.0
N_DATA_SETS = 3
BOOTSTRAP_TRUTH = draw_solution(5, 2, N_SEGMENTS, seed=1)


def sum_groups(counts: PairCounts, n_groups: int) -> PairCounts:
    return counts.sum_weighted_groups(n_groups, np.ones((N_SEGMENTS, n_groups), np.int64))


def make_settings(n_groups: int) -> MatchSettings:
    return MatchSettings(2, REGULARIZATION, n_groups, 20)


def find_optimum(counts: PairCounts) -> MatchSolution:
    """Return the optimum nearest to the truth."""
    return maximise(
        estimate_segments(counts, 20, map).moments(REGULARIZATION), BOOTSTRAP_TRUTH
    ).solution


def estimate_solution(counts: PairCounts) -> MatchSolution:
    """Return the normalized optimum."""
    return normalize_solution(find_optimum(counts), estimate_segments(counts, 20, map))


def draw_counts(seed: int, n_groups: int, n_rows: int = N_ROWS) -> PairCounts:
    return count_pairs(draw_rows(BOOTSTRAP_TRUTH, n_rows, np.random.default_rng(seed)), n_groups)


@lru_cache
def compute_interval(
    seed: int, n_groups: int, replicates: int = 40, n_rows: int = N_ROWS
) -> Floats:
    """Return the interval of the mixing, with the order and signs of the true columns."""
    counts = draw_counts(seed, n_groups, n_rows)
    solution = estimate_solution(sum_groups(counts, n_groups))
    segments = estimate_segments(sum_groups(counts, n_groups), 20, map)
    settings_ = (make_settings(n_groups), [REGULARIZATION] * replicates)
    estimates = (find_optimum(sum_groups(counts, n_groups)), solution.mixing, segments)
    lower, upper = bootstrap_mixing_interval(counts, *settings_, *estimates, range(replicates), map)
    matched = match_columns(solution.mixing, BOOTSTRAP_TRUTH.mixing)
    cosines = solution.mixing.T @ matched
    order = np.abs(cosines).argmax(axis=0)
    signs = np.sign(cosines[order, range(2)])
    return np.sort(signs * np.array([lower, upper])[:, :, order], axis=0)


def compute_implied_deviations(n_groups: int) -> Floats:
    """Return the standard deviations implied by intervals, root mean square over data sets."""
    widths = [np.diff(compute_interval(seed, n_groups), axis=0)[0] for seed in range(N_DATA_SETS)]
    return np.sqrt(np.mean(np.square(widths), axis=0)) / (2 * norm.ppf(0.975))


@pytest.mark.matrix
def test_interval_widths_match_scatter_of_estimates() -> None:
    estimates = [
        match_columns(estimate_solution(draw_counts(100 + seed, 1)).mixing, BOOTSTRAP_TRUTH.mixing)
        for seed in range(25)
    ]
    scatter = np.std(estimates, axis=0, ddof=1)
    ratios = compute_implied_deviations(16) / scatter
    assert (
        1 / 1.5 < np.sqrt((compute_implied_deviations(16) ** 2).mean() / (scatter**2).mean()) < 1.5
    )
    assert 1 / 1.5 < np.median(ratios) < 1.5


@pytest.mark.matrix
def test_intervals_cover_the_truth() -> None:
    truth = BOOTSTRAP_TRUTH.mixing / np.linalg.norm(BOOTSTRAP_TRUTH.mixing, axis=0)
    inside = []
    for seed in range(N_DATA_SETS):
        # The ridge and the finite sample bias estimates, so coverage is below 95 %.
        lower, upper = compute_interval(seed, 16)
        inside.append((lower <= truth) & (truth <= upper))
    assert np.mean(inside) > 0.75


def test_intervals_are_percentiles_and_identical_on_all_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = draw_counts(0, 4)
    segments = estimate_segments(sum_groups(counts, 4), 20, map)
    ridges = [5.0, 20.0, 20.0, 50.0, 20.0]
    estimates = (
        find_optimum(sum_groups(counts, 4)),
        estimate_solution(sum_groups(counts, 4)).mixing,
        segments,
    )
    settings_ = make_settings(4)
    arguments = (counts, settings_, ridges, *estimates)
    single = [
        bootstrap_mixing_interval(counts, settings_, [r], *estimates, [seed], map)
        for seed, r in enumerate(ridges)
    ]
    for lower, upper in single:
        np.testing.assert_array_equal(lower, upper)
    replicates = [lower for lower, _ in single]
    together = bootstrap_mixing_interval(*arguments, range(5), map)
    np.testing.assert_allclose(together, np.percentile(replicates, [2.5, 97.5], axis=0))
    assert np.ptp(replicates, axis=0).min() > 0
    threaded = bootstrap_mixing_interval(*arguments, range(5), ThreadsExecutor(2).map)
    monkeypatch.setattr(gaussian_likelihood, "_MAX_BYTES_TO_SEND", 0)
    large = bootstrap_mixing_interval(*arguments, range(5), map)
    assert threaded.tobytes() == large.tobytes() == together.tobytes()


# --- matching columns ----------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_matched_columns_have_order_and_signs_of_reference(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns, _ = np.linalg.qr(rng.standard_normal((6, k)))
    lengths = rng.uniform(0.1, 9, k)
    near = columns + 0.05 * rng.standard_normal(columns.shape)
    mixed = (near * rng.choice([-1, 1], k))[:, rng.permutation(k)]
    np.testing.assert_allclose(match_columns(mixed, columns * lengths), near, rtol=1e-12)


def test_matching_is_globally_optimal() -> None:
    """The first column is nearest to both references; a greedy match would leave the second 0."""
    reference = np.array([[1.0, 0.0], [0.0, 1.0]])
    estimated = np.array([[0.8, 1.0], [0.6, 0.0]])
    np.testing.assert_array_equal(match_columns(estimated, reference), estimated[:, ::-1])


# Hyttinen et al. (2022), table 1: K = n, for n = 2 ... 10.
TABLE = {
    2: [-6, -9, -12, -15, -18, -21, -24, -27, -30],
    3: [-7, -9, -10, -10, -9, -7, -4, 0, 5],
    4: [-8, -9, -8, -5, 0, 7, 16, 27, 40],
    5: [-9, -9, -6, 0, 9, 21, 36, 54, 75],
    6: [-10, -9, -4, 5, 18, 35, 56, 81, 110],
}


def test_surplus_equations_match_table_1_of_paper() -> None:
    for n_segments, expected in TABLE.items():
        assert [count_surplus_equations(n, n, n_segments) for n in range(2, 11)] == expected
    # 3 segments of 6 correlations against 3 x 2 variances and 4 x 2 entries of the mixing.
    assert count_surplus_equations(4, 2, 3) == 3 * 6 - 3 * 2 - 4 * 2


def test_segment_without_information_has_zero_means() -> None:
    result, misfit = estimate_source_means(TRUTH.mixing, np.ones((1, 6)), np.full((1, 6), np.inf))
    np.testing.assert_array_equal(result, 0.0)
    np.testing.assert_array_equal(misfit, 0.0)
