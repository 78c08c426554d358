"""Which files tables can be written to, found out before any work."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from flows.cli.options import parse_local_path
from storage.errors import DataError
from storage.stores.locations import AnyPath, check_target_file

TABLE_SUFFIXES = (".csv", ".parquet", ".xlsx")
_MAX_EXCEL_SHAPE = (1_048_575, 16_384)
"""Rows below the header, and columns, that a sheet takes."""


def has_table_suffix(output: str) -> bool:
    """Tell whether a name is that of a table, and not of a folder."""
    return output.lower().endswith(TABLE_SUFFIXES)


def check_table_file(output: str, overwrite: bool) -> Path:
    """Give the file of a table to write.

    Raises
    ------
    DataError
        If it has another ending, lies elsewhere, is there and not to be replaced, or if what
        writes it is not installed.
    """
    file = parse_local_path(output)
    if not has_table_suffix(output):
        raise DataError(
            f"--output: Expected a name that ends in {', '.join(TABLE_SUFFIXES[:-1])} or {TABLE_SUFFIXES[-1]}, "
            f"got {output!r}."
        )
    check_target_file(file, overwrite)
    if file.suffix.lower() == ".xlsx" and find_spec("xlsxwriter") is None:
        raise DataError(
            f"{file}: Expected the package XlsxWriter, got none. "
            "pip install 'latentbits[excel]', or write .csv."
        )
    return file


def check_table_size(file: AnyPath, n_rows: int, n_columns: int = 0) -> None:
    """Refuse what is too large for a sheet of Excel, where that is written.

    Raises
    ------
    DataError
        Saying how much it takes.
    """
    (most_rows, most_columns), is_excel = _MAX_EXCEL_SHAPE, file.name.lower().endswith(".xlsx")
    if is_excel and (n_rows > most_rows or n_columns > most_columns):
        raise DataError(
            f"{file}: Expected at most {most_rows:,} rows and {most_columns:,} columns, as many as "
            f"Excel takes, got {n_rows:,} and {n_columns:,}. Write .parquet or .csv."
        )
