"""Counts of strips against sums over unpacked rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.statistics import strips
from pipeline.statistics.strips import count_strip, make_strip_table
from tests.support.strategies import DenseData, chunkings, make_memory_rows, tables


@settings(deadline=None, max_examples=60)
@given(data=tables(splits=True), draw=st.data())
def test_a_strip_has_the_pairs_of_all_rows_of_the_split(
    data: DenseData, draw: st.DataObject
) -> None:
    kept = data if data.keep is None else data.take_rows(data.keep)
    X, mask = (kept.X & kept.mask).astype(np.int64), kept.mask.astype(np.int64)
    n = X.shape[1]
    first = draw.draw(st.integers(0, n - 1))
    features = slice(first, draw.draw(st.integers(first + 1, n)))
    rows = make_memory_rows(data, draw.draw(chunkings(len(data.X))))
    chunks = map(rows.read, range(rows.n_chunks))
    masked = bool((mask == 0).any())
    strip = count_strip(features, n, len(X), masked, chunks)
    table = make_strip_table(strip, features, len(X), X.sum(axis=0))
    expected = (mask.T @ mask, X.T @ mask, mask.T @ X, X.T @ X)
    for got, square in zip(table, expected, strict=True):
        wanted = square[features, first:]
        np.testing.assert_array_equal(np.broadcast_to(got, wanted.shape), wanted)


@pytest.mark.parametrize(
    ("n_samples", "least", "expected"),
    [(9, np.uint16, np.uint16), (65535, np.uint16, np.uint16), (65536, np.uint16, np.uint32)]
    + [(9, np.uint32, np.uint32), (2**32 - 1, np.uint32, np.uint32), (2**32, np.uint16, np.int64)],
)
def test_counts_are_kept_in_what_holds_all_rows(n_samples, least, expected) -> None:
    assert strips._choose_count_type(n_samples, least) is expected
