"""Rows with the bits of each side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.blocks import pack_block
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


@given(X=bit_matrices(st.integers(0, 150), st.integers(1, 150)))
@settings(deadline=None)
def test_transposed_bits_are_those_of_the_rows(X):
    words = transpose_bits(pack_matrix(X), len(X))
    assert words.shape == (-(-X.shape[1] // 64), len(X))
    np.testing.assert_array_equal(words, pack_matrix(X.T).T)
