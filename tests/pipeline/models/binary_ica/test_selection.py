"""Choice of settings: folds, held-out scores, the search, and the selection rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pipeline.executors.base import ThreadsExecutor
from pipeline.models.binary_ica import gaussian_likelihood, selection
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    Optimum,
    SegmentMoments,
)
from pipeline.models.binary_ica.segment_correlations import (
    SegmentCorrelations,
    estimate_segments,
)
from pipeline.models.binary_ica.selection import (
    RIDGE_GRID,
    ComponentsTrial,
    HeldOutFold,
    ScoredSetting,
    SettingChoice,
    choose_components,
    choose_ridge,
    choose_setting,
    make_fold_starts,
    resample_ridges,
    score_setting,
    split_into_folds,
    try_components,
)
from pipeline.statistics.counts import PairCounts
from tests.pipeline.models.binary_ica import (
    Floats,
    compute_correlations,
    count_pairs,
    draw_rows,
    draw_solution,
)
from tests.support.strategies import DenseData

TRUTH = draw_solution(6, 2, 8)


@lru_cache
def draw_counts(n_rows: int, n_groups: int = 2) -> PairCounts:
    return count_pairs(draw_rows(TRUTH, n_rows, np.random.default_rng(0), 0.4), n_groups)


@lru_cache
def draw_folds(n_rows: int) -> list[HeldOutFold]:
    return split_into_folds(draw_counts(n_rows), 2, 20, map)


@lru_cache
def draw_segments(n_rows: int) -> SegmentCorrelations:
    return estimate_segments(
        count_pairs(draw_rows(TRUTH, n_rows, np.random.default_rng(0), 0.4)), 20, map
    )


# --- folds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_groups", [2, 4, 16])
def test_folds_partition_the_rows(n_groups: int) -> None:
    rng = np.random.default_rng(1)
    data = draw_rows(TRUTH, 301, rng)
    data = DenseData(data.X, (rng.random(data.X.shape) < 0.9).astype(np.uint8), data.segments)
    everything = count_pairs(data)
    folds = split_into_folds(count_pairs(data, n_groups), n_groups, 20, map)
    assert len(folds) == (2 if n_groups == 2 else 4)
    i, j = np.triu_indices(data.X.shape[1], 1)
    for first, second in zip(folds[::2], folds[1::2], strict=True):
        np.testing.assert_array_equal(first.pairs, (i, j))
        for segment in range(len(everything.segments)):
            whole = everything.table(segment)
            for a, b, both in zip(first.test[segment], second.test[segment], whole, strict=True):
                np.testing.assert_array_equal(a.astype(np.int64) + b, both[i, j])
    for fold, other in ((folds[at], folds[at ^ 1]) for at in range(len(folds))):
        assert len(fold.test) == len(everything.segments)
        np.testing.assert_array_equal(fold.train.rows + other.train.rows, everything.rows)
        assert np.abs(fold.train.rows - 150.5).max() <= n_groups


def test_all_folds_score_the_same_sample_of_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "MAX_PAIRS", 4)
    some = split_into_folds(draw_counts(300), 2, 20, map)
    i, j = some[0].pairs
    assert len({*zip(i.tolist(), j.tolist(), strict=True)}) == 4
    for fold, every in zip(some, draw_folds(300), strict=True):
        np.testing.assert_array_equal(fold.pairs, (i, j))
        square = np.zeros((6, 6), np.int64)
        for table, of_all in zip(fold.test, every.test, strict=True):
            for part, all_pairs in zip(table, of_all, strict=True):
                square[every.pairs] = all_pairs
                np.testing.assert_array_equal(part, square[i, j])


def test_halves_need_half_of_min_rows() -> None:
    data = draw_rows(TRUTH, 80, np.random.default_rng(0))
    data = data.take_rows((data.labels < 4) | (np.arange(len(data.X)) % 80 < 40))
    for min_rows, used in ((40, [True] * 8), (60, [True] * 4 + [False] * 4)):
        for fold in split_into_folds(count_pairs(data, 2), 2, min_rows, map):
            assert fold.train.is_used.tolist() == used


# --- held-out scores -----------------------------------------------------------------------------


def compute_dense_nats(fold: HeldOutFold, segment: int, correlation: Floats) -> float:
    """Return Σ count · log P(cell) over the pairs, by SciPy's bivariate normal."""
    t, total = fold.train.thresholds[segment], 0.0
    tables = zip(*fold.test[segment], strict=True)
    for i, j, (n, ones_i, ones_j, joint) in zip(*fold.pairs, tables, strict=True):
        both = multivariate_normal(cov=[[1, correlation[i, j]], [correlation[i, j], 1]])
        p_ij = both.cdf([-t[i], -t[j]])
        p_i, p_j = (both.cdf([-t[i], 40]), both.cdf([40, -t[j]]))
        cells = [p_ij, p_i - p_ij, p_j - p_ij, 1 - p_i - p_j + p_ij]
        a, b, c = int(joint), int(ones_i) - int(joint), int(ones_j) - int(joint)
        total += np.array([a, b, c, int(n) - a - b - c]) @ np.log(cells)
    return total


class FixedCorrelations(MatchSolution):
    """Solution that stores its model correlations, already ridged, in `mixing`."""

    def model_correlation(self, segment: int) -> Floats:
        return self.mixing[segment]


def score_correlations(
    correlations: Floats, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> ScoredSetting:
    """Score the given correlations instead of fitted ones."""

    def maximise(moments: SegmentMoments, start: MatchSolution, *_: Any) -> Optimum:
        ridged = correlations / (1 + moments.ridge[:, None, None])
        return Optimum(
            FixedCorrelations(ridged, start.log_variances, start.log_precisions), 0.0, 1, True
        )

    monkeypatch.setattr(selection, "maximise", maximise)
    starts = make_fold_starts(draw_folds(n_rows), TRUTH, draw_segments(n_rows).is_used)
    return score_setting(draw_folds(n_rows), 2, 5.0, starts, map)


def test_score_is_pairwise_log_likelihood_of_other_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    correlations = compute_correlations(TRUTH)
    candidate = score_correlations(correlations, 200, monkeypatch)
    expected = [
        compute_dense_nats(fold, u, correlation)
        for fold in draw_folds(200)
        for u, correlation in enumerate(correlations)
    ]
    np.testing.assert_allclose(candidate.nats.ravel(), expected, rtol=1e-6)
    assert candidate.n_pairs == 15 * 200 * 8
    assert candidate.score == pytest.approx(sum(expected) / (15 * 200 * 8))


# --- the search ----------------------------------------------------------------------------------


def replace_scores(
    score: Callable[[int, float], float], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """Replace fits by given scores; return a list that records the settings and starts tried."""
    calls: list[Any] = []

    def score_setting_stub(
        folds: Any, k: int, r: float, starts: Any, map_items: Any
    ) -> ScoredSetting:
        calls.append((k, r, starts))
        return ScoredSetting(k, r, np.full((2, 4), score(k, r)), 8.0, [TRUTH, TRUTH])

    monkeypatch.setattr(selection, "score_setting", score_setting_stub)
    monkeypatch.setattr(selection, "has_ridge", lambda folds, r: True)
    return calls


def run_trials(components: Any, grid: Any = RIDGE_GRID) -> list[ComponentsTrial]:
    return try_components(draw_segments(200), draw_folds(200), components, grid, map)


def choose(components: Any, grid: Any = RIDGE_GRID) -> SettingChoice:
    return choose_setting(draw_segments(200), draw_folds(200), components, grid, map)


@pytest.mark.parametrize("peak", range(len(RIDGE_GRID)))
def test_search_finds_peak_of_unimodal_score(peak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_scores(lambda k, r: -float(abs(RIDGE_GRID.index(r) - peak)), monkeypatch)
    (trial,) = run_trials([1])
    assert trial.best.regularization == RIDGE_GRID[peak]
    visited = [RIDGE_GRID.index(candidate.regularization) for candidate in trial.candidates]
    assert visited == sorted(set(visited))
    # The search goes at most one step beyond the peak.
    assert min(peak, RIDGE_GRID.index(10.0)) - 1 <= min(visited)
    assert max(visited) <= max(peak, RIDGE_GRID.index(10.0)) + 1


@pytest.mark.matrix
def test_gain_below_standard_error_does_not_extend_search() -> None:
    """Scores keep rising slightly beyond the true number of components."""
    truth = draw_solution(7, 2, 8, seed=2)
    counts = count_pairs(draw_rows(truth, 2000, np.random.default_rng(0)), 8)
    segments = estimate_segments(
        count_pairs(draw_rows(truth, 2000, np.random.default_rng(0))), 20, map
    )
    result = try_components(
        segments, split_into_folds(counts, 8, 20, map), range(1, 8), [1000.0], map
    )
    assert [trial.best.n_components for trial in result] == [1, 2, 3, 4]


def test_folds_start_from_full_fit_then_from_previous_ridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = replace_scores(lambda k, r: r, monkeypatch)
    (trial,) = run_trials([2], [2.0, 5.0, 10.0, 20.0])
    assert [r for _, r, _ in calls] == [10.0, 20.0]
    first, second = (starts for _, _, starts in calls)
    for start in first:
        np.testing.assert_array_equal(start.mixing, trial.solution.mixing)
    assert second == [TRUTH, TRUTH]


# --- the rules -----------------------------------------------------------------------------------


def make_candidate(
    n_components: int, nats: list[float], r: float = 10.0, ends: Any = (TRUTH, TRUTH)
) -> ScoredSetting:
    """Make a candidate with the given nats per segment, in one fold."""
    return ScoredSetting(n_components, r, np.array([nats]), 10.0, ends)


def make_trial(*candidates: ScoredSetting) -> ComponentsTrial:
    return ComponentsTrial(TRUTH, candidates)


def test_fewer_components_within_one_error_are_chosen() -> None:
    best = make_candidate(3, [10.0, 10.0, 10.0, 10.0])
    # Differences 1 ± s of four terms: their sum is 4, its standard error 2 · s √(4 / 3).
    for s, expected in ((0.64, 3), (0.65, 2)):
        fewer = make_candidate(2, [9 - s, 9 + s, 9 - s, 9 + s])
        assert (
            choose_components([make_trial(fewer), make_trial(best)]).best.n_components == expected
        )


def test_fewest_components_within_error_use_their_best_ridge() -> None:
    tried = [
        make_trial(make_candidate(1, [0.0, 0.0, 0.0, 0.0])),
        make_trial(
            make_candidate(2, [3.0, 17.0, 5.0, 13.0], 5.0),
            make_candidate(2, [4.0, 17.0, 5.0, 13.0], 20.0),
        ),
        make_trial(make_candidate(3, [9.0, 9.5, 10.0, 10.0])),
        make_trial(make_candidate(4, [10.0, 10.0, 10.0, 10.0])),
    ]
    best = choose_components(tried).best
    assert (best.n_components, best.regularization) == (2, 20.0)


def test_weakest_ridge_within_one_standard_error_is_chosen() -> None:
    strong = make_candidate(2, [10.0, 10.0, 10.0, 10.0], 2.0)
    near = make_candidate(2, [9.0, 10.9, 9.1, 10.8], 5.0)
    far = make_candidate(2, [8.0, 8.1, 8.0, 8.1], 20.0)
    assert choose_ridge([strong, near]).regularization == 5.0
    assert choose_ridge([strong, near, far]).regularization == 5.0
    assert choose_ridge([strong, far]).regularization == 2.0


def test_weaker_ridge_with_disagreeing_halves_is_not_chosen() -> None:
    other = TRUTH._replace(mixing=draw_solution(6, 2, 8, seed=5).mixing)
    best = make_candidate(2, [10.0, 10.0, 10.0, 10.0], 20.0)
    apart = make_candidate(2, [9.0, 10.9, 9.1, 10.9], 200.0, (TRUTH, other))
    assert choose_ridge([best, apart]).regularization == 20.0
    assert choose_ridge([best, apart._replace(solutions=best.solutions)]).regularization == 200.0


def test_weaker_ridges_are_tried_only_for_chosen_number_of_components(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = np.array([1.0, -1.0, 1.0, -1.0])

    def score_setting_stub(
        folds: Any, k: int, r: float, starts: Any, map_items: Any
    ) -> ScoredSetting:
        place = RIDGE_GRID.index(r)
        nats = 10.0 * (k > 1) - 0.1 * abs(place - 2) + (place % 2) * noise
        return ScoredSetting(k, r, nats[None], 4.0, [TRUTH, TRUTH])

    monkeypatch.setattr(selection, "score_setting", score_setting_stub)
    monkeypatch.setattr(selection, "has_ridge", lambda folds, r: True)
    result = choose([1, 2, 3])
    assert result.candidate.n_components == 2
    assert result.candidate.regularization > 10.0
    weakest_tried = {c.n_components: c.regularization for c in result.candidates}
    assert weakest_tried[2] > weakest_tried[1] == weakest_tried[3] == 20.0


def test_resampled_ridges_vary_with_scores() -> None:
    rng = np.random.default_rng(0)
    sure = [make_candidate(2, [10.0] * 12, 5.0), make_candidate(2, [0.0] * 12, 20.0)]
    assert set(resample_ridges(sure, range(40))) == {5.0}
    close = [
        make_candidate(2, (10 + rng.standard_normal(12)).tolist(), 5.0),
        make_candidate(2, (9.5 + rng.standard_normal(12)).tolist(), 20.0),
    ]
    assert set(resample_ridges(close, range(40))) == {5.0, 20.0}
    assert resample_ridges(close, range(40)) == resample_ridges(close, range(40))


@pytest.mark.matrix
def test_scores_are_identical_on_all_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scores(map_items: Any) -> list[tuple[Any, ...]]:
        result = choose_setting(draw_segments(200), draw_folds(200), [1, 2], [5.0, 10.0], map_items)
        return [(c.n_components, c.regularization, c.nats.tobytes()) for c in result.candidates]

    expected = scores(map)
    assert scores(ThreadsExecutor(2).map) == expected
    monkeypatch.setattr(gaussian_likelihood, "_MAX_BYTES_TO_SEND", 0)
    assert scores(None) == expected


@pytest.mark.matrix
def test_search_stops_after_two_numbers_without_improvement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = {1: 0.0, 2: 1.0, 3: 0.5, 4: 2.0, 5: 1.5, 6: 2.0, 7: 9.0}
    replace_scores(lambda k, r: scores[k], monkeypatch)
    result = run_trials(range(1, 7), [10.0])
    assert [trial.best.n_components for trial in result] == [1, 2, 3, 4, 5, 6]
    assert choose_components(result).best.n_components == 4


def test_no_weaker_ridge_is_tried_once_none_is_needed() -> None:
    truth = draw_solution(6, 1, 8)
    data = draw_rows(truth, 4000, np.random.default_rng(0))
    halves = split_into_folds(count_pairs(data, 2), 2, 20, map)
    result = choose_setting(
        estimate_segments(count_pairs(data), 20, map), halves, [1], RIDGE_GRID, map
    )
    tried = [c.regularization for c in result.ridges]
    assert tried[-1] < RIDGE_GRID[-1]
    assert result.candidate.regularization == tried[-1]
