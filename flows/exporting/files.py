"""Make table columns from arrays, and write tables to CSV, Parquet or Excel, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from flows.cli.options import check_table_size
from storage.errors import DataError
from storage.read_ahead import read_ahead
from storage.stores.locations import check_target_file
from storage.stores.object_store import translate_store_errors

_BATCH_BYTES = 8 << 20
_FORMULA_START = r"\A[=+\-@\t\r\n]"
_NUMBERS = r"\A([+-]?(\d+\.?\d*|\.\d+|inf|nan)([eE][+-]?\d+)?( |\z))+\z"
_MAX_EXACT_INTEGER = 10**15
"""Excel keeps 15 digits, so longer whole numbers are written as text."""


class BatchedTable(NamedTuple):
    """A table whose rows are computed batch by batch while it is written."""

    schema: pa.Schema
    n_rows: int
    batches: Iterable[pa.RecordBatch]


def collect_columns(columns: Mapping[str, Any]) -> BatchedTable:
    """Make a table from columns in memory; NaN and None become empty cells."""
    arrays = {
        name: own if isinstance(own, pa.Array) else pa.array(own, from_pandas=True)
        for name, own in columns.items()
    }
    batch = pa.record_batch(arrays)
    return BatchedTable(batch.schema, batch.num_rows, [batch])


def write_table(table: BatchedTable, target: Path, overwrite: bool) -> None:
    """Write a table to a temporary file, then rename that.

    Raises `DataError` if the file exists by now and must not be replaced, or the table is too large
    for it, and `OSError` with the file's name if the disk is full.
    """
    check_table_size(target, table.n_rows, len(table.schema))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with translate_store_errors(target), temporary.open("wb") as file:
            _WRITERS[target.suffix.lower()](table, file)
            file.flush()
            os.fsync(file.fileno())
        check_target_file(target, overwrite)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_csv(table: BatchedTable, file: IO[bytes]) -> None:
    names = _escape_formulas(pa.array(table.schema.names)).to_pylist()
    schema = pa.schema([*zip(names, table.schema.types, strict=True)])
    with pa.csv.CSVWriter(file, schema) as writer:
        for batch in read_ahead(_join_batches(table)):
            columns = map(_escape_formulas, batch.columns)
            writer.write_table(pa.Table.from_arrays([*columns], names))


def _escape_formulas(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Put an apostrophe before texts that a spreadsheet would run as a formula, but not numbers."""
    if not pa.types.is_string(column.type):
        return column
    compute = pyarrow.compute
    is_suspect = compute.match_substring_regex(column, _FORMULA_START)
    if not compute.any(is_suspect).as_py():
        return column
    is_formula = compute.and_not(is_suspect, compute.match_substring_regex(column, _NUMBERS))
    return compute.if_else(is_formula, compute.binary_join_element_wise("'", column, ""), column)


def _write_parquet(table: BatchedTable, file: IO[bytes]) -> None:
    # Dictionaries of distinct numbers would take twice the time, and more space.
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    with pa.parquet.ParquetWriter(file, table.schema, use_dictionary=texts) as writer:
        for batch in read_ahead(_join_batches(table)):
            writer.write_table(batch)


def _join_batches(table: BatchedTable) -> Iterator[pa.Table]:
    """Join small batches, as each becomes a row group in Parquet."""
    waiting: list[pa.RecordBatch] = []
    for batch in table.batches:
        waiting.append(batch)
        if sum(waiting_batch.nbytes for waiting_batch in waiting) >= _BATCH_BYTES:
            yield pa.Table.from_batches(waiting, table.schema)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting, table.schema)


def _write_excel(table: BatchedTable, file: IO[bytes]) -> None:
    import xlsxwriter

    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    try:
        with (
            TemporaryDirectory(prefix=".", dir=Path(file.name).parent) as folder,
            xlsxwriter.Workbook(file, {**options, "tmpdir": folder}) as book,
        ):
            _write_sheet(book.add_worksheet(), table)
    except xlsxwriter.exceptions.FileCreateError as error:
        raise error.args[0] from error  # the `OSError`


def _write_sheet(sheet: Any, table: BatchedTable) -> None:
    sheet.freeze_panes(1, 0)
    for row, values in enumerate(_iter_rows(table)):
        for column, value in enumerate(values):
            if value is not None and sheet.write(row, column, _convert_for_excel(value)):
                name = table.schema.names[column]
                length = len(str(value))
                raise DataError(
                    f"row {row}, column {name!r}: the text of {length:,} characters is too long "
                    "for Excel. Write .csv or .parquet."
                )


def _iter_rows(table: BatchedTable) -> Iterator[Iterable[object]]:
    """Iterate over the header and all rows, in the order in which they must be written."""
    yield table.schema.names
    for batch in table.batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _convert_for_excel(value: object) -> object:
    is_long = isinstance(value, int) and abs(value) >= _MAX_EXACT_INTEGER
    return str(value) if is_long else value


_WRITERS: dict[str, Callable[[BatchedTable, IO[bytes]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".xlsx": _write_excel,
}
