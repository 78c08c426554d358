"""Axes with round ticks, the plot of a single curve, and heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import COLOURS, choose_scale
from flows.report.figures.marks import (
    Axis,
    AxisChoice,
    AxisOption,
    CellMarks,
    HoverColumns,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    Tick,
)
from flows.report.figures.text import format_number, shorten_texts

Array = NDArray[np.float64]

_MAX_INTERVALS = 8  # between ticks
_ROUNDING_SHARE = 1e-12  # of the values
_MARGIN_SHARE = 0.05  # of the range of values, left free at each end
LARGEST_TEXT = ", those with the largest values"
MAX_COLUMNS = 50
_MAX_ROWS = 80
_LETTER_WIDTH, _NAME_WIDTH = 6.5, 60  # pixels of a heat map: a letter, the names of rows
_MIN_ORDERED_ROWS = 4  # fewer rows need no ordering


def make_axis(low: float, high: float, label: str = "") -> Axis:
    """Return an axis from one value to another; equal or missing ends are moved apart."""
    if not -np.inf < low < high < np.inf:
        low, high = pad_range(np.array([low, high]))
    return Axis(low, high, label, place_ticks(low, high))


def fit_axis(values: Array, label: str = "", room: float = _MARGIN_SHARE) -> Axis:
    """Return an axis that shows all values."""
    return make_axis(*pad_range(values, room), label)


def fit_log_axis(values: Array, label: str = "") -> Axis:
    """Return an axis for log₁₀ of positive values, whose ticks name the values themselves."""
    low, high = pad_range(np.log10(values[values > 0]))
    for digits in ((1, 2, 5), (1,)):
        powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
        ticks = [
            Tick(power + float(np.log10(digit)), format_number(digit * 10.0**power, 1))
            for power in powers
            for digit in digits
        ]
        shown = [tick for tick in ticks if low <= tick.place <= high]
        if len(shown) <= _MAX_INTERVALS + 1:
            break
    return Axis(low, high, label, tuple(shown[:: -(-len(shown) // _MAX_INTERVALS)]))


def make_count_axis(last: int, label: str) -> Axis:
    """Return an axis for the counts 1, 2, …, `last`."""
    low, high = pad_range(np.array([1.0, last]))
    return Axis(low, high, label, place_ticks(low, high, is_whole=True))


def pad_range(values: Array, room: float = _MARGIN_SHARE) -> tuple[float, float]:
    """Return the ends of an axis that shows all values, with a margin at each end."""
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if high - low <= _ROUNDING_SHARE * max(abs(low), abs(high)):  # equal but for rounding
        low = high = (low + high) / 2
    margin = room * (high - low) or 0.5
    return low - margin, high + margin


def fit_square_axes(
    points: Array, labels: tuple[str, str], room: float = _MARGIN_SHARE
) -> tuple[Axis, Axis]:
    """Return two axes with the same scale that show all points, (n, 2)."""
    ends = np.array([pad_range(column, room) for column in points.T])
    half = float(np.ptp(ends, axis=1).max()) / 2
    x, y = (
        make_axis(middle - half, middle + half, label)
        for middle, label in zip(ends.mean(axis=1).tolist(), labels, strict=True)
    )
    return x, y


def make_name_axis(
    names: Sequence[str], label: str = "", every: int = 1, is_down: bool = False
) -> Axis:
    """Return an axis with names at 0, 1, 2, …; `is_down` puts the first name at the top.

    With `every=3`, only every third name is shown.
    """
    ends = (-0.5, len(names) - 0.5)
    low, high = ends[::-1] if is_down else ends
    ticks = tuple(Tick(float(k), names[k]) for k in range(0, len(names), every))
    return Axis(low, high, label, ticks, has_lines=False)


def place_ticks(low: float, high: float, is_whole: bool = False) -> tuple[Tick, ...]:
    """Choose at most nine round numbers in a range; integers only if `is_whole`."""
    least = max((high - low) / _MAX_INTERVALS, 1.0 if is_whole else 0.0)
    power = 10.0 ** np.floor(np.log10(least))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return tuple(Tick(k * step, _format_tick(k * step, step)) for k in range(first, last + 1))


def _format_tick(value: float, step: float) -> str:
    """Write a multiple of `step` with as many decimals as `step` needs."""
    decimals = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    if decimals > 6 or step >= 1e9:
        # As many digits as tell neighbouring ticks apart.
        text = f"{value:.{max(4, int(np.log10(max(abs(value) / step, 1.0))) + 2)}g}"
    else:
        text = f"{value:,.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if decimals else text
    return text.replace("-", "−") if float(value) else "0"


def plot_curve(values: Array, labels: tuple[str, str], *marks: Mark) -> Plot:
    """Plot values over 1, 2, … as a line with markers, on top of other marks."""
    x = np.arange(1.0, len(values) + 1)
    facts = [
        (labels[0], [str(k) for k in range(1, len(values) + 1)]),
        (labels[1], [format_number(value, 7) for value in values]),
    ]
    curve = LineMarks([np.column_stack([x, values])], [COLOURS[0]])
    points = PointMarks(x, values, COLOURS[0])
    return Plot(
        make_count_axis(len(values), labels[0]),
        fit_axis(values, labels[1]),
        (*marks, curve, points, HoverColumns(x, facts)),
        height=300,
    )


def plot_heat_map(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    kinds: tuple[str, str],
    is_signed: bool,
    more_facts: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Plot a matrix as coloured cells.

    Parameters
    ----------
    values
        (n_rows, n_columns).
    rows, columns
        Names of the rows and columns.
    kinds
        Nouns for a row and for a column, such as feature and component.
    is_signed
        Whether zero is the middle of the colour scale.
    more_facts
        Further texts for the tooltip of each cell, row by row, by their name.

    Returns
    -------
    dict
        Keyword arguments for `Figure`: `plot`, `ramp`, `choices` and `width`.
    """
    n, m = values.shape
    scale = choose_scale(values, is_signed)
    row_height = max(5, min(18, 900 // max(n, 1)))
    facts = [
        (kinds[0], np.repeat(np.asarray(rows, object), m).tolist()),
        (kinds[1], np.tile(np.asarray(columns, object), n).tolist()),
        ("value", [format_number(value) for value in values.ravel()]),
        *(more_facts or {}).items(),
    ]
    every = -(-14 // row_height)
    y = make_name_axis(rows, "", every, is_down=True)
    cells = CellMarks(values, scale, facts)
    width = 520 if m <= 8 else min(1060, 180 + 46 * m)
    step = -(-m // 26)
    room = int((width - _NAME_WIDTH) * step / max(m, 1) / _LETTER_WIDTH)
    x = make_name_axis(shorten_texts(columns, max(room, 2)), kinds[1], step)
    return {
        "plot": Plot(x, y, (cells,), row_height * n + 60),
        "ramp": scale.make_ramp(),
        "choices": _make_row_choices(kinds[0], rows, order_by_similarity(values), every),
        "width": width,
    }


def select_largest_rows(values: Array, n_rows: int = _MAX_ROWS) -> NDArray[np.intp]:
    """Return the indices of the rows with the largest absolute values, in ascending order."""
    return np.sort(np.argsort(-np.abs(values).max(axis=1), kind="stable")[:n_rows])


def order_by_similarity(values: Array) -> NDArray[np.intp]:
    """Order rows so that neighbours are similar: the leaves of an average-linkage tree."""
    if len(values) < _MIN_ORDERED_ROWS:
        return np.arange(len(values))
    from scipy.cluster.hierarchy import leaves_list, linkage  # slow to import

    tree = linkage(np.nan_to_num(values), "average", optimal_ordering=True)
    order: NDArray[np.intp] = leaves_list(tree).astype(np.intp)
    return order


def _make_row_choices(
    kind: str, names: Sequence[str], similar: NDArray[np.intp], every: int
) -> tuple[AxisChoice, ...]:
    """Offer to order rows by similarity, if there are enough rows."""
    if len(names) < _MIN_ORDERED_ROWS:
        return ()
    orders = {"as in the data": np.arange(len(names)), "by similarity": similar}
    options = (
        AxisOption(
            title,
            make_name_axis([names[i] for i in order], "", every, is_down=True),
            (np.argsort(order).astype(np.float64),),
        )
        for title, order in orders.items()
    )
    return (AxisChoice(f"{kind} order", "y", tuple(options)),)
