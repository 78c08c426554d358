"""Blocks: what a chunk is cut into, and what a model sees of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.data.blocks import BinaryBlock, Tile, concatenate_blocks, pack_block
from tests.support.strategies import DenseData, chunkings, make_memory_blocks, pack_matrix, tables


def kept(data: DenseData) -> DenseData:
    return data if data.keep is None else data.take_rows(data.keep)


def original_rows(data: DenseData) -> list[int]:
    rows = np.arange(len(data.X))
    return (rows if data.keep is None else rows[data.keep]).tolist()


@given(tables(splits=True), st.data())
def test_blocks_hold_every_row_of_the_split_once(data: DenseData, draw: st.DataObject) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X))))
    rows = np.concatenate([block.rows for block in blocks])
    assert sorted(rows) == original_rows(data)
    for block in blocks:
        assert block.n_samples == len(block.rows)
        assert block.n_features == data.X.shape[1]
        assert np.all(data.labels[block.rows] == block.segment)
        np.testing.assert_array_equal(block.column("position"), block.rows)
        np.testing.assert_array_equal(block.unpack_values(), (data.X & data.mask)[block.rows])
        mask = block.unpack_mask()
        if mask is None:
            assert data.mask[block.rows].all()
        else:
            np.testing.assert_array_equal(mask, data.mask[block.rows])


@given(tables(splits=True), st.data())
def test_joined_blocks_are_all_rows_in_original_order(data: DenseData, draw: st.DataObject) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X))))
    assume(blocks)
    whole = concatenate_blocks(blocks)
    assert whole.rows.tolist() == whole.column("position").tolist() == original_rows(data)
    np.testing.assert_array_equal(whole.unpack_values(), (data.X & data.mask)[whole.rows])
    mask, expected = whole.unpack_mask(), data.mask[whole.rows]
    np.testing.assert_array_equal(np.ones_like(expected) if mask is None else mask, expected)


@given(tables(), st.data())
def test_neighbouring_rows_are_those_with_their_indices(
    data: DenseData, draw: st.DataObject
) -> None:
    for block in make_memory_blocks(data):
        start, stop = sorted(draw.draw(st.integers(0, block.n_samples)) for _ in range(2))
        rows, expected = (block.take_rows(f(start, stop)) for f in (range, np.arange))
        for name, values in vars(expected).items():
            if name not in ("columns", "row_numbers"):
                np.testing.assert_array_equal(getattr(rows, name), values, err_msg=name)
        np.testing.assert_array_equal(rows.rows, expected.rows, strict=True)
        np.testing.assert_array_equal(rows.column("position"), expected.column("position"))


@given(tables())
def test_a_packed_matrix_is_the_block_of_its_rows(data: DenseData) -> None:
    block = pack_block(data.X, data.observed, segment=2, first_row=10)
    assert isinstance(block, BinaryBlock)
    assert (block.segment, block.n_samples) == (2, len(data.X))
    np.testing.assert_array_equal(block.rows, 10 + np.arange(len(data.X)))
    np.testing.assert_array_equal(block.words, pack_matrix(data.X & data.mask))
    if data.observed is not None:
        np.testing.assert_array_equal(block.observed_words, pack_matrix(data.observed))


long_tables = tables(st.integers(1, 3), st.integers(1, 500), splits=True)


@given(long_tables, st.integers(1, 6), st.data())
def test_dealt_groups_hold_every_row_once(
    data: DenseData, n_groups: int, draw: st.DataObject
) -> None:
    for block in make_memory_blocks(data, draw.draw(chunkings(len(data.X), 3))):
        tiled = replace(block, tile=Tile((0, 1), (0, 1)))
        groups = tiled.split_into_groups(n_groups)
        assert len(groups) == n_groups
        sizes = [group.n_samples for group in groups]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(np.concatenate([group.rows for group in groups])) == sorted(block.rows)
        for group in groups:
            assert (group.segment, group.tile) == (tiled.segment, tiled.tile)
            assert_consistent(group, data)


def assert_consistent(block: BinaryBlock, data: DenseData) -> None:
    """The bits are those of the rows, and there are no others."""
    assert block.n_samples == len(block.rows)
    np.testing.assert_array_equal(block.column("position"), block.rows)
    np.testing.assert_array_equal(block.words, pack_matrix((data.X & data.mask)[block.rows]))
    if block.observed_words is not None:
        np.testing.assert_array_equal(block.observed_words, pack_matrix(data.mask[block.rows]))


@pytest.mark.parametrize("n_samples", [128, 129, 255, 256, 300, 383])
def test_whole_words_are_dealt_in_turn_and_the_rest_in_runs(n_samples: int) -> None:
    block = pack_block(np.ones((n_samples, 1), np.uint8))
    n_dealt = n_samples // 128 * 128
    middle = n_dealt + (n_samples - n_dealt) // 2
    words = np.arange(n_dealt).reshape(-1, 2, 64)
    runs = np.arange(n_dealt, middle), np.arange(middle, n_samples)
    for g, group in enumerate(block.split_into_groups(2)):
        assert group.rows.tolist() == [*words[:, g].ravel(), *runs[g]]
