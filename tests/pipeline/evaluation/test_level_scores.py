"""Scores and calibration of features with several levels, against sums over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.data.features import Feature, split_levels
from pipeline.data.level_probabilities import name_levels
from pipeline.evaluation import calibration
from pipeline.evaluation.calibration import (
    choose_compared_planes,
    compare_features,
    compare_pairs,
    tabulate_levels,
)
from pipeline.evaluation.value_scores import (
    compute_level_losses,
    compute_rank_correlation,
    describe_level_losses,
)
from pipeline.statistics.counts import PairCounts

FEATURES = (
    Feature("mood", ("bad", "fair", "good", "great")),
    Feature("sex"),
    Feature("pain", ("no", "some", "much")),
)
N_LEVELS = [4, 2, 3]
OWNERS = np.repeat(np.arange(3), N_LEVELS)


def draw_levels(n_rows: int = 400, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shared = rng.random((n_rows, 1))
    return ((0.5 * shared + 0.5 * rng.random((n_rows, 3))) * N_LEVELS).astype(np.uint8)


def pack_levels(X: np.ndarray, observed: np.ndarray | None) -> BinaryBlock:
    mask = None if observed is None else np.repeat(observed, [3, 1, 2], axis=1)
    planes = split_levels(X, FEATURES)
    return pack_block(planes if mask is None else planes * mask, mask)


@pytest.mark.parametrize("is_complete", [True, False])
def test_level_losses_are_sums_over_rows(is_complete: bool) -> None:
    rng = np.random.default_rng(1)
    X = draw_levels()
    observed = None if is_complete else (rng.random(X.shape) < 0.8).astype(np.uint8)
    # Expected levels on the grid of steps, so that binning changes no rank.
    steps = rng.integers(0, 64, (len(X), 1)) / 64
    planes = np.repeat(steps, 6, axis=1)
    block = pack_levels(X, observed)
    losses = compute_level_losses(block, planes, FEATURES)
    found = describe_level_losses(losses.values, FEATURES)
    seen = np.ones(X.shape, bool) if observed is None else observed == 1
    likely = np.where(steps > 0.5, np.array(N_LEVELS) - 1, 0)
    wrong = (likely != X) & seen
    np.testing.assert_array_equal(losses.wrong_levels, wrong.sum(axis=1))
    np.testing.assert_array_equal(losses.n_observed, seen.sum(axis=1))
    assert found["wrong_levels"] == wrong.sum() / seen.sum()
    for i, own in enumerate(found["levels"]):
        expected = spearmanr(steps[seen[:, i], 0], X[seen[:, i], i]).statistic
        assert own["rank_correlation"] == pytest.approx(expected, abs=1e-12)
        assert own["wrong_levels"] == wrong[:, i].sum() / seen[:, i].sum()
    correlations = [own["rank_correlation"] for own in found["levels"]]
    assert found["rank_correlation"] == pytest.approx(np.mean(correlations))
    assert compute_rank_correlation(np.array([[3, 4], [0, 0]])) is None


@pytest.mark.parametrize("is_complete", [True, False])
def test_level_counts_are_those_of_rows(is_complete: bool) -> None:
    rng = np.random.default_rng(2)
    X = draw_levels()
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    seen = np.ones(X.shape, bool) if is_complete else observed == 1
    counts = PairCounts.from_block(pack_levels(X, None if is_complete else observed), pooled=True)
    table = tabulate_levels(counts.table(0), FEATURES)
    ordered = [(i, level) for i, n in enumerate(N_LEVELS) for level in range(n)]
    indicators = np.stack([(X[:, i] == level) & seen[:, i] for i, level in ordered], axis=1)
    np.testing.assert_array_equal(table.joint, indicators.T.astype(int) @ indicators)
    both = seen[:, OWNERS].astype(int)
    np.testing.assert_array_equal(table.n, both.T @ both)
    assert table.joint.dtype.kind == "i"


def test_levels_and_their_pairs_are_compared() -> None:
    observed, implied = (
        PairCounts.from_block(pack_levels(draw_levels(seed=seed), None), pooled=True)
        for seed in (3, 4)
    )
    names = name_levels(FEATURES)
    shares = compare_features(observed, implied, FEATURES)
    X = draw_levels(seed=3)
    by_name = dict(zip((names[i] for i in shares.features[:, 0]), shares.observed, strict=True))
    assert by_name["mood=good"] == (X[:, 0] == 2).mean()
    assert "sex=0" not in by_name
    assert by_name["sex=1"] == X[:, 1].mean()
    pairs = compare_pairs(observed, implied, FEATURES)
    assert len(pairs.observed) == 4 * 1 + 4 * 3 + 1 * 3
    found = {
        (names[i], names[j]): share
        for (i, j), share in zip(pairs.features, pairs.observed, strict=True)
    }
    assert found["mood=bad", "pain=much"] == ((X[:, 0] == 0) & (X[:, 2] == 2)).mean()


def test_whole_features_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MAX_COMPARED_FEATURES", 9)
    features: list[Any] = [f._replace(name=f"{f.name}{k}") for k in range(4) for f in FEATURES]
    planes, chosen = choose_compared_planes(features, 0)
    assert sum(feature.n_planes for feature in chosen) == len(planes) <= 9
    assert planes.tolist() == sorted({*planes.tolist()})
    again, _ = choose_compared_planes(features, 1)
    assert again.tolist() != planes.tolist()
