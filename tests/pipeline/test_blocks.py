"""Blocks: what a chunk is cut into, and what a model sees of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.blocks import BinaryBlock, block_of
from tests.strategies import Data, chunkings, memory_blocks, packed, tables


def kept(data: Data) -> Data:
    return data if data.keep is None else data.take(data.keep)


def original_rows(data: Data) -> list[int]:
    rows = np.arange(len(data.X))
    return (rows if data.keep is None else rows[data.keep]).tolist()


@settings(deadline=None)
@given(tables(splits=True), st.data())
def test_blocks_hold_every_row_of_the_split_once(data: Data, draw: st.DataObject) -> None:
    blocks = memory_blocks(data, draw.draw(chunkings(len(data.X))))
    rows = np.concatenate([block.rows for block in blocks])
    assert sorted(rows) == original_rows(data)
    for block in blocks:
        assert block.n_samples == len(block.rows)
        assert block.n_features == data.X.shape[1]
        assert np.all(data.labels[block.rows] == block.segment)
        np.testing.assert_array_equal(block.column("position"), block.rows)
        np.testing.assert_array_equal(block.dense(), (data.X & data.mask)[block.rows])
        mask = block.observed()
        if mask is None:
            assert data.mask[block.rows].all()
        else:
            np.testing.assert_array_equal(mask, data.mask[block.rows])


@given(tables())
def test_a_packed_matrix_is_the_block_of_its_rows(data: Data) -> None:
    block = block_of(data.X, data.observed, segment=2, first_row=10)
    assert isinstance(block, BinaryBlock)
    assert (block.segment, block.n_samples) == (2, len(data.X))
    np.testing.assert_array_equal(block.rows, 10 + np.arange(len(data.X)))
    np.testing.assert_array_equal(block.words, packed(data.X & data.mask))
    if data.observed is not None:
        np.testing.assert_array_equal(block.observed_words, packed(data.observed))
