"""Render plots as HTML and SVG for the page.

Positions are percentages of the plot's area, so a plot fits any width without a script, while text
and marks keep their size. Tooltips and other axes are returned as data for `script.js`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import GREY
from flows.report.figures.images import encode_png
from flows.report.figures.marks import (
    AreaMark,
    Axis,
    AxisChoice,
    BarMarks,
    CellMarks,
    Figure,
    HoverColumns,
    HoverFacts,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RasterMark,
    RuleMark,
    TextMarks,
)
from flows.report.figures.text import shorten_texts

Array = NDArray[np.float64]

MAX_NAME_LENGTH = 18
"""Letters of a name next to an axis. Longer names are cut; their tooltip has the whole name."""
MARKER_PATHS = {
    "circle": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z",
    "square": "M-1-1h2v2h-2z",
    "triangle": "M0-1.1l1.15 2h-2.3z",
    "inverted_triangle": "M0 1.1l1.15-2h-2.3z",
    "diamond": "M0-1.4l1.1 1.4l-1.1 1.4l-1.1-1.4z",
    "plus": "M-1.2 0h2.4M0-1.2v2.4",
    "line": "M-1.5 0h3",
    "dash": "M-1.5 0h1M.5 0h1",
}
"""SVG paths of markers, 2 wide and centred on 0."""
_HALF_ON_PHONE, _THIRD_ON_PHONE = 8, 16  # if there are more names, phones show fewer of them
_LETTER_WIDTH = 1.6  # percent of a narrow plot: names that would cross an edge are aligned with it
_TEXT_OFFSETS = {"centre": 'dy=".35em"', "above": 'dy="-.4em"', "right": 'dx="6" dy=".35em"'}
_PLACE_STEPS = 9999  # resolution of the positions that are sent to the script
_LINE_UNITS = 1000  # width of the view box of lines
_LINE_BOX = f'viewBox="0 0 {_LINE_UNITS} {_LINE_UNITS}" preserveAspectRatio="none"'


class RenderedPlot(NamedTuple):
    """A plot as HTML, and the data that the page's script needs."""

    html: str
    data: dict[str, Any]


def render_plot(figure: Figure, name: str) -> RenderedPlot:
    """Render the plot of a figure; `name` is a prefix for its element identifiers."""
    plot = figure.plot
    assert plot is not None
    shapes: dict[str, str] = {}
    marks = "".join(_render_mark(plot, k, mark, name, shapes) for k, mark in enumerate(plot.marks))
    area = (
        f'<svg class="area{" lined" * (plot.x.has_lines or plot.y.has_lines)}" aria-hidden="true">'
        f"<defs>{''.join(shapes.values())}</defs>{_render_grid(plot)}{marks}</svg>"
    )
    facts = {k: getattr(mark, "facts", ()) for k, mark in enumerate(plot.marks)}
    lists = {k: _list_facts(columns) for k, columns in facts.items() if columns}
    data: dict[str, Any] = {"facts": lists}
    if figure.choices:
        data["choices"] = [_describe_choice(plot, choice) for choice in figure.choices]
        data["equal"] = plot.height is None
    return RenderedPlot(f"{_render_names(plot.y, 'y')}{area}{_render_names(plot.x, 'x')}", data)


def _list_facts(facts: HoverFacts) -> tuple[list[str], list[list[str]]]:
    return [name for name, _ in facts], [[*column] for _, column in facts]


def _compute_shares(axis: Axis, values: Any) -> Array:
    """Convert values to percentages of the axis, from the left or the bottom."""
    return 100 * (np.asarray(values, np.float64) - axis.low) / (axis.high - axis.low)


def _place_points(plot: Plot, x: Any, y: Any) -> tuple[Array, Array]:
    """Convert points to percentages from the left and from the top."""
    return _compute_shares(plot.x, x), 100 - _compute_shares(plot.y, y)


def _render_names(axis: Axis, side: str) -> str:
    places = _compute_shares(axis, [tick.place for tick in axis.ticks])
    edge, places = ("left", places) if side == "x" else ("top", 100 - places)
    texts = [tick.text for tick in axis.ticks]
    names = "".join(
        f'<span style="{edge}:{place:.2f}%"{_render_title(text)}>{escape(short)}</span>'
        for place, text, short in zip(
            places, texts, shorten_texts(texts, MAX_NAME_LENGTH), strict=True
        )
    )
    n = len(axis.ticks) if side == "x" else 0
    share = " third" if n > _THIRD_ON_PHONE else " half" if n > _HALF_ON_PHONE else ""
    label = f'<span class="{side} label">{escape(axis.label)}</span>'
    return f'{label}<div class="{side} names{share}">{names}</div>'


def _render_title(text: str) -> str:
    return f' title="{escape(text)}"' if len(text) > MAX_NAME_LENGTH else ""


def _render_grid(plot: Plot) -> str:
    return "".join(
        f'<g class="{side} grid">{"".join(_iter_grid_lines(axis, side))}</g>'
        for side, axis in (("x", plot.x), ("y", plot.y))
    )


def _iter_grid_lines(axis: Axis, side: str) -> Iterator[str]:
    for tick in axis.ticks if axis.has_lines else ():
        yield _render_line_across(axis, side, tick.place)


def _render_line_across(axis: Axis, side: str, place: float, style: str = "") -> str:
    """Render a line across the whole plot at a value of an axis."""
    share = float(_compute_shares(axis, place))
    percent = f"{share if side == 'x' else 100 - share:.2f}%"
    other = "y" if side == "x" else "x"
    return f'<line {side}1="{percent}" {side}2="{percent}" {other}1="0" {other}2="100%"{style}/>'


def _render_mark(plot: Plot, k: int, mark: Mark, name: str, shapes: dict[str, str]) -> str:
    open_group = f'<g data-mark="{k}"'
    match mark:
        case PointMarks():
            style = f'fill="{mark.colour}" stroke="{mark.colour}"'
            style += f' fill-opacity="{mark.opacity}" stroke-opacity="{mark.opacity}"'
            inside = "".join(_iter_points(plot, mark, name, shapes))
            return f'{open_group} class="{mark.marker}" {style}>{inside}</g>'
        case LineMarks():
            dash = f' stroke-dasharray="{" ".join(map(str, mark.dash))}"' if mark.dash else ""
            inside = "".join(_iter_lines(plot, mark))
            has_one_width = isinstance(mark.width, int | float)
            style = f'stroke-width="{mark.width}"{dash}' if has_one_width else dash
            return f'<svg data-mark="{k}" class="lines" {_LINE_BOX} {style}>{inside}</svg>'
        case AreaMark():
            outline = np.concatenate(
                [np.column_stack([mark.x, mark.high]), np.column_stack([mark.x, mark.low])[::-1]]
            )
            path = _format_path(plot, outline)
            style = f'fill="{mark.colour}" fill-opacity="{mark.opacity}"'
            return f'<svg data-mark="{k}" {_LINE_BOX}><path {style} d="M{path}z"/></svg>'
        case BarMarks():
            return f'{open_group} class="bars">{"".join(_iter_bars(plot, mark))}</g>'
        case HoverColumns():
            return f'{open_group} class="columns">{"".join(_iter_columns(plot, mark))}</g>'
        case CellMarks():
            n_rows, n_columns = mark.values.shape
            inside = "".join(_iter_cell_rows(mark))
            gaps = _render_gaps(n_rows, n_columns)
            return f'{open_group} class="cells" data-columns="{n_columns}">{inside}</g>{gaps}'
        case RasterMark():
            uri = encode_png(mark.scale.paint(mark.values))
            place = 'width="100%" height="100%" preserveAspectRatio="none"'
            return f'<image class="pixels" {place} href="{uri}"/>'
        case TextMarks():
            inside = "".join(_iter_texts(plot, mark))
            return f'{open_group} class="texts" text-anchor="middle">{inside}</g>'
        case RuleMark():
            dash = f' stroke-dasharray="{" ".join(map(str, mark.dash))}"' if mark.dash else ""
            axis = plot.x if mark.axis == "x" else plot.y
            return _render_line_across(axis, mark.axis, mark.place, f' stroke="{GREY}"{dash}')
        case _:
            assert_never(mark)


def _iter_points(plot: Plot, mark: PointMarks, name: str, shapes: dict[str, str]) -> Iterator[str]:
    sizes = np.broadcast_to(np.round(2 * np.asarray(mark.size, np.float64)) / 2, len(mark.x))
    for x, y, size in zip(*_place_points(plot, mark.x, mark.y), sizes, strict=True):
        shape = f"{name}-{mark.marker}-{size:g}"
        if shape not in shapes:
            scale = f'd="{MARKER_PATHS[mark.marker]}" transform="scale({size / 2:g})"'
            shapes[shape] = f'<path id="{shape}" {scale}/>'
        yield f'<use href="#{shape}" x="{x:.2f}%" y="{y:.2f}%"/>'


def _iter_lines(plot: Plot, mark: LineMarks) -> Iterator[str]:
    widths = [""] * len(mark.points)
    if isinstance(mark.width, np.ndarray):
        widths = [f' style="stroke-width: {width:.3g}px"' for width in mark.width]
    for line, colour, width in zip(mark.points, mark.colours, widths, strict=True):
        yield f'<path stroke="{colour}"{width} d="M{_format_path(plot, line)}"/>'


def _format_path(plot: Plot, points: Array) -> str:
    points = points[np.isfinite(points).all(axis=1)]
    places = np.stack(_place_points(plot, *points.T), axis=1) * (_LINE_UNITS / 100)
    return " ".join(f"{a:.4g} {b:.4g}" for a, b in places)


def _iter_bars(plot: Plot, mark: BarMarks) -> Iterator[str]:
    left, first = _place_points(plot, mark.left, mark.y - mark.height / 2)
    right, last = _place_points(plot, mark.right, mark.y + mark.height / 2)
    sizes = right - left, np.abs(last - first)
    places = zip(left, np.minimum(first, last), *sizes, mark.colours, strict=True)
    for x, y, width, height, colour in places:
        size = f'width="{width:.2f}%" height="{height:.2f}%"'
        yield f'<rect x="{x:.2f}%" y="{y:.2f}%" {size} fill="{colour}"/>'


def _iter_columns(plot: Plot, mark: HoverColumns) -> Iterator[str]:
    x = _compute_shares(plot.x, mark.x)
    middles = (x[1:] + x[:-1]) / 2
    for left, right in zip([0.0, *middles], [*middles, 100.0], strict=True):
        yield f'<rect x="{left:.2f}%" width="{right - left:.2f}%" height="100%"/>'


def _iter_cell_rows(mark: CellMarks) -> Iterator[str]:
    """Render each row as its own image, so that the script can reorder rows."""
    height = 100 / len(mark.values)
    for i, row in enumerate(mark.scale.paint(mark.values)):
        place = f'y="{i * height:.3f}%" width="100%" height="{height:.3f}%"'
        uri = encode_png(row[None])
        yield f'<image class="pixels" {place} preserveAspectRatio="none" href="{uri}"/>'


def _render_gaps(n_rows: int, n_columns: int) -> str:
    down = "".join(f"M{k} 0V{n_rows}" for k in range(1, n_columns))
    across = "".join(f"M0 {i}H{n_columns}" for i in range(1, n_rows))
    box = f'viewBox="0 0 {n_columns} {n_rows}" preserveAspectRatio="none"'
    return f'<svg class="gaps" {box}><path d="{down}{across}"/></svg>'


def _iter_texts(plot: Plot, mark: TextMarks) -> Iterator[str]:
    colours = mark.colours or ["currentColor"] * len(mark.texts)
    places = zip(*_place_points(plot, mark.x, mark.y), mark.texts, colours, strict=True)
    for x, y, text, colour in places:
        style = f'{_TEXT_OFFSETS[mark.side]} fill="{colour}"'
        half = _LETTER_WIDTH * len(text) / 2
        if mark.side == "right":
            style += ' text-anchor="start"'
        elif anchor := "end" if x > 100 - half else "start" if x < half else "":
            style += f' text-anchor="{anchor}"'
        yield f'<text x="{x:.2f}%" y="{y:.2f}%" {style}>{escape(text)}</text>'


def _describe_choice(plot: Plot, choice: AxisChoice) -> dict[str, Any]:
    return {
        "axis": choice.axis,
        "options": [
            {
                "label": option.axis.label,
                "low": option.axis.low,
                "high": option.axis.high,
                "ticks": [[tick.place, tick.text] for tick in option.axis.ticks],
                "places": _describe_places(plot.marks, option.axis, option.places),
            }
            for option in choice.options
        ],
    }


def _describe_places(marks: Sequence[Mark], axis: Axis, places: Sequence[Array]) -> list[list[int]]:
    """Return positions as whole steps from the low to the high end of an axis."""
    steps = []
    for mark, values in zip(marks, places, strict=True):
        edges = values - 0.5 if isinstance(mark, CellMarks) else values
        shares = _compute_shares(axis, edges) * (_PLACE_STEPS / 100)
        steps.append(np.rint(shares).astype(int).tolist())
    return steps
