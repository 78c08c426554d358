"""Intervals of parameters: a marker and a line per feature and component."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import make_axis, make_name_axis
from flows.report.figures.colours import COLOURS, MARKERS
from flows.report.figures.marks import (
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RuleMark,
)
from flows.report.figures.text import format_number

Array = NDArray[np.float64]

_ROW_HEIGHT, _MARK_SIZE = 14, 5
# The view covers the middle intervals: all but a tenth at either end, and 0.75 of their range more.
_TAIL_SHARE, _REACH_SHARE, _MARGIN_SHARE = 0.1, 0.75, 0.04
_SPREAD_SHARE = 0.7  # of a feature's row, over which its components are spread


def plot_intervals(
    title: str, values: Array, ends: Array, features: Sequence[str], note: str = ""
) -> Figure:
    """Plot the intervals of the leading components, as many as there are colours.

    Parameters
    ----------
    title
        Name of the parameter.
    values
        (n_features, n_components).
    ends
        Lower and upper ends, (2, n_features, n_components).
    features
        Their names.
    note
        Text on what was left out.
    """
    n, shown = len(values), min(values.shape[1], len(COLOURS))
    (low, high), n_beyond = _choose_view(values[:, :shown], ends[:, :, :shown])
    may_be_zero = bool(values.min() < 0 or values.max() > 1)  # not probabilities
    marks: list[Mark] = [RuleMark("x", 0.0)] if may_be_zero else []
    for k in range(shown):
        at = np.arange(n) + _SPREAD_SHARE * ((k + 0.5) / shown - 0.5)
        marks += _plot_component(at, values[:, k], ends[:, :, k], features, k)
    height = _ROW_HEIGHT * n * max(1, shown // 2) + 60
    plot = Plot(make_axis(low, high), make_name_axis(features, is_down=True), tuple(marks), height)
    sure = (ends[0] > 0) | (ends[1] < 0)
    if shown < values.shape[1]:
        note += f"{shown} of {values.shape[1]} components are shown. "
    note += f"{int(sure.sum())} of {sure.size} intervals exclude 0. " if may_be_zero else ""
    note += f"{n_beyond} of {shown * n} extend beyond the axis. " if n_beyond else ""
    note = note.strip()
    keys = tuple(LegendKey(f"component {k + 1}", COLOURS[k], MARKERS[k]) for k in range(shown))
    alt = f"{title} of {n} features with their 95 % intervals. {note}"
    return Figure(f"{title}: 95 % intervals", alt, plot, note=note, keys=keys)


def _choose_view(values: Array, ends: Array) -> tuple[tuple[float, float], int]:
    """Choose the ends of the axis, and count the intervals that exceed them."""
    low, high = (np.where(np.isfinite(end), end, values) for end in ends)
    near, far = np.quantile(low, _TAIL_SHARE), np.quantile(high, 1 - _TAIL_SHARE)
    reach = max(float(far - near), 1e-9)
    left, right = (
        max(low.min(), near - _REACH_SHARE * reach),
        min(high.max(), far + _REACH_SHARE * reach),
    )
    margin = _MARGIN_SHARE * (right - left)
    return (left - margin, right + margin), int(((low < left) | (high > right)).sum())


def _plot_component(
    at: Array, values: Array, ends: Array, features: Sequence[str], k: int
) -> tuple[Mark, Mark]:
    low, high = ends
    lines = np.stack([np.column_stack([low, at]), np.column_stack([high, at])], axis=1)
    facts = [
        ("feature", features),
        ("value", [format_number(value) for value in values]),
        ("interval", [format_interval(a, b) for a, b in zip(low, high, strict=True)]),
    ]
    marks = PointMarks(values, at, COLOURS[k], MARKERS[k], _MARK_SIZE, facts=facts)
    return LineMarks([*lines], [COLOURS[k]] * len(lines)), marks


def format_interval(low: float, high: float) -> str:
    """Write the ends of an interval; infinite or missing ends are unknown."""
    if not np.isfinite(low + high):
        return "not determined by the data"
    return f"{format_number(low)} to {format_number(high)}"
