"""Long tables: a line names a row, a feature and its value, in any order; a row is several lines.

Lines are read twice, for the names and for the values; values go to their places by way of a packed
bit matrix in a temporary file, so that memory holds the names alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import DataError
from storage.object_path import is_url
from storage.sources.advice import advice, shown
from storage.sources.base import Batch, Source
from storage.sources.codes import BAD, MISSING, Codes, ReadOptions
from storage.sources.columns import column_codes
from storage.sources.long_lines import Columns, Lines, read_lines
from storage.sources.selection import wanted
from storage.sources.spool import Duplicates, coded_batches
from storage.sources.value_maps import ValueMap


@dataclass(frozen=True, kw_only=True)
class LongSource(Source):
    """One or more long tables, whose lines may name the same rows.

    Attributes
    ----------
    paths
        The files, in order.
    seen
        Tags of those in object stores.
    columns
        What their columns are for.
    duplicates
        Which of several lines of one row and feature counts; without it they are refused.
    row_names
        Names of the rows, in the order in which they come.
    """

    one_entry = "Remove one of the lines, or say --duplicates last or any."

    paths: tuple[str, ...]
    seen: Mapping[str, str]
    columns: Columns
    duplicates: Duplicates | None
    row_names: pa.Array = field(repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        """All tables of this machine."""
        return tuple(path for path in self.paths if not is_url(path))

    @property
    def tags(self) -> Mapping[str, str]:
        """Those of all tables."""
        return {**super().tags, **self.seen}

    def row_place(self, row: int) -> str:
        """Name a row as its lines do."""
        return f"{self.path}: row {self.row_names[row].as_py()!r}"

    def batches(self) -> Iterator[Batch]:
        """Put the values in their places on disk, then read the rows."""
        n_rows, first = len(self.row_names), 0
        facts = {name: _Facts(n_rows) for name in self.column_names[1:]}
        absent = 0 if self.columns.value is None else MISSING
        entries = self._entries(facts)
        for batch in coded_batches(self, n_rows, entries, absent, self.duplicates):
            rows = slice(first, first + len(batch.X))
            first = rows.stop
            names = self.row_names[rows].to_numpy(zero_copy_only=False)
            others = {name: fact.values[rows] for name, fact in facts.items()}
            yield Batch(batch.X, batch.observed, {self.columns.row: names, **others})

    def _entries(
        self, facts: dict[str, _Facts]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], Codes]]:
        features = pa.array(self.feature_names)
        for lines in read_lines(self.paths, self.columns, self.column_names[1:], {**self.seen}):
            rows = pc.index_in(lines.column(self.columns.row), self.row_names).to_numpy()
            places = pc.index_in(lines.column(self.columns.feature), features)
            _refuse_new(lines, self.columns, places)
            for name, fact in facts.items():
                fact.learn(lines, name, rows)
            yield rows, places.to_numpy(), self._codes(lines)

    def _codes(self, lines: Lines) -> Codes:
        if self.columns.value is None:
            return np.ones(lines.table.num_rows, np.uint8)
        column = lines.column(self.columns.value)
        codes = column_codes(column, self.options, _map_of_all(self.options))
        if codes.max(initial=0) == BAD:
            self._refuse(lines, column, int((codes == BAD).argmax()))
        return codes

    def _refuse(self, lines: Lines, column: pa.Array, at: int) -> None:
        around = column[max(0, at - 5000) : at + 5000].to_pylist()
        value_map, told = _map_of_all(self.options), [repr(value) for value in around]
        given = "--map" if value_map else "--threshold" if self.options.threshold else None
        expected = str(value_map) if value_map else "0, 1, true, false"
        raise DataError(
            f"{lines.place(at)}, column {self.columns.value!r}: Expected {expected} or a missing "
            f"value, got {shown(repr(column[at].as_py()))}. "
            f"{advice(str(self.columns.value), told, given)}"
        )


class _Facts:
    """What lines say of their rows: one text each, the same in all lines of a row."""

    def __init__(self, n_rows: int) -> None:
        self.values = np.full(n_rows, "", object)
        self.is_known = np.zeros(n_rows, np.bool_)

    def learn(self, lines: Lines, name: str, rows: NDArray[np.int64]) -> None:
        """Take a run of lines over."""
        texts = lines.column(name).fill_null("").to_numpy(zero_copy_only=False)
        distinct, first = np.unique(rows, return_index=True)
        unknown = ~self.is_known[distinct]
        self.values[distinct[unknown]] = texts[first[unknown]]
        self.is_known[distinct] = True
        differ = self.values[rows] != texts
        if differ.any():
            at = int(differ.argmax())
            raise DataError(
                f"{lines.place(at)}, column {name!r}: Expected {self.values[rows[at]]!r}, as in "
                f"other lines of the same row, got {texts[at]!r}. Do not keep the column."
            )


def open_long(
    paths: Sequence[str],
    columns: Columns,
    options: ReadOptions,
    duplicates: Duplicates | None = None,
    features: Sequence[str] | None = None,
) -> LongSource:
    """Open long tables: reads the names of all rows and features.

    Parameters
    ----------
    paths
        CSV, TSV or Parquet files.
    columns
        What their columns are for.
    options
        How values become bits, and which further columns are kept.
    duplicates
        Which of several lines of one row and feature counts; without it they are refused.
    features
        Names of the features; by default those that the lines name, sorted.

    Raises
    ------
    DataError
        If a file or a line cannot be used.
    """
    for value_map in options.maps:
        if value_map.columns != "*":
            raise DataError(
                f"--map {value_map.columns}: Expected a map of all features of a long table, got "
                "one of some."
            )
    rows, named = pa.array([], pa.string()), pa.array([], pa.string())
    others = tuple(name for name in options.row_columns if name != columns.row)
    seen: dict[str, str] = {}
    for lines in read_lines(paths, columns, others, seen):
        for name in (columns.row, columns.feature):
            _refuse_nameless(lines, name)
        rows = _added(rows, lines.column(columns.row))
        named = _added(named, lines.column(columns.feature))
    found = sorted(named.to_pylist())
    if features is not None:  # and what is left out of the lines, as it was before
        others_named = [name for name in found if name not in set(features)]
        kept = wanted(paths[0], others_named, options)
        found = [*features, *(name for name in others_named if name not in set(kept))]
    return LongSource(
        path=paths[0],
        options=options,
        feature_names=tuple(found),
        n_rows=len(rows),
        column_names=(columns.row, *others),
        paths=tuple(paths),
        seen=seen,
        columns=columns,
        duplicates=duplicates if columns.value is not None else "any",
        row_names=rows,
    )


def _added(known: pa.Array, new: pa.Array) -> pa.Array:
    """Add what is not known yet, in the order in which it comes."""
    return pc.unique(pa.chunked_array([known, pc.unique(new)]))


def _map_of_all(options: ReadOptions) -> ValueMap | None:
    return options.maps[0] if options.maps else None


def _refuse_nameless(lines: Lines, name: str) -> None:
    column = lines.column(name)
    empty = pc.or_(pc.is_null(column), pc.equal(column.fill_null(""), "")).to_numpy(False)
    if empty.any():
        raise DataError(
            f"{lines.place(int(empty.argmax()))}, column {name!r}: Expected a name, got none. "
            "Fill it in, or leave the line out."
        )


def _refuse_new(lines: Lines, columns: Columns, places: pa.Array) -> None:
    if places.null_count:
        at = int(places.is_null().to_numpy(False).argmax())
        name = lines.column(columns.feature)[at].as_py()
        raise DataError(
            f"{lines.place(at)}, column {columns.feature!r}: Expected a feature of the dataset, "
            f"got {name!r}. Ingest all rows anew with --overwrite."
        )
