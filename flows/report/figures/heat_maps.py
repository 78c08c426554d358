"""Heat maps with a name for every row and column."""

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
_MIN_ORDERED_ROWS = 4  # fewer rows need no ordering


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
        Their names.
    kinds
        What a row is called, and a column.
    is_signed
        Whether zero is the middle of the colour scale.
    more_facts
        More texts for the tooltip of each cell, row by row.

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
    x = make_name_axis(columns, kinds[1], -(-m // 26))
    return {
        "plot": Plot(x, y, (cells,), row_height * n + 60),
        "ramp": scale.make_ramp(),
        "choices": _make_row_choices(kinds[0], rows, order_by_similarity(values), every),
        "width": 520 if m <= 8 else min(1060, 180 + 46 * m),
    }


def select_largest_rows(values: Array, most: int = _MAX_ROWS) -> NDArray[np.intp]:
    """Return the indices of the rows with the largest absolute values, in ascending order."""
    return np.sort(np.argsort(-np.abs(values).max(axis=1), kind="stable")[:most])


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
