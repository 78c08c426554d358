"""Graphs of nearest neighbours among binary rows, and what varies least along their links."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.numerics.graphs.nearest_rows import (
    NearestRows,
    NumberedRows,
    empty_nearest,
    merge_nearest,
)
from pipeline.numerics.spectra.lanczos import leading_eigenpairs_except
from pipeline.numerics.spectra.linalg import fix_signs

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROWS_PER_TASK = 1024  # of a task: half a second where it compares them with 200,000


class GraphEdges(NamedTuple):
    """Links of a graph, each once.

    Attributes
    ----------
    left, right
        The vertices that each joins, left < right, (n_links,).
    distances
        How far apart these are, (n_links,).
    """

    left: Indices
    right: Indices
    distances: Array


class GraphSpectrum(NamedTuple):
    """Solutions of L α = λ D α, the constant one left out.

    Attributes
    ----------
    eigenvalues
        λ, rising, (n_components,).
    vectors
        α, (n_vertices, n_components): the mean of the squares, weighted by degrees, is 1. Columns
        are signed by `fix_signs`.
    """

    eigenvalues: Array
    vectors: Array


def find_nearest_vertices(
    vertices: NumberedRows, some: Indices, k: int, map_items: MapFunction
) -> NearestRows:
    """Find the k vertices of other parts that are nearest to each of some."""
    n_runs = -(-len(some) // _ROWS_PER_TASK)
    runs = np.array_split(some, n_runs)
    told = label_map(map_items, "neighbours", n_runs)
    found = [*told(partial(_find_nearest_of_some, vertices, k), runs)]
    return NearestRows(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _find_nearest_of_some(vertices: NumberedRows, k: int, some: Indices) -> NearestRows:
    found = empty_nearest(len(some), k)
    merge_nearest("hamming", vertices.take(some), vertices, found)
    return found


def neighbour_edges(nearest: NearestRows) -> GraphEdges:
    """Link vertices where either is among the nearest of the other."""
    near = np.isfinite(nearest.distances)
    left, _ = np.nonzero(near)
    return _unique_edges(left, nearest.indices[near], nearest.distances[near])


def _unique_edges(left: Indices, right: Indices, distances: Array) -> GraphEdges:
    """Give each link once, the lower vertex on the left, in order."""
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, first = np.unique(low * (high.max(initial=0) + 1) + high, return_index=True)
    return GraphEdges(low[first], high[first], distances[first])


def label_connected_components(links: GraphEdges, n_vertices: int) -> Indices:
    """Number the parts of a graph that no links join: that of each vertex, (n_vertices,)."""
    _, parts = scipy.sparse.csgraph.connected_components(
        _adjacency_matrix(links, np.ones(len(links.left)), n_vertices), directed=False
    )
    return parts.astype(np.int64)


def connect_components(
    links: GraphEdges, vertices: NumberedRows, map_items: MapFunction
) -> GraphEdges:
    """Join the parts of a graph by the shortest links between them.

    Rounds of Borůvka: every part but the largest is linked to the row nearest to it.

    Raises
    ------
    FitError
        If rows have no observed feature in common with all others.
    """
    while (parts := label_connected_components(links, vertices.bits.n_rows)).any():
        some = np.flatnonzero(parts != np.bincount(parts).argmax())
        within = vertices._replace(parts=parts)
        (distances,), (others,) = (a.T for a in find_nearest_vertices(within, some, 1, map_items))
        order = np.lexsort((others, distances, parts[some]))
        first = order[np.unique(parts[some][order], return_index=True)[1]]
        _check_reachable(distances[first], parts[some][first], parts)
        added = some[first], others[first], distances[first]
        links = _unique_edges(*(np.concatenate(both) for both in zip(links, added, strict=True)))
    return links


def _check_reachable(distances: Array, of: Indices, parts: Indices) -> None:
    if (far := of[np.isinf(distances)]).size:
        n_far = int(np.isin(parts, far).sum())
        raise FitError(
            "Expected rows that have observed features in common, got "
            f"{n_far} distinct ones that share none with the other {len(parts) - n_far}. "
            "Fit them apart."
        )


def laplacian_eigenvectors(
    links: GraphEdges, weights: Array, n_vertices: int, n_components: int
) -> GraphSpectrum:
    """Solve L α = λ D α for the smallest λ, L = D − W, of a graph in one part.

    With α = D^−½ v these are the largest eigenvalues 1 − λ of D^−½ W D^−½.

    Raises
    ------
    FitError
        If that does not converge.
    """
    adjacency = _adjacency_matrix(links, weights, n_vertices)
    adjacency = adjacency + adjacency.T
    degrees = adjacency.sum(axis=1)
    root, total = np.sqrt(degrees), degrees.sum()
    scaling = scipy.sparse.diags_array(1 / root)
    scaled = (scaling @ adjacency @ scaling).tocsr()
    values, vectors = leading_eigenpairs_except(scaled, root / np.sqrt(total), n_components)
    return GraphSpectrum(1 - values, fix_signs(vectors * (np.sqrt(total) / root)[:, None]))


def _adjacency_matrix(links: GraphEdges, weights: Array, n_vertices: int) -> scipy.sparse.csr_array:
    where = (weights, (links.left, links.right))
    return scipy.sparse.csr_array(where, shape=(n_vertices, n_vertices))
