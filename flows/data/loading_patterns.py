"""Read loading patterns: tables of items and traits."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.errors import DataError


def read_pattern_columns(path: Path) -> Mapping[str, Sequence[Any]]:
    """Read the columns of a .csv or .parquet file; values in a .csv file are texts.

    Raises
    ------
    DataError
        If the file cannot be read, or a line has another number of values than the first one.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{{pattern}}: {path} is neither .csv nor .parquet.")
    return _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)


def _read_csv(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = [line for line in csv.reader(file) if line] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _make_error(path, error) from error
    if len(set(header)) < len(header):
        raise DataError(f"{{pattern}}: {path} has columns with the same name. Rename them.")
    for line in lines:
        if len(line) != len(header):
            raise DataError(
                f"{{pattern}}: {path} has {len(line)} values in the line of {line[0]!r}, but "
                f"{len(header)} columns."
            )
    return {name: [line[k].strip() for line in lines] for k, name in enumerate(header)}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        columns: dict[str, list[Any]] = pa_parquet.read_table(path).to_pydict()
    except (OSError, pa.ArrowInvalid) as error:
        raise _make_error(path, error) from error
    return columns


def _make_error(path: Path, error: Exception) -> DataError:
    return DataError(f"{{pattern}}: {path} cannot be read ({' '.join(str(error).split())[:200]}).")
