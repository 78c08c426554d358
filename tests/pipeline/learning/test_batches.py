"""Batches: every row once, in an order that its draws decide, with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import BinaryBlock
from pipeline.learning import batches as module
from pipeline.learning.batches import TrainingBatch, iter_shuffled_rows, split_into_batches
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, chunkings, make_memory_blocks, tables

RNG = RowRandom(5, 2)


def iter_batches(
    blocks: Iterable[BinaryBlock], size: int, rng: RowRandom
) -> Iterator[TrainingBatch]:
    for rows in iter_shuffled_rows(blocks, size, rng):
        yield from split_into_batches(rows, size, np.ones(len(rows.rows), bool))


@given(tables(st.integers(1, 5)), st.integers(1, 40), st.integers(1, 300), st.data())
def test_every_row_comes_once_with_all_that_is_known_of_it(
    data: DenseData, size: int, cells: int, draw: st.DataObject
) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAX_UNPACKED_CELLS", cells)  # so that blocks are cut and gathered
        found = list(iter_batches(blocks, size, RNG))
    assert all(1 <= len(batch.X) <= size for batch in found)
    rows = np.concatenate([batch.rows for batch in found])
    assert sorted(rows) == list(range(len(data.X)))
    for batch in found:
        at = batch.rows
        mask = np.ones_like(batch.X) if batch.observed is None else batch.observed
        np.testing.assert_array_equal(mask, data.mask[at])
        np.testing.assert_array_equal(batch.X, (data.X & data.mask)[at])
        np.testing.assert_array_equal(batch.segments, data.labels[at])
        np.testing.assert_array_equal(batch.columns["position"], at)


def test_the_order_is_random_and_another_pass_has_another() -> None:
    X = np.zeros((2000, 1), np.uint8)
    blocks = make_memory_blocks(DenseData(X))
    orders = [
        np.concatenate([batch.rows for batch in iter_batches(blocks, 64, rng)])
        for rng in (RNG, RNG, RowRandom(5, 3))
    ]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).mean() > 0.9
    assert abs(np.corrcoef(orders[0], np.arange(2000))[0, 1]) < 4 / np.sqrt(2000)


def test_batches_have_their_chosen_rows() -> None:
    X, rows = np.arange(10, dtype=np.uint8)[:, None] % 2, np.arange(10)
    is_chosen = np.array([1, 1, 0, 0, 0, 0, 0, 1, 0, 1], bool)
    batches = split_into_batches(TrainingBatch(X, None, rows, rows, {}), 3, is_chosen)
    assert [batch.rows.tolist() for batch in batches] == [[0, 1], [7], [9]]
