"""Plots of the report, by Bokeh; colours suit light and dark pages, names are never markup.

Text, axes and grids take their colours from the page's style sheet. Glyphs cannot, so theirs are
of middle lightness, and what is zero is transparent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from bokeh.models import FixedTicker, HoverTool, LinearColorMapper, PlainText
from bokeh.plotting import figure
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Okabe & Ito's colours, told apart by the colour-blind; yellow is too pale for white paper, black
# too dark for black. A second round has another marker.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MORE_COLOURS = ("#9B51E0", "#7F5539", "#D81B60", "#999933")
"""For labels, of which ten are as many as there are digits: no nearer to each other than those."""
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus")
NEGATIVE, POSITIVE = COLOURS[:2]
SIGNS_TEXT = "orange is positive, blue negative"
GREY = "#8c8c8c"
NAME_STYLE: Any = {"text_font_size": "11px", "text_align": "center", "text_baseline": "middle"}
LARGEST_TEXT = ", those with the largest values"
MAX_COLUMNS, MAX_IMAGES = 50, 64
_MAX_ROWS = 80
_FONT = "system-ui, sans-serif"
_N_SHADES = 101
_SCALE_SHARE, _MIN_VALUES = 0.98, 8  # share of values within a scale; fewer values are all within
_MAX_NAME_LENGTH = 18
"""Longer names are cut beside an axis; pointing at them shows the whole."""


class LegendKey(NamedTuple):
    """What a colour and marker stand for."""

    name: str
    colour: str
    marker: str = "circle"


class ColourRamp(NamedTuple):
    """What a scale of colours stands for; `colours` are its stops from left to right."""

    low: str
    high: str
    colours: tuple[str, ...]


class CaptionedImage(NamedTuple):
    """A picture as a data URI, and what it shows."""

    uri: str
    caption: str


class AxisOption(NamedTuple):
    """One of what a reader can choose for an axis.

    Attributes
    ----------
    name
        What is shown.
    field
        The column of the glyphs' data with their places on the axis.
    order
        The ticks whose names stand at 0, 1, 2, …; empty where the axis takes the option's name.
    """

    name: str
    field: str
    order: tuple[int, ...] = ()


class AxisChoice(NamedTuple):
    """What a reader can choose for an axis, "x" or "y"; `first` of the options stands at first."""

    label: str
    axis: str
    options: tuple[AxisOption, ...]
    first: int = 0


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes
    ----------
    title
        What it shows.
    alt
        The same for those who do not see it, with numbers.
    plot
        A Bokeh plot, unless there are images.
    images
        Pictures side by side.
    note
        How to read it.
    hint
        What pointing at it shows; still pictures leave it out.
    keys, ramp
        What colours stand for.
    choices
        What the reader can choose for the axes; still pictures show the first.
    width
        Pixels at the most.
    """

    title: str
    alt: str
    plot: Any = None
    images: tuple[CaptionedImage, ...] = ()
    note: str = ""
    hint: str = ""
    keys: tuple[LegendKey, ...] = ()
    ramp: ColourRamp | None = None
    choices: tuple[AxisChoice, ...] = ()
    width: int = 520


def format_number(value: float, digits: int = 4) -> str:
    """Write a number with sensible digits."""
    if not np.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    size = int(np.floor(np.log10(abs(value))))
    if not -4 <= size < 9:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    written = f"{round(value, digits - 1 - size):,.{max(0, digits - 1 - size)}f}"
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return written.replace("-", "−")


def select_largest_rows(values: Array, most: int = _MAX_ROWS) -> NDArray[np.intp]:
    """Take the rows with the largest values, in order."""
    return np.sort(np.argsort(-np.abs(values).max(axis=1), kind="stable")[:most])


def format_shown_count(noun: str, shown: int, total: int, which: str) -> str:
    """Say that not all are shown, where that is so."""
    return "" if shown == total else f"{shown:,} of {total:,} {noun} are shown{which}. "


def make_plot(labels: tuple[str, str], height: int = 320, **options: Any) -> Any:
    """Make an empty plot as wide as its place; `labels` are those of the axes."""
    given: dict[str, Any] = {"sizing_mode": "stretch_width", "height": height, **options}
    plot = figure(tools="", toolbar_location=None, **given)
    plot.xaxis.axis_label, plot.yaxis.axis_label = labels
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font = plot.axis.major_label_text_font = _FONT
    plot.axis.axis_label_text_font_size = plot.axis.major_label_text_font_size = "12px"
    plot.axis.minor_tick_line_color = None
    plot.axis.major_tick_in = 0
    plot.min_border_right = 12
    return plot


def make_square_plot(labels: tuple[str, str], **options: Any) -> Any:
    """Make an empty plot that keeps its shape, both axes to the same scale."""
    size = {"sizing_mode": "scale_width", "width": 520, "height": 520}
    return make_plot(labels, **{**size, **options})


def add_hover(plot: Any, glyphs: Any, fields: Sequence[tuple[str, str]], **options: Any) -> None:
    """Show columns of the glyphs' data where one points at them; texts are escaped by Bokeh."""
    tips = [(name, f"@{{{column}}}") for name, column in fields]
    plot.add_tools(HoverTool(renderers=[glyphs], tooltips=tips, **options))


def label_ticks(axis: Any, names: Sequence[str], every: int = 1) -> None:
    """Put names beside 0, 1, 2, …; plain text, because Bokeh would typeset what looks like TeX."""
    axis.ticker = FixedTicker(ticks=[*range(0, len(names), every)])
    axis.major_label_overrides = {
        k: PlainText(text=_shorten_name(name)) for k, name in enumerate(names)
    }
    axis.major_tick_line_color = None


def _shorten_name(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else name[: _MAX_NAME_LENGTH - 1] + "…"


def make_palette(signed: bool) -> list[str]:
    """Give colours with opacity: blue to nothing to orange where signed, else nothing to blue."""
    if not signed:
        return [_add_opacity(NEGATIVE, k / (_N_SHADES - 1)) for k in range(_N_SHADES)]
    half = [k / (_N_SHADES // 2) for k in range(1, _N_SHADES // 2 + 1)]
    return [
        *(_add_opacity(NEGATIVE, share) for share in reversed(half)),
        _add_opacity(POSITIVE, 0.0),
        *(_add_opacity(POSITIVE, share) for share in half),
    ]


def blend_colours(first: str, last: str, share: float) -> str:
    """Give a colour between two."""
    ends = np.array([[*bytes.fromhex(colour[1:])] for colour in (first, last)])
    mixed = np.round((1 - share) * ends[0] + share * ends[1]).astype(np.uint8)
    return f"#{mixed.tobytes().hex()}"


def _add_opacity(colour: str, share: float) -> str:
    return f"{colour}{round(255 * share):02x}"


def make_colour_scale(values: Array, signed: bool) -> tuple[ColourRamp, LinearColorMapper]:
    """Give the scale of values and its legend: from zero, or to both sides of it alike.

    Where few values are much larger than all others, these end the scale.
    """
    sizes = np.abs(values)
    top = float(sizes.max(initial=0.0)) or 1.0
    few = sizes.size < _MIN_VALUES
    most = top if few else float(np.quantile(sizes, _SCALE_SHARE, method="lower"))
    beyond = 0 < most < top / 1.5
    top = most if beyond else top
    palette = make_palette(signed)
    low = -top if signed else 0.0
    stops = (palette[0], palette[len(palette) // 2], palette[-1])
    ramp = ColourRamp(
        f"{format_number(low, 2)}{' or less' if beyond and signed else ''}",
        f"{format_number(top, 2)}{' or more' if beyond else ''}",
        stops,
    )
    return ramp, LinearColorMapper(palette=palette, low=low, high=top)


AxisScale = Literal["linear", "log"]


def plot_curve(x: ArrayLike, y: Array, labels: tuple[str, str], scale: AxisScale = "linear") -> Any:
    """Draw values as joined marks; pointing at one shows it."""
    plot = make_plot(labels, height=300, y_axis_type=scale)
    data = {"x": x, "y": y, "shown": [format_number(value, 7) for value in y]}
    plot.line("x", "y", source=data, color=COLOURS[0], line_width=1.5)
    marks = plot.scatter("x", "y", source=data, color=COLOURS[0], size=5)
    add_hover(plot, marks, [(labels[0], "x"), (labels[1], "shown")], mode="vline")
    return plot
