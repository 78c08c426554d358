"""Tables of SPSS, Stata and Excel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from storage.errors import DataError
from storage.sources.base import check_installed, translate_read_errors
from storage.sources.parquet import RecordSource, make_record_source
from storage.sources.value_codes import ReadOptions


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

    read = pyreadstat.read_file_in_chunks(
        _get_statistics_reader(path), path, chunksize=n_rows, usecols=[*names], output_format="dict"
    )
    for values, _ in read:
        columns = (pa.array(values[name], from_pandas=True) for name in names)
        # All numbers are floats here; as text, integers are read as such.
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
    """Yield the rows of a sheet that are not blank."""
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
