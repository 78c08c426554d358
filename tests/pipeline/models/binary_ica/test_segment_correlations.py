"""Segment correlations, thresholds, weights and ridges against dense computations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from pipeline.models.binary_ica.segment_correlations import (
    GroupSums,
    SegmentCorrelations,
    SegmentStatus,
    estimate_segments,
    find_extreme_eigenvalues,
    find_ridge,
)
from pipeline.numerics.gaussian.pair_tables import PairStatus, tetrachoric
from tests.pipeline.models.binary_ica import (
    Floats,
    count_pairs,
    draw_rows,
    draw_solution,
)
from tests.support.strategies import Bits, DenseData, count_dense_pairs

N_FEATURES, N_SEGMENTS, N_ROWS = 5, 4, 200
TRUTH = draw_solution(N_FEATURES, 2, N_SEGMENTS)
Modify = Callable[[Bits, Bits], None]
"""Function that changes the values and the mask of segment 1 in place."""


def draw_data(seed: int = 0, n_rows: int = N_ROWS) -> DenseData:
    return draw_rows(TRUTH, n_rows, np.random.default_rng(seed))


def draw_modified_data(modify: Modify) -> DenseData:
    data = draw_data()
    X, mask, in_segment = data.X.copy(), np.ones_like(data.X), data.labels == 1
    values, observed = X[in_segment], mask[in_segment]
    modify(values, observed)
    X[in_segment], mask[in_segment] = values, observed
    return DenseData(X, None if mask.all() else mask, data.segments)


def estimate(data: DenseData, min_rows: int = 20) -> SegmentCorrelations:
    return estimate_segments(count_pairs(data), min_rows, map)


def never_observe_together(*pairs: tuple[int, int]) -> Modify:
    """Return a function that hides one feature of each pair in every row, alternately."""

    def modify(X: Bits, mask: Bits) -> None:
        for i, j in pairs:
            mask[::2, i] = mask[1::2, j] = 0

    return modify


# --- statuses ------------------------------------------------------------------------------------


def make_all_but_one_constant(X: Bits, mask: Bits) -> None:
    X[:, 1:] = [0, 1, 0, 1]


def make_all_but_two_constant(X: Bits, mask: Bits) -> None:
    X[:, 2:] = 1


def hide_all_but_one(X: Bits, mask: Bits) -> None:
    mask[:, 1:] = 0


def hide_all(X: Bits, mask: Bits) -> None:
    mask[:] = 0


@pytest.mark.parametrize(
    ("modify", "status"),
    [
        (make_all_but_one_constant, SegmentStatus.CONSTANT),
        (hide_all_but_one, SegmentStatus.CONSTANT),
        (hide_all, SegmentStatus.UNOBSERVED),
        (make_all_but_two_constant, SegmentStatus.USED),
        # 1 of 10 pairs is not more than 10 %.
        (never_observe_together((0, 1)), SegmentStatus.USED),
        (never_observe_together((0, 1), (2, 3)), SegmentStatus.UNDEFINED_PAIRS),
    ],
)
def test_segment_status(modify: Modify, status: SegmentStatus) -> None:
    segments = estimate(draw_modified_data(modify))
    expected = np.full(N_SEGMENTS, SegmentStatus.USED)
    expected[1] = status
    np.testing.assert_array_equal(segments.status, expected)
    np.testing.assert_array_equal(segments.is_used, expected == SegmentStatus.USED)


def test_segments_with_too_few_rows_are_excluded() -> None:
    data = draw_data()
    kept = data.take_rows(
        np.flatnonzero((data.labels != 2) | (np.arange(len(data.X)) % N_ROWS < 30))
    )
    for min_rows, status in ((30, SegmentStatus.USED), (31, SegmentStatus.TOO_SMALL)):
        segments = estimate(kept, min_rows)
        assert segments.status.tolist() == [0, 0, status, 0]
        assert segments.rows.tolist() == [N_ROWS, N_ROWS, 30, N_ROWS]


def test_excluded_segments_have_no_moments() -> None:
    data = draw_modified_data(make_all_but_one_constant)
    moments, segments = estimate(data).moments(10.0), estimate(data)
    used = segments.correlation[[0, 2, 3]]
    np.testing.assert_array_equal(moments.matrices(slice(0, 3)), used)
    np.testing.assert_array_equal(moments.matrices(slice(1, 3)), used[1:])
    np.testing.assert_allclose(moments.mean(), np.tensordot(moments.weights, used, 1))
    np.testing.assert_array_equal(moments.varies, segments.varies[[0, 2, 3]])
    np.testing.assert_allclose(moments.weights, 1 / 3)
    np.testing.assert_array_equal(moments.model_ridge, 0.0)


# --- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_thresholds_and_errors_match_margins(masked: bool) -> None:
    data = draw_data(1)
    mask = np.random.default_rng(0).integers(0, 2, data.X.shape, dtype=np.uint8)
    data = DenseData(data.X, mask if masked else None, data.segments)
    segments, step = estimate(data), 1e-6
    for u in range(N_SEGMENTS):
        part = data.take_rows(data.labels == u)
        n = part.mask.sum(axis=0)
        share = (part.X & part.mask).sum(axis=0) / n
        np.testing.assert_allclose(segments.thresholds[u], norm.isf(share), rtol=1e-12)
        # Delta method with a numerical derivative.
        slope = (norm.isf(share - step) - norm.isf(share + step)) / (2 * step)
        errors = slope * np.sqrt(share * (1 - share) / n)
        np.testing.assert_allclose(segments.threshold_errors[u], errors, rtol=1e-6)


def test_thresholds_of_constant_features_use_half_a_count() -> None:
    def modify(X: Bits, mask: Bits) -> None:
        X[:, 0], X[:, 1], mask[:, 2], mask[1:, 3] = 0, 1, 0, 0

    segments = estimate(draw_modified_data(modify))
    np.testing.assert_array_equal(segments.varies[1], [False, False, False, False, True])
    expected = norm.isf([0.5 / N_ROWS, 1 - 0.5 / N_ROWS, 0.5, 0.5])
    np.testing.assert_allclose(segments.thresholds[1, :4], expected, atol=1e-12)
    assert np.isinf(segments.threshold_errors[1, :4]).all()
    assert np.isfinite(segments.threshold_errors[[0, 2, 3]]).all()


# --- weights -------------------------------------------------------------------------------------


def test_weights_are_mean_complete_rows_of_varying_pairs() -> None:
    data = draw_data()
    rng = np.random.default_rng(3)
    mask = (rng.random(data.X.shape) < rng.uniform(0.3, 1, (1, N_FEATURES))).astype(np.uint8)
    X = data.X.copy()
    X[data.labels == 2, 4] = 1
    data = DenseData(X, mask, data.segments)
    pairs = np.triu_indices(N_FEATURES, 1)
    expected = []
    for u in range(N_SEGMENTS):
        n = count_dense_pairs(data.take_rows(data.labels == u))[0][pairs]
        counted = np.ones(len(n), np.bool_) if u != 2 else (pairs[0] != 4) & (pairs[1] != 4)
        expected.append(n[counted].mean())
    segments = estimate(data)
    np.testing.assert_allclose(segments.pair_rows, expected)
    weights = np.array(expected)[segments.is_used]
    np.testing.assert_allclose(segments.moments(10.0).weights, weights / weights.sum())


# --- correlations --------------------------------------------------------------------------------


def test_correlations_are_tetrachoric_in_each_segment() -> None:
    data, segments = draw_data(), estimate(draw_data())
    for u in range(N_SEGMENTS):
        result = tetrachoric(*count_dense_pairs(data.take_rows(data.labels == u)))
        expected = result.correlation.copy()
        np.fill_diagonal(expected, 1.0)
        np.testing.assert_allclose(segments.correlation[u], expected, atol=1e-12)
        values = np.linalg.eigvalsh(expected)
        np.testing.assert_allclose(segments.extremes[u], values[[0, -1]], atol=1e-12)


def test_empty_cells_get_half_a_count_and_a_status() -> None:
    def modify(X: Bits, mask: Bits) -> None:
        X[:, 1] &= X[:, 0]  # (0, 1) never occurs.

    data = draw_modified_data(modify)
    segments = estimate(data)
    n, ones_i, ones_j, joint = (
        t[0, 1] for t in count_dense_pairs(data.take_rows(data.labels == 1))
    )
    expected = tetrachoric(n + 2.0, ones_i + 1.0, ones_j + 1.0, joint + 0.5).correlation
    assert segments.pair_status[1, 0, 1] == PairStatus.EMPTY_CELL
    assert segments.correlation[1, 0, 1] == pytest.approx(expected, abs=1e-12)
    assert segments.is_used.all()
    assert not segments.find_undefined_pairs().any()


def test_gaps_are_filled_with_mean_of_other_segments() -> None:
    data = draw_modified_data(never_observe_together((0, 1)))
    kept = data.take_rows(
        np.flatnonzero((data.labels != 2) | (np.arange(len(data.X)) % N_ROWS < 100))
    )
    segments = estimate(kept)
    gaps = np.zeros((N_SEGMENTS, N_FEATURES, N_FEATURES), np.bool_)
    gaps[1, [0, 1], [1, 0]] = True
    np.testing.assert_array_equal(segments.find_undefined_pairs(), gaps)
    others = segments.correlation[[0, 2, 3], 0, 1] @ [200, 100, 200] / 500
    np.testing.assert_allclose(segments.correlation[1, [0, 1], [1, 0]], others, rtol=1e-12)
    values = np.linalg.eigvalsh(segments.correlation[1])
    np.testing.assert_allclose(segments.extremes[1], values[[0, -1]], atol=1e-12)


def test_pair_without_variation_in_complete_rows_is_undefined() -> None:
    def modify(X: Bits, mask: Bits) -> None:
        mask[::2, 0] = 0
        X[1::2, 1] = 1

    segments = estimate(draw_modified_data(modify))
    assert segments.pair_status[1, 0, 1] == PairStatus.CONSTANT_FEATURE
    assert segments.varies[1].all()
    assert segments.find_undefined_pairs()[1, 0, 1]


def test_threads_and_tasks_give_identical_results(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.executors.base import ThreadsExecutor
    from pipeline.models.binary_ica import segment_correlations as module

    counts, serial = count_pairs(draw_data()), estimate(draw_data())
    monkeypatch.setattr(module, "_MIN_TASK_FEATURES", 1)
    threaded = estimate_segments(counts, 20, ThreadsExecutor(3).map)
    for name in SegmentCorrelations.__dataclass_fields__:
        if name != "scales":  # of features with several levels
            assert getattr(serial, name).tobytes() == getattr(threaded, name).tobytes()
    assert serial.scales is threaded.scales is None


# --- ridge ---------------------------------------------------------------------------------------


def condition_number(correlation: Floats, delta: float) -> float:
    values = np.linalg.eigvalsh((correlation + delta * np.eye(len(correlation))) / (1 + delta))
    return float(values[-1] / values[0])


@given(st.integers(2, 8), st.integers(0, 2**32 - 1), st.floats(1.01, 1e4))
def test_ridge_limits_condition_number(n: int, seed: int, regularization: float) -> None:
    """Matrices of pairwise estimates may be indefinite."""
    rng = np.random.default_rng(seed)
    correlation = np.triu(rng.uniform(-1, 1, (n, n)), 1)
    correlation += correlation.T + np.eye(n)
    extremes = find_extreme_eigenvalues(correlation[None], map)
    (delta,) = find_ridge(extremes, regularization)
    assert delta >= 0
    least, largest = np.linalg.eigvalsh(correlation)[[0, -1]]
    if delta == 0:
        assert largest / least <= regularization * (1 + 1e-9)
    else:
        assert least <= 0 or largest / least > regularization
        assert condition_number(correlation, delta) == pytest.approx(regularization, rel=1e-6)


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("n_groups", [1, 4])
def test_group_sums_match_weighted_counts(n_groups: int, missing: float) -> None:
    rng = np.random.default_rng(0)
    data = draw_rows(draw_solution(7, 2, 3), 50, rng)
    observed = (rng.random(data.X.shape) >= missing).astype(np.uint8) if missing else None
    counts = count_pairs(DenseData(data.X, observed, data.segments), n_groups)
    weights = rng.integers(0, 3, (3, n_groups))
    weights[1] = 0
    sums, expected = (
        GroupSums(counts, n_groups, weights),
        counts.sum_weighted_groups(n_groups, weights),
    )
    np.testing.assert_array_equal(sums.segments, expected.segments)
    np.testing.assert_array_equal(sums.rows, expected.rows)
    np.testing.assert_array_equal(sums.margins(), expected.margins())
    square, strip = (slice(None), slice(None)), (slice(2, 4), slice(2, 7))
    for segment in range(3):
        for part in (square, strip):
            tables = zip(sums.table(segment, *part), expected.table(segment, *part), strict=True)
            for table, expected_table in tables:
                assert np.shape(table) == np.shape(expected_table)
                np.testing.assert_array_equal(table, expected_table)
