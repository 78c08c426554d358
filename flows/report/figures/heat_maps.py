"""Matrices in colours, with a name for every row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage

from flows.report.figures.plots import (
    GREY,
    AxisChoice,
    AxisOption,
    add_hover,
    format_number,
    label_ticks,
    make_colour_scale,
    make_plot,
)

Array = NDArray[np.float64]

_MIN_ORDERED_ROWS = 4  # fewer need no order


def plot_heat_map(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    kinds: tuple[str, str],
    signed: bool,
    extra: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Draw a matrix with a name for every row and column.

    Parameters
    ----------
    values
        (n_rows, n_columns).
    rows, columns
        Names.
    kinds
        What a row is, and a column.
    signed
        Whether zero lies in the middle of the scale.
    extra
        Further texts to show of each cell, row by row.

    Returns
    -------
    dict
        Of a figure: the plot, its scale, the orders of its rows and its width.
    """
    n, m = values.shape
    ramp, mapper = make_colour_scale(values, signed)
    row_height = max(5, min(18, 900 // max(n, 1)))
    plot = make_plot(
        (kinds[1], ""),
        height=row_height * n + 60,
        x_range=(-0.5, m - 0.5),
        y_range=(n - 0.5, -0.5),
    )
    similar = order_by_similarity(values)
    data: dict[str, Any] = {
        "x": np.tile(np.arange(m), n),
        "similar": np.repeat(np.argsort(similar), m),
        "y": np.repeat(np.arange(n), m),
        "value": values.ravel(),
        "row": np.repeat(np.asarray(rows, object), m),
        "column": np.tile(np.asarray(columns, object), n),
        "shown": [format_number(value) for value in values.ravel()],
        **(extra or {}),
    }
    colour = {"field": "value", "transform": mapper}
    cells = plot.rect(
        "x", "y", 0.94, 0.9, source=data, fill_color=colour, line_color=None, hover_line_color=GREY
    )
    further = [(name, name) for name in extra or ()]
    add_hover(plot, cells, [(kinds[0], "row"), (kinds[1], "column"), ("value", "shown"), *further])
    label_ticks(plot.yaxis, rows, -(-14 // row_height))
    label_ticks(plot.xaxis, columns, -(-m // 26))
    plot.grid.visible = False
    plot.axis.axis_line_color = None
    width = 520 if m <= 8 else min(1060, 180 + 46 * m)
    return {
        "plot": plot,
        "ramp": ramp,
        "choices": _make_row_choices(kinds[0], similar),
        "width": width,
    }


def order_by_similarity(values: Array) -> NDArray[np.intp]:
    """Order rows so that each is like its neighbours: leaves of a tree of mean distances."""
    if len(values) < _MIN_ORDERED_ROWS:
        return np.arange(len(values))
    tree = linkage(np.nan_to_num(values), "average", optimal_ordering=True)
    order: NDArray[np.intp] = leaves_list(tree).astype(np.intp)
    return order


def _make_row_choices(kind: str, similar: NDArray[np.intp]) -> tuple[AxisChoice, ...]:
    """Let the reader order rows by similarity, where there are enough to be ordered."""
    if len(similar) < _MIN_ORDERED_ROWS:
        return ()
    given = AxisOption("as in the data", "y", tuple(range(len(similar))))
    alike = AxisOption("by similarity", "similar", tuple(similar.tolist()))
    return (AxisChoice(f"{kind} order", "y", (given, alike)),)
