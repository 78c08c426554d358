"""Networks of features: figures of the edges and the heat capacity, and a table of edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flows.cli.summary import format_p
from flows.data.datasets import LoadedModel
from flows.exporting.columns import list_segment_names
from flows.report.figures.axes import fit_axis
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
    RuleMark,
    TextMarks,
)
from flows.report.figures.text import format_number, format_shown_count, shorten_text
from pipeline.arrays import Array, Indices
from pipeline.executors.base import limit_blas_threads
from pipeline.inference.edges import NetworkEdges, find_edge_differences, find_network_edges
from pipeline.models.capabilities import HasNetwork

_MAX_NODES, _MAX_EDGES, _MAX_PIXEL_EDGES = 60, 300, 1000
_MAX_TABLE_ROWS = 20
_MAX_GROUPS = 6  # whose networks are drawn
_MIN_WIDTH, _MAX_WIDTH = 0.6, 5.0  # of lines
_NODE_SIZE, _WIDTH, _MAX_NAME_LENGTH = 7, 800, 24
_ROUNDS = 300
_HEAT_HEIGHT = 300
_MARGIN = 0.12  # of the width, on each side, for names


def find_network(fitted: LoadedModel, group: int | None = None) -> NetworkEdges | None:
    """Return the edges of the model's network, or of that of a group; None if it has none."""
    if not isinstance(fitted.model, HasNetwork):
        return None
    edges = find_network_edges(fitted.model, fitted.params, group)
    return edges if len(edges.feature) else None


def plot_networks(fitted: LoadedModel, layout: ImageLayout | None) -> Iterator[Figure]:
    """Plot the network, or those of all groups with features at the same places."""
    whole, names = find_network(fitted), fitted.feature_names
    if whole is None:
        return
    if "segments" not in fitted.artifact:
        yield from plot_network(whole, names, layout)
        return
    groups = list_segment_names(fitted.artifact)
    networks = [find_network(fitted, group) for group in range(len(groups))]
    strongest = max(np.abs(own.coupling).max() for own in networks if own is not None)
    nodes = place_features(whole.select(slice(_count_shown(whole, layout))), layout)
    for name, own in list(zip(groups, networks, strict=True))[:_MAX_GROUPS]:
        if own is not None:
            yield from plot_network(own, names, layout, name, nodes, float(strongest))


def make_difference_table(fitted: LoadedModel) -> TextTable | None:
    """List the largest differences between groups; None without groups."""
    if not isinstance(fitted.model, HasNetwork):
        return None
    differences = find_edge_differences(fitted.model, fitted.params)
    if not differences:
        return None
    names, groups = fitted.feature_names, list_segment_names(fitted.artifact)
    has_p = any(np.isfinite(own.p).any() for own in differences)
    lines = [
        (abs(own.difference[k]), own, k) for own in differences for k in range(len(own.feature))
    ]
    lines.sort(key=lambda line: -line[0])
    rows = []
    for _, own, k in lines[:_MAX_TABLE_ROWS]:
        pair = (names[own.feature[k]], names[own.neighbour[k]])
        values = own.coupling_a[k], own.coupling_b[k], own.difference[k]
        numbers = [f"{value:.3f}".replace("-", "−") for value in values]
        p = [
            format_p(value).removeprefix("= ") if np.isfinite(value) else "–"
            for value in (own.p[k], own.adjusted_p[k])
        ]
        a, b = (groups[i] for i in own.groups)
        rows.append((*pair, a, b, *numbers, *(p if has_p else ())))
    columns: tuple[str, ...] = ("feature", "neighbour", "group a", "group b")
    columns = (*columns, "in a", "in b", "difference")
    columns = (*columns, "p", "adjusted p") if has_p else columns
    note = (
        "Adjusted p is for the number of pairs of features (Benjamini-Hochberg). "
        if has_p
        else "For p, fit with --set permutations=1000. "
    )
    note += f"The command latentbits export --what edges writes all {len(lines):,} lines."
    return TextTable("Largest differences between groups", columns, tuple(rows), note, True)


def place_nodes(n_nodes: int, pairs: Indices, strengths: Array) -> Array:
    """Place nodes so that distances are like those along edges, (n_nodes, 2), from 0 to 1.

    Stress majorization of distances (E. Gansner, Y. Koren, S. North, Graph Drawing 2004, without
    weights), from the first two principal coordinates. Strong edges, `strengths` of up to 1, are
    shorter. Parts without a path between them are a little further apart than the longest path.
    """
    from scipy.sparse.csgraph import shortest_path  # slow to import

    lengths = np.zeros((n_nodes, n_nodes))
    lengths[tuple(pairs.T)] = 2 - strengths
    distances = shortest_path(lengths, directed=False)
    is_far = np.isinf(distances)
    distances[is_far] = distances[~is_far].max() + 1
    centered = -0.5 * (distances**2 - (distances**2).mean(axis=0))
    centered -= centered.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh((centered + centered.T) / 2)
    signs = np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(n_nodes)] < 0, -1.0, 1.0)
    places = np.zeros((n_nodes, 2))
    found = (vectors * signs * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :2]
    places[:, : found.shape[1]] = found
    # Nodes with the same neighbours start apart.
    angles = 2 * np.pi * np.arange(n_nodes) / n_nodes
    places += 0.01 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(_ROUNDS):
        apart = np.linalg.norm(places[:, None] - places, axis=2)
        pull = -np.divide(distances, apart, out=np.zeros_like(apart), where=apart > 1e-12)
        np.fill_diagonal(pull, 0.0)
        np.fill_diagonal(pull, -pull.sum(axis=1))
        places = pull @ places / n_nodes
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray((places - low) / np.maximum((high - low).max(), 1e-12))


def place_features(edges: NetworkEdges, layout: ImageLayout | None) -> tuple[Indices, Array]:
    """Return the features with edges, and their places, (n_nodes, 2); pixels stay in theirs."""
    features, pairs = np.unique([edges.feature, edges.neighbour], return_inverse=True)
    if layout is not None:
        y, x = np.divmod(layout.pixels.astype(np.float64), layout.width)
        size = max(layout.height, layout.width)
        return features, np.stack([x, size - 1 - y], axis=1)[features] / max(size - 1, 1)
    strengths = np.abs(edges.coupling) / np.abs(edges.coupling).max()
    return features, place_nodes(len(features), pairs.reshape(2, -1).T, strengths)


def plot_network(
    edges: NetworkEdges,
    names: Sequence[str],
    layout: ImageLayout | None,
    group: str | None = None,
    nodes: tuple[Indices, Array] | None = None,
    strongest: float | None = None,
) -> Iterator[Figure]:
    """Plot the strongest edges, of a group if it has a name.

    `nodes` are features and their places, from `place_features`; by default those of the edges. The
    thickest line stands for the coupling `strongest`, by default that of the strongest edge.
    """
    shown = edges.select(slice(_count_shown(edges, layout)))
    shown = shown.select(slice(None, None, -1))  # weak edges are below strong ones
    strongest = float(np.abs(shown.coupling[-1])) if strongest is None else strongest
    features, places = place_features(shown, layout) if nodes is None else nodes
    is_placed = np.isin(shown.feature, features) & np.isin(shown.neighbour, features)
    shown = shown.select(np.flatnonzero(is_placed))
    pairs = np.searchsorted(features, np.stack([shown.feature, shown.neighbour], axis=1))
    x, y = places.T
    shown_names = [shorten_text(names[i], _MAX_NAME_LENGTH) for i in features.tolist()]
    texts = () if layout is not None else (TextMarks(x, y, shown_names, side="above"),)
    facts = [
        ("feature", [names[i] for i in shown.feature.tolist()]),
        ("neighbour", [names[i] for i in shown.neighbour.tolist()]),
        ("coupling", [format_number(value, 3) for value in shown.coupling]),
    ]
    colours = [POSITIVE if value > 0 else NEGATIVE for value in shown.coupling.tolist()]
    widths = np.maximum(_MAX_WIDTH * np.abs(shown.coupling) / strongest, _MIN_WIDTH)
    lines = [places[pair] for pair in pairs]
    node_facts = [("feature", [names[i] for i in features.tolist()])]
    plot = Plot(
        Axis(-_MARGIN, 1 + _MARGIN, has_lines=False),
        Axis(min(y.min(), 0.0) - 0.05, max(y.max(), 0.0) + 0.08, has_lines=False),
        (
            LineMarks(lines, colours, widths, facts=facts),
            PointMarks(x, y, GREY, size=_NODE_SIZE, facts=node_facts),
            *texts,
        ),
        None if layout is not None else int(120 + (_WIDTH - 150) * float(np.ptp(y))),
    )
    note = (
        "Lines join features that depend on each other, given all others. Thicker lines are "
        f"stronger; the thickest stands for a coupling of {format_number(strongest, 2)}. "
    )
    note += "Points are pixels. " if layout else "Features that few edges separate are near. "
    note += format_shown_count("edges", len(shown.feature), len(edges.feature), ", the strongest")
    if n_alone := len(names) - len(features):
        note += f" {n_alone:,} features without an edge here are not shown."
    keys = tuple(
        LegendKey(f"{sign} coupling", colour, "line")
        for sign, colour in (("positive", POSITIVE), ("negative", NEGATIVE))
        if colour in colours
    )
    pair = f"{names[edges.feature[0]]} and {names[edges.neighbour[0]]}"
    alt = f"Network of {len(shown.feature):,} edges; the strongest joins {pair}."
    width = _WIDTH if layout is None else 520
    title = "Network of features" + ("" if group is None else f": group {group}")
    yield Figure(title, alt, plot, note=note.strip(), keys=keys, width=width)


def plot_heat_capacity(fitted: LoadedModel) -> Iterator[Figure]:
    """Plot how much the energy of rows varies if the model is heated or cooled."""
    assert isinstance(fitted.model, HasNetwork)
    temperatures = np.exp(np.linspace(np.log(0.4), np.log(2.5), 43))
    temperatures[np.abs(np.log(temperatures)).argmin()] = 1.0
    with limit_blas_threads():
        capacity = fitted.model.compute_heat_capacity(fitted.params, temperatures)
    if capacity is None:
        return
    peak = float(temperatures[capacity.argmax()])
    curve = np.column_stack([temperatures, capacity])
    plot = Plot(
        fit_axis(temperatures, "temperature", room=0.0),
        fit_axis(np.append(capacity, 0.0), "heat capacity per feature"),
        (RuleMark("x", 1.0, dash=(2, 4)), LineMarks([curve], [COLOURS[0]])),
        _HEAT_HEIGHT,
    )
    note = (
        "Variance of log P per feature if all thresholds and couplings are divided by the "
        "temperature. The fit is at 1. The capacity is the largest at a temperature of "
        f"{format_number(peak, 2)}. Near a peak, features vary together as much as they can."
    )
    alt = f"Heat capacity over the temperature, with its peak at {format_number(peak, 2)}."
    yield Figure("Heat capacity", alt, plot, note=note)


def _count_shown(edges: NetworkEdges, layout: ImageLayout | None) -> int:
    """Count the strongest edges for which there is room."""
    if layout is not None:
        return _MAX_PIXEL_EDGES
    nodes: set[int] = set()
    for k, pair in enumerate(zip(edges.feature.tolist(), edges.neighbour.tolist(), strict=True)):
        nodes.update(pair)
        if len(nodes) > _MAX_NODES or k == _MAX_EDGES:
            return k
    return len(edges.feature)


def make_network_table(edges: NetworkEdges, names: Sequence[str]) -> TextTable:
    """List the strongest edges."""
    further = [
        (name, values, text)
        for name, values, text in (
            ("standard error", edges.standard_error, "{:.3f}"),
            ("chosen in draws", 100 * edges.stability, "{:.0f} %"),
        )
        if np.isfinite(values).any()
    ]
    rows = []
    for k in range(min(_MAX_TABLE_ROWS, len(edges.feature))):
        coupling, ratio = float(edges.coupling[k]), float(np.exp(edges.coupling[k]))
        own = f"{coupling:.3f}".replace("-", "−"), format_number(ratio, 3)
        pair = names[edges.feature[k]], names[edges.neighbour[k]]
        rows.append((*pair, *own, *(text.format(values[k]) for _, values, text in further)))
    columns = ("feature", "neighbour", "coupling", "odds ratio", *(name for name, *_ in further))
    note = (
        "If one of the two features is 1 instead of 0, the odds of the other are multiplied by "
        "the odds ratio, the exponential of the coupling, given all other features. The command "
        f"latentbits export --what edges writes all {len(edges.feature):,} edges."
    )
    return TextTable("Strongest edges", columns, tuple(rows), note, True)


def iter_network_sentences(
    edges: NetworkEdges, names: Sequence[str], max_edges: int
) -> Iterator[str]:
    """Yield a sentence about the strongest edges, and one about the feature with most."""
    texts = [
        f"{names[edges.feature[k]]} and {names[edges.neighbour[k]]} "
        f"({format_number(float(edges.coupling[k]), 2)})"
        for k in range(min(max_edges, len(edges.feature)))
    ]
    verb = "edge joins" if len(texts) == 1 else "edges join"
    yield f"The strongest {verb} {'; '.join(texts)}."
    strength = np.bincount(
        np.concatenate([edges.feature, edges.neighbour]),
        np.tile(np.abs(edges.coupling), 2),
        len(names),
    )
    most = int(strength.argmax())
    yield (
        f"The couplings of {names[most]} have the largest sum of sizes, "
        f"{format_number(float(strength[most]), 2)}."
    )
