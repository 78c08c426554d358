"""Intervals of parameters: a mark and a line for each feature and component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models.annotations import Span
from numpy.typing import NDArray

from flows.report.figures.plots import (
    COLOURS,
    GREY,
    MARKERS,
    Figure,
    LegendKey,
    add_hover,
    format_number,
    label_ticks,
    make_plot,
)

Array = NDArray[np.float64]

_ROW_HEIGHT, _MARK_SIZE = 14, 5
_TAIL_SHARE, _REACH_SHARE, _MARGIN_SHARE = (
    0.1,
    0.75,
    0.04,
)  # shares: of intervals, of their reach, of the axis
_SPREAD_SHARE = 0.7
"""Share of a feature's row over which its components lie below each other."""


def plot_intervals(
    title: str, values: Array, ends: Array, features: Sequence[str], note: str = ""
) -> Figure:
    """Draw the leading components, as many as there are colours.

    Parameters
    ----------
    title
        What the values are.
    values
        (n_features, n_components).
    ends
        Lower and upper ends, (2, n_features, n_components).
    features
        Names.
    note
        What was left out.
    """
    n, shown = len(values), min(values.shape[1], len(COLOURS))
    view, n_beyond = _choose_view(values[:, :shown], ends[:, :, :shown])
    height = _ROW_HEIGHT * n * max(1, shown // 2) + 60
    plot = make_plot(("", ""), height=height, x_range=view, y_range=(n - 0.5, -0.5))
    may_be_zero = bool(values.min() < 0 or values.max() > 1)  # unlike probabilities
    if may_be_zero:
        plot.add_layout(Span(location=0.0, dimension="height", line_color=GREY))
    for k in range(shown):
        at = np.arange(n) + _SPREAD_SHARE * ((k + 0.5) / shown - 0.5)
        _plot_component(plot, at, values[:, k], ends[:, :, k], features, k)
    label_ticks(plot.yaxis, features)
    plot.ygrid.visible = False
    sure = (ends[0] > 0) | (ends[1] < 0)
    if shown < values.shape[1]:
        note += f"{shown} of {values.shape[1]} components are shown. "
    note += f"{int(sure.sum())} of {sure.size} intervals leave out 0. " if may_be_zero else ""
    note += f"{n_beyond} of {shown * n} run beyond the picture. " if n_beyond else ""
    note = note.strip()
    keys = tuple(LegendKey(f"component {k + 1}", COLOURS[k], MARKERS[k]) for k in range(shown))
    alt = f"{title} of {n} features with their 95 % intervals. {note}"
    return Figure(f"{title}: 95 % intervals", alt, plot, note=note, keys=keys)


def _choose_view(values: Array, ends: Array) -> tuple[tuple[float, float], int]:
    """Choose what of the axis is seen, and count the intervals beyond: a few wide ones may be."""
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
    plot: Any, at: Array, values: Array, ends: Array, features: Sequence[str], k: int
) -> None:
    low, high = ends
    lines = {"xs": [*np.column_stack([low, high])], "ys": [*np.column_stack([at, at])]}
    plot.multi_line("xs", "ys", source=lines, line_color=COLOURS[k], line_width=1.5)
    data = {
        "x": values,
        "y": at,
        "feature": [*features],
        "value": [format_number(value) for value in values],
        "interval": [format_interval(a, b) for a, b in zip(low, high, strict=True)],
    }
    marks = plot.scatter(
        "x", "y", source=data, color=COLOURS[k], size=_MARK_SIZE, marker=MARKERS[k]
    )
    fields = [("feature", "feature"), ("value", "value"), ("interval", "interval")]
    add_hover(plot, marks, fields)


def format_interval(low: float, high: float) -> str:
    """Write the ends of an interval, if the data tell them."""
    return (
        f"{format_number(low)} to {format_number(high)}"
        if np.isfinite(low + high)
        else "not told by the data"
    )
