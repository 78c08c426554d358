"""Graphs of nearest neighbours among binary rows, and vectors that vary least along their links."""

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

_ROWS_PER_TASK = 1024  # half a second for comparing them with 200,000 rows


class GraphEdges(NamedTuple):
    """Links of a graph, each once.

    Attributes
    ----------
    left, right
        The two vertices of each link, left < right, (n_links,).
    distances
        Distance between them, (n_links,).
    """

    left: Indices
    right: Indices
    distances: Array


class GraphSpectrum(NamedTuple):
    """Solutions of L α = λ D α, without the constant one.

    Attributes
    ----------
    eigenvalues
        λ, rising, (n_components,).
    vectors
        α, (n_vertices, n_components): the mean square, weighted by degrees, is 1. Columns are
        signed by `fix_signs`.
    """

    eigenvalues: Array
    vectors: Array


def find_nearest_vertices(
    vertices: NumberedRows, places: Indices, k: int, map_items: MapFunction
) -> NearestRows:
    """Find the k nearest vertices of other parts for each of the given vertices."""
    n_runs = -(-len(places) // _ROWS_PER_TASK)
    runs = np.array_split(places, n_runs)
    map_labelled = label_map(map_items, "neighbours", n_runs)
    results = [*map_labelled(partial(_find_nearest_of_some, vertices, k), runs)]
    return NearestRows(*(np.concatenate(parts) for parts in zip(*results, strict=True)))


def _find_nearest_of_some(vertices: NumberedRows, k: int, places: Indices) -> NearestRows:
    nearest = empty_nearest(len(places), k)
    merge_nearest("hamming", vertices.take(places), vertices, nearest)
    return nearest


def neighbour_edges(nearest: NearestRows) -> GraphEdges:
    """Link vertices if either is among the nearest of the other."""
    near = np.isfinite(nearest.distances)
    left, _ = np.nonzero(near)
    return _unique_edges(left, nearest.indices[near], nearest.distances[near])


def _unique_edges(left: Indices, right: Indices, distances: Array) -> GraphEdges:
    """Return each link once, the lower vertex on the left, in order."""
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, first = np.unique(low * (high.max(initial=0) + 1) + high, return_index=True)
    return GraphEdges(low[first], high[first], distances[first])


def label_connected_components(links: GraphEdges, n_vertices: int) -> Indices:
    """Number the connected components; return the component of each vertex, (n_vertices,)."""
    _, parts = scipy.sparse.csgraph.connected_components(
        _adjacency_matrix(links, np.ones(len(links.left)), n_vertices), directed=False
    )
    return parts.astype(np.int64)


def connect_components(
    links: GraphEdges, vertices: NumberedRows, map_items: MapFunction
) -> GraphEdges:
    """Join the components of a graph by the shortest links between them.

    Rounds of Borůvka's algorithm: every component but the largest is linked to its nearest row.

    Raises
    ------
    FitError
        If rows have no observed feature in common with all others.
    """
    while (parts := label_connected_components(links, vertices.bits.n_rows)).any():
        places = np.flatnonzero(parts != np.bincount(parts).argmax())
        within = vertices._replace(parts=parts)
        (distances,), (others,) = (a.T for a in find_nearest_vertices(within, places, 1, map_items))
        order = np.lexsort((others, distances, parts[places]))
        first = order[np.unique(parts[places][order], return_index=True)[1]]
        _check_reachable(distances[first], parts[places][first], parts)
        added = places[first], others[first], distances[first]
        links = _unique_edges(*(np.concatenate(both) for both in zip(links, added, strict=True)))
    return links


def _check_reachable(distances: Array, part_labels: Indices, parts: Indices) -> None:
    if (unreachable := part_labels[np.isinf(distances)]).size:
        n_unreachable = int(np.isin(parts, unreachable).sum())
        raise FitError(
            f"{n_unreachable} distinct rows share no observed feature with the other "
            f"{len(parts) - n_unreachable}. Fit the two groups separately."
        )


def laplacian_eigenvectors(
    links: GraphEdges, weights: Array, n_vertices: int, n_components: int
) -> GraphSpectrum:
    """Solve L α = λ D α, L = D − W, for the smallest λ of a connected graph.

    With α = D^−½ v these are the largest eigenvalues 1 − λ of D^−½ W D^−½.

    Raises
    ------
    FitError
        If the iterations do not converge.
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
