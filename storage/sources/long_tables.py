"""Long tables: each line names a row, a feature and a value, in any order.

Lines are read once, in batches. They go to a temporary file as numbers, 3 to 9 bytes per line, and
from there into a packed bit matrix on disk, so that memory holds only the names.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch
from storage.dataset.feature_levels import BINARY_LEVELS
from storage.errors import DataError
from storage.format.schema import MISSING_INTEGER
from storage.quoting import quote, split_quoted, unquote
from storage.read_ahead import read_ahead
from storage.sources.arrow_columns import (
    blank_missing_texts,
    check_texts,
    encode_column,
    find_dictionary_levels,
    is_feature_type,
    is_text,
    make_csv_word_options,
    read_numbers,
)
from storage.sources.base import (
    LONG_SUFFIXES,
    NewFeatures,
    Source,
    SourceUpdates,
    match_feature_names,
    select_feature_names,
    translate_read_errors,
)
from storage.sources.csv import parse_csv_block, read_csv_header
from storage.sources.derived import check_column_in_one_place, open_local_copy, parse_folder_columns
from storage.sources.name_index import (
    DifferentValueError,
    NameIndex,
    find_first_rows,
    number_values,
)
from storage.sources.ordered_levels import make_feature_maps
from storage.sources.spool import (
    DuplicateRule,
    EntryFile,
    count_row_cells,
    spool_codes,
    spool_numbers,
    spool_updates,
)
from storage.sources.text import check_block_encoding, iter_line_blocks, open_text
from storage.sources.value_codes import (
    INVALID,
    MISSING,
    ReadOptions,
    ValueCodes,
    ValueMap,
    describe_invalid_value,
    suggest_remedy,
)
from storage.stores.object_path import is_url

# Large enough to hide the cost per batch.
_BLOCK_BYTES, _BATCH_LINES = 1 << 24, 1 << 20
_MIN_BATCH_LINES = 1 << 17
"""Smaller batches are merged."""
_MAX_FEATURES = 1_000_000
"""More names of features than that are probably names of rows."""
_CONTEXT_LINES = 5000  # lines before and after an invalid value that messages count
_ROLES = ("row", "feature", "value")
T = TypeVar("T")
U = TypeVar("U")


class LongColumns(NamedTuple):
    """Columns of a long table: those that together identify the row, the feature, and the value.

    Without a column of values, every line means 1, and pairs without a line are 0.
    """

    row: tuple[str, ...]
    feature: str
    value: str | None = None

    @property
    def names(self) -> list[str]:
        """All columns."""
        return [*self.row, self.feature, *([] if self.value is None else [self.value])]


def parse_long_columns(text: str) -> LongColumns:
    """Parse `row=COLUMN,feature=COLUMN,value=COLUMN`; `row` may occur several times.

    Raises `DataError` if the text has another form.
    """
    pairs = [split_quoted(pair, "=") for pair in split_quoted(text, ",")]
    roles = [role.strip() for role, *_ in pairs]
    names = [unquote("=".join(parts)) for _, *parts in pairs]
    counts = Counter(roles)
    is_known = {"row", "feature"} <= counts.keys() <= {*_ROLES}
    if not is_known or max(counts["feature"], counts["value"]) > 1:
        raise DataError(
            f"{{long={text}}}: write row=COLUMN,feature=COLUMN and, if there are values, "
            "value=COLUMN. If several columns identify a row, write row=COLUMN for each."
        )
    if "" in names:
        raise DataError(f"{{long={text}}}: a column name is missing after an =.")
    if len({*names}) < len(names):
        raise DataError(f"{{long={text}}}: one column has two roles. Name different ones.")
    columns = dict(zip(roles, names, strict=True))
    row = tuple(name for role, name in zip(roles, names, strict=True) if role == "row")
    return LongColumns(row, columns["feature"], columns.get("value"))


class LineBatch(NamedTuple):
    """Consecutive lines of one file, starting at line `first`."""

    path: str
    first: int
    table: pa.RecordBatch

    def column(self, name: str) -> pa.Array:
        """Return the texts of a column."""
        return self.table.column(name)

    def format_place(self, line: int) -> str:
        """Describe the position of a line."""
        return f"{self.path}: row {self.first + line + 1} (data rows counted from 1)"


def read_lines(
    paths: Sequence[str],
    columns: LongColumns,
    row_columns: Sequence[str],
    options: ReadOptions,
    remote_tags: dict[str, str],
) -> Iterator[LineBatch]:
    """Yield batches of lines with the requested columns; record remote files in `remote_tags`.

    Names are dictionary-encoded, values are booleans or numbers if possible; all else is text.
    """
    requested = [*dict.fromkeys([*columns.names, *row_columns])]
    for path in paths:
        first = 0
        folder_values = {
            name: text for name, text in parse_folder_columns(path).items() if name in requested
        }
        layout = _FileColumns(
            path, columns, [name for name in requested if name not in folder_values], folder_values
        )
        with translate_read_errors(path), open_local_copy(path) as (copy, tag):
            if is_url(path):
                remote_tags[path] = tag
            if path.lower().endswith(".parquet"):
                batches = _iter_parquet_batches(copy, layout)
            else:
                batches = _iter_csv_batches(copy, layout, options)
            for batch in batches:
                yield LineBatch(path, first, layout.add_folder_values(batch))
                first += batch.num_rows


class _FileColumns(NamedTuple):
    """The requested columns of a file, some of which are in the names of its folders.

    Attributes
    ----------
    path
        The file, as given.
    columns
        The roles of the columns.
    file_columns
        The columns in the file.
    folder_values
        The columns from folder names: one text for all lines.
    """

    path: str
    columns: LongColumns
    file_columns: list[str]
    folder_values: Mapping[str, str]

    def check_header(self, names: Sequence[str]) -> None:
        """Raise `DataError` if a file lacks a column or has one twice."""
        names = [*names]
        for name in self.file_columns:
            if name not in names:
                raise DataError(
                    f"{self.path}: there is no column {name!r} among {', '.join(names[:8])}. "
                    "Check {long} and {keep}."
                )
            if names.count(name) > 1:
                raise DataError(
                    f"{self.path}: several columns have the name {name!r}. Rename all but the one "
                    "to read."
                )
        check_column_in_one_place(self.path, self.folder_values, names)

    def convert_for_role(self, name: str, column: pa.Array) -> pa.Array:
        """Dictionary-encode names of rows and features; keep numeric values; make the rest text.

        Names of rows are integers of 64 bits if possible, all other names are texts.
        """
        if name in (*self.columns.row, self.columns.feature):
            try:
                return _encode_dictionary(column, name != self.columns.feature)
            except DataError as error:
                raise DataError(f"{self.path}: column {name!r}: {error}") from None
        is_value = name == self.columns.value and is_feature_type(column.type)
        if pa.types.is_dictionary(column.type) and not is_value:
            column = column.dictionary_decode()
        return column if is_value else column.cast(pa.string())

    def convert_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert all columns for their roles."""
        names = batch.schema.names
        arrays = [
            self.convert_for_role(n, column) for n, column in zip(names, batch.columns, strict=True)
        ]
        return pa.record_batch(arrays, names=names)

    def add_folder_values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the columns from folder names."""
        for name, text in self.folder_values.items():
            column = self.convert_for_role(name, pa.repeat(pa.scalar(text), batch.num_rows))
            batch = batch.append_column(name, column)
        return batch


def _encode_dictionary(column: pa.Array, keeps_integers: bool) -> pa.DictionaryArray:
    """Dictionary-encode names in order of appearance, without unused entries."""
    if column.type in (pa.int32(), pa.int64()) and len(column) and not column.null_count:
        column = _encode_dense_integers(column)
    if not pa.types.is_dictionary(column.type):
        coded = column.dictionary_encode()  # before casting, which would make a text per line
    else:
        coded = _sort_dictionary(column)
    names = _convert_names(coded.dictionary)
    if not (keeps_integers and pa.types.is_int64(names.type)):
        names = names.cast(pa.string())
    return pa.DictionaryArray.from_arrays(coded.indices, names)


def _convert_names(names: pa.Array) -> pa.Array:
    """Turn names that are whole numbers into integers of 64 bits, and all others into texts.

    Programs store whole numbers as fractions if some are missing, which NaN stands for. The text of
    a name does not depend on the other names, which differ between batches.

    Raises `DataError` if a fraction is so large that it may stand for several whole numbers.
    """
    if pa.types.is_floating(names.type):
        return _convert_fractions(names)
    if pa.types.is_integer(names.type):
        with suppress(pa.ArrowInvalid):
            integers = names.cast(pa.int64())
            if pc.index(integers, MISSING_INTEGER).as_py() < 0:
                return integers
    return names.cast(pa.string())


def _convert_fractions(names: pa.Array) -> pa.Array:
    exact = 2 << np.finfo(names.type.to_pandas_dtype()).nmant
    values = names.cast(pa.float64())
    values = pc.if_else(pc.is_nan(values), None, values)
    if (place := pc.index(pc.greater_equal(pc.abs(values), float(exact)), True).as_py()) >= 0:
        raise DataError(
            f"{values[place].as_py():g} names a row or a feature, but fractions of "
            f"{names.type.bit_width} bits are not exact from {exact:,} on, so that different names "
            "may look the same. Store the names as integers or texts."
        )
    is_whole = pc.equal(pc.floor(values), values)
    integers = pc.if_else(is_whole, values, None).cast(pa.int64())
    if integers.null_count == values.null_count:
        return integers
    return pc.if_else(is_whole, integers.cast(pa.string()), names.cast(pa.string()))


def _sort_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Put the entries of a dictionary in order of appearance, and leave out unused ones."""
    indices, n_names = column.indices, len(column.dictionary)
    if indices.null_count or n_names > len(indices):
        in_use = indices.dictionary_encode()
        order, codes = in_use.dictionary, in_use.indices
    else:
        numbers = indices.to_numpy()
        order = _list_in_order_of_appearance(numbers, n_names)
        if np.array_equal(order, np.arange(n_names)):
            return column
        places = np.zeros(n_names, np.int32)
        places[order] = np.arange(len(order))
        codes = pa.array(places[numbers])
    return pa.DictionaryArray.from_arrays(codes, column.dictionary.take(order))


def _encode_dense_integers(column: pa.Array) -> pa.Array:
    """Dictionary-encode integers, if their range is not longer than the column."""
    numbers = column.to_numpy()
    low, high = numbers.min(), numbers.max()
    length = int(high) - int(low) + 1
    if length > len(numbers):
        return column
    distinct = pa.array(np.arange(length, dtype=numbers.dtype) + low)
    return pa.DictionaryArray.from_arrays(pa.array(numbers - low), distinct)


def _list_in_order_of_appearance(numbers: NDArray[Any], n_numbers: int) -> NDArray[Any]:
    """List the distinct numbers, which are below `n_numbers`."""
    is_known, place = np.zeros(n_numbers, np.bool_), np.empty(n_numbers, np.int32)
    parts, start, n_known, length = [numbers[:0]], 0, 0, 4 * n_numbers
    while start < len(numbers) and n_known < n_numbers:  # often, few lines have all numbers
        new = numbers[start : start + length]
        new = new[~is_known[new]]
        lines = np.arange(len(new), dtype=np.int32)
        place[new[::-1]] = lines[::-1]  # the last assignment counts
        parts.append(new[place[new] == lines])
        is_known[parts[-1]] = True
        n_known, start = n_known + len(parts[-1]), start + length
    return np.concatenate(parts)


def _iter_parquet_batches(path: str, layout: _FileColumns) -> Iterator[pa.RecordBatch]:
    """Encode batches of lines on all CPUs; texts are read as codes, as most files store them."""
    schema = pa.parquet.read_schema(path, memory_map=True)
    layout.check_header(schema.names)
    value = layout.columns.value
    if value in layout.file_columns and pa.types.is_temporal(kind := schema.field(value).type):
        raise DataError(
            f"{layout.path}: column {value!r} holds {kind}, not booleans, numbers or text. Convert "
            "it to numbers."
        )
    texts = [name for name in layout.file_columns if is_text(schema.field(name).type)]
    options = {"read_dictionary": texts, "page_checksum_verification": True}
    with pa.parquet.ParquetFile(path, memory_map=True, **options) as file:
        batches = file.iter_batches(_BATCH_LINES, columns=layout.file_columns)
        yield from map_on_all_cpus(
            lambda run: layout.convert_columns(_merge_batches(run, layout.columns.value)),
            _group_batches(batches),
        )


def _group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Group small batches: encoded ones end at each row group."""
    run: list[pa.RecordBatch] = []
    for batch in batches:
        run.append(batch)
        if sum(part.num_rows for part in run) >= _MIN_BATCH_LINES:
            yield run
            run = []
    if run:
        yield run


def _merge_batches(run: Sequence[pa.RecordBatch], value: str | None) -> pa.RecordBatch:
    """Merge batches.

    Booleans become 0 and 1; those in the column of values become words, to which maps and missing
    texts still apply.
    """
    table = pa.Table.from_batches(run)
    kinds = (pa.int8() if pa.types.is_boolean(f.type) else f.type for f in table.schema)
    names, words = table.schema.names, pa.array(["false", "true"])
    are_words = value is not None and pa.types.is_boolean(table.schema.field(value).type)
    table = table.cast(pa.schema(list(zip(names, kinds, strict=True))))
    batch = table.unify_dictionaries().combine_chunks().to_batches()[0]
    if are_words:
        column = pa.DictionaryArray.from_arrays(batch.column(value), words)
        batch = batch.set_column(names.index(value), value, column)
    return batch


def _iter_csv_batches(
    path: str, layout: _FileColumns, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    delimiter, header = read_csv_header(path, options.encoding)
    layout.check_header(header)
    file_columns = layout.file_columns
    types = dict.fromkeys(file_columns, pa.string())
    bits = types | {name: pa.bool_() for name in file_columns if name == layout.columns.value}
    is_common, value_map = options.find_common_map(())
    are_bits = options.threshold is None and is_common and _has_two_codes(value_map)
    words = make_csv_word_options(options, value_map)

    def read(types: Mapping[str, pa.DataType], block: bytes) -> pa.RecordBatch:
        table = parse_csv_block(block, header, delimiter, types, words, use_threads=False)
        return layout.convert_columns(table.combine_chunks().to_batches()[0])

    def parse(block: bytes) -> pa.RecordBatch:
        if are_bits:
            with suppress(pa.ArrowInvalid):
                return read(bits, block)
        try:
            return read(types, block)
        except pa.ArrowInvalid:
            check_block_encoding(path, options.encoding, block)
            raise

    with open_text(path, options.encoding) as stream:
        stream.readline()
        yield from map_on_all_cpus(parse, iter_line_blocks(stream, _BLOCK_BYTES))


def _has_two_codes(value_map: ValueMap | None) -> bool:
    return value_map is None or {*value_map.words.values()} == {0, 1}


def map_on_all_cpus(function: Callable[[T], U], parts: Iterable[T]) -> Iterator[U]:
    """Apply a function that releases the GIL to each part, in order, on all CPUs."""
    n_threads = pa.cpu_count()
    with ThreadPoolExecutor(n_threads) as pool:
        waiting: deque[Future[U]] = deque()
        try:
            for part in read_ahead(parts):
                waiting.append(pool.submit(function, part))
                if len(waiting) > n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class LongTableTarget(NamedTuple):
    """The dataset that lines are added to, and how.

    Attributes
    ----------
    features
        Names of its features.
    find_rows
        Returns the row of the dataset for each row of the table, -1 if there is none, given the
        columns that identify rows; see `storage.dataset.updates.find_rows`.
    new_features
        What happens to other features.
    can_update
        Whether lines may add values to rows of the dataset.
    """

    features: Sequence[str]
    find_rows: Callable[[pa.Table], NDArray[np.int64]]
    new_features: NewFeatures = "refuse"
    can_update: bool = False


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
    ignored_features
        New features that are left out.
    entries
        The entries of all lines. New rows come first, then rows of the dataset.
    rows
        The columns that identify the rows, and other per-row columns, in the order of `entries`;
        new rows are in order of appearance.
    known_rows
        Rows of the dataset that lines refer to, in increasing order.
    """

    can_be_continuous = True
    duplicate_remedy = "Remove one of the lines, or use {duplicates=last} or {duplicates=any}."

    n_rows: int
    paths: tuple[str, ...]
    remote_tags: Mapping[str, str]
    columns: LongColumns
    duplicates: DuplicateRule | None
    ignored_features: tuple[str, ...]
    entries: EntryFile = field(repr=False)
    rows: pa.Table = field(repr=False)
    known_rows: NDArray[np.int64] = field(repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        """All local tables."""
        return tuple(path for path in self.paths if not is_url(path))

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of all tables."""
        return {**super().tags, **self.remote_tags}

    def format_row_place(self, row: int) -> str:
        """Describe a row by its name: the values of the columns that identify it."""
        return f"{self.path}: row {_format_name(self.rows, self.columns, row)!r}"

    def _read_columns(self, rows: slice) -> dict[str, NDArray[Any]]:
        """Read the per-row columns of some rows."""
        part = self.rows.slice(rows.start, rows.stop - rows.start)
        return {name: part.column(name).to_numpy() for name in part.column_names}

    def _read_batches(self) -> Generator[RowBatch]:
        """Write the values of new rows to their places on disk, then read the rows."""
        absent, first = 0 if self.columns.value is None else MISSING, 0
        part, continuous = (range(self.n_rows), count_row_cells(self)), self.continuous_features
        entries = self.entries.iter_cells(*part)
        numbers = self.entries.iter_numbers(*part) if continuous else ()
        with spool_numbers(self, self.n_rows, numbers, self.duplicates) as spooled:
            for batch in spool_codes(self, self.n_rows, entries, absent, self.duplicates):
                rows = slice(first, first + len(batch))
                first = rows.stop
                columns = self._read_columns(rows)
                own = spooled[rows].copy() if continuous else None
                yield replace(batch, columns=columns, numbers=own)

    def iter_updates(self) -> Iterator[SourceUpdates]:
        """Do the same for rows of the dataset."""
        numbers = range(self.n_rows, self.n_rows + len(self.known_rows))
        source = replace(self, rows=self.rows.slice(self.n_rows))  # as the entries below
        entries = self.entries.iter_cells(numbers, count_row_cells(self))
        for rows, *cells in spool_updates(source, len(numbers), entries, self.duplicates):
            X, observed, missing = cells
            columns = source._read_columns(rows)
            yield SourceUpdates(X, observed, columns, self.known_rows[rows], missing)

    def format_known_row(self, row: int, feature: int | None = None, value: int = 0) -> str:
        """Describe the first line about a row of the dataset, and the row by its name.

        With a feature, it is the line that gives it this value.
        """
        number = self.n_rows + int(np.searchsorted(self.known_rows, row))
        code = None if feature is None else value
        name = self.format_row_place(number).removeprefix(f"{self.path}: ")
        return f"{self.entries.find_line(number, feature, code)}: {name}"


def _encode_names(lines: LineBatch, column: str) -> tuple[NDArray[np.int32], pa.Array]:
    """Check the names in a batch of lines; return the number of each, and the different names."""
    coded = lines.column(column)
    _refuse_nameless(lines, column, coded)
    if is_text(coded.dictionary.type):
        check_texts(coded, column, lines.format_place)
    numbers: NDArray[np.int32] = coded.indices.to_numpy()
    return numbers.astype(np.int32, copy=False), coded.dictionary


def _encode_rows(
    lines: LineBatch, names: Sequence[str], kept: Sequence[str], options: ReadOptions
) -> tuple[NDArray[np.int32], pa.RecordBatch]:
    """Number the rows of a batch of lines, and return the different rows.

    Raises `DataError` if lines of a row differ in a column to keep.
    """
    (numbers, distinct), *others = (_encode_names(lines, name) for name in names)
    for following, _ in others:
        pairs = pa.array(numbers.astype(np.int64) << 32 | following)
        numbers = number_values(pa.chunked_array([pairs]))
    if not (others or kept):
        return numbers, pa.record_batch({names[0]: distinct})
    first = pa.array(find_first_rows(numbers))
    rows = {name: lines.column(name).take(first).dictionary_decode() for name in names}
    for name in kept:
        texts = lines.column(name).fill_null("")
        check_texts(texts, name, lines.format_place)
        texts = blank_missing_texts(texts, name, options)
        rows[name] = texts.take(first)
        before = rows[name].take(pa.array(numbers))
        line = pc.index(pc.not_equal(texts, before), True).as_py()
        if line >= 0:
            place = lines.format_place(line)
            raise _make_difference_error(place, name, texts[line].as_py(), before[line].as_py())
    return numbers, pa.record_batch(rows)


def _make_difference_error(place: str, column: str, text: str, before: str) -> DataError:
    return DataError(
        f"{place}, column {column!r}: the text is {text!r}, but {before!r} in other lines of the "
        "row. Do not keep the column."
    )


def open_tables(
    paths: Sequence[str],
    columns: LongColumns,
    options: ReadOptions,
    duplicates: DuplicateRule | None = None,
    target: LongTableTarget | None = None,
) -> LongTableSource:
    """Open long tables; this reads all lines.

    Parameters
    ----------
    paths
        CSV, TSV or Parquet files.
    columns
        Roles of the columns.
    options
        How values become bits, which features to read, and which other columns to keep.
    duplicates
        Which of several lines for the same row and feature counts; None refuses them.
    target
        The dataset that the lines are added to, or None. Its features come first; all others are
        sorted.

    Raises
    ------
    DataError
        If a file or a line cannot be used.
    """
    for path in paths:
        if not path.lower().endswith(LONG_SUFFIXES):
            raise DataError(
                f"{path}: {{long}} needs a file with the suffix {', '.join(LONG_SUFFIXES)}. "
                "Save the table as one of these."
            )
    if columns.value is None and any(m.levels or m.is_continuous for m in options.maps):
        raise DataError(
            "{levels}, {ordinal} and {continuous} need the column with the values: "
            "{long=row=COLUMN,feature=COLUMN,value=COLUMN}."
        )
    if target is not None and target.can_update and options.has_continuous:
        raise DataError(
            "{merge_by} cannot be used, because the dataset has continuous features. Ingest all "
            "rows again with {overwrite}."
        )
    options = _add_ordered_dictionary(paths, columns, options, target)
    row_columns = tuple(name for name in options.row_columns if name not in columns.row)
    line_columns = (columns.feature, columns.value)
    if twice := next((name for name in row_columns if name in line_columns), None):
        raise DataError(
            f"{{keep}}, {{segment_by}} or {{split_by}}: column {twice!r} has the features or "
            "values of the long table, so it differs within a row. Name another column."
        )
    entries, remote_tags = EntryFile(), {}  # type: tuple[EntryFile, dict[str, str]]
    names, folder = (*columns.row, *row_columns), entries.folder
    rows = NameIndex(folder / "row names", names, len(columns.row))
    known = target.features if target else ()
    features = NameIndex(folder / "feature names", [columns.feature], known=known)
    try:
        for lines in read_lines(paths, columns, row_columns, options, remote_tags):
            row_numbers, new_rows = _encode_rows(lines, columns.row, row_columns, options)
            feature_numbers, new_names = _encode_names(lines, columns.feature)
            values = _encode_values(lines, columns, options)
            entries.add((lines.path, lines.first), row_numbers, feature_numbers, *values)
            entries.row_numbers.add(rows.add(new_rows))
            entries.column_numbers.add(features.add(pa.record_batch({columns.feature: new_names})))
            _check_number_of_features(len(features.table), columns, options, target)
        entries.row_numbers.add(rows.finish())
    except DifferentValueError as error:
        place = entries.find_added_row(error.batch, error.row)
        raise _make_difference_error(place, error.column, error.value, error.before) from None
    entries.column_numbers.add(features.finish())
    _check_number_of_features(len(features.table), columns, options, target)
    selected, ignored = _select_features(
        paths[0], columns, options, features.table.column(0).to_pylist(), entries, target
    )
    table, known_rows = _sort_rows(rows.table, columns, entries, target)
    return LongTableSource(
        path=paths[0],
        options=replace(options, features=(), drop=()),  # selected here
        feature_names=selected,
        n_rows=len(table) - len(known_rows),
        column_names=(*columns.row, *row_columns),
        name_columns=columns.row,
        paths=tuple(paths),
        remote_tags=remote_tags,
        columns=columns,
        duplicates=duplicates if columns.value is not None else "any",
        ignored_features=ignored,
        entries=entries,
        rows=table,
        known_rows=known_rows,
    )


def _check_number_of_features(
    n_features: int,
    columns: LongColumns,
    options: ReadOptions,
    target: LongTableTarget | None,
) -> None:
    """Raise `DataError` for so many features that the column may rather name the rows.

    Features that are selected or ignored explicitly may be so many.
    """
    is_ignored = target is not None and target.new_features == "ignore"
    if n_features <= _MAX_FEATURES or options.features or is_ignored:
        return
    value = "" if columns.value is None else f",value={quote(columns.value)}"
    row, feature = quote(columns.row[0]), quote(columns.feature)
    raise DataError(
        f"{{long}}: column {columns.feature!r} has more than {_MAX_FEATURES:,} different names. "
        f"Does it name the rows, and {columns.row[0]!r} the features? Then use "
        f"{{long=row={feature},feature={row}{value}}}. If it does name features, select them with "
        "{features}; {features=*} selects all."
    )


def _add_ordered_dictionary(
    paths: Sequence[str],
    columns: LongColumns,
    options: ReadOptions,
    target: LongTableTarget | None,
) -> ReadOptions:
    """Add the levels of Parquet files whose values are an ordered dictionary, for new features."""
    if columns.value is None or options.threshold is not None or options.maps:
        return options
    found: dict[str, ValueMap] = {}
    for path in paths:
        if not path.lower().endswith(".parquet"):
            continue
        with (
            translate_read_errors(path),
            open_local_copy(path) as (copy, _),
            pa.parquet.ParquetFile(copy) as file,
        ):
            names = [name for name in file.schema_arrow.names if name == columns.value]
            for known in found, *({columns.value: m} for m in {*options.feature_maps.values()}):
                own = replace(options, feature_maps=known)
                found |= find_dictionary_levels(path, file, names, own, "*")
    if not found:
        return options
    known = make_feature_maps(dict.fromkeys(target.features if target else (), BINARY_LEVELS))
    maps = tuple(found.values())
    return replace(options, maps=maps, feature_maps={**known, **options.feature_maps})


def _select_features(
    path: str,
    columns: LongColumns,
    options: ReadOptions,
    names: Sequence[str],
    entries: EntryFile,
    target: LongTableTarget | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Number the features to read, and return the names of these and of ignored features.

    Raises `DataError` if there are new features and the target refuses them.
    """
    known = tuple(target.features) if target else ()
    found = names[len(known) :]
    match = match_feature_names if target else select_feature_names
    new, ignored = match(path, sorted(found), options), ()  # type: tuple[str, ...], tuple[str, ...]
    if new and target and target.new_features == "refuse":
        first = next(name for name in found if name in {*new})
        many = f" (in all, {len(new):,} are not)" if len(new) > 1 else ""
        raise DataError(
            f"{entries.find_line(column=names.index(first))}, column {columns.feature!r}: "
            f"{first!r} is not a feature of the dataset{many}. Use {{new_features=add}} or "
            "{new_features=ignore}, or ingest all rows again with {overwrite}."
        )
    if target and target.new_features == "ignore":
        new, ignored = (), new
    numbers = {name: k for k, name in enumerate((*known, *new))}
    entries.columns = np.array([numbers.get(name, -1) for name in names], np.int64)
    return (*known, *new), ignored


def _sort_rows(
    table: pa.Table,
    columns: LongColumns,
    entries: EntryFile,
    target: LongTableTarget | None,
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Sort the rows of the table: new ones first, then those of the dataset by their row there.

    Returns the latter, too. Raises `DataError` if rows of the dataset may not be updated.
    """
    known = np.empty(0, np.int64)
    places = None if target is None else target.find_rows(table.select(columns.row))
    if places is None or not (n_known := np.count_nonzero(places >= 0)):
        return table, known
    assert target is not None
    if not target.can_update:
        row = int((places >= 0).argmax())
        many = f" (in all, {n_known:,} rows are)" if n_known > 1 else ""
        raise DataError(
            f"{entries.find_line(row)}: row {_format_name(table, columns, row)!r} is already in "
            f"the dataset{many}. Use {{merge_by={','.join(map(quote, columns.row))}}} to add "
            "values to its rows, or leave the lines out."
        )
    order = np.argsort(places, kind="stable")
    entries.rows = np.argsort(order)
    return table.take(pa.array(order)), places[order][len(order) - n_known :]


def _format_name(table: pa.Table, columns: LongColumns, row: int) -> str:
    """Return the name of a row: the values of the columns that identify it."""
    return "/".join(str(table.column(name)[row].as_py()) for name in columns.row)


class _LineValues(NamedTuple):
    """Values of lines, (n_lines,) each.

    `codes` are 0 for numbers of continuous features. `numbers` are NaN for all other values; they
    are empty if there are no continuous features.
    """

    codes: ValueCodes
    numbers: NDArray[np.float32]


def _encode_values(lines: LineBatch, columns: LongColumns, options: ReadOptions) -> _LineValues:
    numbers = np.empty(0, np.float32)
    if columns.value is None:
        return _LineValues(np.ones(lines.table.num_rows, np.uint8), numbers)
    column = lines.column(columns.value)
    is_common, common_map = options.find_common_map(())
    if pa.types.is_boolean(column.type):  # the map is already applied
        codes = encode_column(column, ReadOptions())
    elif options.has_continuous or not is_common:
        codes, numbers = _encode_by_feature(lines, column, columns, options)
    else:
        codes = encode_column(column, options, common_map)
    if codes.max(initial=0) == INVALID:
        line = int((codes == INVALID).argmax())
        features = lines.column(columns.feature)
        value_map = options.find_map(feature := features[line].as_py())
        near = slice(max(0, line - _CONTEXT_LINES), line + _CONTEXT_LINES)
        nearby = [  # other meanings of values do not belong into a proposal
            repr(value)
            for name, value in zip(
                features[near].to_pylist(), column[near].to_pylist(), strict=True
            )
            if options.find_map(name) == value_map
        ]
        problem = describe_invalid_value(repr(column[line].as_py()), options, value_map)
        raise DataError(
            f"{_format_value_place(lines, columns, [line], 0)}: {problem} "
            f"{suggest_remedy(columns.value, nearby, options, value_map, continuous=feature)}"
        )
    return _LineValues(codes, numbers)


def _encode_by_feature(
    lines: LineBatch, column: pa.Array, columns: LongColumns, options: ReadOptions
) -> _LineValues:
    """Encode the values in a column, each with the map for the feature in its line."""
    features = lines.column(columns.feature)
    maps = [options.find_map(name) for name in features.dictionary.to_pylist()]
    numbers = {value_map: number for number, value_map in enumerate(dict.fromkeys(maps))}
    number_by_line = np.array([numbers[value_map] for value_map in maps])[
        features.indices.to_numpy()
    ]
    codes = np.empty(len(column), np.uint8)
    measured = np.full(len(column) if options.has_continuous else 0, np.nan, np.float32)
    for value_map, number in numbers.items():
        own = np.flatnonzero(number_by_line == number)
        values = column.take(pa.array(own))
        if value_map is not None and value_map.is_continuous:
            format_place = partial(_format_value_place, lines, columns, own.tolist())
            measured[own] = read_numbers(values, options, format_place)
            codes[own] = np.where(np.isnan(measured[own]), MISSING, 0)
        else:
            codes[own] = encode_column(values, options, value_map)
    return _LineValues(codes, measured)


def _format_value_place(
    lines: LineBatch, columns: LongColumns, own: Sequence[int], place: int
) -> str:
    """Describe the position of a value, given its place among the lines `own`."""
    line = own[place]
    feature = lines.column(columns.feature)[line].as_py()
    return f"{lines.format_place(line)}, column {columns.value!r}, feature {feature!r}"


def _refuse_nameless(lines: LineBatch, name: str, coded: pa.DictionaryArray) -> None:
    """Raise `DataError` if a line has an empty name, or none."""
    distinct = coded.dictionary
    is_missing = pc.is_null(distinct)
    if is_text(distinct.type):
        is_missing = pc.or_(is_missing, pc.equal(distinct, "").fill_null(True))
    if not (coded.null_count or pc.any(is_missing).as_py()):
        return
    is_empty = is_missing.take(coded.indices).fill_null(True).to_numpy(zero_copy_only=False)
    raise DataError(
        f"{lines.format_place(int(is_empty.argmax()))}, column {name!r}: the name is missing. "
        "Fill it in, or leave the line out."
    )
