"""Trees of features: figures of their edges, and a table of the strongest ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import NDArray

from flows.data.datasets import LoadedModel
from flows.report.figures.causes import TextTable
from flows.report.figures.colours import COLOURS, GREY, NEGATIVE, POSITIVE
from flows.report.figures.images import ImageLayout
from flows.report.figures.marks import (
    Axis,
    Figure,
    LegendKey,
    LineMarks,
    Plot,
    PointMarks,
    TextMarks,
)
from flows.report.figures.text import format_number, format_shown_count, shorten_text
from pipeline.errors import format_share
from pipeline.inference.edges import TreeEdges, find_tree_edges
from pipeline.models.capabilities import HasTrees

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_CATEGORIES = COLOURS[2]  # edges of nominal features
_CURVE_POINTS = 25

_MAX_TREES = 4
_MAX_ROWS, _MAX_ROWS_IN_ALL = 120, 240
_MAX_PIXEL_EDGES = 1000
_MAX_TABLE_ROWS = 20
_ROW_HEIGHT, _NODE_SIZE = 15, 6
_NARROW_WIDTH, _FULL_WIDTH = 520, 1060
_MAX_NARROW_HEIGHT = 700  # of a single tree next to other figures, which are about as high
_MIN_INFORMATION = 1e-12  # nats; rounding errors are smaller
_MIN_WIDTH, _MAX_WIDTH = 0.8, 5.0  # of lines
_MAX_NAME_LENGTH, _MAX_NAME_WIDTH = 40, 210  # letters, pixels
_PHONE_WIDTH = 330  # pixels of a plot on a phone
_NAME_GAP = 8  # pixels between a node and the end of the gap to its name
_LETTER_WIDTH, _WIDE_LETTER_WIDTH, _FULL_LETTER_WIDTH = 6.8, 9.5, 11.5  # pixels
_MAX_STEP = 0.16  # of the width of a plot, per edge
_BEND_POINTS = 33
_BEND = 0.11  # of the length of an edge between pixels that are no neighbours


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


def find_edges(fitted: LoadedModel) -> TreeEdges | None:
    """Return the edges of the model's trees; None if all features are independent under them."""
    if not isinstance(fitted.model, HasTrees):
        return None
    source = str(fitted.artifact.path)
    edges = find_tree_edges(fitted.model, fitted.params, fitted.features, source)
    is_dependent = edges.mutual_information.max(initial=0.0) > _MIN_INFORMATION
    return edges if is_dependent else None


def plot_trees(
    edges: TreeEdges, names: Sequence[str], layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot the trees with the largest weights; features that are pixels stay in their place."""
    trees, firsts, counts = np.unique(edges.tree, return_index=True, return_counts=True)
    heaviest = np.argsort(-edges.weight[firsts], kind="stable")[:_MAX_TREES]
    strongest = float(edges.mutual_information[np.isin(edges.tree, trees[heaviest])].max())
    for place, k in enumerate(heaviest.tolist()):
        own = edges.select(slice(firsts[k], firsts[k] + counts[k]))
        shown = own.select(slice(_count_shown(own, layout, len(heaviest))))
        plot = (
            _plot_pixels(shown, names, strongest, layout)
            if layout
            else _plot_tree(shown, names, strongest)
        )
        title = "Tree of features" if len(trees) == 1 else f"Tree {trees[k] + 1}"
        share = format_share(own.weight[0])
        note = "" if len(trees) == 1 else f"This tree describes {share} of the rows. "
        of_all = "" if len(trees) == 1 else " of the trees shown"
        note += (
            "Lines join neighbours in the tree. Thicker lines mean larger mutual information; the "
            f"thickest line{of_all} stands for {format_number(strongest, 2)} nats. "
        )
        note += "Points are pixels. " if layout else "Positions and lengths have no meaning. "
        note += format_shown_count("edges", len(shown.tree), counts[k], ", the strongest")
        if not place:
            note += format_shown_count("trees", len(heaviest), len(trees), ", the heaviest")
        alt = (
            f"{title}: {len(shown.tree):,} edges; the strongest joins {names[own.feature[0]]} and "
            f"{names[own.parent[0]]}."
        )
        keys = _make_keys(shown.correlation)
        is_wide = len(trees) == 1 and (plot.height or 0) > _MAX_NARROW_HEIGHT
        width = _FULL_WIDTH if is_wide else _NARROW_WIDTH
        yield Figure(title, alt, plot, note=note.strip(), keys=keys, width=width)


def _count_shown(edges: TreeEdges, layout: ImageLayout | None, n_trees: int) -> int:
    """Count the strongest edges of a tree for which there is room."""
    if layout is not None:
        return _MAX_PIXEL_EDGES
    max_rows = min(_MAX_ROWS, _MAX_ROWS_IN_ALL // n_trees)
    nodes: set[int] = set()
    for k, pair in enumerate(zip(edges.feature.tolist(), edges.parent.tolist(), strict=True)):
        nodes.update(pair)
        if len(nodes) > max_rows:
            return k
    return len(edges.feature)


def _plot_tree(edges: TreeEdges, names: Sequence[str], strongest: float) -> Plot:
    """Plot a tree of features. Every feature has a row, with its name next to its node."""
    features, pairs = np.unique([edges.parent, edges.feature], return_inverse=True)
    places = place_nodes(len(features), pairs.T)
    texts = [_shorten_name(names[i]) for i in features.tolist()]
    nodes = np.stack(places, axis=1) * np.array([_choose_step(places.depths, texts), 1.0])
    x, y = nodes.T
    # The end of an edge that is closer to the root comes first.
    ends = np.take_along_axis(pairs, np.argsort(places.depths[pairs], axis=0), axis=0)
    curves = [draw_curve(nodes[i], nodes[j]) for i, j in ends.T.tolist()]
    return Plot(
        Axis(-0.02, 1.0, has_lines=False),
        Axis(len(features) - 0.5, -0.5, has_lines=False),
        (
            _draw_edges(edges, curves, names, strongest),
            PointMarks(
                x, y, GREY, size=_NODE_SIZE, facts=[("feature", [names[i] for i in features])]
            ),
            TextMarks(x, y, texts, side="right"),
        ),
        _ROW_HEIGHT * len(features) + 26,
    )


def _choose_step(depths: Indices, texts: Sequence[str]) -> float:
    """Choose the distance between a node and its parent so that names end within the plot."""
    room = np.array([1 - (_NAME_GAP + _estimate_width(text)) / _PHONE_WIDTH for text in texts])
    return float((room[depths > 0] / depths[depths > 0]).min(initial=_MAX_STEP))


def _shorten_name(name: str) -> str:
    """Cut a name that leaves too little room for the tree."""
    name = shorten_text(name, _MAX_NAME_LENGTH)
    while _estimate_width(name) > _MAX_NAME_WIDTH:
        name = shorten_text(name, len(name) - 1)
    return name


def _estimate_width(text: str) -> float:
    """Estimate the width of a name in pixels; rather too much than too little."""
    return sum(
        _FULL_LETTER_WIDTH
        if east_asian_width(letter) in "WF"
        else _WIDE_LETTER_WIDTH
        if letter.isupper() or letter in "mw@%…—"
        else _LETTER_WIDTH
        for letter in text
    )


def _plot_pixels(
    edges: TreeEdges, names: Sequence[str], strongest: float, layout: ImageLayout
) -> Plot:
    """Plot the edges between pixels at their positions, with equal scales."""
    y, x = np.divmod(layout.pixels.astype(np.float64), layout.width)
    half = max(layout.height, layout.width) / 2
    centre = (layout.width - 1) / 2, (layout.height - 1) / 2
    pixels = np.stack([x, y], axis=1)
    ends = pixels[np.stack([edges.parent, edges.feature], axis=1)]
    return Plot(
        Axis(centre[0] - half, centre[0] + half, has_lines=False),
        Axis(centre[1] + half, centre[1] - half, has_lines=False),
        (
            _draw_edges(edges, [_bend_line(i, j, centre) for i, j in ends], names, strongest),
            PointMarks(x, y, GREY, size=_NODE_SIZE, facts=[("feature", names)]),
        ),
    )


def _bend_line(start: Array, end: Array, centre: tuple[float, float]) -> Array:
    """Return points of a line, bent towards the centre to avoid the pixels between its ends."""
    along = end - start
    t = np.linspace(0, 1, _BEND_POINTS)[:, None]
    bend = _BEND if np.abs(along).max() > 1 else 0.0
    across = np.array([along[1], -along[0]])
    if across @ (centre - (start + end) / 2) < 0:
        across = -across
    line: Array = start + t * along + 4 * bend * t * (1 - t) * across
    return line


def _draw_edges(
    edges: TreeEdges, lines: Sequence[Array], names: Sequence[str], strongest: float
) -> LineMarks:
    """Draw edges with a width and a colour each; weak ones are on top of strong ones."""
    information = edges.mutual_information
    facts = [
        ("feature", [names[i] for i in edges.feature.tolist()]),
        ("parent", [names[i] for i in edges.parent.tolist()]),
        ("mutual information", [f"{format_number(nats, 3)} nats" for nats in information]),
        ("correlation", [format_number(r, 3) for r in edges.correlation]),
    ]
    widths = np.maximum(_MAX_WIDTH * information / max(strongest, 1e-300), _MIN_WIDTH)
    colours = [_choose_colour(r) for r in edges.correlation.tolist()]
    return LineMarks(lines, colours, widths, facts=facts)


def _choose_colour(correlation: float) -> str:
    if np.isnan(correlation):
        return _CATEGORIES
    return POSITIVE if correlation > 0 else NEGATIVE if correlation < 0 else GREY


def _make_keys(correlation: Array) -> tuple[LegendKey, ...]:
    kinds = {
        POSITIVE: "positive correlation",
        NEGATIVE: "negative correlation",
        GREY: "no correlation",
        _CATEGORIES: "of categories, without a sign",
    }
    used = {_choose_colour(r) for r in correlation.tolist()}
    return tuple(
        LegendKey(name, colour, "line") for colour, name in kinds.items() if colour in used
    )


def make_edge_table(edges: TreeEdges, names: Sequence[str]) -> TextTable:
    """List the strongest edges of all trees."""
    has_many = len(np.unique(edges.tree)) > 1
    rows = []
    for k in np.argsort(-edges.mutual_information, kind="stable")[:_MAX_TABLE_ROWS].tolist():
        correlation = f"{edges.correlation[k]:z.2f}".replace("-", "−").replace("nan", "–")
        values = f"{edges.mutual_information[k]:.4f}", correlation
        tree = (f"{edges.tree[k] + 1}",) if has_many else ()
        rows.append((names[edges.feature[k]], names[edges.parent[k]], *values, *tree))
    columns = ("feature", "parent", "mutual information, nats", "correlation")
    note = (
        "Which feature of an edge is the parent is arbitrary. Correlations take levels as the "
        "numbers 0, 1, 2, …; for binary features, they are phi; nominal features have none. The "
        f"command latentbits export --what edges writes all {len(edges.tree):,} edges."
    )
    tree_column = ("tree",) if has_many else ()
    return TextTable("Strongest edges", (*columns, *tree_column), tuple(rows), note, True)


def iter_edge_sentences(edges: TreeEdges, names: Sequence[str], max_edges: int) -> Iterator[str]:
    """Yield a sentence about the strongest edges, if there is a single tree."""
    if edges.tree[0] == edges.tree[-1]:
        texts = [
            f"{names[edges.feature[k]]} and {names[edges.parent[k]]} "
            f"({format_number(float(edges.mutual_information[k]), 2)} nats)"
            for k in range(min(max_edges, len(edges.tree)))
        ]
        verb = "edge joins" if len(texts) == 1 else "edges join"
        yield f"The strongest {verb} {'; '.join(texts)}."
