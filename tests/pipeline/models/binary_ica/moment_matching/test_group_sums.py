"""Sums of groups made a table at a time are those of `PairCounts.sum_weighted_groups`."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.models.binary_ica.moment_matching.group_sums import GroupSums
from tests.pipeline.models.binary_ica.moment_matching import counts_of, drawn, planted
from tests.support.strategies import DenseData


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("n_groups", [1, 4])
def test_tables_and_margins_are_those_of_the_weighted_counts(n_groups: int, missing: float) -> None:
    rng = np.random.default_rng(0)
    data = drawn(planted(7, 2, 3), 50, rng)
    observed = (rng.random(data.X.shape) >= missing).astype(np.uint8) if missing else None
    counts = counts_of(DenseData(data.X, observed, data.segments), n_groups)
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
            for found, right in tables:
                assert np.shape(found) == np.shape(right)
                np.testing.assert_array_equal(found, right)
