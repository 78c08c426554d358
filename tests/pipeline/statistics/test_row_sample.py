"""Rows drawn from all: the same ones however the rows are cut."""

from __future__ import annotations

from functools import reduce

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.random import RowRandom
from pipeline.statistics.row_sample import RowSample
from tests.support.strategies import DenseData, chunkings, make_memory_blocks, tables

RNG = RowRandom(7)


@settings(deadline=None)
@given(tables(), st.integers(1, 200), st.data())
def test_the_sample_is_of_the_rows_with_the_smallest_draws(
    data: DenseData, size: int, draw: st.DataObject
) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X))))
    parts = [RowSample.from_block(b, size, RNG, b.rows / 2) for b in blocks]
    found = reduce(RowSample.merge, parts)
    draws = RNG.stream("sample").uniform(np.arange(len(data.X)), 1)[:, 0]
    expected = np.argsort(draws)[:size]
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_array_equal(found.X, (data.X & data.mask)[expected])
    np.testing.assert_array_equal(found.observed, data.mask[expected])
    np.testing.assert_array_equal(found.segments, data.labels[expected])
    np.testing.assert_array_equal(found.labels, expected / 2)
    np.testing.assert_array_equal(found.counts.observed.sum(axis=0), data.mask.sum(axis=0))
    assert found.n_samples == len(data.X)
    again = RowSample.from_arrays(found.to_arrays())
    for name, values in found.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], values)
