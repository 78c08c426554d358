"""How many features a strip has."""

from __future__ import annotations

import pytest

from pipeline.passes.feature_strips import LEAST_HEIGHT, height_within, strip_memory


@pytest.mark.parametrize("n_features", [2_001, 10_000, 100_000])
def test_memory_decides_only_where_it_is_short(n_features: int) -> None:
    height = height_within(n_features, 2, None)
    assert 256 <= height <= 512
    least = strip_memory(LEAST_HEIGHT, n_features)
    enough = 2 * (strip_memory(height, n_features) - least)
    assert height_within(n_features, 2, enough) == height
    assert height_within(n_features, 2, enough - 1) < height
    assert height_within(n_features, 2, 0) == LEAST_HEIGHT


def test_strips_take_no_more_than_they_may() -> None:
    for spare in (10**7, 10**8, 10**9, 10**10):
        height = height_within(50_000, 4, spare)
        more = strip_memory(height, 50_000) - strip_memory(LEAST_HEIGHT, 50_000)
        assert 4 * more <= spare
