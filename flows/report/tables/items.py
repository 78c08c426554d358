"""The table of parameters: a line a feature, standard errors beside what they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.exporting.items import item_columns
from flows.report.tables.words import words_of_columns
from flows.report.text import describe_omission
from storage.artifacts.artifacts import Artifact

_MOST_ROWS, _MOST_COLUMNS = 500, 10


class Cell(NamedTuple):
    """A number, what is written of it, and by what the column is sorted."""

    text: str
    beside: str
    value: float


class ItemTable(NamedTuple):
    """What the page draws.

    Attributes
    ----------
    title
        What its numbers are.
    columns
        Their names.
    rows
        Each a feature and a cell a column.
    note
        What stands beside the numbers, and what is left out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    note: str


def item_table(artifact: Artifact, correlations: NDArray[np.float64] | None) -> ItemTable | None:
    """Give the parameters of features, or else their correlations with components, if known.

    Parameters
    ----------
    artifact
        Of a fit.
    correlations
        (n_features, n_components).
    """
    found, title = item_columns(artifact), "Parameters"
    if not found and correlations is not None:
        found = {f"correlation_{k}": values for k, values in enumerate(correlations.T, 1)}
        title = "Correlations of features with components"
    named = [*_base_columns(found)]
    if not named:
        return None
    shown, names = named[:_MOST_COLUMNS], artifact.manifest["feature_names"]
    size = np.abs(np.nan_to_num(found[shown[0]].astype(np.float64)))
    at = np.sort(np.argsort(-size, kind="stable")[:_MOST_ROWS])
    digits = {column: _decimals(found[column]) for column in shown}
    rows = tuple(
        (names[i], tuple(_cell(found, column, i, digits[column]) for column in shown)) for i in at
    )
    beside = "± is the standard error. " if any(_error(c) in found for c in shown) else ""
    has_interval = any(_low(c) in found and _error(c) not in found for c in shown)
    beside += "In brackets: the 95 % interval. " if has_interval else ""
    largest = f", those of the largest {_spelled(shown[0])}"
    note = beside + describe_omission("features", len(at), len(names), largest)
    note += describe_omission("columns", len(shown), len(named), "")
    note = f"{note.strip()} {words_of_columns(shown)}"
    return ItemTable(title, tuple(map(_spelled, shown)), rows, note.strip())


def _base_columns(found: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Name columns that do not stand beside another and say more than one before."""
    beside = {named(column) for column in found for named in (_error, _low, _high)}
    kept: list[str] = []
    for column, values in found.items():
        is_new = not any(np.array_equal(values, found[other]) for other in kept)
        if is_new and column not in beside and values.dtype.kind in "fiub":
            kept.append(column)
            yield column


def _decimals(values: np.ndarray) -> int:
    """Give as many decimals as show four digits of the largest; none of whole numbers."""
    values = values[np.isfinite(values)].astype(np.float64)
    largest = abs(values).max(initial=0.0)
    if (values == np.rint(values)).all():
        return 0
    return int(np.clip(3 - np.floor(np.log10(largest)), 0, 6))


def _cell(found: Mapping[str, np.ndarray], column: str, i: int, decimals: int) -> Cell:
    value = float(found[column][i])
    return Cell(_written(value, decimals), _beside(found, column, i, decimals), value)


def _beside(found: Mapping[str, np.ndarray], column: str, i: int, decimals: int) -> str:
    if _error(column) in found:
        error = float(found[_error(column)][i])
        return f"± {_written(error, decimals)}" if np.isfinite(error) else "(not told)"
    if _low(column) in found and _high(column) in found:
        low, high = (float(found[name(column)][i]) for name in (_low, _high))
        return f"({_written(low, decimals)} to {_written(high, decimals)})"
    return ""


def _written(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace("-", "−")


def _error(column: str) -> str:
    return _with(column, "_error")


def _low(column: str) -> str:
    return _with(column, "_low")


def _high(column: str) -> str:
    return _with(column, "_high")


def _with(column: str, added: str) -> str:
    """Name the column beside one: `weights_error_1` beside `weights_1`."""
    name, _, place = column.rpartition("_")
    return f"{name}{added}_{place}" if name and place.isdigit() else f"{column}{added}"


def _spelled(column: str) -> str:
    return column.replace("s_x2", "S-X²").replace("_", " ")
