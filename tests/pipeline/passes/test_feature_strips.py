"""How many features a strip has."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.passes.feature_strips import (
    MIN_STRIP_HEIGHT,
    choose_strip_height,
    count_strip_features,
    estimate_strip_memory,
)


@pytest.mark.parametrize("n_features", [2_001, 10_000, 100_000])
def test_memory_decides_only_where_it_is_short(n_features: int) -> None:
    height = choose_strip_height(n_features, 2, None)
    assert 256 <= height <= 512
    least = estimate_strip_memory(MIN_STRIP_HEIGHT, n_features)
    enough = 2 * (estimate_strip_memory(height, n_features) - least)
    assert choose_strip_height(n_features, 2, enough) == height
    assert choose_strip_height(n_features, 2, enough - 1) < height
    assert choose_strip_height(n_features, 2, 0) == MIN_STRIP_HEIGHT


def test_strips_take_no_more_than_they_may() -> None:
    for spare in (10**7, 10**8, 10**9, 10**10):
        height = choose_strip_height(50_000, 4, spare)
        more = estimate_strip_memory(height, 50_000) - estimate_strip_memory(
            MIN_STRIP_HEIGHT, 50_000
        )
        assert 4 * more <= spare


def test_no_strip_has_more_columns_than_its_height() -> None:
    columns = np.array([1, 15, 2, 3, 1, 1, 4, 2] * 50)
    edges = np.concatenate([[0], np.cumsum(columns)])
    n_features = count_strip_features(columns, 60)

    def find_highest(n: int) -> int:
        return max(edges[min(a + n, len(columns))] - edges[a] for a in range(0, len(columns), n))

    assert find_highest(n_features) <= 60 < min(map(find_highest, range(n_features + 1, 61)))
    assert count_strip_features(np.ones(1000, np.int64), 60) == 60
    assert count_strip_features(columns, 10) == 1
