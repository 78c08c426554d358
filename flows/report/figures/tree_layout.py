"""Positions of the nodes of trees that grow to the right, with a row of its own for each node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_CURVE_POINTS = 25


class NodePlaces(NamedTuple):
    """Distance of each node from the root of its tree, in edges, and its row, (n_nodes,) each."""

    depths: Indices
    rows: Indices


def place_nodes(n_nodes: int, edges: Indices) -> NodePlaces:
    """Place the nodes of trees, the largest tree at the top.

    The root is in the middle of the longest path, so that the tree is as narrow as possible. About
    half of the nodes below a node are in the rows above it, and the others in the rows below it.
    Therefore no curve of `draw_curve` crosses another one, or anything to the right of a node.

    Parameters
    ----------
    n_nodes
        Number of nodes.
    edges
        Pairs of nodes that form trees, (n_edges, 2).
    """
    neighbours: list[list[int]] = [[] for _ in range(n_nodes)]
    for first, second in edges.tolist():
        neighbours[first].append(second)
        neighbours[second].append(first)
    places = NodePlaces(np.full(n_nodes, -1, np.int64), np.zeros(n_nodes, np.int64))
    is_seen, trees = np.zeros(n_nodes, np.bool_), []
    for node in range(n_nodes):
        if not is_seen[node]:
            members = _walk(node, neighbours)[0]
            is_seen[members] = True
            trees.append(members)
    first_row = 0
    for members in sorted(trees, key=len, reverse=True):
        _place_tree(_find_centre(members[0], neighbours), neighbours, first_row, places)
        first_row += len(members)
    return places


def _walk(root: int, neighbours: list[list[int]]) -> tuple[list[int], dict[int, int]]:
    """Return the nodes of a tree by their distance from the root, and their parents."""
    nodes, parents = [root], {root: -1}
    for node in nodes:
        for child in neighbours[node]:
            if child not in parents:
                parents[child] = node
                nodes.append(child)
    return nodes, parents


def _find_centre(node: int, neighbours: list[list[int]]) -> int:
    """Return the middle of the longest path of a tree."""
    end = _walk(node, neighbours)[0][-1]
    nodes, parents = _walk(end, neighbours)
    path = [nodes[-1]]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[len(path) // 2]


def _place_tree(root: int, neighbours: list[list[int]], first_row: int, places: NodePlaces) -> None:
    nodes, parents = _walk(root, neighbours)
    sizes = dict.fromkeys(nodes, 1)
    for node in nodes[:0:-1]:
        sizes[parents[node]] += sizes[node]
    first_rows = {root: first_row}
    for node in nodes:
        children = [child for child in neighbours[node] if child != parents[node]]
        above, below = _split_by_size(children, sizes)
        row = first_rows[node]
        places.depths[node] = places.depths[parents[node]] + 1 if node != root else 0
        for child in above:
            first_rows[child] = row
            row += sizes[child]
        places.rows[node] = row
        row += 1
        for child in reversed(below):
            first_rows[child] = row
            row += sizes[child]


def _split_by_size(children: list[int], sizes: dict[int, int]) -> tuple[list[int], list[int]]:
    """Split children into two groups with similar numbers of nodes, the largest child first."""
    groups: tuple[list[int], list[int]] = ([], [])
    totals = [0, 0]
    for child in sorted(children, key=lambda child: -sizes[child]):
        side = int(totals[1] < totals[0])
        groups[side].append(child)
        totals[side] += sizes[child]
    return groups


def draw_curve(start: Array, end: Array) -> Array:
    """Return points of a curve that leaves the start vertically and reaches the end horizontally.

    The curve is a parabola. `start` and `end` are (x, y); the result is (n_points, 2).
    """
    t = np.linspace(0, 1, _CURVE_POINTS)
    return np.stack(
        [start[0] + (end[0] - start[0]) * t**2, end[1] + (start[1] - end[1]) * (1 - t) ** 2], axis=1
    )
