"""The choice of settings: held-out scores by another method, and rules on made-up scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from pipeline.executors.threads import ThreadsExecutor
from pipeline.models.binary_ica.moment_matching import optimiser, selection
from pipeline.models.binary_ica.moment_matching.objective import Moments, Solution
from pipeline.models.binary_ica.moment_matching.optimiser import Optimum
from pipeline.models.binary_ica.moment_matching.selection import (
    GRID,
    Candidate,
    Fold,
    best_of,
    choose,
    folds_of,
    try_settings,
)
from pipeline.statistics.counts import PairCounts
from tests.pipeline.models.binary_ica.moment_matching import (
    Floats,
    correlations_of,
    counts_of,
    drawn,
    planted,
)
from tests.strategies import Data, memory_blocks

TRUTH = planted(6, 2, 8)


@lru_cache
def counted(n_rows: int, n_groups: int = 2) -> PairCounts:
    return counts_of(drawn(TRUTH, n_rows, np.random.default_rng(0), 0.4), n_groups)


@lru_cache
def folds(n_rows: int) -> list[Fold]:
    return folds_of(counted(n_rows), 2, 20, map)


# --- folds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_groups", [2, 4, 16])
def test_folds_share_the_rows_between_them(n_groups: int) -> None:
    rng = np.random.default_rng(1)
    data = drawn(TRUTH, 301, rng)
    data = Data(data.X, (rng.random(data.X.shape) < 0.9).astype(np.uint8), data.segments)
    whole = counts_of(data)
    first, second = folds_of(counts_of(data, n_groups), n_groups, 20, map)
    for name, counts in whole.arrays().items():
        if name != "segments":
            halves = [fold.test.arrays()[name] for fold in (first, second)]
            np.testing.assert_array_equal(halves[0] + halves[1], counts)
    for fold, other in ((first, second), (second, first)):
        np.testing.assert_array_equal(fold.test.segments, whole.segments)
        np.testing.assert_array_equal(fold.train.rows, other.test.rows)
        np.testing.assert_array_equal(fold.train.rows + fold.test.rows, whole.rows)
        assert np.abs(fold.train.rows - 150.5).max() <= n_groups
        observed, ones = other.test.margins()
        np.testing.assert_allclose(fold.train.thresholds, norm.isf(ones / observed))


def test_half_the_rows_are_enough_for_a_half() -> None:
    data = drawn(TRUTH, 80, np.random.default_rng(0))
    data = data.take((data.labels < 4) | (np.arange(len(data.X)) % 80 < 40))
    for min_rows, used in ((40, [True] * 8), (60, [True] * 4 + [False] * 4)):
        for fold in folds_of(counts_of(data, 2), 2, min_rows, map):
            assert fold.train.used.tolist() == used


@pytest.mark.parametrize("n_rows", [40, 41])
def test_segments_that_just_have_enough_rows_are_in_both_folds(n_rows: int) -> None:
    counts = counts_of(drawn(TRUTH, n_rows, np.random.default_rng(0)), 2)
    for fold in folds_of(counts, 2, n_rows, map):
        assert fold.train.used.all()


def test_rows_that_come_in_small_blocks_are_shared_as_well() -> None:
    """Segments in no order, in chunks that hold about one row of each."""
    data = drawn(TRUTH, 100, np.random.default_rng(0))
    mixed = data.take(np.random.default_rng(1).permutation(len(data.X)))
    parts = [PairCounts.of_groups(block, 2) for block in memory_blocks(mixed, [8] * 100)]
    counts = reduce(lambda a, b: a.merge(b), parts)
    for fold in folds_of(counts, 2, 20, map):
        assert fold.train.rows.min() > 35


# --- held-out scores -----------------------------------------------------------------------------


def dense_nats(fold: Fold, segment: int, correlation: Floats) -> float:
    """Σ count · log P(cell) over the pairs, by SciPy's bivariate normal."""
    t, total = fold.train.thresholds[segment], 0.0
    n, ones_i, ones_j, joint = np.broadcast_arrays(*fold.test.table(segment))
    for i, j in zip(*np.triu_indices(len(t), 1), strict=True):
        both = multivariate_normal(cov=[[1, correlation[i, j]], [correlation[i, j], 1]])
        p_ij = both.cdf([-t[i], -t[j]])
        p_i, p_j = (both.cdf([-t[i], 40]), both.cdf([40, -t[j]]))
        cells = [p_ij, p_i - p_ij, p_j - p_ij, 1 - p_i - p_j + p_ij]
        a, b, c = joint[i, j], ones_i[i, j] - joint[i, j], ones_j[i, j] - joint[i, j]
        total += np.array([a, b, c, n[i, j] - a - b - c]) @ np.log(cells)
    return total


class Fixed(Solution):
    """A solution whose mixing stands for correlations, ridged like the data it was fitted to."""

    def implied_correlation(self, segment: int) -> Floats:
        return self.mixing[segment]


def scored(correlations: Floats, n_rows: int, monkeypatch: pytest.MonkeyPatch) -> Candidate:
    """Score these correlations in place of a fit."""

    def maximise(moments: Moments, start: Solution, *_: Any) -> Optimum:
        ridged = correlations / (1 + moments.ridge[:, None, None])
        return Optimum(Fixed(ridged, start.log_variances, start.log_precisions), 0.0, 1, True)

    monkeypatch.setattr(selection, "maximise", maximise)
    (candidate,) = try_settings(folds(n_rows), [2], [5.0], 0, map)
    return candidate


def test_a_score_is_the_pairwise_log_likelihood_of_the_other_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    correlations = correlations_of(TRUTH)
    candidate = scored(correlations, 200, monkeypatch)
    expected = [
        dense_nats(fold, u, correlation)
        for fold in folds(200)
        for u, correlation in enumerate(correlations)
    ]
    np.testing.assert_allclose(candidate.nats, expected, rtol=1e-6)
    assert candidate.n_pairs == 15 * 200 * 8
    assert candidate.score == pytest.approx(sum(expected) / (15 * 200 * 8))


def test_true_correlations_score_higher_than_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = correlations_of(TRUTH)
    best = scored(truth, 2000, monkeypatch)
    wrong = {
        "of another segment": np.roll(truth, 1, axis=0),
        "mean": np.tile(truth.mean(axis=0), (8, 1, 1)),
        "none": np.tile(np.eye(6), (8, 1, 1)),
        "shrunk": 0.7 * truth,
        "of another sign": -truth,
        "stretched": np.clip(1.2 * truth, -0.99, 0.99),
    }
    for name, correlations in wrong.items():
        worse = scored(correlations, 2000, monkeypatch)
        assert best.score > worse.score, name
        lost = best.nats - worse.nats
        assert lost.sum() > 3 * np.sqrt(len(lost)) * lost.std(), name


# --- the climb -----------------------------------------------------------------------------------


def scripted(score: Callable[[int, float], float]) -> Callable[..., Any]:
    def fit_fold(k: int, r: float, seed: int, task: Any, spread: Any = map) -> Any:
        return np.array([score(k, r), score(k, r)]), 2.0, TRUTH

    return fit_fold


@pytest.mark.parametrize("peak", range(len(GRID)))
def test_the_climb_ends_at_the_peak_of_a_unimodal_score(
    peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        selection, "_fit_fold", scripted(lambda k, r: -float(abs(GRID.index(r) - peak)))
    )
    tried = try_settings(folds(200), [1], GRID, 0, map)
    assert best_of(tried).regularization == GRID[peak]
    visited = [GRID.index(candidate.regularization) for candidate in tried]
    assert len(set(visited)) == len(visited)
    # No further than one beyond the peak.
    assert min(peak, GRID.index(10.0)) - 1 <= min(visited)
    assert max(visited) <= max(peak, GRID.index(10.0)) + 1


def test_the_next_number_of_components_begins_at_the_best_ridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak = GRID.index(1000.0)
    monkeypatch.setattr(
        selection, "_fit_fold", scripted(lambda k, r: k - float(abs(GRID.index(r) - peak)))
    )
    tried = try_settings(folds(200), [1, 2], GRID, 0, map)
    second = [c.regularization for c in tried if c.n_components == 2]
    assert second == [1000.0, 1e4, 500.0]


def test_components_end_after_two_that_are_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {1: 0.0, 2: 1.0, 3: 0.5, 4: 2.0, 5: 1.5, 6: 2.0, 7: 9.0}
    monkeypatch.setattr(selection, "_fit_fold", scripted(lambda k, r: scores[k]))
    tried = try_settings(folds(200), range(1, 8), [10.0], 0, map)
    assert [candidate.n_components for candidate in tried] == [1, 2, 3, 4, 5, 6]
    assert best_of(tried).n_components == 4


def test_fits_go_on_where_the_one_beside_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[float, bool]] = []

    def fit_fold(k: int, r: float, seed: int, task: Any, spread: Any = map) -> Any:
        given.append((r, task[1] is None))
        return np.array([r, r]), 2.0, TRUTH

    monkeypatch.setattr(selection, "_fit_fold", fit_fold)
    try_settings(folds(200), [1], [2.0, 5.0, 10.0, 20.0], 0, map)
    assert given == [(10.0, True), (10.0, True), (20.0, False), (20.0, False)]


# --- the choice ----------------------------------------------------------------------------------


def candidate(n_components: int, nats: list[float], regularization: float = 10.0) -> Candidate:
    return Candidate(n_components, regularization, np.array(nats), 10.0)


def test_fewer_components_are_taken_within_one_standard_error() -> None:
    best = candidate(3, [10.0, 10.0, 10.0, 10.0])
    # Differences 1 ± s of four terms: their sum is 4, its standard error 2 · s √(4 / 3).
    for s, expected in ((1.7, 3), (1.8, 2)):
        fewer = candidate(2, [9 - s, 9 + s, 9 - s, 9 + s])
        assert choose([fewer, best]).n_components == expected


def test_the_fewest_within_the_error_win_each_at_its_best_ridge() -> None:
    tried = [
        candidate(1, [0.0, 0.0, 0.0, 0.0]),
        candidate(2, [3.0, 17.0, 5.0, 13.0], 5.0),
        candidate(2, [4.0, 17.0, 5.0, 13.0], 20.0),
        candidate(3, [9.0, 9.5, 10.0, 10.0]),
        candidate(4, [10.0, 10.0, 10.0, 10.0]),
    ]
    chosen = choose(tried)
    assert (chosen.n_components, chosen.regularization) == (2, 20.0)


def test_the_ridge_has_no_such_rule() -> None:
    tried = [candidate(2, [9.9, 10.2], 5.0), candidate(2, [10.0, 10.2], 20.0)]
    assert choose(tried).regularization == 20.0


def test_the_true_number_of_components_is_chosen() -> None:
    for n_components in (1, 2, 3):
        truth = planted(7, n_components, 8, seed=n_components)
        counts = counts_of(drawn(truth, 2000, np.random.default_rng(0)), 2)
        tried = try_settings(folds_of(counts, 2, 20, map), range(1, 6), GRID, 0, map)
        assert choose(tried).n_components == n_components


def test_scores_have_the_same_bytes_wherever_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scores(map_items: Any) -> list[tuple[Any, ...]]:
        tried = try_settings(folds(200), [1, 2], [5.0, 10.0], 3, map_items)
        return [(c.n_components, c.regularization, c.nats.tobytes()) for c in tried]

    here = scores(map)
    assert scores(ThreadsExecutor(2).map) == here
    monkeypatch.setattr(optimiser, "_BYTES_TO_SEND", 0)
    assert scores(None) == here
