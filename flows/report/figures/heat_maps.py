"""Matrices in colours, with a name for every row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage

from flows.report.figures.plots import (
    GREY,
    Choice,
    Option,
    empty_plot,
    hovering,
    name_ticks,
    number,
    ramp_of,
)

Array = NDArray[np.float64]

_FEW_ROWS = 4  # fewer need no order


def heat_map(
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
    ramp, mapper = ramp_of(values, signed)
    row_height = max(5, min(18, 900 // max(n, 1)))
    plot = empty_plot(
        (kinds[1], ""),
        height=row_height * n + 60,
        x_range=(-0.5, m - 0.5),
        y_range=(n - 0.5, -0.5),
    )
    similar = similar_order(values)
    data: dict[str, Any] = {
        "x": np.tile(np.arange(m), n),
        "similar": np.repeat(np.argsort(similar), m),
        "y": np.repeat(np.arange(n), m),
        "value": values.ravel(),
        "row": np.repeat(np.asarray(rows, object), m),
        "column": np.tile(np.asarray(columns, object), n),
        "shown": [number(value) for value in values.ravel()],
        **(extra or {}),
    }
    colour = {"field": "value", "transform": mapper}
    cells = plot.rect(
        "x", "y", 0.94, 0.9, source=data, fill_color=colour, line_color=None, hover_line_color=GREY
    )
    further = [(name, name) for name in extra or ()]
    hovering(plot, cells, [(kinds[0], "row"), (kinds[1], "column"), ("value", "shown"), *further])
    name_ticks(plot.yaxis, rows, -(-14 // row_height))
    name_ticks(plot.xaxis, columns, -(-m // 26))
    plot.grid.visible = False
    plot.axis.axis_line_color = None
    width = 520 if m <= 8 else min(1060, 180 + 46 * m)
    return {"plot": plot, "ramp": ramp, "choices": _orders(kinds[0], similar), "width": width}


def similar_order(values: Array) -> NDArray[np.intp]:
    """Order rows so that each is like its neighbours: leaves of a tree of mean distances."""
    if len(values) < _FEW_ROWS:
        return np.arange(len(values))
    tree = linkage(np.nan_to_num(values), "average", optimal_ordering=True)
    order: NDArray[np.intp] = leaves_list(tree).astype(np.intp)
    return order


def _orders(kind: str, similar: NDArray[np.intp]) -> tuple[Choice, ...]:
    """Let the reader order rows by similarity, where there are enough to be ordered."""
    if len(similar) < _FEW_ROWS:
        return ()
    given = Option("as in the data", "y", tuple(range(len(similar))))
    alike = Option("by similarity", "similar", tuple(similar.tolist()))
    return (Choice(f"{kind} order", "y", (given, alike)),)
