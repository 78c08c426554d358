"""Write tables to CSV, Parquet or Excel, batch by batch; a file appears once it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from flows.data.readahead import read_ahead
from flows.exporting.formats import check_table_size
from storage.errors import DataError
from storage.stores.locations import check_target_file

_BATCH_BYTES = 8 << 20
_MAX_EXACT_INTEGER = 10**15
"""Excel keeps 15 digits, so longer whole numbers are written as text."""


class BatchedTable(NamedTuple):
    """A table whose rows are computed while it is written.

    Attributes
    ----------
    schema
        Names and types of the columns.
    n_rows
        Number of rows.
    batches
        The rows.
    """

    schema: pa.Schema
    n_rows: int
    batches: Iterable[pa.RecordBatch]


def make_table(columns: dict[str, pa.Array]) -> BatchedTable:
    """Make a table from columns in memory."""
    batch = pa.record_batch(columns)
    return BatchedTable(batch.schema, batch.num_rows, [batch])


def write_table(table: BatchedTable, target: Path, overwrite: bool) -> None:
    """Write a table to a temporary file, then rename that.

    Raises
    ------
    DataError
        If the file exists by now and must not be replaced, or the table is too large for it.
    """
    check_table_size(target, table.n_rows, len(table.schema))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            _WRITERS[target.suffix.lower()](table, file)
            file.flush()
            os.fsync(file.fileno())
        check_target_file(target, overwrite)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_csv(table: BatchedTable, file: IO[bytes]) -> None:
    with pa.csv.CSVWriter(file, table.schema) as writer:
        for part in read_ahead(_join_batches(table)):
            writer.write_table(part)


def _write_parquet(table: BatchedTable, file: IO[bytes]) -> None:
    # Dictionaries of distinct numbers would take twice the time, and more space.
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    with pa.parquet.ParquetWriter(file, table.schema, use_dictionary=texts) as writer:
        for part in read_ahead(_join_batches(table)):
            writer.write_table(part)


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
    with xlsxwriter.Workbook(file, options) as book:
        sheet = book.add_worksheet()
        sheet.freeze_panes(1, 0)
        for row, values in enumerate(_iter_rows(table)):
            for column, value in enumerate(values):
                if value is not None and sheet.write(row, column, _convert_for_excel(value)):
                    name = table.schema.names[column]
                    raise DataError(
                        f"row {row}, column {name!r}: the text of {len(value):,} characters is too "
                        "long for Excel. Write .csv or .parquet."
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
