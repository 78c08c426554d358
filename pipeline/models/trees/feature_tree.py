"""The Chow–Liu tree of features, from exact counts of pairs of planes.

Where values are missing, a pair of features is counted in the rows that observe both. The weight of
an edge is then its mutual information times the share of these rows: what it adds to the
log-likelihood per row.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    find_maximum_spanning_tree,
    move_root_to_center,
)
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_STRIP_CELLS = 1 << 21
"""Pairs of levels whose counts are in memory at once."""


def find_feature_tree(pairs: PairCounts, n_levels: Counts) -> Counts:
    """Return the parent of each feature in the Chow–Liu tree, (n_features,), `ROOT` at its center.

    Parameters
    ----------
    pairs
        Counts of pairs of planes, all segments pooled.
    n_levels
        Number of levels of each feature, (n_features,).
    """
    n_features, weights = len(n_levels), np.zeros((len(n_levels), len(n_levels)))
    n_strip = max(1, int(_STRIP_CELLS / (n_levels.max() * n_levels.sum())))
    for first in range(0, n_features, n_strip):
        left, right = slice(first, first + n_strip), slice(first, n_features)
        weights[left, right] = _sum_information(pairs, n_levels, left, right)
    upper = np.triu(weights, 1) / pairs.weight
    return move_root_to_center(find_maximum_spanning_tree(upper + upper.T))


def count_edges(pairs: PairCounts, n_levels: Counts, parents: Counts) -> Array:
    """Count the levels of each feature and its parent, (n_features, parent_level b, level a).

    The rows are those that observe both features. Entries of a root are 0.
    """
    tables = np.zeros((len(n_levels), n_levels.max(), n_levels.max()))
    for i in np.flatnonzero(parents != ROOT).tolist():
        parent = int(parents[i])
        left, right = slice(parent, parent + 1), slice(i, i + 1)
        tables[i, : n_levels[parent], : n_levels[i]] = _count_cells(pairs, n_levels, left, right)
    return tables


def _sum_information(pairs: PairCounts, n_levels: Counts, left: slice, right: slice) -> Array:
    """Return the mutual information times the rows of each pair, nats, (n_left, n_right).

    Σ_ab n_ab log n_ab − Σ_a n_a log n_a − Σ_b n_b log n_b + n log n (Chow & Liu 1968, equation 5).
    """
    cells = _count_cells(pairs, n_levels, left, right)
    rows, columns = (np.cumsum(n_levels[own]) - n_levels[own] for own in (left, right))
    above = np.add.reduceat(cells, columns, axis=1)
    below = np.add.reduceat(cells, rows, axis=0)
    totals = np.add.reduceat(above, rows, axis=0)
    by_cell = np.add.reduceat(_xlogx(cells), rows, axis=0)
    information: Array = np.add.reduceat(by_cell, columns, axis=1) + _xlogx(totals)
    information -= np.add.reduceat(_xlogx(above), rows, axis=0)
    information -= np.add.reduceat(_xlogx(below), columns, axis=1)
    return np.maximum(information, 0.0)


def _xlogx(counts: Array) -> Array:
    return np.asarray(scipy.special.xlogy(counts, counts), np.float64)


def _count_cells(pairs: PairCounts, n_levels: Counts, left: slice, right: slice) -> Array:
    """Count the pairs of levels of features, (n_levels of left, n_levels of right).

    The counts of rows that reach a level are those of its plane; all rows reach the lowest level.
    """
    first_planes = np.cumsum([0, *(n_levels - 1)])
    sides = []
    for own in (left, right):
        sizes = n_levels[own]
        steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        planes = np.repeat(first_planes[:-1][own], sizes) + np.maximum(steps - 1, 0)
        sides.append((planes, steps == 0))
    (rows, is_lowest_row), (columns, is_lowest_column) = sides
    first_row, first_column = rows[0], columns[0]
    table = pairs.table(0, slice(first_row, rows[-1] + 1), slice(first_column, columns[-1] + 1))
    shape = table.joint.shape
    at = np.ix_(rows - first_row, columns - first_column)
    n, ones_i, ones_j, joint = (np.broadcast_to(part, shape)[at] for part in table)
    cells = np.where(
        is_lowest_row[:, None],
        np.where(is_lowest_column, n, ones_j),
        np.where(is_lowest_column, ones_i, joint),
    ).astype(np.float64)
    has_next = ~is_lowest_row[1:]
    cells[:-1][has_next] -= cells[1:][has_next]
    has_next = ~is_lowest_column[1:]
    cells[:, :-1][:, has_next] -= cells[:, 1:][:, has_next]
    return np.maximum(cells, 0.0)
