"""Colours of figures, which suit light and dark pages and colour-blind readers.

Colours are of medium lightness, and zero is transparent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.text import format_number

Array = NDArray[np.float64]

# Okabe & Ito's colours; yellow is too pale for white paper, black too dark for black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MORE_COLOURS = ("#9B51E0", "#7F5539", "#D81B60", "#999933")
"""For the seventh to tenth label; as distinct from the first six as these are from each other."""
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus")
NEGATIVE, POSITIVE = COLOURS[:2]
SIGNS_TEXT = "orange is positive, blue negative"
GREY = "#8c8c8c"
_MIDDLE = "#bdbdbd"
_MISSING_COLOUR = "#808080"
_SCALE_SHARE = 0.98  # of the values that a scale covers at least
_MIN_VALUES = 8  # with fewer values, the scale covers all of them


class ColourRamp(NamedTuple):
    """Legend of a colour scale: texts at its ends, and its colour stops from left to right."""

    low: str
    high: str
    colours: tuple[str, ...]


@dataclass(frozen=True)
class ColourScale:
    """Colours for values from 0 (transparent) to `top` (opaque) and more.

    If `is_signed`, positive values are orange and negative values blue; else all are blue.
    `is_cut` states whether some values are larger than `top`; `missing_opacity` is that of the grey
    of missing values.
    """

    top: float
    is_signed: bool
    is_cut: bool = False
    missing_opacity: int = 255

    def paint(self, values: Array) -> NDArray[np.uint8]:
        """Return red, green, blue and opacity of each value; NaN is grey."""
        share = np.nan_to_num(values) / max(self.top, 1e-12)
        positive = POSITIVE if self.is_signed else NEGATIVE
        ends = np.array([split_colour(NEGATIVE), split_colour(positive)], np.uint8)
        opacity = np.round(255 * np.minimum(np.abs(share), 1)).astype(np.uint8)
        colours = np.concatenate([ends[(share > 0).astype(int)], opacity[..., None]], axis=-1)
        colours[np.isnan(values)] = (*split_colour(_MISSING_COLOUR), self.missing_opacity)
        return colours

    def make_ramp(self) -> ColourRamp:
        """Return the legend of this scale."""
        or_less, or_more = (" or less", " or more") if self.is_cut else ("", "")
        high = format_number(self.top, 2) + or_more
        if not self.is_signed:
            return ColourRamp("0", high, (f"{NEGATIVE}00", f"{NEGATIVE}ff"))
        low = format_number(-self.top, 2) + or_less
        return ColourRamp(low, high, (f"{NEGATIVE}ff", f"{POSITIVE}00", f"{POSITIVE}ff"))


def choose_scale(values: Array, is_signed: bool) -> ColourScale:
    """Choose a scale for values other than NaN; a few much larger than all others are cut off."""
    sizes = np.abs(values[~np.isnan(values)])
    top = float(sizes.max(initial=0.0)) or 1.0
    has_few = sizes.size < _MIN_VALUES
    limit = top if has_few else float(np.quantile(sizes, _SCALE_SHARE, method="lower"))
    is_cut = 0 < limit < top / 1.5
    return ColourScale(limit if is_cut else top, is_signed, is_cut)


def make_level_colours(n: int) -> list[str]:
    """Return colours of ordered levels, from blue over grey to orange."""
    shares = np.linspace(-1, 1, n).tolist()
    return [blend_colours(_MIDDLE, POSITIVE if s > 0 else NEGATIVE, abs(s)) for s in shares]


def blend_colours(first: str, last: str, share: float) -> str:
    """Mix two colours; a share of 0 is the first, 1 the last."""
    ends = np.array([split_colour(first), split_colour(last)])
    mixed = np.round((1 - share) * ends[0] + share * ends[1]).astype(np.uint8)
    return f"#{mixed.tobytes().hex()}"


def split_colour(colour: str) -> tuple[int, ...]:
    """Return red, green and blue of `#rrggbb` as integers from 0 to 255."""
    return tuple(bytes.fromhex(colour[1:7]))
