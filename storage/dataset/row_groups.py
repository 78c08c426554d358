"""The values of a per-row column as segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError

MAX_GROUPS = 1000
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RowGroups:
    """The different values of a column; small enough to send with every task.

    Attributes
    ----------
    column
        The per-row column.
    values
        Its whole numbers or codes of texts, in the order of their first rows.
    """

    column: str
    values: tuple[float, ...]

    def find_indices(self, values: NDArray[Any]) -> Ints:
        """Return the position in `self.values` of each value, (n_rows,)."""
        order, values_in_order = self._value_order
        return order[np.searchsorted(values_in_order, values)]

    @cached_property
    def _value_order(self) -> tuple[Ints, NDArray[Any]]:
        values = np.array(self.values)
        order = np.argsort(values)
        return order, values[order]


class GroupTable(NamedTuple):
    """The groups of all rows, and the number of rows per chunk and group, (n_chunks, n_groups)."""

    groups: RowGroups
    n_rows: Ints


def count_groups(
    place: str, column: str, is_text: bool, parts: Iterable[tuple[Ints, NDArray[Any]]]
) -> GroupTable:
    """Find the groups in a column, and count their rows in each chunk.

    Parameters
    ----------
    place, column
        The dataset and the column, for errors.
    is_text
        Whether the values are codes of texts, -1 if missing.
    parts
        Original rows and values, chunk by chunk.

    Raises
    ------
    DataError
        If a value is missing or a fraction, or more than `MAX_GROUPS` values differ.
    """
    known: dict[float, int] = {}
    counts: list[dict[int, int]] = []
    for rows, values in parts:
        _check_values(place, column, is_text, rows, values)
        distinct, sizes = np.unique(values, return_counts=True)
        new = [value for value in distinct.tolist() if value not in known]
        if len(known) + len(new) > MAX_GROUPS:
            raise DataError(
                f"{place}: column {column!r} has more than {MAX_GROUPS:,} different values, which "
                "are too many groups. Choose another column."
            )
        for value in sorted(new, key=lambda value: int(np.argmax(values == value))):
            known[value] = len(known)
        counts.append(dict(zip(map(known.__getitem__, distinct.tolist()), sizes, strict=True)))
    n_rows = np.zeros((len(counts), len(known)), np.int64)
    for key, sizes_by_group in enumerate(counts):
        n_rows[key, [*sizes_by_group]] = [*sizes_by_group.values()]
    return GroupTable(RowGroups(column, tuple(known)), n_rows)


def _check_values(place: str, column: str, is_text: bool, rows: Ints, values: NDArray[Any]) -> None:
    def refuse(is_wrong: NDArray[np.bool_], describe: Callable[[Any], str]) -> None:
        if is_wrong.any():
            k = int(np.argmax(is_wrong))
            raise DataError(f"{place}: row {rows[k] + 1} has {describe(values[k])}")

    is_missing = values < 0 if is_text else np.isnan(values)
    refuse(is_missing, lambda _: f"no value in column {column!r}. Give every row a group.")
    if values.dtype.kind == "f":
        refuse(
            ~np.isfinite(values) | (values != np.rint(values)),
            lambda value: (
                f"{value:g} in column {column!r}, which is no whole number. Choose a column of "
                "texts or whole numbers."
            ),
        )
