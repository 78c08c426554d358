"""Packed batches of rows, against the same rows with a byte per value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.dataset.batches import (
    RowBatch,
    concatenate_bits,
    pack_batch,
    pack_features,
    pack_levels,
    slice_bits,
    unpack_features,
)
from storage.dataset.feature_levels import Planes, compare_levels
from storage.dataset.writer import create_dataset
from tests.storage.conftest import files_of
from tests.support.data import ArrayBatch

SEEDS = st.integers(0, 2**32 - 1)


def pack(X: np.ndarray) -> np.ndarray:
    return np.packbits(X.T, axis=1, bitorder="little")


@given(n_rows=st.integers(0, 70), n_features=st.integers(1, 20), seed=SEEDS)
def test_rows_in_any_order_are_packed_by_feature(n_rows: int, n_features: int, seed: int) -> None:
    X = np.random.default_rng(seed).integers(0, 2, (n_rows, n_features), np.uint8)
    for rows in (X, np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1][::-1]):
        np.testing.assert_array_equal(pack_features(rows), pack(X))
    np.testing.assert_array_equal(unpack_features(pack(X), n_rows), X)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), cut=st.integers(0, 99), seed=SEEDS
)
def test_bits_are_cut_and_joined_at_any_row(sizes: list[int], cut: int, seed: int) -> None:
    X = np.random.default_rng(seed).integers(0, 2, (sum(sizes), 3), np.uint8)
    parts = np.split(X, np.cumsum(sizes)[:-1])
    np.testing.assert_array_equal(concatenate_bits([*map(pack, parts)], sizes), pack(X))
    start = min(cut, len(X))
    stop = start + (len(X) - start) // 2
    np.testing.assert_array_equal(slice_bits(pack(X), start, stop), pack(X[start:stop]))


@given(n_rows=st.integers(0, 40), highest=st.integers(1, 15), seed=SEEDS)
def test_levels_are_compared_and_split_bit_by_bit(n_rows: int, highest: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_levels = rng.integers(2, highest + 2, 6)
    X = rng.integers(0, n_levels, (n_rows, 6)).astype(np.uint8)
    thresholds = rng.integers(0, 17, 6)
    batch = pack_batch(X)
    np.testing.assert_array_equal(batch.X, X)
    np.testing.assert_array_equal(compare_levels(batch.levels, thresholds), pack(thresholds < X))
    planes = Planes(tuple(tuple(map(str, range(n))) for n in n_levels))
    split = [X[:, [f]] > np.arange(n - 1) for f, n in enumerate(n_levels)]
    np.testing.assert_array_equal(planes.split_levels(pack_levels(X)), pack(np.hstack(split)))


@pytest.mark.parametrize("segments", [None, "sorted", "mixed"])
@pytest.mark.parametrize("has_missing", [False, True])
def test_batches_of_any_sizes_make_the_same_dataset(
    tmp_path: Path, segments: str | None, has_missing: bool
) -> None:
    rng = np.random.default_rng(0)
    n, levels = 1500, {"f1": ("a", "b", "c"), "f4": ()}
    X = rng.integers(0, [2, 3, 2, 2, 1], (n, 5)).astype(np.uint8)
    mask = (rng.random(X.shape) < 0.8).astype(np.uint8) if has_missing else None
    numbers = np.where(rng.random((n, 1)) < 0.2, np.nan, rng.random((n, 1))).astype(np.float32)
    names = np.array(["u", "v", "w"])[rng.integers(0, 3, n)]
    if segments is not None:
        names = np.sort(names) if segments == "sorted" else names
    folders = []
    for sizes in ([n], [1, 7, 64, 0, 500, 63, 129]):
        ends = np.cumsum(sizes)
        folders.append(tmp_path / str(len(sizes)))
        with create_dataset(
            folders[-1], [f"f{k}" for k in range(5)], feature_levels=levels, words_per_chunk=9
        ) as writer:
            for rows in np.split(np.arange(n), ends[ends < n]):
                own = None if mask is None else mask[rows]
                part = X[rows] if own is None else X[rows] * own
                dense = ArrayBatch(part, own, {}, numbers[rows])
                is_packed = len(rows) % 2 == 0
                batch = pack_batch(part, own, {}, numbers[rows]) if is_packed else dense
                assert isinstance(batch, RowBatch) == is_packed
                writer.add(batch, None if segments is None else names[rows])
    assert files_of(folders[0]) == files_of(folders[1])
