"""Rows where their latent codes lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from bokeh.models import DataRange1d
from numpy.typing import NDArray

from flows.report.figures.labels import ColourLabels, group_rows_by_label, has_too_many_labels
from flows.report.figures.lines import choose_names_with_room
from flows.report.figures.plots import (
    COLOURS,
    NAME_STYLE,
    AxisChoice,
    AxisOption,
    Figure,
    LegendKey,
    add_hover,
    make_plot,
    make_square_plot,
)
from flows.report.figures.rows import CodedRows
from pipeline.statistics.labels import SEGMENT

Array = NDArray[np.float64]

_MAX_HOVER_COLUMNS, _MAX_CHOICES = 6, 12
_POINT_SIZE, _MAX_POINT_SIZE = 6.0, 26.0
_MAX_NAME_LENGTH, _RANGE_PADDING = 24, 0.25


def plot_strip(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Draw one component along a line."""
    heights = np.random.default_rng(0).uniform(-1, 1, len(coded.codes))
    plot = make_plot(("component 1", ""), height=220, y_range=(-1.3, 1.3))
    plot.yaxis.visible = plot.ygrid.visible = False
    spread = " Rows are spread from top to bottom only to keep them apart."
    return _scatter_rows(plot, np.column_stack([coded.codes[:, 0], heights]), coded, labels, spread)


def plot_plane(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Draw the first two components, and let the reader choose others."""
    plot = make_square_plot(("component 1", "component 2"), match_aspect=True)
    return _scatter_rows(plot, coded.codes[:, :_MAX_CHOICES], coded, labels, "")


def _scatter_rows(
    plot: Any, points: Array, coded: CodedRows, labels: ColourLabels | None, note: str
) -> Figure:
    named = labels if has_too_many_labels(labels) else None
    kinds, ramp = group_rows_by_label(None if named else labels, len(points))
    for kind in kinds:
        if len(kind.rows):
            _plot_rows(plot, points[kind.rows], _describe_rows(coded, kind.rows), kind.key)
    note += _label_rows(plot, points, named) if named else ""
    n_components = coded.codes.shape[1]
    which = "component 1" if n_components == 1 else f"components 1 and 2 of {n_components}"
    by = f", by {labels.name}" if labels else ""
    alt = f"Codes of {len(points):,} rows{by}: {which}."
    keys = () if ramp or named or labels is None else tuple(kind.key for kind in kinds)
    choices = _make_axis_choices(n_components)
    said = f"Codes of {len(points):,} rows{by}." if choices else alt
    told: Any = {"note": said + note, "keys": keys, "ramp": ramp, "choices": choices}
    return Figure("Rows in latent space", alt, plot, **told)


def _make_axis_choices(n_components: int) -> tuple[AxisChoice, ...]:
    """Let the reader choose the components on both axes, where there are more than two."""
    if n_components < 3:
        return ()
    shown = range(min(n_components, _MAX_CHOICES))
    options = tuple(AxisOption(f"component {k + 1}", _name_place_column(k)) for k in shown)
    return (AxisChoice("across", "x", options, 0), AxisChoice("up", "y", options, 1))


def _name_place_column(k: int) -> str:
    """Name the data of the k-th component."""
    return f"place{k}"


def _plot_rows(
    plot: Any, points: Array, facts: list[tuple[str, list[str]]], key: LegendKey
) -> None:
    """Draw rows; those with the same code are one mark, whose area is their number."""
    _, first, counts = np.unique(points.round(9), axis=0, return_index=True, return_counts=True)
    shown = [(name, [values[i] for i in first]) for name, values in facts]
    if counts.max() > 1:
        shown.append(("rows alike", [str(count) for count in counts]))
    sizes = np.minimum(_POINT_SIZE * np.sqrt(counts), _MAX_POINT_SIZE)
    data: dict[str, Any] = {"size": sizes, **_make_place_columns(points[first])}
    # Names of per-row columns may be anything, so they are no names of Bokeh's columns.
    data |= {f"fact{k}": values for k, (_, values) in enumerate(shown)}
    style: Any = {"color": key.colour, "fill_alpha": 0.55, "line_alpha": 0.9, "size": "size"}
    style["line_width"] = 2 if key.marker == "plus" else 1  # it has no area
    marks = plot.scatter(
        _name_place_column(0), _name_place_column(1), source=data, marker=key.marker, **style
    )
    add_hover(plot, marks, [(name, f"fact{k}") for k, (name, _) in enumerate(shown)])


def _make_place_columns(points: Array) -> dict[str, Array]:
    return {_name_place_column(k): column for k, column in enumerate(points.T)}


def _describe_rows(coded: CodedRows, rows: NDArray[np.intp]) -> list[tuple[str, list[str]]]:
    """Give what is known of rows, as texts; they are counted from 1."""
    facts: list[tuple[str, NDArray[Any]]] = [("row", coded.rows + 1)]
    if len(set(coded.segments)) > 1:
        facts.append((SEGMENT, coded.segments))
    facts += list(coded.columns.items())[:_MAX_HOVER_COLUMNS]
    return [(name, [str(value) for value in values[rows]]) for name, values in facts]


def _label_rows(plot: Any, points: Array, labels: ColourLabels) -> str:
    """Write labels at the median of their rows, the frequent first, where they find room."""
    texts = np.array([str(value) for value in labels.values], object)
    names = [name for name, _ in Counter(texts.tolist()).most_common()]
    middles = np.array([np.median(points[texts == name], axis=0) for name in names])
    written = [
        name if len(name) <= _MAX_NAME_LENGTH else name[: _MAX_NAME_LENGTH - 1] + "…"
        for name in names
    ]
    kept = choose_names_with_room(
        middles[:, :2], written, float(np.ptp(middles[:, :2], axis=0).max())
    )
    data: dict[str, Any] = {
        "name": [written[i] for i in kept],
        **_make_place_columns(middles[kept]),
    }
    style = {"text_color": COLOURS[1], **NAME_STYLE, "text_baseline": "bottom"}
    for span in (plot.x_range, plot.y_range):
        if isinstance(span, DataRange1d):  # the height of a strip is given
            span.range_padding = _RANGE_PADDING
    plot.text(_name_place_column(0), _name_place_column(1), "name", source=data, **style)
    where = (
        "Each name stands"
        if len(kept) == len(names)
        else (f"{len(kept):,} of {len(names):,} names have room; each stands")
    )
    return f" {where} at the median of its rows."
