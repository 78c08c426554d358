"""Draws a plot into Matplotlib axes. One pixel of the page is one point here."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.collections import LineCollection
from matplotlib.patheffects import Stroke
from matplotlib.ticker import NullLocator

from flows.report.figures.colours import GREY
from flows.report.figures.marks import (
    Axis,
    Cells,
    Columns,
    Lines,
    Mark,
    Plot,
    Points,
    Raster,
    Rule,
    Texts,
)
from flows.report.text import cut_text

# The page's style sheet on light paper.
INK, SOFT, RULE, GRID = "#1d2329", "#5b6570", "#dde1e5", "#eceff1"
MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "d",
    "inverted_triangle": "v",
    "plus": "+",
}
LONGEST_NAME = 18
"""Letters beside an axis."""
# A name that lies on a line is drawn above white letters, so that it stays text.
_HALO = Stroke(linewidth=3, foreground="white")
_GAP = 1.5
_TEXT = 11
_EDGE = 0.9  # of the width: names nearer to an edge end there


def draw_plot(axes: Axes, plot: Plot) -> None:
    """Draw a plot into empty axes."""
    for order, mark in enumerate(plot.marks, 3):
        _draw_mark(axes, plot, mark, order)
    axes.set(xlim=(plot.x.low, plot.x.high), ylim=(plot.y.low, plot.y.high))
    axes.set_axisbelow(True)
    _dress(axes, axes.xaxis, plot.x, "bottom")
    _dress(axes, axes.yaxis, plot.y, "left")
    axes.spines[["top", "right"]].set_visible(False)
    if plot.height is None:
        axes.set_box_aspect(1)


def _draw_mark(axes: Axes, plot: Plot, mark: Mark, order: int) -> None:
    match mark:
        case Points():
            sizes = np.broadcast_to(np.asarray(mark.size, np.float64), len(mark.x))
            style: Any = {"marker": MARKERS[mark.marker], "zorder": order}
            marks = axes.scatter(mark.x, mark.y, sizes**2, **style)
            marks.set(color=(mark.colour, mark.opacity))
            marks.set_linewidth(2 if mark.marker == "plus" else 0)
        case Lines():
            style = {"linewidths": mark.width, "linestyles": [_dash(mark.dash)], "zorder": order}
            axes.add_collection(LineCollection(mark.points, colors=mark.colours, **style))
        case Columns():
            pass
        case Cells():
            n_rows, n_columns = mark.values.shape
            edges = np.arange(n_columns + 1) - 0.5, np.arange(n_rows + 1) - 0.5
            style = {"edgecolor": "white", "linewidth": _GAP, "zorder": order}
            axes.pcolormesh(*edges, mark.scale.paint(mark.values) / 255, **style)
        case Raster():
            extent = (plot.x.low, plot.x.high, plot.y.low, plot.y.high)
            style = {"aspect": "auto", "interpolation": "nearest", "zorder": order}
            axes.imshow(mark.scale.paint(mark.values), extent=extent, **style)
        case Texts():
            style = {"clip_on": True, "size": _TEXT, "zorder": order}
            style["va"] = "bottom" if mark.is_above else "center"
            for x, y, text, colour in zip(mark.x, mark.y, mark.texts, mark.colours, strict=True):
                share = (x - plot.x.low) / (plot.x.high - plot.x.low)
                style["ha"] = (
                    "right" if share > _EDGE else "left" if share < 1 - _EDGE else "center"
                )
                axes.text(x, y, text, path_effects=[_HALO], **style)
                axes.text(x, y, text, color=colour, **style)
        case Rule():
            across = axes.axvline if mark.axis == "x" else axes.axhline
            across(mark.place, color=GREY, linewidth=1, linestyle=_dash(mark.dash))


def _dash(lengths: tuple[int, ...]) -> Any:
    return (0.0, lengths) if lengths else "solid"


def _dress(axes: Axes, side: MatplotlibAxis, axis: Axis, spine: str) -> None:
    """Label an axis, with its ticks and lines across the plot."""
    side.set_label_text(axis.label, color=SOFT)
    side.set_ticks([tick.place for tick in axis.ticks])
    side.set_ticklabels([cut_text(tick.text, LONGEST_NAME) for tick in axis.ticks])
    side.set_minor_locator(NullLocator())
    length = 5 if axis.has_lines else 0
    side.set_tick_params(length=length, color=RULE, labelcolor=INK)
    side.grid(axis.has_lines, color=GRID, linewidth=1)
    axes.spines[spine].set_visible(axis.has_lines)
    axes.spines[spine].set_color(RULE)
