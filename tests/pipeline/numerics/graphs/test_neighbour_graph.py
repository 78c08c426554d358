"""Graphs of neighbours against brute force, and eigenvectors against SciPy's dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import ThreadsExecutor
from pipeline.numerics.graphs.neighbours import (
    GraphEdges,
    NumberedRows,
    connect_components,
    find_nearest_vertices,
    label_connected_components,
    laplacian_eigenvectors,
    neighbour_edges,
)
from tests.support.strategies import Bits

Array = NDArray[np.float64]


def distinct(n: int, n_features: int, seed: int = 0) -> Bits:
    X = np.random.default_rng(seed).integers(0, 2, (2 * n, n_features), dtype=np.uint8)
    return np.unique(X, axis=0)[:n]


def vertices(X: Bits, mask: Bits | None = None) -> NumberedRows:
    at = np.arange(len(X))
    return NumberedRows(pack_block(X, mask).to_packed_rows(), at, at)


def graph(X: Bits, k: int, mask: Bits | None = None) -> GraphEdges:
    """The links of a graph before its parts are joined."""
    of = vertices(X, mask)
    return neighbour_edges(find_nearest_vertices(of, of.numbers, k, map))


def distances(X: Bits) -> Array:
    return (X[:, None] != X).sum(axis=2).astype(np.float64)


def pairs(links: GraphEdges) -> set[tuple[int, int]]:
    return {*zip(links.left.tolist(), links.right.tolist(), strict=True)}


def by_force(X: Bits, k: int) -> set[tuple[int, int]]:
    """Links of every row with its k nearest, ties by number."""
    far = distances(X)
    np.fill_diagonal(far, np.inf)
    near = np.argsort(far, axis=1, kind="stable")[:, :k]
    return {(min(i, j), max(i, j)) for i, row in enumerate(near.tolist()) for j in row}


def apart() -> Bits:
    """Four clusters, the first two of which are nearest to each other."""
    centres = np.repeat(np.eye(4, dtype=np.uint8), [10, 10, 30, 40], axis=1)
    near = np.eye(90, dtype=np.uint8)[:, None, : 6 * 15].reshape(90, 90)
    within = [near[start : start + 8] for start in (0, 10, 20, 50)]
    return np.concatenate([centre ^ w for centre, w in zip(centres, within, strict=True)])


def test_links_are_those_of_brute_force() -> None:
    X = distinct(300, 20)
    links = graph(X, 4)
    assert pairs(links) == by_force(X, 4)
    np.testing.assert_array_equal(links.distances, distances(X)[links.left, links.right])


def test_threads_find_the_same() -> None:
    of = vertices(distinct(2500, 40))
    one, two = (find_nearest_vertices(of, of.numbers, 3, m) for m in (map, ThreadsExecutor(2).map))
    assert one.indices.tobytes() == two.indices.tobytes()
    assert one.distances.tobytes() == two.distances.tobytes()


def test_parts_are_joined_by_the_shortest_links() -> None:
    X = apart()
    links, far = graph(X, 3), distances(X)
    parts = label_connected_components(links, len(X))
    assert parts.max() == 3
    whole = connect_components(links, vertices(X), map)
    assert not label_connected_components(whole, len(X)).any()
    added = sorted(pairs(whole) - pairs(links))
    assert len(added) == 3
    between = np.array([[far[parts == a][:, parts == b].min() for b in range(4)] for a in range(4)])
    tree = scipy.sparse.csgraph.minimum_spanning_tree(between)
    assert sorted(far[i, j] for i, j in added) == sorted(tree.data)


def test_rows_that_cannot_be_compared_are_refused() -> None:
    X, mask = np.tile(distinct(20, 6), 2), np.zeros((20, 12), np.uint8)
    mask[:12, :6] = mask[12:, 6:] = 1
    links = graph(X * mask, 3, mask)
    with pytest.raises(
        FitError, match=r"(8|12) distinct rows share no observed feature with the other"
    ):
        connect_components(links, vertices(X * mask, mask), map)


def test_eigenvectors_are_those_of_the_dense_generalised_problem() -> None:
    X = distinct(500, 16)
    links = graph(X, 8)
    W = np.zeros((500, 500))
    weights = np.exp(-links.distances / 4)
    W[links.left, links.right] = W[links.right, links.left] = weights
    D = np.diag(W.sum(axis=1))
    values, vectors = scipy.linalg.eigh(D - W, D)
    found = laplacian_eigenvectors(links, weights, 500, 5)
    np.testing.assert_allclose(found.eigenvalues, values[1:6], rtol=0, atol=1e-8)
    cosines = (found.vectors * (D @ vectors[:, 1:6])).sum(axis=0) / np.sqrt(D.sum())
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-8)
    degrees = W.sum(axis=1)
    np.testing.assert_allclose(degrees @ found.vectors, 0, atol=1e-8)
    np.testing.assert_allclose(degrees @ found.vectors**2 / degrees.sum(), 1, atol=1e-12)
