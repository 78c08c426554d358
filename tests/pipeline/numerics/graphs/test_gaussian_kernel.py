"""The Gaussian kernel, from packed bits."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.data.blocks import pack_block
from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.graphs.gaussian_kernel import (
    gaussian_kernel,
    multiply_kernel,
    multiply_kernel_by_vector,
    squared_distances,
)

RNG = np.random.default_rng(3)


def data(n: int, n_features: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    X = RNG.integers(0, 2, (n, n_features), dtype=np.uint8)
    return X, (RNG.random(X.shape) >= missing).astype(np.uint8)


def packed(X: np.ndarray, mask: np.ndarray) -> BitRows:
    return pack_block(X, None if mask.all() else mask).to_packed_rows()


def dense_distances(X: np.ndarray, mask: np.ndarray, Y: np.ndarray, seen: np.ndarray) -> np.ndarray:
    both = mask[:, None].astype(bool) & seen[None].astype(bool)
    differ = ((X[:, None] != Y[None]) & both).sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = X.shape[1] * (differ / both.sum(axis=2))
    return np.where(both.any(axis=2), scaled, np.inf)


@pytest.mark.parametrize("n_features", [1, 63, 64, 130])
@pytest.mark.parametrize(("missing", "others_missing"), [(0, 0), (0.3, 0.3), (0, 0.3), (1, 0)])
def test_distances_are_those_of_dense_rows(
    n_features: int, missing: float, others_missing: float
) -> None:
    left, right = data(9, n_features, missing), data(7, n_features, others_missing)
    found = squared_distances(packed(*left), packed(*right))
    expected = dense_distances(*left, *right)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    kernel = gaussian_kernel(packed(*left), packed(*right), 2.5)
    np.testing.assert_allclose(kernel, np.exp(-expected / 12.5), rtol=1e-14)


@pytest.mark.parametrize("missing", [0, 0.1])
def test_products_with_a_vector_are_those_of_the_matrix(missing: float) -> None:
    left, right = packed(*data(30, 70, missing)), packed(*data(1500, 70, missing))
    vector = RNG.standard_normal(1500)
    found = multiply_kernel_by_vector(left, right, 3.0, vector)
    np.testing.assert_allclose(found, gaussian_kernel(left, right, 3.0) @ vector, rtol=1e-10)


def test_products_of_a_row_do_not_depend_on_the_rows_beside() -> None:
    left, right = packed(*data(50, 70, 0.1)), packed(*data(40, 70, 0.1))
    columns = RNG.standard_normal((40, 3))
    whole = multiply_kernel(left, right, 3.0, columns)
    np.testing.assert_allclose(whole, gaussian_kernel(left, right, 3.0) @ columns, rtol=1e-12)
    part = multiply_kernel(left.take(slice(20, 31)), right, 3.0, columns)
    assert part.tobytes() == whole[20:31].tobytes()
