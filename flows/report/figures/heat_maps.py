"""Matrices in colours, with a name for every row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import make_name_axis
from flows.report.figures.colours import choose_scale
from flows.report.figures.marks import AxisChoice, AxisOption, CellMarks, Plot
from flows.report.figures.text import format_number

Array = NDArray[np.float64]

LARGEST_TEXT = ", those with the largest values"
MAX_COLUMNS = 50
_MAX_ROWS = 80
_MIN_ORDERED_ROWS = 4  # fewer need no order


def plot_heat_map(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    kinds: tuple[str, str],
    is_signed: bool,
    more_facts: Mapping[str, Sequence[str]] | None = None,
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
    is_signed
        Whether zero lies in the middle of the scale.
    more_facts
        Further texts to show of each cell, row by row.

    Returns
    -------
    dict
        Arguments of `Figure`: the plot, its scale, the orders of its rows and its width.
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
    x = make_name_axis(columns, kinds[1], -(-m // 26))
    return {
        "plot": Plot(x, y, (cells,), row_height * n + 60),
        "ramp": scale.make_ramp(),
        "choices": _make_row_choices(kinds[0], rows, order_by_similarity(values), every),
        "width": 520 if m <= 8 else min(1060, 180 + 46 * m),
    }


def select_largest_rows(values: Array, most: int = _MAX_ROWS) -> NDArray[np.intp]:
    """Select the rows with the largest values, in order."""
    return np.sort(np.argsort(-np.abs(values).max(axis=1), kind="stable")[:most])


def order_by_similarity(values: Array) -> NDArray[np.intp]:
    """Order rows so that each is like its neighbours: leaves of a tree of mean distances."""
    if len(values) < _MIN_ORDERED_ROWS:
        return np.arange(len(values))
    from scipy.cluster.hierarchy import leaves_list, linkage  # takes its time to be imported

    tree = linkage(np.nan_to_num(values), "average", optimal_ordering=True)
    order: NDArray[np.intp] = leaves_list(tree).astype(np.intp)
    return order


def _make_row_choices(
    kind: str, names: Sequence[str], similar: NDArray[np.intp], every: int
) -> tuple[AxisChoice, ...]:
    """Let the reader order rows by similarity, if there are enough."""
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
