"""Rows where their latent codes lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from bokeh.models import DataRange1d
from numpy.typing import NDArray

from flows.report.figures.labels import Labels, coloured, has_names
from flows.report.figures.lines import with_room
from flows.report.figures.plots import (
    COLOURS,
    NAMES,
    Choice,
    Figure,
    Key,
    Option,
    empty_plot,
    hovering,
    square_plot,
)
from flows.report.figures.rows import CodedRows
from pipeline.statistics.labels import SEGMENT

Array = NDArray[np.float64]

_SHOWN_COLUMNS, _MOST_CHOICES = 6, 12
_POINT, _LARGEST = 6.0, 26.0
_LONGEST, _ROOM = 24, 0.25


def strip(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw one component along a line."""
    heights = np.random.default_rng(0).uniform(-1, 1, len(coded.codes))
    plot = empty_plot(("component 1", ""), height=220, y_range=(-1.3, 1.3))
    plot.yaxis.visible = plot.ygrid.visible = False
    spread = " Rows are spread from top to bottom only to keep them apart."
    return _scattered(plot, np.column_stack([coded.codes[:, 0], heights]), coded, labels, spread)


def plane(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw the first two components, and let the reader choose others."""
    plot = square_plot(("component 1", "component 2"), match_aspect=True)
    return _scattered(plot, coded.codes[:, :_MOST_CHOICES], coded, labels, "")


def _scattered(
    plot: Any, points: Array, coded: CodedRows, labels: Labels | None, note: str
) -> Figure:
    named = labels if has_names(labels) else None
    kinds, ramp = coloured(None if named else labels, len(points))
    for kind in kinds:
        if len(kind.rows):
            _mark(plot, points[kind.rows], _facts(coded, kind.rows), kind.key)
    note += _name_rows(plot, points, named) if named else ""
    n_components = coded.codes.shape[1]
    which = "component 1" if n_components == 1 else f"components 1 and 2 of {n_components}"
    by = f", by {labels.name}" if labels else ""
    alt = f"Codes of {len(points):,} rows{by}: {which}."
    keys = () if ramp or named or labels is None else tuple(kind.key for kind in kinds)
    choices = _choices(n_components)
    said = f"Codes of {len(points):,} rows{by}." if choices else alt
    told: Any = {"note": said + note, "keys": keys, "ramp": ramp, "choices": choices}
    return Figure("Rows in latent space", alt, plot, **told)


def _choices(n_components: int) -> tuple[Choice, ...]:
    """Let the reader choose the components on both axes, where there are more than two."""
    if n_components < 3:
        return ()
    shown = range(min(n_components, _MOST_CHOICES))
    options = tuple(Option(f"component {k + 1}", _place(k)) for k in shown)
    return (Choice("across", "x", options, 0), Choice("up", "y", options, 1))


def _place(k: int) -> str:
    """Name the data of the k-th component."""
    return f"place{k}"


def _mark(plot: Any, points: Array, facts: list[tuple[str, list[str]]], key: Key) -> None:
    """Draw rows; those with the same code are one mark, whose area is their number."""
    _, first, counts = np.unique(points.round(9), axis=0, return_index=True, return_counts=True)
    shown = [(name, [values[i] for i in first]) for name, values in facts]
    if counts.max() > 1:
        shown.append(("rows alike", [str(count) for count in counts]))
    sizes = np.minimum(_POINT * np.sqrt(counts), _LARGEST)
    data: dict[str, Any] = {"size": sizes, **_places(points[first])}
    # Names of per-row columns may be anything, so they are no names of Bokeh's columns.
    data |= {f"fact{k}": values for k, (_, values) in enumerate(shown)}
    style: Any = {"color": key.colour, "fill_alpha": 0.55, "line_alpha": 0.9, "size": "size"}
    style["line_width"] = 2 if key.marker == "plus" else 1  # it has no area
    marks = plot.scatter(_place(0), _place(1), source=data, marker=key.marker, **style)
    hovering(plot, marks, [(name, f"fact{k}") for k, (name, _) in enumerate(shown)])


def _places(points: Array) -> dict[str, Array]:
    return {_place(k): column for k, column in enumerate(points.T)}


def _facts(coded: CodedRows, rows: NDArray[np.intp]) -> list[tuple[str, list[str]]]:
    """Give what is known of rows, as texts; they are counted from 1."""
    facts: list[tuple[str, NDArray[Any]]] = [("row", coded.rows + 1)]
    if len(set(coded.segments)) > 1:
        facts.append((SEGMENT, coded.segments))
    facts += list(coded.columns.items())[:_SHOWN_COLUMNS]
    return [(name, [str(value) for value in values[rows]]) for name, values in facts]


def _name_rows(plot: Any, points: Array, labels: Labels) -> str:
    """Write labels at the median of their rows, the frequent first, where they find room."""
    texts = np.array([str(value) for value in labels.values], object)
    names = [name for name, _ in Counter(texts.tolist()).most_common()]
    middles = np.array([np.median(points[texts == name], axis=0) for name in names])
    written = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    kept = with_room(middles[:, :2], written, float(np.ptp(middles[:, :2], axis=0).max()))
    data: dict[str, Any] = {"name": [written[i] for i in kept], **_places(middles[kept])}
    style = {"text_color": COLOURS[1], **NAMES, "text_baseline": "bottom"}
    for span in (plot.x_range, plot.y_range):
        if isinstance(span, DataRange1d):  # the height of a strip is given
            span.range_padding = _ROOM
    plot.text(_place(0), _place(1), "name", source=data, **style)
    where = (
        "Each name stands"
        if len(kept) == len(names)
        else (f"{len(kept):,} of {len(names):,} names have room; each stands")
    )
    return f" {where} at the median of its rows."
