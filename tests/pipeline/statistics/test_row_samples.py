"""Rows drawn from all: the same ones however the rows are cut."""

from __future__ import annotations

from collections import Counter
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.random import RowRandom
from pipeline.statistics.row_samples import DistinctRows, RowSample
from tests.conformance.checks import assert_same
from tests.support.strategies import DenseData, chunkings, make_memory_blocks, tables

RNG = RowRandom(7)


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
    assert found.n_rows == len(data.X)
    again = RowSample.from_arrays(found.to_arrays())
    for name, values in found.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], values)


def of_data(data: DenseData, size: int, sizes: list[int] | None = None) -> DistinctRows:
    parts = [
        DistinctRows.from_block(b, size, RowRandom(4)) for b in make_memory_blocks(data, sizes)
    ]
    return reduce(lambda a, b: a.merge(b), parts)


def counted(found: DistinctRows) -> dict[tuple[bytes, bytes], int]:
    keys = zip(found.words, found.observed, found.times, strict=True)
    return {(words.tobytes(), mask.tobytes()): int(times) for words, mask, times in keys}


def expected(data: DenseData) -> Counter[tuple[bytes, bytes]]:
    def packed(a: np.ndarray) -> list[bytes]:
        padded = np.pad(a, ((0, 0), (0, -a.shape[1] % 64)))
        return [row.tobytes() for row in np.packbits(padded, axis=1, bitorder="little")]

    return Counter(zip(packed(data.X & data.mask), packed(data.mask), strict=True))


@given(data=tables(st.sampled_from([3, 70])), draw=st.data())
def test_rows_are_counted_however_they_are_cut(data: DenseData, draw: st.DataObject) -> None:
    whole = of_data(data, 1000)
    assert counted(whole) == expected(data)
    assert whole.is_whole
    assert whole.n_distinct == len(expected(data))
    cut = of_data(data, 1000, draw.draw(chunkings(len(data.X))))
    assert_same(cut.to_arrays(), whole.to_arrays())


def test_a_sample_keeps_the_smallest_hashes_with_their_numbers() -> None:
    X = np.random.default_rng(0).integers(0, 2, (6000, 10), dtype=np.uint8)
    data = DenseData(X, None, None)
    whole, sample = of_data(data, 5000), of_data(data, 100, [1000] * 6)
    assert not sample.is_whole
    for name in ("hashes", "words", "observed", "times"):
        np.testing.assert_array_equal(getattr(sample, name), getattr(whole, name)[:100])
    assert sample.n_distinct == pytest.approx(len(whole.times), rel=0.3)  # a tenth in the mean


def test_rows_of_one_hash_stay_apart() -> None:
    words = np.array([[1], [2], [1], [3], [2], [1]], np.uint64)
    hashes, ones = np.zeros(6, np.uint64), np.ones(6, np.int64)
    found = DistinctRows._keep_smallest(10, 2, 6, True, hashes, words, np.ones_like(words), ones)
    assert dict(zip(found.words[:, 0].tolist(), found.times.tolist(), strict=True)) == {
        1: 3,
        2: 2,
        3: 1,
    }
