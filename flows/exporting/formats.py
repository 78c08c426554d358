"""Check the file of a table before any work."""

from __future__ import annotations

from pathlib import Path

from flows.cli.options import parse_local_path
from storage.errors import DataError
from storage.extras import check_installed
from storage.stores.locations import AnyPath, check_target_file

TABLE_SUFFIXES = (".csv", ".parquet", ".xlsx")
_MAX_EXCEL_SHAPE = (1_048_575, 16_384)
"""Maximum rows below the header, and columns, of a sheet."""


def has_table_suffix(output: str) -> bool:
    """Return whether a name ends like a table file."""
    return output.lower().endswith(TABLE_SUFFIXES)


def check_table_file(output: str, overwrite: bool) -> Path:
    """Check that a table can be written to a file, and return its path."""
    file = parse_local_path(output)
    if not has_table_suffix(output):
        raise DataError(
            f"{{output}} is {output!r}, but must end in {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}."
        )
    check_target_file(file, overwrite)
    if file.suffix.lower() == ".xlsx":
        check_installed(str(file), "xlsxwriter")
    return file


def check_table_size(file: AnyPath, n_rows: int, n_columns: int = 0) -> None:
    """Check that a table is not too large for an Excel sheet, if it is written to one."""
    (max_rows, max_columns), is_excel = _MAX_EXCEL_SHAPE, file.name.lower().endswith(".xlsx")
    if is_excel and (n_rows > max_rows or n_columns > max_columns):
        raise DataError(
            f"{file}: Excel takes at most {max_rows:,} rows and {max_columns:,} columns, but there "
            f"are {n_rows:,} and {n_columns:,}. Write .parquet or .csv."
        )
