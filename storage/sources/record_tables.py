"""Tables that libraries read as Arrow record batches: Parquet, SPSS, Stata and Excel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from storage.errors import DataError
from storage.sources.arrow_columns import is_feature_type, make_table_batch
from storage.sources.base import (
    Source,
    SourceBatch,
    check_installed,
    divide_columns,
    translate_read_errors,
)
from storage.sources.value_codes import ReadOptions

RecordReader = Callable[[str, Sequence[str], int], Iterator[pa.RecordBatch]]
"""Reads columns of a file by name, a given number of rows at a time."""


@dataclass(frozen=True, kw_only=True)
class RecordSource(Source):
    """A table that a library reads as Arrow record batches."""

    is_streaming = True
    can_select_columns = True

    read_records: RecordReader

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read ranges of rows."""
        names, first_row = [*self.feature_names, *self.column_names], 0
        records: Any = self.read_records(self.path, names, self.batch_rows)
        with translate_read_errors(self.path), closing(records):
            for rows in records:
                yield make_table_batch(self, rows, first_row, self.options)
                first_row += rows.num_rows


def make_record_source(
    path: str, options: ReadOptions, names: Sequence[str], n_rows: int | None, records: RecordReader
) -> RecordSource:
    """Return the source of a table with named columns."""
    feature_names, column_names = divide_columns(path, names, options)
    return RecordSource(
        path=path,
        options=options,
        feature_names=feature_names,
        n_rows=n_rows,
        column_names=column_names,
        read_records=records,
    )


def open_parquet(path: str, options: ReadOptions) -> RecordSource:
    """Open a `.parquet` file; this reads its footer."""
    with translate_read_errors(path), pa.parquet.ParquetFile(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
    source = make_record_source(path, options, schema.names, n_rows, _iter_parquet)
    for name in source.feature_names:
        if not is_feature_type(schema.field(name).type):
            raise DataError(
                f"{path}: column {name!r} holds {schema.field(name).type}, not booleans, numbers "
                f"or text. Use {{keep={name}}} to keep it as a per-row column."
            )
    return source


def _iter_parquet(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path, memory_map=True) as file:
        yield from file.iter_batches(n_rows, columns=[*names])


def open_statistics(path: str, options: ReadOptions) -> RecordSource:
    """Open a `.sav` or `.zsav` file of SPSS, or a `.dta` file of Stata; this reads its header.

    Values are the codes, not their labels; SPSS's user-missing values are missing.
    """
    check_installed(path, "pyreadstat", "statistics")
    with translate_read_errors(path):
        _, header = _get_statistics_reader(path)(path, metadataonly=True)
    # The number of rows is not always in the header, and may be wrong there.
    return make_record_source(path, options, header.column_names, None, _iter_statistics)


def _get_statistics_reader(path: str) -> Any:
    import pyreadstat

    return pyreadstat.read_dta if path.lower().endswith(".dta") else pyreadstat.read_sav


def _iter_statistics(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    import pyreadstat

    batches = pyreadstat.read_file_in_chunks(
        _get_statistics_reader(path), path, chunksize=n_rows, usecols=[*names], output_format="dict"
    )
    for values, _ in batches:
        columns = (pa.array(values[name], from_pandas=True) for name in names)
        # All numbers are floats here; as text, whole numbers become integers again.
        yield pa.record_batch([column.cast(pa.string()) for column in columns], names=[*names])


def open_excel(path: str, options: ReadOptions) -> RecordSource:
    """Open the only non-empty sheet of an `.xlsx` file; this reads its first row."""
    check_installed(path, "openpyxl", "excel")
    with translate_read_errors(path), closing(_iter_excel_rows(path)) as rows:
        names = [str(name).strip() if name is not None else "" for name in next(rows, ())]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise DataError(f"{path}: the first row contains no names.")
    return make_record_source(path, options, names, None, _iter_excel)


def _iter_excel_rows(path: str) -> Any:
    """Yield the cells of the sheet, row by row."""
    import openpyxl

    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheets = [sheet for sheet in book.worksheets if any(_iter_nonblank_rows(sheet))]
        if len(sheets) > 1:
            titles = ", ".join(repr(sheet.title) for sheet in sheets)
            raise DataError(
                f"{path}: several sheets have values: {titles}. Save the one to read as a separate "
                "file."
            )
        for sheet in sheets:
            yield from _iter_nonblank_rows(sheet)
    finally:
        book.close()


def _iter_nonblank_rows(sheet: Any) -> Iterator[tuple[Any, ...]]:
    rows = sheet.iter_rows(values_only=True)
    return (row for row in rows if any(cell is not None for cell in row))


def _iter_excel(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    with closing(_iter_excel_rows(path)) as rows:
        header = [str(name).strip() if name is not None else "" for name in next(rows)]
        places = [header.index(name) for name in names]
        while run := list(islice(rows, n_rows)):
            columns = ([_format_cell(row, place) for row in run] for place in places)
            yield pa.record_batch([pa.array(c, pa.string()) for c in columns], names=[*names])


def _format_cell(row: Sequence[Any], place: int) -> str | None:
    """Return a cell as a CSV file would have it; rows end with their last cell."""
    value = row[place] if place < len(row) else None
    return None if value is None else str(value)
