"""How figures stand on the page: two narrow ones side by side, and none beside nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress, groupby, product
from typing import NamedTuple

from flows.report.figures.marks import Figure

NARROW, WIDE = 520, 1060
"""Pixels of a figure that has another beside it, and of one that has not."""

_TITLE, _LINE, _LETTERS_A_LINE = 80, 24, 62  # pixels, but for letters
_MOST = 12  # figures whose places are searched

Placed = tuple[int, Figure]


class Group(NamedTuple):
    """Figures that stand together.

    Attributes
    ----------
    kind
        "pair" of two columns of narrow figures, "wide", or "alone": a square one, its words beside.
    columns
        Of figures, each with its place among all.
    """

    kind: str
    columns: tuple[tuple[Placed, ...], ...]


def arranged(figures: Sequence[Figure]) -> Iterator[Group]:
    """Group neighbours of one width; a narrow one without neighbours is widened if it can be."""
    for is_narrow, found in groupby(enumerate(figures), _is_narrow):
        group = tuple(found)
        if is_narrow and len(group) > 1:
            yield Group("pair", _in_columns(group))
            continue
        for place, figure in group:
            kind = "alone" if _is_square(figure) else "wide"
            yield Group(kind, (((place, replace(figure, width=WIDE)),),))


def _is_narrow(placed: Placed) -> bool:
    return placed[1].width <= NARROW


def _is_square(figure: Figure) -> bool:
    return figure.plot is not None and figure.plot.height is None


def _in_columns(group: Sequence[Placed]) -> tuple[tuple[Placed, ...], ...]:
    """Put figures into two columns of heights as alike as can be, the first into the first."""
    heights = [_height(figure) for _, figure in group[:_MOST]]
    whole = sum(heights)
    choices = product((0,), *[(0, 1)] * (len(heights) - 1))
    right = min(choices, key=lambda chosen: abs(whole - 2 * sum(compress(heights, chosen))))
    right += tuple(k % 2 for k in range(len(group) - len(right)))
    left = tuple(1 - chosen for chosen in right)
    return tuple(compress(group, left)), tuple(compress(group, right))


def _height(figure: Figure) -> int:
    """Estimate the pixels of a figure and its words."""
    lines = 1 + len(figure.note + figure.hint) // _LETTERS_A_LINE
    around = sum(map(bool, (figure.keys, figure.ramp, figure.choices)))
    height = (figure.plot and figure.plot.height) or figure.width
    return height + _TITLE + _LINE * (lines + around)
