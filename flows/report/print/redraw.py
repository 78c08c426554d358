"""Draws a Bokeh plot into Matplotlib axes, glyph by glyph: one definition, two libraries.

What the report's plots use is drawn; anything else is an error, so that a plot that learns more
cannot lose it here in silence. One pixel of the report is one point here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from bokeh.core.property.vectorization import Field, Value
from bokeh.models import (
    BasicTicker,
    FixedTicker,
    Grid,
    Image,
    Line,
    LinearColorMapper,
    LogScale,
    LogTicker,
    Model,
    MultiLine,
    Rect,
    Scatter,
    Text,
)
from bokeh.models.annotations import Span
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.patheffects import Stroke
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)
from numpy.typing import ArrayLike, NDArray

from flows.report.figures.plots import format_number
from pipeline.errors import FitError

Array = NDArray[np.float64]

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
_TICKS = 7
# Nobody can point at a name that lies on a line. It is drawn below the name, which stays text.
_HALO = Stroke(linewidth=3, foreground="white")
_ALIGNED = {"middle": "center", "alphabetic": "baseline"}


def draw_plot(axes: Axes, plot: Any) -> None:
    """Draw a Bokeh plot into empty axes.

    Parameters
    ----------
    axes
        Where to draw.
    plot
        The plot, with one axis below and one to the left.

    Raises
    ------
    FitError
        If the plot holds what cannot be drawn; the message names it.
    """
    for name, scale in (("x", plot.x_scale), ("y", plot.y_scale)):
        if isinstance(scale, LogScale):
            axes.set(**{f"{name}scale": "log"})
    for order, renderer in enumerate(plot.renderers):
        _draw_glyph(axes, renderer, 3 + order)
    _set_limits(axes, plot)
    axes.set_axisbelow(True)
    for drawn in (*plot.center, *plot.above, *plot.right):
        _draw_beside(axes, drawn)
    (below,), (left,) = plot.below, plot.left
    _dress(axes, axes.xaxis, below, "bottom")
    _dress(axes, axes.yaxis, left, "left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_glyph(axes: Axes, renderer: Any, zorder: int) -> None:
    glyph = getattr(renderer, "glyph", renderer)
    kind = _GLYPHS.get(type(glyph))
    if kind is None:
        raise _cannot_draw(type(glyph).__name__)
    given = glyph.properties_with_values(include_defaults=False)
    # Hatches have a colour wherever glyphs have one, and no pattern.
    further = {name for name in given if not name.startswith("hatch_")} - kind.properties
    if further:
        raise _cannot_draw(f"{type(glyph).__name__} with {', '.join(sorted(further))}")
    data = renderer.data_source.data
    every = glyph.properties_with_values()
    values = {name: _values(every[name], data) for name in kind.properties}
    kind.draw(axes, {**values, "zorder": zorder})


def _cannot_draw(what: str) -> FitError:
    return FitError(
        f"Expected a plot of glyphs that pictures know, got {what}. "
        "Draw it in flows.report.print.redraw."
    )


def _values(given: Any, data: Mapping[str, Any]) -> Any:
    """Give a property's values: one for each mark, or one for all."""
    if isinstance(given, Value):
        return given.value
    if not isinstance(given, Field):
        return given
    values = data[given.field]
    if isinstance(given.transform, LinearColorMapper):
        return mapped(np.asarray(values, np.float64), given.transform)
    if isinstance(given.transform, Model):
        raise _cannot_draw(type(given.transform).__name__)
    return values


def mapped(values: Array, mapper: Any) -> Array:
    """Give the colours of values as red, green, blue and opacity from 0 to 1: (…, 4)."""
    palette = to_rgba_array([*mapper.palette, mapper.nan_color])
    n = len(mapper.palette)
    share = (values - mapper.low) / (mapper.high - mapper.low)
    at = np.clip(np.floor(np.nan_to_num(share) * n), 0, n - 1).astype(int)
    colours: Array = palette[np.where(np.isnan(values), n, at)]
    return colours


def _faded(colours: Any, opacity: ArrayLike) -> Array:
    rgba = to_rgba_array("none" if colours is None else colours)
    rgba[:, 3] *= np.asarray(opacity)
    return rgba


def _dashes(lengths: Any) -> tuple[float, Any]:
    return 0.0, lengths or None


def _draw_rects(axes: Axes, p: dict[str, Any]) -> None:
    x, y = (np.asarray(p[name], np.float64)[:, None] for name in ("x", "y"))
    xs = x + p["width"] / 2 * np.array([-1, 1, 1, -1])
    ys = y + p["height"] / 2 * np.array([-1, -1, 1, 1])
    colours = _faded(p["fill_color"], p["fill_alpha"])
    edges = _faded(p["line_color"], p["line_alpha"])
    style: Any = {"facecolors": colours, "edgecolors": edges, "zorder": p["zorder"]}
    axes.add_collection(PolyCollection([*np.stack([xs, ys], axis=-1)], **style))


def _draw_marks(axes: Axes, p: dict[str, Any]) -> None:
    if p["marker"] not in MARKERS:
        raise _cannot_draw(f"marker {p['marker']!r}")
    sizes = np.broadcast_to(np.asarray(p["size"], np.float64), np.shape(p["x"]))
    faces = _faded(p["fill_color"], p["fill_alpha"])
    marks = axes.scatter(p["x"], p["y"], sizes**2, faces, marker=MARKERS[p["marker"]])
    edges = _faded(p["line_color"], p["line_alpha"])
    marks.set(edgecolor=edges, linewidth=p["line_width"], zorder=p["zorder"])


def _draw_line(axes: Axes, p: dict[str, Any]) -> None:
    (colour,) = _faded(p["line_color"], p["line_alpha"])
    style: Any = {"linewidth": p["line_width"], "linestyle": _dashes(p["line_dash"])}
    axes.plot(p["x"], p["y"], color=colour, zorder=p["zorder"], **style)


def _draw_lines(axes: Axes, p: dict[str, Any]) -> None:
    lines = [np.column_stack(xy) for xy in zip(p["xs"], p["ys"], strict=True)]
    colours = _faded(p["line_color"], p["line_alpha"])
    style: Any = {"colors": colours, "linewidths": p["line_width"], "zorder": p["zorder"]}
    axes.add_collection(LineCollection(lines, **style))


def _draw_texts(axes: Axes, p: dict[str, Any]) -> None:
    (colour,) = _faded(p["text_color"], p["text_alpha"])
    style: Any = {
        "clip_on": True,
        "size": float(p["text_font_size"].removesuffix("px")),
        "zorder": p["zorder"],
        "ha": p["text_align"],
        "va": _ALIGNED.get(p["text_baseline"], p["text_baseline"]),
    }
    for x, y, text in zip(p["x"], p["y"], p["text"], strict=True):
        axes.text(x, y, text, path_effects=[_HALO], **style)
        axes.text(x, y, text, color=colour, **style)


def _draw_images(axes: Axes, p: dict[str, Any]) -> None:
    for image in p["image"]:
        colours = mapped(np.asarray(image, np.float64), p["color_mapper"])
        extent = (p["x"], p["x"] + p["dw"], p["y"], p["y"] + p["dh"])
        style: Any = {"aspect": "auto", "interpolation": "nearest", "zorder": p["zorder"]}
        axes.imshow(colours, extent=extent, origin="lower", **style)


class _Kind(NamedTuple):
    """How to draw a glyph, and which of its properties that heeds."""

    draw: Callable[[Axes, dict[str, Any]], None]
    properties: frozenset[str]


def _kind(draw: Callable[[Axes, dict[str, Any]], None], properties: str) -> _Kind:
    return _Kind(draw, frozenset(properties.split()))


_GLYPHS: dict[Any, _Kind] = {
    Rect: _kind(_draw_rects, "x y width height fill_color fill_alpha line_color line_alpha"),
    Scatter: _kind(
        _draw_marks,
        "x y size marker fill_color fill_alpha line_color line_alpha line_width",
    ),
    Line: _kind(_draw_line, "x y line_color line_alpha line_width line_dash"),
    MultiLine: _kind(_draw_lines, "xs ys line_color line_alpha line_width"),
    Text: _kind(
        _draw_texts, "x y text text_color text_alpha text_font_size text_align text_baseline"
    ),
    Image: _kind(_draw_images, "image x y dw dh color_mapper"),
}


def _set_limits(axes: Axes, plot: Any) -> None:
    """Show what the plot's ranges say, and else all glyphs, with some margin."""
    axes.autoscale_view()
    if plot.match_aspect:
        axes.set_aspect("equal", adjustable="datalim")
        return
    axes.set_xlim(_ends(plot.x_range, axes.get_xlim()))
    axes.set_ylim(_ends(plot.y_range, axes.get_ylim()))


def _ends(given: Any, found: tuple[float, float]) -> tuple[float, float]:
    low, high = (
        float(end) if end is not None and math.isfinite(end) else other
        for end, other in zip((given.start, given.end), found, strict=True)
    )
    return low, high


def _draw_beside(axes: Axes, drawn: Any) -> None:
    """Draw a grid or a line across the plot."""
    if isinstance(drawn, Grid):
        if drawn.visible:
            axes.grid(axis="y" if drawn.dimension else "x", color=GRID, linewidth=1)
    elif isinstance(drawn, Span):
        (colour,) = _faded(drawn.line_color, drawn.line_alpha)
        style: Any = {"linewidth": drawn.line_width, "linestyle": _dashes(drawn.line_dash)}
        across = axes.axvline if drawn.dimension == "height" else axes.axhline
        location: Any = drawn.location
        across(location, color=colour, **style)
    else:
        raise _cannot_draw(type(drawn).__name__)


def _dress(axes: Axes, axis: Axis, given: Any, side: str) -> None:
    """Give an axis its label, ticks and line."""
    axis.set_visible(given.visible)
    axes.spines[side].set_visible(given.visible and given.axis_line_color is not None)
    axes.spines[side].set_color(RULE)
    axis.set_label_text(given.axis_label or "", color=SOFT)
    axis.set_minor_locator(NullLocator())
    length = 0 if given.major_tick_line_color is None else 5
    axis.set_tick_params(length=length, color=RULE, labelcolor=INK)
    if isinstance(given.ticker, FixedTicker):
        axis.set_major_locator(FixedLocator(given.ticker.ticks))
        axis.set_major_formatter(FixedFormatter(_tick_names(given)))
    elif isinstance(given.ticker, LogTicker):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value, 2)))
    elif isinstance(given.ticker, BasicTicker):
        axis.set_major_locator(MaxNLocator(_TICKS, steps=[1, 2, 5, 10]))
    else:
        raise _cannot_draw(type(given.ticker).__name__)


def _tick_names(given: Any) -> list[str]:
    named = given.major_label_overrides
    texts = (named.get(tick, format_number(tick)) for tick in given.ticker.ticks)
    return [getattr(text, "text", text) for text in texts]
