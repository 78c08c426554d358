"""What a figure is: marks between two axes, as plain data.

`flows.report.svg` draws it on the page and `flows.report.print` on paper. Lengths are pixels of the
page. Places are in the units of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import ColourRamp, ColourScale

Array = NDArray[np.float64]
HoverFacts = Sequence[tuple[str, Sequence[str]]]
"""Columns of texts that pointing at marks shows: each a name and one text per mark."""


@dataclass(frozen=True)
class PointMarks:
    """Marks at points.

    Attributes
    ----------
    x, y
        Where they lie, (n,).
    colour, marker
        Their look; a marker is one of `MARKERS`.
    size
        Diameters, (n,) or one for all.
    opacity
        Of all, 1 being opaque.
    facts
        What pointing at a mark shows.
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
    """Lines through points, each (n, 2).

    Attributes
    ----------
    points
        Of each line.
    colours
        Of each line.
    width
        Of all.
    dash
        Lengths of strokes and gaps; empty for lines without gaps.
    facts
        What pointing at a line shows.
    """

    points: Sequence[Array]
    colours: Sequence[str]
    width: float = 1.5
    dash: tuple[int, ...] = ()
    facts: HoverFacts = ()


@dataclass(frozen=True)
class HoverColumns:
    """Areas as high as the plot, invisible, around each x: what pointing anywhere there shows."""

    x: Array
    facts: HoverFacts


@dataclass(frozen=True)
class CellMarks:
    """A matrix: the value at row i and column k as a coloured cell around x = k, y = i.

    Attributes
    ----------
    values
        (n_rows, n_columns).
    scale
        Their colours.
    facts
        What pointing at a cell shows, row by row.
    """

    values: Array
    scale: ColourScale
    facts: HoverFacts


@dataclass(frozen=True)
class RasterMark:
    """A picture: values as pixels, the first row at the top, that fill the plot."""

    values: Array
    scale: ColourScale


@dataclass(frozen=True)
class TextMarks:
    """Texts in the middle of points, or right above them."""

    x: Array
    y: Array
    texts: Sequence[str]
    colours: Sequence[str]
    is_above: bool = False


@dataclass(frozen=True)
class RuleMark:
    """A straight line across the whole plot, at a place on the axis "x" or "y"."""

    axis: str
    place: float
    dash: tuple[int, ...] = ()


Mark = PointMarks | LineMarks | HoverColumns | CellMarks | RasterMark | TextMarks | RuleMark


class Tick(NamedTuple):
    """A place on an axis, and the text beside it."""

    place: float
    text: str


@dataclass(frozen=True)
class Axis:
    """A linear scale.

    Attributes
    ----------
    low, high
        Values at its left and right, or lower and upper, end. Rows of a matrix begin at the top, so
        their `low` is the larger.
    label
        What it measures.
    ticks
        Places with a text.
    has_lines
        Whether the axis and lines across the plot, at every tick, are drawn.
    """

    low: float
    high: float
    label: str = ""
    ticks: tuple[Tick, ...] = ()
    has_lines: bool = True


class AxisOption(NamedTuple):
    """Another axis that a reader can choose, with the places of the marks on it."""

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
    """Marks between two axes, the first below the others.

    Attributes
    ----------
    x, y
        The axes.
    marks
        What is drawn.
    height
        Of the whole plot, axes included; None makes the area between the axes a square.
    """

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: int | None = None


class LegendKey(NamedTuple):
    """What a colour and marker stand for."""

    name: str
    colour: str
    marker: str = "circle"


class CaptionedImage(NamedTuple):
    """A picture as a data URI, and what it shows."""

    uri: str
    caption: str


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
        Marks between axes, unless there are images.
    images
        Pictures side by side.
    note
        How to read it.
    hint
        What pointing at it shows; print leaves it out.
    keys, ramp
        What colours stand for.
    choices
        What the reader can choose for the axes; print shows the first.
    width
        Pixels at the most.
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
