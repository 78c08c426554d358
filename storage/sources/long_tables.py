"""Long tables: a line names a row, a feature and its value, in any order; a row is several lines.

Lines are read twice, for the names and for the values; values go to their places by way of a packed
bit matrix in a temporary file, so that memory holds the names alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from storage.errors import DataError
from storage.object_path import is_url
from storage.sources.advice import advice, shown
from storage.sources.base import Batch, Source, reading
from storage.sources.codes import BAD, MISSING, Codes, ReadOptions
from storage.sources.columns import column_codes
from storage.sources.selection import wanted
from storage.sources.spool import Duplicates, coded_batches
from storage.sources.text import open_text
from storage.sources.value_maps import ValueMap

_BLOCK_BYTES = 1 << 25
_PARTS = ("row", "feature", "value")


class Columns(NamedTuple):
    """Columns of a long table.

    Attributes
    ----------
    row, feature
        Which name the row and the feature of a line.
    value
        Which has the value; without it a line says 1, and what no line names is 0.
    """

    row: str
    feature: str
    value: str | None = None


def parse_long(text: str) -> Columns:
    """Read `row=COLUMN,feature=COLUMN,value=COLUMN`.

    Raises
    ------
    DataError
        If it is not written so.
    """
    pairs = [pair.partition("=")[::2] for pair in text.split(",")]
    found = {name.strip(): column.strip() for name, column in pairs}
    if len(found) < len(pairs) or not {"row", "feature"} <= found.keys() <= {*_PARTS}:
        raise DataError(
            f"--long {text}: Expected row=COLUMN,feature=COLUMN and value=COLUMN where there are "
            "values."
        )
    if "" in found.values():
        raise DataError(f"--long {text}: Expected a column behind every =, got none.")
    return Columns(**found)


@dataclass(frozen=True, kw_only=True)
class LongSource(Source):
    """One or more long tables, whose lines may name the same rows.

    Attributes
    ----------
    paths
        The files, in order.
    columns
        What their columns are for.
    duplicates
        Which of several lines of one row and feature counts; without it they are refused.
    row_names
        Names of the rows, in the order in which they come.
    """

    one_entry = "Remove one of the lines, or say --duplicates last or any."

    paths: tuple[str, ...]
    columns: Columns
    duplicates: Duplicates | None
    row_names: pa.Array = field(repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        """All tables."""
        return self.paths

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
        for lines in _lines(self.paths, self.columns, self.column_names[1:]):
            rows = pc.index_in(lines.column(self.columns.row), self.row_names).to_numpy()
            places = pc.index_in(lines.column(self.columns.feature), features)
            _refuse_new(lines, self.columns, places)
            for name, fact in facts.items():
                fact.learn(lines, name, rows)
            yield rows, places.to_numpy(), self._codes(lines)

    def _codes(self, lines: _Lines) -> Codes:
        if self.columns.value is None:
            return np.ones(lines.table.num_rows, np.uint8)
        column = lines.column(self.columns.value)
        codes = column_codes(column, self.options, _map_of_all(self.options))
        if codes.max(initial=0) == BAD:
            self._refuse(lines, column, int((codes == BAD).argmax()))
        return codes

    def _refuse(self, lines: _Lines, column: pa.Array, at: int) -> None:
        around = column[max(0, at - 5000) : at + 5000].to_pylist()
        value_map, told = _map_of_all(self.options), [repr(value) for value in around]
        given = "--map" if value_map else "--threshold" if self.options.threshold else None
        expected = str(value_map) if value_map else "0, 1, true, false"
        raise DataError(
            f"{lines.place(at)}, column {self.columns.value!r}: Expected {expected} or a missing "
            f"value, got {shown(repr(column[at].as_py()))}. "
            f"{advice(str(self.columns.value), told, given)}"
        )


class _Lines(NamedTuple):
    """A run of lines of one file, from `first` on."""

    path: str
    first: int
    table: pa.RecordBatch

    def column(self, name: str) -> pa.Array:
        return self.table.column(name)

    def place(self, at: int) -> str:
        return f"{self.path}: row {self.first + at + 1} (data rows counted from 1)"


class _Facts:
    """What lines say of their rows: one text each, the same in all lines of a row."""

    def __init__(self, n_rows: int) -> None:
        self.values = np.full(n_rows, "", object)
        self.is_known = np.zeros(n_rows, np.bool_)

    def learn(self, lines: _Lines, name: str, rows: NDArray[np.int64]) -> None:
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
    for lines in _lines(paths, columns, others):
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
        columns=columns,
        duplicates=duplicates if columns.value is not None else "any",
        row_names=rows,
    )


def _added(known: pa.Array, new: pa.Array) -> pa.Array:
    """Add what is not known yet, in the order in which it comes."""
    return pc.unique(pa.chunked_array([known, pc.unique(new)]))


def _map_of_all(options: ReadOptions) -> ValueMap | None:
    return options.maps[0] if options.maps else None


def _lines(paths: Sequence[str], columns: Columns, others: Sequence[str]) -> Iterator[_Lines]:
    """Read the columns wanted as text, a run of lines at a time."""
    wanted = [*dict.fromkeys([name for name in columns if name is not None] + [*others])]
    for path in paths:
        first = 0
        if is_url(path):
            raise DataError(f"{path}: Expected files of this machine with --long. Download it.")
        with reading(path), _opened(path, wanted) as batches:
            for batch in batches:
                yield _Lines(path, first, batch)
                first += batch.num_rows


@contextmanager
def _opened(path: str, wanted: Sequence[str]) -> Iterator[Iterator[pa.RecordBatch]]:
    if path.lower().endswith(".parquet"):
        with pa.parquet.ParquetFile(path, memory_map=True) as file:
            _check_columns(path, wanted, file.schema_arrow.names)
            yield (_as_text(b, wanted) for b in file.iter_batches(columns=[*wanted]))
        return
    from storage.sources.tables import header_of  # which imports Arrow's CSV reader too

    delimiter, names = header_of(path)
    _check_columns(path, wanted, names)
    with open_text(path) as stream:
        yield pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(block_size=_BLOCK_BYTES),
            pa.csv.ParseOptions(delimiter=delimiter),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=[*wanted],
                strings_can_be_null=False,
            ),
        )


def _as_text(batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
    columns = (batch.column(name) for name in wanted)
    texts = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
    return pa.record_batch([text.cast(pa.string()) for text in texts], names=[*wanted])


def _check_columns(path: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(
                f"{path}: Expected a column {name!r}, got none of that name among "
                f"{', '.join(names[:8])}. Check --long and --keep."
            )


def _refuse_nameless(lines: _Lines, name: str) -> None:
    column = lines.column(name)
    empty = pc.or_(pc.is_null(column), pc.equal(column.fill_null(""), "")).to_numpy(False)
    if empty.any():
        raise DataError(
            f"{lines.place(int(empty.argmax()))}, column {name!r}: Expected a name, got none. "
            "Fill it in, or leave the line out."
        )


def _refuse_new(lines: _Lines, columns: Columns, places: pa.Array) -> None:
    if places.null_count:
        at = int(places.is_null().to_numpy(False).argmax())
        name = lines.column(columns.feature)[at].as_py()
        raise DataError(
            f"{lines.place(at)}, column {columns.feature!r}: Expected a feature of the dataset, "
            f"got {name!r}. Ingest all rows anew with --overwrite."
        )
