"""Features that are equal or opposite, or of which one implies the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.data.features import Feature, find_first_planes, split_values
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.nested_features import warn_about_nested_features

Floats = NDArray[np.float64]


def draw_levels(n_levels: list[int], n_rows: int = 400) -> NDArray[np.uint8]:
    """Draw levels that depend on each other."""
    rng = np.random.default_rng(0)
    latent = 2.0 * rng.standard_normal((n_rows, 1)) + rng.standard_normal((n_rows, len(n_levels)))
    columns = [
        np.digitize(x, np.linspace(-1, 1, m)[: m - 1])
        for x, m in zip(latent.T, n_levels, strict=True)
    ]
    return np.column_stack(columns).astype(np.uint8)


def name_pairs(X: NDArray[np.uint8], n_levels: list[int]) -> dict[str, tuple[int, ...]]:
    features = [Feature(f"f{i}", tuple(map(str, range(m)))) for i, m in enumerate(n_levels)]
    planes, observed = split_values(X, None, features)
    counts = [
        PairCounts.from_block(pack_block(own, observed), pooled=True)
        for own in np.array_split(planes, 2)
    ]
    firsts = find_first_planes(features)
    warnings = warn_about_nested_features(counts[0].merge(counts[1]), firsts)
    return {
        w.text.partition(",")[0].removeprefix("pairs of features "): w.features for w in warnings
    }


def test_equal_and_opposite_levels_are_named() -> None:
    n_levels = [4, 3, 4, 4, 2, 2, 4]
    X = draw_levels(n_levels)
    X[:, 2], X[:, 3] = X[:, 0], 3 - X[:, 0]
    X[:, 5] = X[:, 4] & (X[:, 6] > 1)
    named = name_pairs(X, n_levels)
    assert named == {
        "that are equal wherever both are observed": (0, 2),
        "that are opposite wherever both are observed": (0, 3, 2, 3),
        "of which a one in the second implies one in the first": (4, 5),
    }


def test_pairs_that_chance_explains_are_not_named() -> None:
    X = draw_levels([2, 2, 2])
    X[:, 0] = np.arange(len(X)) == 7
    assert name_pairs(X, [2, 2, 2]) == {}
