"""How many features a strip has."""

from __future__ import annotations

import pytest

from pipeline.passes.feature_strips import (
    MIN_STRIP_HEIGHT,
    choose_strip_height,
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
