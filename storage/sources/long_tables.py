"""Long tables: a line names a row, a feature and its value, in any order; a row has several lines.

Lines are read once. They go to a temporary file as numbers, nine bytes per line, and from there
into a packed bit matrix on disk, so that memory holds only the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.advice import shorten_value, suggest_remedy
from storage.sources.arrow_columns import encode_column
from storage.sources.base import LONG_SUFFIXES, Source, SourceBatch, match_feature_names
from storage.sources.long_lines import LineBatch, LongColumns, read_lines
from storage.sources.spool import DuplicateRule, EntryFile, spool_codes
from storage.sources.value_codes import INVALID, MISSING, ReadOptions, ValueCodes
from storage.stores.object_path import is_url


@dataclass(frozen=True, kw_only=True)
class LongTableSource(Source):
    """One or more long tables, whose lines may refer to the same rows.

    Attributes
    ----------
    paths
        The files, in order.
    remote_tags
        Tags of the files in object stores.
    columns
        Roles of the columns.
    duplicates
        Which of several lines for the same row and feature counts; None refuses them.
    entries
        The entries of all lines.
    row_values
        Row names, in order of appearance, and other per-row columns, (n_rows,) each.
    """

    duplicate_remedy = "Remove one of the lines, or use {duplicates=last} or {duplicates=any}."

    paths: tuple[str, ...]
    remote_tags: Mapping[str, str]
    columns: LongColumns
    duplicates: DuplicateRule | None
    entries: EntryFile = field(repr=False)
    row_values: Mapping[str, NDArray[Any]] = field(repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        """All local tables."""
        return tuple(path for path in self.paths if not is_url(path))

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of all tables."""
        return {**super().tags, **self.remote_tags}

    def format_row_place(self, row: int) -> str:
        """Describe a row by its name."""
        return f"{self.path}: row {self.row_values[self.columns.row][row]!r}"

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Write the values to their places on disk, then read the rows."""
        n_rows, first = len(self.row_values[self.columns.row]), 0
        absent = 0 if self.columns.value is None else MISSING
        for batch in spool_codes(self, n_rows, self.entries, absent, self.duplicates):
            rows = slice(first, first + len(batch.X))
            first = rows.stop
            columns = {name: values[rows] for name, values in self.row_values.items()}
            yield SourceBatch(batch.X, batch.observed, columns)


class _NameIndex:
    """Numbers names in order of appearance."""

    def __init__(self, known: Sequence[str] = ()) -> None:
        self.names = pa.array(known, pa.string())

    def encode(
        self, lines: LineBatch, column: str, check: Callable[[LineBatch, str, pa.Array], None]
    ) -> NDArray[np.int32]:
        """Number the names in a batch of lines; new names are checked."""
        coded = lines.column(column)
        _refuse_nameless(lines, column, coded)
        n_known = len(self.names)
        before = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), self.names)
        unified = pa.chunked_array([before, coded]).unify_dictionaries().chunk(1)
        self.names = unified.dictionary
        if len(self.names) > n_known:
            check(lines, column, self.names[n_known:])
        numbers: NDArray[np.int32] = unified.indices.to_numpy()
        return numbers


class _RowTexts:
    """A per-row column: one text per row, equal in all lines of the row."""

    def __init__(self) -> None:
        self.values = np.zeros(0, object)
        self.is_known = np.zeros(0, np.bool_)

    def update(self, lines: LineBatch, name: str, rows: NDArray[np.int32], n_rows: int) -> None:
        """Add a batch of lines; `n_rows` rows are known now."""
        n_new = n_rows - len(self.values)
        self.values = np.append(self.values, np.full(n_new, "", object))
        self.is_known = np.append(self.is_known, np.zeros(n_new, np.bool_))
        texts = lines.column(name).fill_null("").to_numpy(zero_copy_only=False)
        distinct, first = np.unique(rows, return_index=True)
        unknown = ~self.is_known[distinct]
        self.values[distinct[unknown]] = texts[first[unknown]]
        self.is_known[distinct] = True
        differ = self.values[rows] != texts
        if differ.any():
            at = int(differ.argmax())
            raise DataError(
                f"{lines.format_place(at)}, column {name!r}: the text is {texts[at]!r}, but "
                f"{self.values[rows[at]]!r} in other lines of the same row. Do not keep the column."
            )


def open_tables(
    paths: Sequence[str],
    columns: LongColumns,
    options: ReadOptions,
    duplicates: DuplicateRule | None = None,
    features: Sequence[str] | None = None,
) -> LongTableSource:
    """Open long tables; this reads all lines.

    Parameters
    ----------
    paths
        CSV, TSV or Parquet files.
    columns
        Roles of the columns.
    options
        How values become bits, and which other columns to keep.
    duplicates
        Which of several lines for the same row and feature counts; None refuses them.
    features
        Names of the features; by default all that occur, sorted.

    Raises
    ------
    DataError
        If a file or a line cannot be used.
    """
    for value_map in options.maps:
        if value_map.columns != "*":
            raise DataError(
                f"{{map}}: a long table needs one map for all features, but there is one for "
                f"{value_map.columns}."
            )
    for path in paths:
        if not path.lower().endswith(LONG_SUFFIXES):
            raise DataError(
                f"{path}: {{long}} needs a file with the suffix {', '.join(LONG_SUFFIXES)}. "
                "Save the table as one of these."
            )
    others = tuple(name for name in options.row_columns if name != columns.row)
    rows, named_features = _NameIndex(), _NameIndex(features or ())
    facts = {name: _RowTexts() for name in others}
    entries, seen = EntryFile(), {}  # type: tuple[EntryFile, dict[str, str]]

    def check(lines: LineBatch, column: str, new: pa.Array) -> None:
        """Accept new names, except features that the dataset neither has nor leaves out."""
        if features is not None and column == columns.feature:
            _refuse_new(lines, column, match_feature_names(paths[0], new.to_pylist(), options))

    for lines in read_lines(paths, columns, others, options, seen):
        numbers = rows.encode(lines, columns.row, check)
        for name, fact in facts.items():
            fact.update(lines, name, numbers, len(rows.names))
        entries.add(
            numbers,
            named_features.encode(lines, columns.feature, check),
            _encode_values(lines, columns, options),
        )
    names = named_features.names.to_pylist()
    if features is None:
        order = sorted(range(len(names)), key=names.__getitem__)
        names = [names[k] for k in order]
        entries.renumber_columns(np.argsort(order))
    return LongTableSource(
        path=paths[0],
        options=options,
        feature_names=tuple(names),
        n_rows=len(rows.names),
        column_names=(columns.row, *others),
        paths=tuple(paths),
        remote_tags=seen,
        columns=columns,
        duplicates=duplicates if columns.value is not None else "any",
        entries=entries,
        row_values={
            columns.row: rows.names.to_numpy(zero_copy_only=False),
            **{name: fact.values for name, fact in facts.items()},
        },
    )


def _encode_values(lines: LineBatch, columns: LongColumns, options: ReadOptions) -> ValueCodes:
    if columns.value is None:
        return np.ones(lines.table.num_rows, np.uint8)
    column, value_map = lines.column(columns.value), options.maps[0] if options.maps else None
    if pa.types.is_boolean(column.type):  # the map is already applied
        return encode_column(column, ReadOptions())
    codes = encode_column(column, options, value_map)
    if codes.max(initial=0) == INVALID:
        at = int((codes == INVALID).argmax())
        around = [repr(value) for value in column[max(0, at - 5000) : at + 5000].to_pylist()]
        rule = "map" if value_map else "threshold" if options.threshold else None
        value = shorten_value(repr(column[at].as_py()))
        raise DataError(
            f"{lines.format_place(at)}, column {columns.value!r}: Expected "
            f"{value_map or '0, 1, true, false'} or a missing value, got {value}. "
            f"{suggest_remedy(columns.value, around, rule)}"
        )
    return codes


def _refuse_nameless(lines: LineBatch, name: str, coded: pa.DictionaryArray) -> None:
    """Raise `DataError` if a line has an empty name, or none."""
    empty = pc.index(coded.dictionary, "").as_py()
    if empty < 0 and not coded.null_count:
        return
    is_empty = pc.equal(coded.indices, empty).fill_null(True).to_numpy(False)
    raise DataError(
        f"{lines.format_place(int(is_empty.argmax()))}, column {name!r}: the name is missing. "
        "Fill it in, or leave the line out."
    )


def _refuse_new(lines: LineBatch, column: str, names: Sequence[str]) -> None:
    if names:
        at = pc.index(lines.column(column).dictionary_decode(), names[0]).as_py()
        raise DataError(
            f"{lines.format_place(at)}, column {column!r}: {names[0]!r} is not a feature of the "
            "dataset. Ingest all rows again with {overwrite}."
        )
