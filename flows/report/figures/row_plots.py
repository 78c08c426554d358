"""Scatter plots of rows by their latent codes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import fit_axis, fit_square_axes
from flows.report.figures.colours import COLOURS
from flows.report.figures.labels import ColourLabels, group_rows_by_label, has_too_many_labels
from flows.report.figures.lines import choose_names_with_room
from flows.report.figures.marks import (
    Axis,
    AxisChoice,
    AxisOption,
    Figure,
    HoverFacts,
    LegendKey,
    Mark,
    Plot,
    PointMarks,
    TextMarks,
)
from flows.report.figures.rows import CodedRows
from flows.report.figures.text import shorten_text
from pipeline.statistics.labels import SEGMENT

Array = NDArray[np.float64]

_MAX_HOVER_COLUMNS, _MAX_CHOICES = 6, 12
_POINT_SIZE, _MAX_POINT_SIZE = 6.0, 26.0
_MAX_NAME_LENGTH, _RANGE_PADDING = 24, 0.125


def plot_strip(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Plot rows along the only component."""
    heights = np.random.default_rng(0).uniform(-1, 1, len(coded.codes))
    spread = " The vertical spread only keeps rows apart."
    return _scatter_rows(np.column_stack([coded.codes[:, 0], heights]), coded, labels, spread)


def plot_plane(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Plot rows by the first two components, with a choice of others."""
    return _scatter_rows(coded.codes[:, :_MAX_CHOICES], coded, labels, "")


def _scatter_rows(
    points: Array, coded: CodedRows, labels: ColourLabels | None, note: str
) -> Figure:
    named = labels if has_too_many_labels(labels) else None
    kinds, ramp = group_rows_by_label(None if named else labels, len(points))
    placed = [
        _plot_rows(points[kind.rows], _describe_rows(coded, kind.rows), kind.key) for kind in kinds
    ]
    if named:
        names, told = _label_rows(points, named)
        placed, note = [*placed, names], note + told
    marks, places = tuple(mark for mark, _ in placed), [at for _, at in placed]
    n_components = coded.codes.shape[1]
    room = _RANGE_PADDING if named else 0.05
    if n_components == 1:
        x, y = fit_axis(points[:, 0], "component 1", room), Axis(-1.3, 1.3, has_lines=False)
        plot = Plot(x, y, marks, height=220)
    else:
        plot = Plot(*fit_square_axes(points[:, :2], ("component 1", "component 2"), room), marks)
    which = "component 1" if n_components == 1 else f"components 1 and 2 of {n_components}"
    by = f", by {labels.name}" if labels else ""
    alt = f"Codes of {len(points):,} rows{by}: {which}."
    keys = () if ramp or named or labels is None else tuple(kind.key for kind in kinds)
    choices = _make_axis_choices(points, places, room) if n_components > 2 else ()
    said = f"Codes of {len(points):,} rows{by}." if choices else alt
    more: Any = {"note": said + note, "keys": keys, "ramp": ramp, "choices": choices}
    return Figure("Rows in latent space", alt, plot, **more)


def _make_axis_choices(points: Array, places: list[Array], room: float) -> tuple[AxisChoice, ...]:
    """Offer the components for both axes."""
    options = tuple(
        AxisOption(name, fit_axis(points[:, k], name, room), tuple(at[:, k] for at in places))
        for k, name in enumerate(f"component {k + 1}" for k in range(points.shape[1]))
    )
    return (AxisChoice("across", "x", options, 0), AxisChoice("up", "y", options, 1))


def _plot_rows(points: Array, facts: HoverFacts, key: LegendKey) -> tuple[Mark, Array]:
    """Return a mark per distinct code, and the positions of the marks in all components.

    The area of a mark is proportional to its number of rows.
    """
    _, first, counts = np.unique(points.round(9), axis=0, return_index=True, return_counts=True)
    shown = [(name, [values[i] for i in first]) for name, values in facts]
    if counts.max(initial=1) > 1:
        shown.append(("identical rows", [str(count) for count in counts]))
    sizes = np.minimum(_POINT_SIZE * np.sqrt(counts), _MAX_POINT_SIZE)
    at = points[first]
    return PointMarks(at[:, 0], at[:, 1], key.colour, key.marker, sizes, 0.7, shown), at


def _describe_rows(coded: CodedRows, rows: NDArray[np.intp]) -> HoverFacts:
    """Return the number (from 1), segment and per-row columns of rows, as texts."""
    facts: list[tuple[str, NDArray[Any]]] = [("row", coded.rows + 1)]
    if len(set(coded.segments)) > 1:
        facts.append((SEGMENT, coded.segments))
    facts += list(coded.columns.items())[:_MAX_HOVER_COLUMNS]
    return [(name, [str(value) for value in values[rows]]) for name, values in facts]


def _label_rows(points: Array, labels: ColourLabels) -> tuple[tuple[Mark, Array], str]:
    """Write labels at the median of their rows if there is room, frequent labels first."""
    texts = np.array([str(value) for value in labels.values], object)
    names = [name for name, _ in Counter(texts.tolist()).most_common()]
    middles = np.array([np.median(points[texts == name], axis=0) for name in names])
    written = [shorten_text(name, _MAX_NAME_LENGTH) for name in names]
    kept = choose_names_with_room(
        middles[:, :2], written, float(np.ptp(middles[:, :2], axis=0).max())
    )
    at, shown = middles[kept], [written[i] for i in kept]
    mark = TextMarks(at[:, 0], at[:, 1], shown, [COLOURS[1]] * len(kept), is_above=True)
    note = " Each name is at the median of its rows."
    if len(kept) < len(names):
        note += f" {len(kept):,} of {len(names):,} names have room."
    return (mark, at), note
