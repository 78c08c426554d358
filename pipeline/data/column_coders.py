"""Numbers that models need of per-row columns: those of levels, or the stored ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class ColumnCoder(NamedTuple):
    """Codes a column's stored values.

    Attributes
    ----------
    name
        The column.
    values, table
        The stored values of levels, ascending, and their numbers, (n_values, n_numbers). The last
        value never occurs; its line is that of unknown levels. Both are empty for numbers, which
        are kept.
    """

    name: str
    values: NDArray[Any] = np.empty(0)
    table: Array = np.empty((0, 1))

    def encode(self, values: NDArray[Any]) -> Array:
        """Return the numbers of stored values, (n_rows, n_numbers)."""
        if not len(self.values):
            return values.astype(np.float64)[:, None]
        places = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return self.table[np.where(self.values[places] == values, places, -1)]


def make_level_coder(
    name: str, levels: Sequence[str], table: Array, texts: Iterable[str] | None
) -> ColumnCoder:
    """Make the coder of a column with levels.

    Parameters
    ----------
    name
        The column.
    levels, table
        The levels, and the numbers of each and then of unknown ones, (n_levels + 1, n_numbers).
    texts
        The texts of the column's codes in the dataset; None if it holds whole numbers.
    """
    if texts is not None:
        places = {level: place for place, level in enumerate(levels)}
        found = np.array([*(places.get(text, -1) for text in texts), -1])
        return ColumnCoder(name, np.arange(len(found)), table[found])
    parsed = [parse_level(level) for level in levels]
    # No whole number is −inf or inf.
    numbers = np.array([*(-np.inf if number is None else number for number in parsed), np.inf])
    order = np.argsort(numbers)
    return ColumnCoder(name, numbers[order], table[order])


def parse_level(level: str) -> float | None:
    """Return the number that a text is; None if it is none."""
    try:
        return float(level)
    except ValueError:
        return None
