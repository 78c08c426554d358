"""Packing and transposing, against NumPy's own unpacking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.dataset import chunks as bits


def random_bytes(n_rows: int, n_bytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n_rows, n_bytes), np.uint8)


def transposed_by_unpacking(rows: np.ndarray) -> np.ndarray:
    dense = np.unpackbits(rows, axis=1, bitorder="little")
    return np.packbits(dense.T, axis=1, bitorder="little")


@given(eighth=st.integers(1, 40), n_bytes=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_transpose_swaps_rows_and_bits(eighth: int, n_bytes: int, seed: int) -> None:
    rows = random_bytes(8 * eighth, n_bytes, seed)
    np.testing.assert_array_equal(bits.transpose_bits(rows), transposed_by_unpacking(rows))
    np.testing.assert_array_equal(bits.transpose_bits(bits.transpose_bits(rows)), rows)


@pytest.mark.parametrize("n_rows", [8184, 8192, 8200, 3 * 8192, 3 * 8192 + 64])
def test_transpose_in_parts_is_the_transpose_of_the_whole(n_rows: int) -> None:
    rows = random_bytes(n_rows, 3, n_rows)
    np.testing.assert_array_equal(bits.transpose_bits(rows), transposed_by_unpacking(rows))


def test_transpose_takes_rows_that_do_not_lie_side_by_side() -> None:
    rows = random_bytes(128, 10, 0)
    np.testing.assert_array_equal(
        bits.transpose_bits(rows[::2, ::3]), transposed_by_unpacking(rows[::2, ::3].copy())
    )


def test_one_bit_lands_where_the_format_says() -> None:
    X = np.zeros((64, 11), np.uint8)
    X[19, 10] = 1
    packed = bits.transpose_bits(bits.pack_rows(X))
    assert np.argwhere(packed).tolist() == [[10, 19 // 8]]
    assert packed[10, 19 // 8] == 1 << (19 % 8)


@given(n_rows=st.integers(1, 50), n_features=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_rows_come_back(n_rows: int, n_features: int, seed: int) -> None:
    X = np.random.default_rng(seed).integers(0, 2, (n_rows, n_features), np.uint8)
    packed = bits.pack_rows(X)
    assert packed.shape == (n_rows, -(-n_features // 8))
    np.testing.assert_array_equal(bits.unpack_rows(packed, n_features), X)
