"""Rows with the bits of each side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.numerics.bits.packed_rows import transpose_bits, unpack_bytes
from tests.support.strategies import bit_matrices, pack_matrix


@pytest.mark.parametrize("n_features", [1, 8, 65])
def test_bytes_are_rows_again(n_features: int) -> None:
    X, mask = np.random.default_rng(3).integers(0, 2, (2, 5, n_features), dtype=np.uint8)
    rows = pack_block(X, mask).to_packed_rows()
    values, seen = rows.pack_bytes()
    assert values.shape == (5, -(-n_features // 8))
    bits = np.unpackbits(values, axis=1, count=n_features, bitorder="little")
    np.testing.assert_array_equal(bits, X & mask)
    again = unpack_bytes(n_features, values, seen)
    np.testing.assert_array_equal(again.words, rows.words)
    assert again.observed is not None
    np.testing.assert_array_equal(again.observed, rows.observed)


@pytest.mark.parametrize("place", ["value", "missing value", "mask"])
def test_bytes_with_more_values_than_rows_have_are_refused(place: str) -> None:
    values, mask = np.zeros((2, 2), np.uint8), np.full((2, 2), [0b111, 0b11], np.uint8)
    if place == "value":
        values[1, 1] = 0b100
    elif place == "missing value":
        values[1, 0] = 0b1000
    else:
        mask[1, 1] = 0b111
    with pytest.raises(FitError, match="do not exist or are missing"):
        unpack_bytes(10, values, None if place == "value" else mask)


@given(X=bit_matrices(st.integers(0, 150), st.integers(1, 150)))
def test_transposed_bits_are_those_of_the_rows(X):
    words = transpose_bits(pack_matrix(X), len(X))
    assert words.shape == (-(-X.shape[1] // 64), len(X))
    np.testing.assert_array_equal(words, pack_matrix(X.T).T)
