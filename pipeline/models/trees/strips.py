"""The tree of many binary features, whose pairs are counted strip by strip.

A task counts the pairs of its features with all later ones, and keeps those in the maximum spanning
forest of the pairs of its strip: no other pair of the strip can be in the tree. The tree is the
maximum spanning tree of all kept pairs (R. E. Tarjan, "Data structures and network algorithms",
1983, chapter 6). No process holds a square of all features.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk
from pipeline.errors import FitError
from pipeline.models.state import Arrays
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    find_maximum_spanning_forest,
    normalize_tables,
    orient_tree,
)
from pipeline.passes.row_ranges import RangeResults
from pipeline.statistics.counts import FeatureCounts, count_strip

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

KEPT_PAIRS = "kept_pairs"
"""Name of the array of a strip: 1 + the count of a pair if it is kept, else 0."""
_ROWS_AT_ONCE = 64  # of a strip, so that arrays of float64 stay small


class FeaturePairs(NamedTuple):
    """Pairs of features, and the numbers of rows with both ones; (n_edges,) each.

    Pairs are in the order of their features, and `left` < `right`.
    """

    left: Counts
    right: Counts
    joint: Counts


class SingleTree(NamedTuple):
    """The tree of all features.

    `parents` are (n_features,). `tables` are P(x_i = a | x_parent = b), and `counts` the rows that
    have these levels, (n_features, parent_level b, level a) each.
    """

    parents: Counts
    tables: Array
    counts: Array


def make_strip_margins(first: FeatureCounts, margins: Array, smoothing: float) -> Arrays:
    """Return what tasks need: counts in units of weight, and the pseudo-rows of the prior.

    `margins` are the shares of both levels of each feature, (2 n_features,).

    Raises
    ------
    FitError
        If values are missing.
    """
    if not first.is_complete:
        raise FitError(
            f"Values are missing, but a tree of {len(margins) // 2:,} features needs complete "
            "rows. Fill in the values, or select fewer features."
        )
    return {
        "total": np.array(first.total),
        "weight_unit": np.array(first.weight_unit),
        "ones": first.ones.sum(axis=0),
        "shares": margins.reshape(-1, 2),
        "smoothing": np.array(smoothing),
    }


def find_strip_pairs(margins: Arrays, features: slice, chunks: Iterable[PackedChunk]) -> Arrays:
    """Count the pairs of a strip, and keep those in their maximum spanning forest.

    Return `KEPT_PAIRS`, (n_strip, n_features − first), unsigned.
    """
    n_features, total = len(margins["ones"]), int(margins["total"])
    joint = count_strip(features, n_features, total, False, chunks)["joint"]
    kept = np.zeros(joint.shape, np.uint32 if total < 2**32 - 1 else np.uint64)
    edges = FeaturePairs(*np.zeros((3, 0), np.int64))
    for first in range(0, len(joint), _ROWS_AT_ONCE):
        part = joint[first : first + _ROWS_AT_ONCE]
        left, right = np.triu_indices(len(part), 1, part.shape[1] - first)
        own = FeaturePairs(
            features.start + first + left,
            features.start + first + right,
            part[left, first + right].astype(np.int64),
        )
        edges = _keep_forest(margins, _join(edges, own))
    rows, columns = edges.left - features.start, edges.right - features.start
    kept[rows, columns] = 1 + edges.joint
    return {KEPT_PAIRS: kept}


def find_single_tree(margins: Arrays, results: RangeResults) -> SingleTree:
    """Find the maximum spanning tree of the pairs that all strips kept, and its tables."""
    n_features, edges, first = len(margins["ones"]), FeaturePairs(*np.zeros((3, 0), np.int64)), 0
    for key in range(results.n_ranges):
        kept = results.read(key, [KEPT_PAIRS])[KEPT_PAIRS]
        rows, columns = np.nonzero(kept)
        own = FeaturePairs(first + rows, first + columns, kept[rows, columns].astype(np.int64) - 1)
        edges = _keep_forest(margins, _join(edges, own))
        first += len(kept)
    parents = orient_tree(edges.left, edges.right, n_features)
    return _make_tables(margins, edges, parents)


def _join(a: FeaturePairs, b: FeaturePairs) -> FeaturePairs:
    """Join edges; those of `b` have later features on the left."""
    return FeaturePairs(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))


def _keep_forest(margins: Arrays, edges: FeaturePairs) -> FeaturePairs:
    information = compute_pair_information(margins, edges)
    n_features = len(margins["ones"])
    kept = find_maximum_spanning_forest(edges.left, edges.right, information, n_features)
    return FeaturePairs(*(values[kept] for values in edges))


def compute_pair_information(margins: Arrays, edges: FeaturePairs) -> Array:
    """Return the mutual information of pairs of features, nats, (n_edges,).

    The formula is that of `compute_mutual_information`, in the same order of sums.
    """
    cells = _count_cells(margins, edges.left, edges.right, edges.joint)
    cells += float(margins["smoothing"]) * _compute_independent(margins, edges.left, edges.right)
    own = _count_levels(margins)
    total = own[0].sum()
    terms = scipy.special.xlogy(cells, cells / total)
    by_pair: Array = ((terms[:, 0, 0] + terms[:, 1, 0]) + (terms[:, 0, 1] + terms[:, 1, 1])) / total
    entropies = -scipy.special.xlogy(own, own / total).sum(axis=1) / total
    information: Array = by_pair + entropies[edges.left] + entropies[edges.right]
    return information


def _count_cells(margins: Arrays, left: Counts, right: Counts, joint: Counts) -> Array:
    """Return the weight of the rows by level of the left and the right feature, (n_edges, 2, 2)."""
    total, ones = int(margins["total"]), margins["ones"]
    only_left, only_right = ones[left] - joint, ones[right] - joint
    neither = total - ones[left] - only_right
    cells = np.stack([neither, only_right, only_left, joint], axis=1).reshape(-1, 2, 2)
    return cells * float(margins["weight_unit"])


def _compute_independent(margins: Arrays, left: Counts, right: Counts) -> Array:
    """Return P(level, level) of pairs of independent features, (n_edges, 2, 2)."""
    shares = margins["shares"]
    independent: Array = shares[left, :, None] * shares[right, None, :]
    return independent


def _count_levels(margins: Arrays) -> Array:
    """Return the weight of the rows at each level, with pseudo-rows, (n_features, 2)."""
    ones, unit = margins["ones"], float(margins["weight_unit"])
    rows = np.stack([int(margins["total"]) - ones, ones], axis=1) * unit
    levels: Array = rows + float(margins["smoothing"]) * margins["shares"]
    return levels


def _make_tables(margins: Arrays, edges: FeaturePairs, parents: Counts) -> SingleTree:
    is_left_above = parents[edges.right] == edges.left
    child = np.where(is_left_above, edges.right, edges.left)
    joint = np.zeros(len(parents), np.int64)
    joint[child] = edges.joint
    own, is_root = np.arange(len(parents)), parents == ROOT
    above = np.where(is_root, own, parents)
    counts = _count_cells(margins, above, own, joint)
    pseudo_rows = float(margins["smoothing"]) * _compute_independent(margins, above, own)
    smoothed = counts + pseudo_rows
    unit, ones = float(margins["weight_unit"]), margins["ones"]
    counts[is_root] = 0.0
    counts[is_root, 0] = np.stack([int(margins["total"]) - ones, ones], axis=1)[is_root] * unit
    smoothed[is_root] = 0.0
    smoothed[is_root, 0] = _count_levels(margins)[is_root]
    return SingleTree(parents, normalize_tables(smoothed), counts)
