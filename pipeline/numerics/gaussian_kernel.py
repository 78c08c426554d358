"""The Gaussian kernel of binary rows, from packed bits: k(x, y) = exp(−d(x, y) / 2 h²).

d is ‖x − y‖², the number of features that differ; with missing values the share of those observed
in both that differ, times the number of features. Without a feature observed in both k is 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.kernels import popcount
from pipeline.numerics.packed_rows import PackedRows

Array = NDArray[np.float64]
Words = NDArray[np.uint64]

_CELLS_AT_ONCE = 1 << 20

_kernel = njit(nogil=True, cache=True)


def squared_distances(left: PackedRows, right: PackedRows) -> Array:
    """Give d of every pair, (n_left, n_right); infinite where nothing was observed in both."""
    return _filled(left, right, np.arange(left.n_features + 1.0))


def gaussian_kernel(left: PackedRows, right: PackedRows, width: float) -> Array:
    """Give k of every pair, (n_left, n_right), h being the width."""
    scale = -0.5 / width**2
    filled = _filled(left, right, np.exp(scale * np.arange(left.n_features + 1.0)))
    if left.observed is None and right.observed is None:
        return filled
    filled *= scale
    return np.exp(filled, out=filled)


def kernel_times(left: PackedRows, right: PackedRows, width: float, columns: Array) -> Array:
    """Multiply the matrix of k by columns, (n_right, n): (n_left, n).

    Every row is summed by itself, so that it does not matter which others come with it.
    """
    product = np.zeros((left.n_rows, columns.shape[1]))
    step = max(1, _CELLS_AT_ONCE // max(1, len(columns)))
    for start in range(0, left.n_rows, step):
        some = slice(start, start + step)
        _add_products(gaussian_kernel(left.taken(some), right, width), columns, product[some])
    return product


def _filled(left: PackedRows, right: PackedRows, by_count: Array) -> Array:
    """Look up what goes with the count that differs; with missing values give d itself."""
    values = np.empty((left.n_rows, right.n_rows))
    own, others = (np.ascontiguousarray(side.words) for side in (left, right))
    if left.observed is None and right.observed is None:
        _fill(own, others, by_count, values)
    else:
        masks = [np.ascontiguousarray(side.mask) for side in (left, right)]
        _fill_observed(own, masks[0], others, masks[1], left.n_features, values)
    return values


@_kernel
def _fill(own: Words, others: Words, by_count: Array, values: Array) -> None:
    n_words, n_others = others.shape
    counts = np.empty(n_others, np.uint64)
    for i in range(own.shape[1]):
        counts[:] = 0
        for w in range(n_words):
            for j in range(n_others):
                counts[j] += popcount(own[w, i] ^ others[w, j])
        for j in range(n_others):
            values[i, j] = by_count[counts[j]]


@_kernel
def _fill_observed(
    own: Words, own_seen: Words, others: Words, seen: Words, n_features: int, values: Array
) -> None:
    n_words, n_others = others.shape
    differ, both = np.empty(n_others, np.uint64), np.empty(n_others, np.uint64)
    for i in range(own.shape[1]):
        differ[:] = 0
        both[:] = 0
        for w in range(n_words):
            for j in range(n_others):
                shared = own_seen[w, i] & seen[w, j]
                differ[j] += popcount((own[w, i] ^ others[w, j]) & shared)
                both[j] += popcount(shared)
        for j in range(n_others):
            share = np.float64(differ[j]) / np.float64(max(both[j], np.uint64(1)))
            values[i, j] = n_features * share if both[j] else np.inf


@_kernel
def _add_products(kernel: Array, columns: Array, product: Array) -> None:
    for i in range(len(kernel)):
        for j in range(len(columns)):
            for c in range(columns.shape[1]):
                product[i, c] += kernel[i, j] * columns[j, c]
