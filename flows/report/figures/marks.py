"""Figures as plain data: marks between two axes, legends and texts.

`flows.report.svg` renders plots for the page, `flows.report.pictures` for print. Lengths are pixels
of the page; coordinates are in the units of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import ColourRamp, ColourScale

Array = NDArray[np.float64]
PictureFormat = Literal["png", "svg", "pdf"]
HoverFacts = Sequence[tuple[str, Sequence[str]]]
"""Contents of tooltips: columns with a name and one text per mark."""


@dataclass(frozen=True)
class PointMarks:
    """Markers at points (x, y), each (n,).

    `marker` is one of `MARKERS`, `size` has the diameters, (n,), or one for all, and `opacity` is
    from 0 to 1 (opaque).
    """

    x: Array
    y: Array
    colour: str
    marker: str = "circle"
    size: float | Array = 5.0
    opacity: float = 1.0
    facts: HoverFacts = ()


@dataclass(frozen=True)
class LineMarks:
    """Lines through points, (n, 2) each, with a colour per line.

    There is a width per line or one for all. `dash` has the lengths of dashes and gaps; it is empty
    for solid lines.
    """

    points: Sequence[Array]
    colours: Sequence[str]
    width: float | Array = 1.5
    dash: tuple[int, ...] = ()
    facts: HoverFacts = ()


@dataclass(frozen=True)
class AreaMark:
    """The area between two curves over x, (n,) each; NaN leaves a gap."""

    x: Array
    low: Array
    high: Array
    colour: str
    opacity: float = 0.18


@dataclass(frozen=True)
class BarMarks:
    """Horizontal bars from `left` to `right`, centred on `y`, (n,) each, with a colour per bar.

    `height` is in units of the axis y.
    """

    left: Array
    right: Array
    y: Array
    colours: Sequence[str]
    height: float = 0.7
    facts: HoverFacts = ()


@dataclass(frozen=True)
class HoverColumns:
    """Tooltips for invisible columns around each x, as high as the plot."""

    x: Array
    facts: HoverFacts


@dataclass(frozen=True)
class CellMarks:
    """A matrix of coloured cells; the cell of row i and column k is centred on x = k, y = i.

    `facts` are the tooltips of the cells, row by row.
    """

    values: Array
    scale: ColourScale
    facts: HoverFacts


@dataclass(frozen=True)
class RasterMark:
    """An image that fills the plot: values as pixels, with the first row at the top."""

    values: Array
    scale: ColourScale


@dataclass(frozen=True)
class TextMarks:
    """Texts on points ("centre"), just above them or to the right of them.

    None as `colours` takes the colour of the page's text.
    """

    x: Array
    y: Array
    texts: Sequence[str]
    colours: Sequence[str] | None = None
    side: Literal["centre", "above", "right"] = "centre"


@dataclass(frozen=True)
class RuleMark:
    """A line across the whole plot at a value of the axis "x" or "y"."""

    axis: str
    place: float
    dash: tuple[int, ...] = ()


Mark = (
    PointMarks
    | LineMarks
    | AreaMark
    | BarMarks
    | HoverColumns
    | CellMarks
    | RasterMark
    | TextMarks
    | RuleMark
)


class Tick(NamedTuple):
    """A tick: a value on an axis and its text."""

    place: float
    text: str


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` (left or bottom), which may be the larger value, to `high`.

    `has_lines` states whether to draw the axis and a grid line at every tick.
    """

    low: float
    high: float
    label: str = ""
    ticks: tuple[Tick, ...] = ()
    has_lines: bool = True


class AxisOption(NamedTuple):
    """An axis that the reader can choose, with the coordinates of each mark on it."""

    name: str
    axis: Axis
    places: tuple[Array, ...]


class AxisChoice(NamedTuple):
    """Options for the axis "x" or "y"; `first` is the one that is drawn at first."""

    label: str
    axis: str
    options: tuple[AxisOption, ...]
    first: int = 0


@dataclass(frozen=True)
class Plot:
    """Marks between two axes; later marks cover earlier ones.

    `height` includes the axes; None makes the area between the axes a square.
    """

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: int | None = None


class LegendKey(NamedTuple):
    """An entry of a legend: a name with its colour and marker."""

    name: str
    colour: str
    marker: str = "circle"


class CaptionedImage(NamedTuple):
    """An image as a data URI, with the text below it."""

    uri: str
    caption: str


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes
    ----------
    title, alt
        Title, which names the file of a picture too and is the same for all models, and description
        for screen readers.
    plot, images
        The plot, or images side by side.
    note, hint
        Explanation below the figure, and how to interact with it; print omits the hint.
    keys, ramp
        Legends of colours.
    choices
        Choices for the axes; print shows the first option.
    width
        Maximum width.
    heading
        The title in the words of the model's field, if they differ.
    """

    title: str
    alt: str
    plot: Plot | None = None
    images: tuple[CaptionedImage, ...] = ()
    note: str = ""
    hint: str = ""
    keys: tuple[LegendKey, ...] = ()
    ramp: ColourRamp | None = None
    choices: tuple[AxisChoice, ...] = ()
    width: int = 520
    heading: str = ""
