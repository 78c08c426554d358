"""The Gaussian kernel of binary rows, from packed bits: k(x, y) = exp(−d(x, y) / 2 h²).

d is ‖x − y‖², the number of features that differ; with missing values the share of those observed
in both that differ, times the number of features. Without a feature observed in both k is 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.graphs.row_distances import (
    GROUP,
    STRIP,
    allocate_aligned,
    count_differences,
    count_observed,
    divide_counts,
    pad_rows,
)

Array = NDArray[np.float64]
Words = NDArray[np.uint64]

_CELLS_AT_ONCE = 1 << 20

_kernel = njit(nogil=True, cache=True)


def squared_distances(left: BitRows, right: BitRows) -> Array:
    """Give d of every pair, (n_left, n_right); infinite where nothing was observed in both."""
    return _look_up_pairs(left, right, np.arange(left.n_features + 1.0))


def gaussian_kernel(left: BitRows, right: BitRows, width: float) -> Array:
    """Give k of every pair, (n_left, n_right), h being the width."""
    filled = _look_up_pairs(left, right, _kernel_by_count(left.n_features, width))
    if left.observed is None and right.observed is None:
        return filled
    filled *= -0.5 / width**2
    return np.exp(filled, out=filled)


def multiply_kernel(left: BitRows, right: BitRows, width: float, columns: Array) -> Array:
    """Multiply the matrix of k by columns, (n_right, n): (n_left, n).

    Every row is summed by itself, so that it does not matter which others come with it.
    """
    product = np.zeros((left.n_rows, columns.shape[1]))
    step = max(1, _CELLS_AT_ONCE // max(1, len(columns)))
    for start in range(0, left.n_rows, step):
        some = slice(start, start + step)
        _add_products(gaussian_kernel(left.take(some), right, width), columns, product[some])
    return product


def multiply_kernel_by_vector(left: BitRows, right: BitRows, width: float, vector: Array) -> Array:
    """Multiply the matrix of k by a vector, (n_right,): (n_left,); the matrix is never held."""
    product = np.zeros(left.n_rows)
    if left.observed is None and right.observed is None:
        own, others = (np.ascontiguousarray(side.words) for side in (left, right))
        _add_kernel_products(own, others, _kernel_by_count(left.n_features, width), vector, product)
        return product
    step = max(1, _CELLS_AT_ONCE // max(1, right.n_rows))
    for start in range(0, left.n_rows, step):
        some = slice(start, start + step)
        product[some] = gaussian_kernel(left.take(some), right, width) @ vector
    return product


def _kernel_by_count(n_features: int, width: float) -> Array:
    """Give k by the number of features that differ, (n_features + 1,)."""
    return np.exp(-0.5 / width**2 * np.arange(n_features + 1.0))


def _look_up_pairs(left: BitRows, right: BitRows, by_count: Array) -> Array:
    """Look up what goes with the count that differs; with missing values give d itself."""
    values = np.empty((left.n_rows, right.n_rows))
    own, others = (np.ascontiguousarray(side.words) for side in (left, right))
    if left.observed is None and right.observed is None:
        _fill_by_count(own, others, by_count, values)
    else:
        masks = [np.ascontiguousarray(side.mask) for side in (left, right)]
        _fill_observed(own, masks[0], others, masks[1], left.n_features, values)
    return values


@_kernel
def _fill_by_count(own: Words, others: Words, by_count: Array, values: Array) -> None:
    n_rows, n_others = values.shape
    own, counts, minima = (
        pad_rows(own, n_rows),
        allocate_aligned(STRIP),
        allocate_aligned(STRIP // GROUP),
    )
    for start in range(0, n_others, STRIP):
        strip = pad_rows(others[:, start : start + STRIP], STRIP)
        for i in range(n_rows):
            count_differences(own, i, strip, counts, minima)
            for j in range(min(STRIP, n_others - start)):
                values[i, start + j] = by_count[counts[j]]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _add_kernel_products(
    own: Words, others: Words, by_count: Array, vector: Array, product: Array
) -> None:
    """Add to each row the values of all others, looked up by counts, times the vector."""
    n_rows = len(product)
    own, counts, minima = (
        pad_rows(own, n_rows),
        allocate_aligned(STRIP),
        allocate_aligned(STRIP // GROUP),
    )
    for start in range(0, len(vector), STRIP):
        strip = pad_rows(others[:, start : start + STRIP], STRIP)
        factors = vector[start : start + STRIP]
        for i in range(n_rows):
            count_differences(own, i, strip, counts, minima)
            total = 0.0
            for j in range(len(factors)):
                total += by_count[counts[j]] * factors[j]
            product[i] += total


@_kernel
def _fill_observed(
    own: Words, own_seen: Words, others: Words, seen: Words, n_features: int, values: Array
) -> None:
    n_rows, n_others = values.shape
    own, own_seen = pad_rows(own, n_rows), pad_rows(own_seen, n_rows)
    counts, far = (
        allocate_aligned(3 * STRIP).reshape(3, STRIP),
        allocate_aligned(STRIP).view(np.float64),
    )
    for start in range(0, n_others, STRIP):
        some = slice(start, start + STRIP)
        strip, strip_seen = pad_rows(others[:, some], STRIP), pad_rows(seen[:, some], STRIP)
        for i in range(n_rows):
            count_observed(False, own, own_seen, i, strip, strip_seen, counts)
            divide_counts(np.float64(n_features), counts, far)
            values[i, some] = far[: n_others - start]


@_kernel
def _add_products(kernel: Array, columns: Array, product: Array) -> None:
    for i in range(len(kernel)):
        for j in range(len(columns)):
            for c in range(columns.shape[1]):
                product[i, c] += kernel[i, j] * columns[j, c]
