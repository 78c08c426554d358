"""What is done to an optimum: gaps filled, variances fitted again, columns put in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.executors.threads import ThreadsExecutor
from pipeline.models.binary_ica.moment_matching import optimiser
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import Optimum, maximise_from_seeds
from pipeline.models.binary_ica.moment_matching.refinement import (
    MAX_ROUNDS,
    calibrate_variances,
    estimate_source_means,
    fill_gaps,
    normalize_solution,
)
from pipeline.models.binary_ica.moment_matching.segments import SegmentCorrelations, SegmentStatus
from pipeline.numerics.gaussian.tetrachoric import PairStatus
from pipeline.numerics.metrics import mean_cosine_similarity
from tests.pipeline.models.binary_ica.moment_matching import (
    Floats,
    correlations_of,
    planted,
    segments_of_truth,
    solution_of,
)

TRUTH = planted(6, 2, 8)
LOOSE = 1e6
"""A condition number that no segment has, so that nothing is ridged."""


# --- gaps ----------------------------------------------------------------------------------------


def with_gaps(*gaps: tuple[int, int, int]) -> SegmentCorrelations:
    """Exact segments whose pairs (segment, i, j) are unknown and set to the mean of the others."""
    segments = segments_of_truth(TRUTH)
    correlation, status = segments.correlation.copy(), segments.pair_status.copy()
    for u, i, j in gaps:
        others = np.delete(segments.correlation[:, i, j], u)
        correlation[u, [i, j], [j, i]] = others.mean()
        status[u, [i, j], [j, i]] = PairStatus.NO_OBSERVATIONS
    return replace(segments, pair_status=status).with_correlation(correlation, map)


def best_of(segments: SegmentCorrelations, regularization: float) -> Optimum:
    return maximise_from_seeds(segments.moments(regularization), 2, range(2), map)[0]


def test_gaps_are_filled_by_what_the_model_says() -> None:
    gaps = [(0, 0, 1), (0, 2, 3), (3, 0, 5), (7, 1, 4)]
    segments = with_gaps(*gaps)
    first = best_of(segments, LOOSE)
    optimum, filled, n_rounds = fill_gaps(first, segments, LOOSE, map)
    assert 1 < n_rounds < MAX_ROUNDS
    truth = correlations_of(TRUTH)
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


def test_what_the_ridge_took_is_given_back_to_the_gaps() -> None:
    gaps = [(0, 0, 1), (3, 0, 5)]
    segments = with_gaps(*gaps)
    optimum, filled, _ = fill_gaps(best_of(segments, 4.0), segments, 4.0, map)
    ridge = filled.moments(4.0).ridge
    for u, i, j in gaps:
        assert ridge[u] > 0.2
        stretched = optimum.solution.model_correlation(u)[i, j] * (1 + ridge[u])
        assert filled.correlation[u, i, j] == pytest.approx(stretched, abs=5e-3)


def test_without_gaps_nothing_is_fitted() -> None:
    segments = segments_of_truth(TRUTH)
    optimum = best_of(segments, LOOSE)
    same, untouched, n_rounds = fill_gaps(optimum, segments, LOOSE, map)
    assert (same, untouched, n_rounds) == (optimum, segments, 0)


def test_gaps_of_segments_left_out_stay() -> None:
    segments = with_gaps((2, 0, 1), (5, 2, 3))
    status = segments.status.copy()
    status[2] = SegmentStatus.UNDEFINED_PAIRS
    segments = replace(segments, status=status)
    optimum, filled, _ = fill_gaps(best_of(segments, LOOSE), segments, LOOSE, map)
    assert optimum.solution.log_variances.shape == (7, 2)
    np.testing.assert_array_equal(filled.correlation[2], segments.correlation[2])
    expected = correlations_of(TRUTH)[5, 2, 3]
    assert filled.correlation[5, 2, 3] == pytest.approx(expected, abs=0.02)


# --- variances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("regularization", [1.5, 4.0, LOOSE])
def test_variances_and_scales_come_back_whatever_the_ridge(regularization: float) -> None:
    """Started at half of the size, with the true directions in columns of any length."""
    segments = segments_of_truth(TRUTH, 10**9)
    lengths = np.array([3.0, 0.4])
    start = solution_of(TRUTH.mixing * lengths, 0.5 * np.exp(TRUTH.log_variances) / lengths**2)
    found = calibrate_variances(start, segments, regularization, map)
    np.testing.assert_array_equal(found.mixing, start.mixing)
    variances = np.exp(found.log_variances) * lengths**2
    np.testing.assert_allclose(variances, np.exp(TRUTH.log_variances), rtol=0.05)
    np.testing.assert_allclose(found.log_precisions, TRUTH.log_precisions, atol=0.02)


def test_the_ridge_alone_makes_variances_too_small() -> None:
    segments = segments_of_truth(TRUTH, 10**9)
    fitted = normalize_solution(best_of(segments, 2.0).solution, segments)
    again = normalize_solution(calibrate_variances(fitted, segments, 2.0, map), segments)
    truth = normalize_solution(TRUTH, segments)
    shrunk, back = (np.median(s.log_variances - truth.log_variances) for s in (fitted, again))
    assert shrunk < -1
    assert abs(back) < 0.3 * abs(shrunk)


def test_refinements_have_the_same_bytes_wherever_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = with_gaps((0, 0, 1))
    optimum = best_of(segments, 4.0)

    def refined(map_items: optimiser.MapFunction) -> bytes:
        last, filled, _ = fill_gaps(optimum, segments, 4.0, map_items)
        return calibrate_variances(last.solution, filled, 4.0, map_items).to_vector().tobytes()

    here = refined(map)
    assert refined(ThreadsExecutor(2).map) == here
    monkeypatch.setattr(optimiser, "_MAX_BYTES_TO_SEND", 0)
    assert refined(map) == here


# --- reading -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_columns_have_length_one_in_order_of_what_they_explain(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    solution = planted(5, k, 6, seed)
    lengths = rng.choice([-1.0, 1.0], k) * rng.uniform(0.1, 9, k)
    solution = solution._replace(mixing=solution.mixing * lengths)
    solution = solution_of(solution.mixing, np.exp(solution.log_variances))
    weights = rng.integers(10, 500, 6).astype(np.float64)
    segments = replace(segments_of_truth(solution), pair_rows=weights)
    found = normalize_solution(solution, segments)
    np.testing.assert_allclose((found.mixing**2).sum(axis=0), 1.0)
    largest = np.abs(found.mixing).argmax(axis=0)
    assert (found.mixing[largest, range(k)] > 0).all()
    explained = weights @ np.exp(found.log_variances)
    assert (np.diff(explained) <= 1e-9 * explained[0]).all()
    np.testing.assert_allclose(correlations_of(found), correlations_of(solution), atol=1e-9)
    np.testing.assert_array_equal(found.log_precisions, solution.log_precisions)


def test_segments_left_out_have_the_weighted_mean_variances() -> None:
    status = np.zeros(8, np.uint8)
    status[[1, 4]] = SegmentStatus.TOO_SMALL
    weights = np.arange(1.0, 9.0)
    segments = replace(segments_of_truth(TRUTH), status=status, pair_rows=weights)
    used = segments.is_used
    inner = MatchSolution(TRUTH.mixing, TRUTH.log_variances[used], TRUTH.log_precisions[used])
    found = normalize_solution(inner, segments)
    variances = np.exp(found.log_variances)
    assert variances.shape == (8, 2)
    np.testing.assert_allclose(
        variances[~used],
        np.tile(np.average(variances[used], axis=0, weights=weights[used]), (2, 1)),
    )
    np.testing.assert_array_equal(found.log_precisions[used], inner.log_precisions)
    expected = 0.5 * np.log1p(variances[~used] @ found.mixing.T**2)
    np.testing.assert_allclose(found.log_precisions[~used], expected)


# --- source means --------------------------------------------------------------------------------


def test_means_are_exact_where_the_margins_come_from_them() -> None:
    rng = np.random.default_rng(0)
    means = rng.standard_normal((8, 2))
    errors = rng.uniform(0.01, 2, (8, 6))
    errors[3, [0, 5]] = np.inf
    outputs = means @ TRUTH.mixing.T
    outputs[3, [0, 5]] = 99.0  # Known to no precision at all.
    found, misfit = estimate_source_means(TRUTH.mixing, outputs, errors)
    np.testing.assert_allclose(found, means, atol=1e-10)
    np.testing.assert_allclose(misfit, 0.0, atol=1e-9)


def test_means_are_those_of_weighted_least_squares() -> None:
    rng = np.random.default_rng(1)
    outputs, errors = rng.standard_normal((8, 6)), rng.uniform(0.1, 2, (8, 6))
    found, misfit = estimate_source_means(TRUTH.mixing, outputs, errors)
    for u in range(8):
        precision = np.diag(errors[u] ** -2)
        normal = TRUTH.mixing.T @ precision
        expected = np.linalg.solve(normal @ TRUTH.mixing, normal @ outputs[u])
        np.testing.assert_allclose(found[u], expected, rtol=1e-9)
        residuals: Floats = (outputs[u] - TRUTH.mixing @ expected) / errors[u]
        assert misfit[u] == pytest.approx(np.sqrt((residuals**2).mean()))


def test_a_segment_that_knows_nothing_has_means_of_zero() -> None:
    found, misfit = estimate_source_means(TRUTH.mixing, np.ones((1, 6)), np.full((1, 6), np.inf))
    np.testing.assert_array_equal(found, 0.0)
    np.testing.assert_array_equal(misfit, 0.0)
