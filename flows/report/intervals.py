"""Intervals of parameters: a mark and a line for each feature and component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models.annotations import Span
from numpy.typing import NDArray

from flows.report.plots import (
    COLOURS,
    GREY,
    MARKERS,
    Figure,
    Key,
    empty_plot,
    hovering,
    name_ticks,
    number,
)

Array = NDArray[np.float64]

_ROW, _MARK = 14, 5
_SPREAD = 0.7
"""Share of a feature's row over which its components lie below each other."""


def interval_figure(
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
    plot = empty_plot(("", ""), height=_ROW * n * max(1, shown // 2) + 60, y_range=(n - 0.5, -0.5))
    may_be_zero = bool(values.min() < 0 or values.max() > 1)  # unlike probabilities
    if may_be_zero:
        plot.add_layout(Span(location=0.0, dimension="height", line_color=GREY))
    for k in range(shown):
        at = np.arange(n) + _SPREAD * ((k + 0.5) / shown - 0.5)
        _draw(plot, at, values[:, k], ends[:, :, k], features, k)
    name_ticks(plot.yaxis, features)
    plot.ygrid.visible = False
    sure = (ends[0] > 0) | (ends[1] < 0)
    if shown < values.shape[1]:
        note += f"{shown} of {values.shape[1]} components are shown. "
    note += f"{int(sure.sum())} of {sure.size} intervals leave out 0." if may_be_zero else ""
    keys = tuple(Key(f"component {k + 1}", COLOURS[k], MARKERS[k]) for k in range(shown))
    alt = f"{title} of {n} features with their 95 % intervals. {note}"
    return Figure(f"{title}: 95 % intervals", alt, plot, note=note, keys=keys)


def _draw(
    plot: Any, at: Array, values: Array, ends: Array, features: Sequence[str], k: int
) -> None:
    low, high = ends
    lines = {"xs": [*np.column_stack([low, high])], "ys": [*np.column_stack([at, at])]}
    plot.multi_line("xs", "ys", source=lines, line_color=COLOURS[k], line_width=1.5)
    data = {
        "x": values,
        "y": at,
        "feature": [*features],
        "value": [number(value) for value in values],
        "interval": [written_interval(a, b) for a, b in zip(low, high, strict=True)],
    }
    marks = plot.scatter("x", "y", source=data, color=COLOURS[k], size=_MARK, marker=MARKERS[k])
    fields = [("feature", "feature"), ("value", "value"), ("interval", "interval")]
    hovering(plot, marks, fields)


def written_interval(low: float, high: float) -> str:
    """Write the ends of an interval, if the data tell them."""
    return f"{number(low)} to {number(high)}" if np.isfinite(low + high) else "not told by the data"
