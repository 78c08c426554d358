"""Likelihoods and counts of complete rows of binary features, without messages.

The logarithm of the probability of a row is a polynomial of its bits: a constant, a term for each
feature i, and a term for each edge, x_i x_parent. Rows lie side by side in memory, so that all
loops over rows use the vector instructions of the CPU. No sum of a row depends on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.intrinsics import popcount
from pipeline.numerics.trees.spanning_tree import ROOT

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Words = NDArray[np.uint64]

_WORDS_AT_ONCE = 4  # 256 rows: 512 KiB of 256 features, which fit in the L2 cache
_MIN_DENSITY = 0.25  # below this share of rows, adding them one by one is faster

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_sum_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})


class LogPolynomials(NamedTuple):
    """Coefficients of log P(x) of each tree.

    Attributes
    ----------
    constants
        (n_trees,).
    linear
        Coefficients of x_i, (n_trees, n_features).
    products
        Coefficients of x_i x_parent, (n_trees, n_features), 0 at roots.
    parents
        Parent of each feature, (n_trees, n_features), which is the feature itself at roots.
    """

    constants: Array
    linear: Array
    products: Array
    parents: Indices


def make_log_polynomials(parents: Indices, tables: Array) -> LogPolynomials | None:
    """Return the polynomials of trees of binary features; None if some probability is 0.

    `parents` and `tables` are those of `fill_log_likelihoods`.
    """
    is_root = parents == ROOT
    tables = np.where(is_root[:, :, None, None], tables[:, :, :1], tables)
    if not (tables > 0).all():
        return None
    logs = np.log(tables)
    own, above = logs[:, :, 0, 1] - logs[:, :, 0, 0], logs[:, :, 1, 0] - logs[:, :, 0, 0]
    linear = own.copy()
    trees, features = np.nonzero(~is_root)
    np.add.at(linear, (trees, parents[trees, features]), above[trees, features])
    products = logs[:, :, 1, 1] - logs[:, :, 1, 0] - own
    parents = np.where(is_root, np.arange(parents.shape[1]), parents)
    return LogPolynomials(logs[:, :, 0, 0].sum(axis=1), linear, products, parents)


def compute_complete_log_likelihoods(
    words: Words, n_samples: int, polynomials: LogPolynomials
) -> Array:
    """Return log P of each row under each tree, (n_samples, n_trees).

    `words` are packed bits of the rows, (n_features, n_words), as in `BinaryBlock`.
    """
    constants, linear, products, parents = polynomials
    nats = np.empty((n_samples, len(constants)))
    for rows, bits in _iter_bits(words, n_samples):
        sums = np.repeat(constants[:, None], bits.shape[1], axis=1)
        _add_terms(bits, parents, linear, products, sums)
        nats[rows] = sums.T
    return nats


def sum_complete_tables(words: Words, weights: Array, parents: Indices) -> Array:
    """Sum the weights of rows by the level of each feature and of its parent.

    Parameters
    ----------
    words
        Packed bits of the rows, (n_features, n_words).
    weights
        Weights of the rows in each tree, (n_samples, n_trees).
    parents
        Parent of each feature, (n_trees, n_features), `ROOT` for roots.

    Returns
    -------
    ndarray
        (n_trees, n_features, 2, 2) at [k, i, level of the parent, level of i]; a root has its sums
        at level 0 of the parent.
    """
    is_root, weights = parents == ROOT, np.ascontiguousarray(weights.T)
    own_or_parent = np.where(is_root, np.arange(parents.shape[1]), parents)
    both = np.zeros(parents.shape)
    ones = np.zeros(parents.shape)
    for rows, bits in _iter_bits(words, weights.shape[1]):
        own = np.ascontiguousarray(weights[:, rows])
        ones += own @ bits.T
        _add_products(bits, own, own_or_parent, both)
    total = weights.sum(axis=1)[:, None]
    above = np.where(is_root, 0.0, np.take_along_axis(ones, own_or_parent, axis=1))
    both = np.where(is_root, 0.0, both)
    cells = np.stack([total - ones - above + both, ones - both, above - both, both], axis=2)
    tables: Array = np.maximum(cells, 0.0).reshape(*parents.shape, 2, 2)
    return tables


def count_edges(words: Words, planes: Words, parents: Indices, n_levels: Indices) -> Indices:
    """Count complete rows by the level of each feature and of its parent in a single tree.

    Parameters
    ----------
    words
        Packed bits of the rows, (n_planes, n_words), of features that may have several levels.
    planes
        Weights of the rows in bit planes, (n_bits, n_words).
    parents, n_levels
        Parent and number of levels of each feature, (n_features,).

    Returns
    -------
    ndarray
        (n_features, n_levels, n_levels), as for `sum_complete_tables`.
    """
    steps = np.arange(1, n_levels.max())
    has_plane = steps < n_levels[:, None]
    own = np.where(has_plane, (np.cumsum(n_levels - 1) - n_levels)[:, None] + steps, -1)
    above = np.where((parents == ROOT)[:, None], -1, own[parents])
    # Rows that reach a level of the parent and a level of the feature; all reach the lowest.
    reached = np.zeros((len(parents), len(steps) + 2, len(steps) + 2), np.int64)
    bits = np.bitwise_count(planes).sum(axis=1, dtype=np.int64)
    reached[:, 0, 0] = bits @ (1 << np.arange(len(planes)))
    pairs = ((reached[:, 0, 1:-1], own, own), (reached[:, 1:-1, 0], above, above))
    for counts, left, right in (*pairs, (reached[:, 1:-1, 1:-1], above[:, :, None], own[:, None])):
        left, right = np.broadcast_arrays(left, right)
        exists = (left >= 0) & (right >= 0)
        found = np.zeros(np.count_nonzero(exists), np.int64)
        _count_pairs(np.ascontiguousarray(words), planes, left[exists], right[exists], found)
        counts[exists] = found
    tables: Indices = np.diff(np.diff(reached, axis=1), axis=2)
    return tables


def _iter_bits(words: Words, n_samples: int) -> Iterator[tuple[slice, Array]]:
    """Yield ranges of rows with their bits as numbers, (n_features, n_rows).

    Every range overwrites the last one: new memory for each would take as long as the sums.
    """
    numbers = np.empty((len(words), 64 * min(_WORDS_AT_ONCE, words.shape[1])))
    for first in range(0, words.shape[1], _WORDS_AT_ONCE):
        rows = slice(64 * first, min(64 * (first + _WORDS_AT_ONCE), n_samples))
        part = np.ascontiguousarray(words[:, first : first + _WORDS_AT_ONCE]).view(np.uint8)
        bits = np.unpackbits(part, axis=1, count=rows.stop - rows.start, bitorder="little")
        own = numbers.ravel()[: bits.size].reshape(bits.shape)
        own[:] = bits
        yield rows, own


@_kernel
def _add_terms(bits: Array, parents: Indices, linear: Array, products: Array, nats: Array) -> None:
    """Add the terms of features and edges, to (n_trees, n_samples)."""
    n_trees, n_features = parents.shape
    for k in range(n_trees):
        sums = nats[k]
        for i in range(n_features):
            own, above = bits[i], bits[parents[k, i]]
            a, b = linear[k, i], products[k, i]
            for row in range(len(sums)):
                sums[row] += own[row] * (a + b * above[row])


@_sum_kernel
def _add_products(bits: Array, weights: Array, parents: Indices, sums: Array) -> None:
    """Add Σ weight x_i x_parent over rows, to (n_trees, n_features)."""
    n_trees, n_features = parents.shape
    n_samples = weights.shape[1]
    active = np.empty(n_samples, np.int64)
    for k in range(n_trees):
        own_weights = weights[k]
        n_active = 0
        for row in range(n_samples):
            if own_weights[row] != 0:
                active[n_active] = row
                n_active += 1
        is_dense = n_active >= _MIN_DENSITY * n_samples
        for i in range(n_features):
            if parents[k, i] == i:
                continue
            own, above, total = bits[i], bits[parents[k, i]], 0.0
            if is_dense:
                for row in range(n_samples):
                    total += own_weights[row] * own[row] * above[row]
            else:
                for place in range(n_active):
                    row = active[place]
                    total += own_weights[row] * own[row] * above[row]
            sums[k, i] += total


@_kernel
def _count_pairs(
    words: Words, planes: Words, left: Indices, right: Indices, counts: Indices
) -> None:
    """Add the weights of the rows with both features of each pair."""
    for pair in range(len(counts)):
        a, b = words[left[pair]], words[right[pair]]
        for shift in range(len(planes)):
            plane, ones = planes[shift], np.uint64(0)
            for w in range(len(plane)):
                ones += popcount(a[w] & b[w] & plane[w])
            counts[pair] += np.int64(ones) << shift
