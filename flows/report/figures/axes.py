"""Axes with round ticks, and the plot of a single curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import COLOURS
from flows.report.figures.marks import Axis, HoverColumns, LineMarks, Mark, Plot, PointMarks, Tick
from flows.report.figures.text import format_number

Array = NDArray[np.float64]

_MAX_INTERVALS = 8  # between ticks
_MARGIN_SHARE = 0.05  # of the range of values, left free at each end


def make_axis(low: float, high: float, label: str = "") -> Axis:
    """Return an axis from one value to another; equal or missing ends are moved apart."""
    if not -np.inf < low < high < np.inf:
        low, high = pad_range(np.array([low, high]))
    return Axis(low, high, label, place_ticks(low, high))


def fit_axis(values: Array, label: str = "", room: float = _MARGIN_SHARE) -> Axis:
    """Return an axis that shows all values."""
    return make_axis(*pad_range(values, room), label)


def make_count_axis(last: int, label: str) -> Axis:
    """Return an axis for the counts 1, 2, …, `last`."""
    low, high = pad_range(np.array([1.0, last]))
    return Axis(low, high, label, place_ticks(low, high, is_whole=True))


def pad_range(values: Array, room: float = _MARGIN_SHARE) -> tuple[float, float]:
    """Return the ends of an axis that shows all values, with a margin at each end."""
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
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
    """Return an axis with names at 0, 1, 2, …

    Parameters
    ----------
    names
        The names, in order.
    label
        Label of the axis.
    every
        Show only every so many names.
    is_down
        Whether the first name is at the top.
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
        written = f"{value:.4g}"
    else:
        written = f"{value:,.{decimals}f}"
        written = written.rstrip("0").rstrip(".") if decimals else written
    return written.replace("-", "−") if float(value) else "0"


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
