"""The tree over features that explains their pairs best (Chow & Liu 1968).

Counts of pairs are a symmetric matrix over all levels of all features, the levels of a feature next
to each other: entry (i = a, j = b) counts the rows with x_i = a and x_j = b. The block of a feature
with itself is diagonal.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROOT = -1
"""Parent of the root of a tree."""
_NO_TREE = "The parents of the features have a cycle or are not features. Fit again."


def find_maximum_spanning_tree(weights: Array) -> Indices:
    """Return the parent of each feature in the tree with the largest sum of weights, (n_features,).

    `weights` is symmetric, (n_features, n_features). The root is feature 0, whose parent is `ROOT`.
    """
    n_features = len(weights)
    left, right = np.triu_indices(n_features, 1)
    ranks = np.zeros(weights.shape, np.int64)
    ranks[left, right] = ranks[right, left] = _rank_edges(weights[left, right])
    # Prim's algorithm: the tree grows by the best edge to a feature that it lacks.
    parents, best = np.zeros(n_features, np.int64), ranks[0].copy()
    is_in_tree = np.arange(n_features) == 0
    last = n_features**2
    best[0] = last
    for _ in range(n_features - 1):
        added = int(best.argmin())
        is_in_tree[added], best[added] = True, last
        is_better = (ranks[added] < best) & ~is_in_tree
        best[is_better], parents[is_better] = ranks[added, is_better], added
    parents[0] = ROOT
    return parents


def _rank_edges(weights: Array) -> Indices:
    """Return the place of each edge among all, from 1, the largest weight first, (n_edges,)."""
    # Rounding errors must not choose among equal weights; the sum may lose 1e-11 per edge.
    order = np.argsort(-np.round(weights, 11), kind="stable")
    ranks = np.empty(len(weights), np.int64)
    ranks[order] = np.arange(1, len(weights) + 1)
    return ranks


def find_maximum_spanning_forest(
    left: Indices, right: Indices, weights: Array, n_features: int
) -> Indices:
    """Return the indices of the edges of the maximum spanning forest, ascending.

    `left`, `right` and `weights` are (n_edges,); no edge occurs twice. Of edges with equal weights,
    the first are preferred. So the forest is unique, and an edge that is not in the forest of some
    edges is not in that of more edges.
    """
    ranks = _rank_edges(weights)
    edges = scipy.sparse.coo_array(
        (ranks.astype(np.float64), (left, right)), shape=(n_features, n_features)
    )
    forest = scipy.sparse.csgraph.minimum_spanning_tree(edges.tocsr())
    return np.flatnonzero(np.isin(ranks, forest.data.astype(np.int64)))


def orient_tree(left: Indices, right: Indices, n_features: int) -> Indices:
    """Return the parent of each feature in the tree with these edges, (n_features,).

    The root is feature 0, whose parent is `ROOT`.
    """
    edges = scipy.sparse.coo_array(
        (np.ones(len(left)), (left, right)), shape=(n_features, n_features)
    )
    _, parents = scipy.sparse.csgraph.breadth_first_order(edges.tocsr(), 0, directed=False)
    found = parents.astype(np.int64)
    found[0] = ROOT
    return found


def move_root_to_center(parents: Indices) -> Indices:
    """Return the same tree with its root in the middle of its longest path, (n_features,).

    Of two features in the middle, the root is the one nearer to the end that is found first.
    """
    below = np.flatnonzero(parents != ROOT)
    shape = (len(parents), len(parents))
    edges = scipy.sparse.csr_array((np.ones(len(below)), (parents[below], below)), shape=shape)
    order, _ = scipy.sparse.csgraph.breadth_first_order(edges, 0, directed=False)
    order, above = scipy.sparse.csgraph.breadth_first_order(edges, order[-1], directed=False)
    path = [int(order[-1])]
    while path[-1] != order[0]:
        path.append(int(above[path[-1]]))
    center = path[len(path) // 2]
    _, found = scipy.sparse.csgraph.breadth_first_order(edges, center, directed=False)
    rooted = found.astype(np.int64)
    rooted[center] = ROOT
    return rooted


def order_from_root(parents: Indices) -> Indices:
    """Return the features in an order in which parents come before their children.

    Parameters
    ----------
    parents
        Parent of each feature, (n_features,), `ROOT` for one or several roots.

    Raises
    ------
    FitError
        If the parents do not form trees.
    """
    if (parents >= len(parents)).any():
        raise FitError(_NO_TREE)
    # Each step doubles how far `above` looks up; the last place stands for what is above roots.
    above = np.append(np.where(parents == ROOT, len(parents), parents), len(parents))
    depths = np.append((parents != ROOT).astype(np.int64), 0)
    for _ in range(len(parents).bit_length()):
        depths += depths[above]
        above = above[above]
    if (above < len(parents)).any():
        raise FitError(_NO_TREE)
    return np.argsort(depths[:-1], kind="stable").astype(np.int64)


def gather_tables(counts: Array, firsts: Indices, n_levels: Indices, parents: Indices) -> Array:
    """Return the counts of each feature with its parent, (n_features, parent_level b, level a).

    A root has its margins at b = 0. Entries beyond a feature's levels are 0.
    """
    is_root = parents == ROOT
    steps = np.arange(n_levels.max())
    exists = steps < n_levels[:, None]
    places = np.where(exists, firsts[:, None] + steps, 0)
    above = np.where(is_root, 0, parents)
    joint = counts[places[above][:, :, None], places[:, None, :]]
    joint[is_root] = 0.0
    joint[is_root, 0] = counts.diagonal()[places[is_root]]
    has_level_above = exists[above] | is_root[:, None]
    tables: Array = joint * has_level_above[:, :, None] * exists[:, None, :]
    return tables


def make_tables(counts: Array, firsts: Indices, n_levels: Indices, parents: Indices) -> Array:
    """Return P(x_i = a | x_parent = b), (n_features, parent_level b, level a).

    A root has P(x_i = a) at b = 0. Entries beyond a feature's levels are 0.
    """
    return normalize_tables(gather_tables(counts, firsts, n_levels, parents))


def normalize_tables(joint: Array) -> Array:
    """Return counts, (..., parent_level b, level a), divided by their sums over a, if not 0."""
    totals = joint.sum(axis=-1, keepdims=True)
    tables: Array = np.divide(joint, totals, out=np.zeros_like(joint), where=totals > 0)
    return tables
