"""The table of parameters: a row per feature, with standard errors or intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.exporting.artifacts import read_item_columns
from flows.report.figures.text import format_shown_count
from flows.report.tables.words import explain_columns
from storage.artifacts.artifacts import Artifact

_MAX_ROWS, _MAX_COLUMNS = 500, 10


class ItemCell(NamedTuple):
    """A cell: its text, its uncertainty, and the value by which the column is sorted."""

    text: str
    beside: str
    value: float


class ItemTable(NamedTuple):
    """A table of numbers that the page can sort.

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
    rows: tuple[tuple[str, tuple[ItemCell, ...]], ...]
    note: str


def make_parameter_table(
    artifact: Artifact, correlations: NDArray[np.float64] | None
) -> ItemTable | None:
    """Return the parameters of features, or else their correlations with components, if known.

    Parameters
    ----------
    artifact
        The artifact.
    correlations
        Of features with components, (n_features, n_components).
    """
    found, title = read_item_columns(artifact), "Parameters"
    if not found and correlations is not None:
        found = {f"correlation_{k}": values for k, values in enumerate(correlations.T, 1)}
        title = "Correlations of features with components"
    named = [*_iter_base_columns(found)]
    if not named:
        return None
    shown, names = named[:_MAX_COLUMNS], artifact.manifest["feature_names"]
    size = np.abs(np.nan_to_num(found[shown[0]].astype(np.float64)))
    at = np.sort(np.argsort(-size, kind="stable")[:_MAX_ROWS])
    digits = {column: _count_decimals(found[column]) for column in shown}
    rows = tuple(
        (names[i], tuple(_make_cell(found, column, i, digits[column]) for column in shown))
        for i in at
    )
    beside = (
        "± is the standard error. " if any(_name_error_column(c) in found for c in shown) else ""
    )
    has_interval = any(
        _name_low_column(c) in found and _name_error_column(c) not in found for c in shown
    )
    beside += "The 95 % interval is in brackets. " if has_interval else ""
    largest = f", those with the largest {_format_column(shown[0])}"
    note = beside + format_shown_count("features", len(at), len(names), largest)
    note += format_shown_count("columns", len(shown), len(named), "")
    note = f"{note.strip()} {explain_columns(shown)}"
    return ItemTable(title, tuple(map(_format_column, shown)), rows, note.strip())


def _iter_base_columns(found: Mapping[str, np.ndarray]) -> Iterator[str]:
    """List columns that are neither an uncertainty of another column nor a duplicate."""
    beside = {
        named(column)
        for column in found
        for named in (_name_error_column, _name_low_column, _name_high_column)
    }
    kept: list[str] = []
    for column, values in found.items():
        is_new = not any(np.array_equal(values, found[other]) for other in kept)
        if is_new and column not in beside and values.dtype.kind in "fiub":
            kept.append(column)
            yield column


def _count_decimals(values: np.ndarray) -> int:
    """Return the decimals that show four digits of the largest value; 0 for integers."""
    values = values[np.isfinite(values)].astype(np.float64)
    largest = abs(values).max(initial=0.0)
    if (values == np.rint(values)).all():
        return 0
    return int(np.clip(3 - np.floor(np.log10(largest)), 0, 6))


def _make_cell(found: Mapping[str, np.ndarray], column: str, i: int, decimals: int) -> ItemCell:
    value = float(found[column][i])
    return ItemCell(
        _format_number(value, decimals), _format_uncertainty(found, column, i, decimals), value
    )


def _format_uncertainty(found: Mapping[str, np.ndarray], column: str, i: int, decimals: int) -> str:
    if _name_error_column(column) in found:
        error = float(found[_name_error_column(column)][i])
        return f"± {_format_number(error, decimals)}" if np.isfinite(error) else "(unknown)"
    if _name_low_column(column) in found and _name_high_column(column) in found:
        low, high = (
            float(found[name(column)][i]) for name in (_name_low_column, _name_high_column)
        )
        return f"({_format_number(low, decimals)} to {_format_number(high, decimals)})"
    return ""


def _format_number(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace("-", "−")


def _name_error_column(column: str) -> str:
    return _insert_suffix(column, "_error")


def _name_low_column(column: str) -> str:
    return _insert_suffix(column, "_low")


def _name_high_column(column: str) -> str:
    return _insert_suffix(column, "_high")


def _insert_suffix(column: str, added: str) -> str:
    """Insert a suffix before the number of a column: `weights_1` becomes `weights_error_1`."""
    name, _, place = column.rpartition("_")
    return f"{name}{added}_{place}" if name and place.isdigit() else f"{column}{added}"


def _format_column(column: str) -> str:
    return column.replace("s_x2", "S-X²").replace("_", " ")
