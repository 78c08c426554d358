"""Draws a plot into Matplotlib axes. One pixel of the page is one point here."""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.collections import LineCollection
from matplotlib.patheffects import Stroke
from matplotlib.ticker import NullLocator

from flows.report.figures.colours import GREY
from flows.report.figures.marks import (
    Axis,
    CellMarks,
    HoverColumns,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RasterMark,
    RuleMark,
    TextMarks,
)
from flows.report.figures.text import shorten_text

# The page's style sheet on light paper.
TEXT_COLOUR, SOFT_TEXT_COLOUR, RULE_COLOUR, GRID_COLOUR = "#1d2329", "#5b6570", "#dde1e5", "#eceff1"
MATPLOTLIB_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "d",
    "inverted_triangle": "v",
    "plus": "+",
}
_MAX_NAME_LENGTH = 18
"""Letters beside an axis."""
# A name that lies on a line is drawn above white letters, so that it stays text.
_HALO = Stroke(linewidth=3, foreground="white")
_CELL_GAP = 1.5
_TEXT_SIZE = 11
_EDGE_SHARE = 0.9  # of the width: names nearer to an edge end there


def render_plot_in_axes(axes: Axes, plot: Plot) -> None:
    """Draw a plot into empty axes."""
    for order, mark in enumerate(plot.marks, 3):
        _render_mark(axes, plot, mark, order)
    axes.set(xlim=(plot.x.low, plot.x.high), ylim=(plot.y.low, plot.y.high))
    axes.set_axisbelow(True)
    _dress_axis(axes, axes.xaxis, plot.x, "bottom")
    _dress_axis(axes, axes.yaxis, plot.y, "left")
    axes.spines[["top", "right"]].set_visible(False)
    if plot.height is None:
        axes.set_box_aspect(1)


def _render_mark(axes: Axes, plot: Plot, mark: Mark, order: int) -> None:
    match mark:
        case PointMarks():
            sizes = np.broadcast_to(np.asarray(mark.size, np.float64), len(mark.x))
            style: Any = {"marker": MATPLOTLIB_MARKERS[mark.marker], "zorder": order}
            marks = axes.scatter(mark.x, mark.y, sizes**2, **style)
            marks.set(color=(mark.colour, mark.opacity))
            marks.set_linewidth(2 if mark.marker == "plus" else 0)
        case LineMarks():
            style = {
                "linewidths": mark.width,
                "linestyles": [_make_line_style(mark.dash)],
                "zorder": order,
            }
            axes.add_collection(LineCollection(mark.points, colors=mark.colours, **style))
        case HoverColumns():
            pass
        case CellMarks():
            n_rows, n_columns = mark.values.shape
            edges = np.arange(n_columns + 1) - 0.5, np.arange(n_rows + 1) - 0.5
            style = {"edgecolor": "white", "linewidth": _CELL_GAP, "zorder": order}
            axes.pcolormesh(*edges, mark.scale.paint(mark.values) / 255, **style)
        case RasterMark():
            extent = (plot.x.low, plot.x.high, plot.y.low, plot.y.high)
            style = {"aspect": "auto", "interpolation": "nearest", "zorder": order}
            axes.imshow(mark.scale.paint(mark.values), extent=extent, **style)
        case TextMarks():
            style = {"clip_on": True, "size": _TEXT_SIZE, "zorder": order}
            style["va"] = "bottom" if mark.is_above else "center"
            for x, y, text, colour in zip(mark.x, mark.y, mark.texts, mark.colours, strict=True):
                share = (x - plot.x.low) / (plot.x.high - plot.x.low)
                style["ha"] = (
                    "right"
                    if share > _EDGE_SHARE
                    else "left"
                    if share < 1 - _EDGE_SHARE
                    else "center"
                )
                axes.text(x, y, text, path_effects=[_HALO], **style)
                axes.text(x, y, text, color=colour, **style)
        case RuleMark():
            across = axes.axvline if mark.axis == "x" else axes.axhline
            across(mark.place, color=GREY, linewidth=1, linestyle=_make_line_style(mark.dash))
        case _:
            assert_never(mark)


def _make_line_style(lengths: tuple[int, ...]) -> Any:
    return (0.0, lengths) if lengths else "solid"


def _dress_axis(axes: Axes, side: MatplotlibAxis, axis: Axis, spine: str) -> None:
    """Label an axis, with its ticks and lines across the plot."""
    side.set_label_text(axis.label, color=SOFT_TEXT_COLOUR)
    side.set_ticks([tick.place for tick in axis.ticks])
    side.set_ticklabels([shorten_text(tick.text, _MAX_NAME_LENGTH) for tick in axis.ticks])
    side.set_minor_locator(NullLocator())
    length = 5 if axis.has_lines else 0
    side.set_tick_params(length=length, color=RULE_COLOUR, labelcolor=TEXT_COLOUR)
    if axis.has_lines:
        side.grid(color=GRID_COLOUR, linewidth=1)
    axes.spines[spine].set_visible(axis.has_lines)
    axes.spines[spine].set_color(RULE_COLOUR)
