"""The Chow–Liu tree of features, from exact counts of pairs of planes.

The tree is the maximum spanning tree of the mutual information of pairs. Where values are missing,
a pair of features is counted in the rows that observe both. The weight of an edge is then its
mutual information times the share of these rows: what it adds to the log-likelihood per row.

If features are many, their pairs are counted strip by strip. A task counts the pairs of its
features with all later ones, and keeps those in the maximum spanning forest of the pairs of its
strip: no other pair of the strip can be in the tree (R. E. Tarjan, "Data structures and network
algorithms", 1983, chapter 6). So no process holds a square of all features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import PackedChunk
from pipeline.models.state import Arrays
from pipeline.numerics.trees.dependence import compute_table_correlation, sum_information
from pipeline.numerics.trees.spanning_tree import find_maximum_spanning_forest
from pipeline.passes.row_ranges import RangeResults
from pipeline.statistics.counts import (
    FeatureCounts,
    PairCounts,
    PairTable,
    count_strip,
    make_strip_table,
)

ReadTable = Callable[[slice, slice], PairTable]
"""Returns the tables of some planes (left) with others (right)."""

TREE_CELL_BYTES = 56
"""Memory of a task per pair of planes in a strip: counts, edges, and edges as stored."""
_TABLE_CELLS = 1 << 21
"""Pairs of levels whose counts are in memory at once."""


class FeaturePairs(NamedTuple):
    """Pairs of features, (n_pairs,) each, ordered by `left` and `right`; `left` < `right`.

    `information` is the weight of a pair as an edge of the tree, nats per row. `correlation` is
    that of levels, and 0 if a feature is constant.
    """

    left: Counts
    right: Counts
    information: Array
    correlation: Array


_NO_PAIRS = FeaturePairs(*np.zeros((2, 0), np.int64), *np.zeros((2, 0)))


class PseudoRows(NamedTuple):
    """Rows of independent features that are added to the counts.

    `weight` is their number, and `margins` their share of each level, (n_levels in all,).
    """

    weight: float
    margins: Array


def find_edges(pairs: PairCounts, n_levels: Counts) -> FeaturePairs:
    """Find the tree of features from the counts of all pairs of planes, all segments pooled."""

    def read_table(left: slice, right: slice) -> PairTable:
        return pairs.table(0, left, right)

    pseudo_rows = PseudoRows(0.0, np.zeros(n_levels.sum()))
    return _find_forest(read_table, slice(0, len(n_levels)), n_levels, pairs.weight, pseudo_rows)


def prepare_strips(first: FeatureCounts, n_levels: Counts, pseudo_rows: PseudoRows) -> Arrays:
    """Return what tasks need to find the edges of strips."""
    return {
        "total": np.array(first.total),
        "weight_unit": np.array(first.weight_unit),
        "is_complete": np.array(first.is_complete),
        "ones": first.ones.sum(axis=0),
        "n_levels": n_levels,
        "pseudo_weight": np.array(pseudo_rows.weight),
        "pseudo_margins": pseudo_rows.margins,
    }


def find_strip_edges(
    working: Arrays, features: slice, chunks: Iterable[PackedChunk]
) -> dict[str, NDArray[Any]]:
    """Find the edges of a strip of features that the tree may need.

    `working` has the arrays of `prepare_strips`. The arrays returned are (n_strip, n_features −
    first): whether a pair is an edge, and if so, its information and correlation.
    """
    total, unit = int(working["total"]), float(working["weight_unit"])
    ones, n_levels = working["ones"], working["n_levels"]
    first_planes = np.cumsum([0, *(n_levels - 1)])
    strip = slice(*first_planes[[features.start, features.stop]].tolist())
    counts = count_strip(strip, len(ones), total, not working["is_complete"], chunks)

    def read_table(left: slice, right: slice) -> PairTable:
        rows = slice(left.start - strip.start, left.stop - strip.start)
        part = {name: values[rows, rows.start :] for name, values in counts.items()}
        return make_strip_table(part, left, total, ones).scale(unit)

    pseudo_rows = PseudoRows(float(working["pseudo_weight"]), working["pseudo_margins"])
    edges = _find_forest(read_table, features, n_levels, total * unit, pseudo_rows)
    places = edges.left - features.start, edges.right - features.start
    arrays = make_empty_strip(features, len(n_levels))
    arrays["is_edge"][places] = True
    arrays["edge_information"][places] = edges.information
    arrays["edge_correlation"][places] = edges.correlation
    return arrays


def make_empty_strip(features: slice, n_features: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of a strip without edges, see `find_strip_edges`."""
    shape = features.stop - features.start, n_features - features.start
    return {
        "is_edge": np.zeros(shape, np.bool_),
        "edge_information": np.zeros(shape),
        "edge_correlation": np.zeros(shape),
    }


def join_strips(results: RangeResults, n_features: int) -> FeaturePairs:
    """Find the tree of features from the edges of all strips."""
    edges, first = _NO_PAIRS, 0
    for key in range(results.n_ranges):
        strip = results.read(key, ["is_edge", "edge_information", "edge_correlation"])
        left, right = places = np.nonzero(strip["is_edge"])
        strengths = strip["edge_information"][places], strip["edge_correlation"][places]
        own = FeaturePairs(first + left, first + right, *strengths)
        edges = _keep_forest(_join(edges, own), n_features)
        first += len(strip["is_edge"])
    return edges


def get_parent_correlation(edges: FeaturePairs, parents: Counts) -> Array:
    """Return the correlation of each feature with its parent, (n_features,); 0 at the root."""
    is_left_above = parents[edges.right] == edges.left
    correlation = np.zeros(len(parents))
    correlation[np.where(is_left_above, edges.right, edges.left)] = edges.correlation
    return correlation


def _join(a: FeaturePairs, b: FeaturePairs) -> FeaturePairs:
    """Join pairs; every `left` of `b` comes after those of `a`."""
    return FeaturePairs._make(np.concatenate(pair) for pair in zip(a, b, strict=True))


def _keep_forest(edges: FeaturePairs, n_features: int) -> FeaturePairs:
    kept = find_maximum_spanning_forest(edges.left, edges.right, edges.information, n_features)
    return FeaturePairs._make(values[kept] for values in edges)


def _find_forest(
    read_table: ReadTable,
    features: slice,
    n_levels: Counts,
    total: float,
    pseudo_rows: PseudoRows,
) -> FeaturePairs:
    """Return the maximum spanning forest of the pairs of features with all later features.

    `total` is the weight of all rows.
    """
    first_planes, firsts = np.cumsum([0, *(n_levels - 1)]), np.cumsum([0, *n_levels])
    n_at_once = max(1, _TABLE_CELLS // int(n_levels.max() * n_levels.sum()))
    edges, n_features = _NO_PAIRS, len(n_levels)
    for start in range(features.start, features.stop, n_at_once):
        stop = min(start + n_at_once, features.stop)
        table = read_table(
            slice(*first_planes[[start, stop]].tolist()), slice(int(first_planes[start]), None)
        )
        left, right = n_levels[start:stop], n_levels[start:]
        cells = count_cells(table, left, right)
        own, later = firsts[[start, stop]], pseudo_rows.margins[firsts[start] :]
        cells += pseudo_rows.weight * np.outer(pseudo_rows.margins[slice(*own)], later)
        information = sum_information(cells, left, right) / (total + pseudo_rows.weight)
        rows, columns = np.triu_indices(len(left), 1, len(right))
        found = FeaturePairs(rows, columns, information[rows, columns], np.zeros(len(rows)))
        found = _keep_forest(found, n_features)
        correlation = _compute_correlation(cells, left, right, found)
        found = FeaturePairs(
            start + found.left, start + found.right, found.information, correlation
        )
        edges = _keep_forest(_join(edges, found), n_features)
    return edges


def count_cells(table: PairTable, left: Counts, right: Counts) -> Array:
    """Return the rows at each pair of levels, (levels of the left, levels of the right features).

    `left` and `right` are numbers of levels. `table` has a row for each plane of the left features,
    and a column for each plane of the right ones. A plane counts the rows at its level or above;
    the lowest level has no plane.
    """
    (rows, is_lowest_row), (columns, is_lowest_column) = map(_list_planes, (left, right))
    shape, at = table.joint.shape, np.ix_(rows, columns)
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


def _list_planes(n_levels: Counts) -> tuple[Counts, NDArray[np.bool_]]:
    """Return the plane of each level, and whether it is the lowest level, which has none."""
    steps = np.arange(n_levels.sum()) - np.repeat(np.cumsum(n_levels) - n_levels, n_levels)
    first_planes = np.cumsum(n_levels - 1) - (n_levels - 1)
    return np.repeat(first_planes, n_levels) + np.maximum(steps - 1, 0), steps == 0


def _compute_correlation(cells: Array, left: Counts, right: Counts, edges: FeaturePairs) -> Array:
    """Return the correlation of the levels of edges; 0 if there is none."""
    steps = np.arange(max(left.max(), right.max()))
    places, exists = [], []
    for sizes, features in ((left, edges.left), (right, edges.right)):
        has_level = steps < sizes[features, None]
        firsts = (np.cumsum(sizes) - sizes)[features, None]
        places.append(np.where(has_level, firsts + steps, 0))
        exists.append(has_level)
    counts = cells[places[0][:, :, None], places[1][:, None, :]]
    counts = counts * exists[0][:, :, None] * exists[1][:, None, :]
    totals = counts.sum(axis=(1, 2), keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return np.nan_to_num(compute_table_correlation(shares))
