"""Rows where their latent codes lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import fit_axis, fit_square
from flows.report.figures.colours import COLOURS
from flows.report.figures.labels import Labels, coloured, has_names
from flows.report.figures.lines import select_with_room
from flows.report.figures.marks import (
    Axis,
    Choice,
    Facts,
    Figure,
    Key,
    Mark,
    Option,
    Plot,
    Points,
    Texts,
)
from flows.report.figures.rows import CodedRows
from flows.report.text import cut_text
from pipeline.statistics.labels import SEGMENT

Array = NDArray[np.float64]

_SHOWN_COLUMNS, _MOST_CHOICES = 6, 12
_POINT, _LARGEST = 6.0, 26.0
_LONGEST, _ROOM = 24, 0.125


def draw_strip(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw one component along a line."""
    heights = np.random.default_rng(0).uniform(-1, 1, len(coded.codes))
    spread = " Rows are spread from top to bottom only to keep them apart."
    return _scatter(np.column_stack([coded.codes[:, 0], heights]), coded, labels, spread)


def draw_plane(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw the first two components, and let the reader choose others."""
    return _scatter(coded.codes[:, :_MOST_CHOICES], coded, labels, "")


def _scatter(points: Array, coded: CodedRows, labels: Labels | None, note: str) -> Figure:
    named = labels if has_names(labels) else None
    kinds, ramp = coloured(None if named else labels, len(points))
    placed = [_mark(points[kind.rows], _facts(coded, kind.rows), kind.key) for kind in kinds]
    if named:
        names, told = _name_rows(points, named)
        placed, note = [*placed, names], note + told
    marks, places = tuple(mark for mark, _ in placed), [at for _, at in placed]
    n_components = coded.codes.shape[1]
    room = _ROOM if named else 0.05
    if n_components == 1:
        x, y = fit_axis(points[:, 0], "component 1", room), Axis(-1.3, 1.3, has_lines=False)
        plot = Plot(x, y, marks, height=220)
    else:
        plot = Plot(*fit_square(points[:, :2], ("component 1", "component 2"), room), marks)
    which = "component 1" if n_components == 1 else f"components 1 and 2 of {n_components}"
    by = f", by {labels.name}" if labels else ""
    alt = f"Codes of {len(points):,} rows{by}: {which}."
    keys = () if ramp or named or labels is None else tuple(kind.key for kind in kinds)
    choices = _offer_components(points, places, room) if n_components > 2 else ()
    said = f"Codes of {len(points):,} rows{by}." if choices else alt
    more: Any = {"note": said + note, "keys": keys, "ramp": ramp, "choices": choices}
    return Figure("Rows in latent space", alt, plot, **more)


def _offer_components(points: Array, places: list[Array], room: float) -> tuple[Choice, ...]:
    """Let the reader choose the components on both axes."""
    options = tuple(
        Option(name, fit_axis(points[:, k], name, room), tuple(at[:, k] for at in places))
        for k, name in enumerate(f"component {k + 1}" for k in range(points.shape[1]))
    )
    return (Choice("across", "x", options, 0), Choice("up", "y", options, 1))


def _mark(points: Array, facts: Facts, key: Key) -> tuple[Mark, Array]:
    """Mark rows, and return where the marks lie in all components.

    Rows with the same code are one mark, whose area is their number.
    """
    _, first, counts = np.unique(points.round(9), axis=0, return_index=True, return_counts=True)
    shown = [(name, [values[i] for i in first]) for name, values in facts]
    if counts.max(initial=1) > 1:
        shown.append(("rows alike", [str(count) for count in counts]))
    sizes = np.minimum(_POINT * np.sqrt(counts), _LARGEST)
    at = points[first]
    return Points(at[:, 0], at[:, 1], key.colour, key.marker, sizes, 0.7, shown), at


def _facts(coded: CodedRows, rows: NDArray[np.intp]) -> Facts:
    """Return what is known of rows, as texts; they are counted from 1."""
    facts: list[tuple[str, NDArray[Any]]] = [("row", coded.rows + 1)]
    if len(set(coded.segments)) > 1:
        facts.append((SEGMENT, coded.segments))
    facts += list(coded.columns.items())[:_SHOWN_COLUMNS]
    return [(name, [str(value) for value in values[rows]]) for name, values in facts]


def _name_rows(points: Array, labels: Labels) -> tuple[tuple[Mark, Array], str]:
    """Write labels at the median of their rows, the frequent first, where they find room."""
    texts = np.array([str(value) for value in labels.values], object)
    names = [name for name, _ in Counter(texts.tolist()).most_common()]
    middles = np.array([np.median(points[texts == name], axis=0) for name in names])
    written = [cut_text(name, _LONGEST) for name in names]
    kept = select_with_room(middles[:, :2], written, float(np.ptp(middles[:, :2], axis=0).max()))
    at, shown = middles[kept], [written[i] for i in kept]
    mark = Texts(at[:, 0], at[:, 1], shown, [COLOURS[1]] * len(kept), is_above=True)
    where = (
        "Each name stands"
        if len(kept) == len(names)
        else f"{len(kept):,} of {len(names):,} names have room; each stands"
    )
    return (mark, at), f" {where} at the median of its rows."
