"""Read the small tables that options name: known items and loading patterns."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from storage.errors import DataError
from storage.sources.text import read_text
from storage.stores.local_path import check_is_no_pipe


def read_parameter_table(path: Path, parameter: str) -> dict[str, list[Any]]:
    """Read the columns of a .csv or .parquet file; values in a .csv file are texts.

    Errors name the parameter.

    Raises
    ------
    DataError
        If the file cannot be read, columns have the same name, or a line has another number of
        values than the first one.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{{{parameter}}}: {path} is neither .csv nor .parquet.")
    check_is_no_pipe(path)
    read = _read_csv if path.suffix == ".csv" else _read_parquet
    try:
        header, columns = read(path)
    except DataError as error:
        raise DataError(f"{{{parameter}}}: {error.text}") from error
    except (OSError, ValueError, csv.Error) as error:  # Arrow's errors are one of these
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{{{parameter}}}: {path} cannot be read ({reason}).") from error
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(
            f"{{{parameter}}}: {path} has columns with the same name: {twice!r}. Rename them."
        )
    return dict(zip(header, columns, strict=True))


def _read_csv(path: Path) -> tuple[list[str], list[list[Any]]]:
    file = io.StringIO(read_text(str(path)), newline="")
    header, *lines = [line for line in csv.reader(file) if line] or [[]]
    for line in lines:
        if len(line) != len(header):
            raise DataError(
                f"{path} has {len(line)} values in the line of {line[0]!r}, but {len(header)} "
                "columns."
            )
    return header, [[line[k].strip() for line in lines] for k in range(len(header))]


def _read_parquet(path: Path) -> tuple[list[str], list[list[Any]]]:
    import pyarrow.parquet as pa_parquet

    with pa_parquet.ParquetFile(path) as file:
        table = file.read()
    return table.column_names, [column.to_pylist() for column in table.columns]
