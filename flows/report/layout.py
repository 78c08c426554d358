"""Layout of figures on the page: narrow ones in two columns, without holes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress, groupby, product
from typing import NamedTuple

from flows.report.figures.marks import Figure

NARROW_WIDTH, FULL_WIDTH = 520, 1060
"""Pixels of a figure in one of two columns, and of one that fills the page."""

_TITLE_HEIGHT, _LINE_HEIGHT = 80, 24  # pixels
_LETTERS_PER_LINE = 62
_MAX_SEARCHED = 12  # figures for which all arrangements are tried

PlacedFigure = tuple[int, Figure]


class FigureGroup(NamedTuple):
    """Figures that are laid out together.

    Attributes
    ----------
    kind
        "pair" for two columns of narrow figures, "wide" for one that fills the page, or "alone" for
        a square one with its text beside it.
    columns
        Columns of figures, each with its index in the report.
    """

    kind: str
    columns: tuple[tuple[PlacedFigure, ...], ...]


def arrange_figures(figures: Sequence[Figure]) -> Iterator[FigureGroup]:
    """Group consecutive figures of the same width; a single narrow one is widened."""
    for is_narrow, found in groupby(enumerate(figures), _is_narrow):
        group = tuple(found)
        if is_narrow and len(group) > 1:
            yield FigureGroup("pair", _split_into_columns(group))
            continue
        for place, figure in group:
            kind = "alone" if _is_square(figure) else "wide"
            yield FigureGroup(kind, (((place, replace(figure, width=FULL_WIDTH)),),))


def _is_narrow(placed: PlacedFigure) -> bool:
    return placed[1].width <= NARROW_WIDTH


def _is_square(figure: Figure) -> bool:
    return figure.plot is not None and figure.plot.height is None


def _split_into_columns(group: Sequence[PlacedFigure]) -> tuple[tuple[PlacedFigure, ...], ...]:
    """Split figures into two columns of similar height; the first figure is in the first."""
    heights = [_estimate_height(figure) for _, figure in group[:_MAX_SEARCHED]]
    whole = sum(heights)
    choices = product((0,), *[(0, 1)] * (len(heights) - 1))
    right = min(choices, key=lambda chosen: abs(whole - 2 * sum(compress(heights, chosen))))
    right += tuple(k % 2 for k in range(len(group) - len(right)))
    left = tuple(1 - chosen for chosen in right)
    return tuple(compress(group, left)), tuple(compress(group, right))


def _estimate_height(figure: Figure) -> int:
    """Estimate the height of a figure with its text, in pixels."""
    lines = 1 + len(figure.note + figure.hint) // _LETTERS_PER_LINE
    around = sum(map(bool, (figure.keys, figure.ramp, figure.choices)))
    height = (figure.plot and figure.plot.height) or figure.width
    return height + _TITLE_HEIGHT + _LINE_HEIGHT * (lines + around)
