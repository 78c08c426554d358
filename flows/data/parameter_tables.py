"""Read the small tables that options name: known items, also those of a fit, and patterns."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

from flows.cli.options import parse_local_path
from flows.data.datasets import load_fitted_model
from pipeline.models.known_items import KnownItems, get_fitted_items, parse_known_items
from storage.errors import DataError
from storage.sources.text import read_text
from storage.sources.value_codes import MISSING_TOKENS
from storage.stores.local_path import check_is_no_pipe, check_local_path
from storage.stores.locations import parse_path
from storage.stores.object_path import is_url

_TABLES = (".csv", ".parquet")


def read_parameter_table(path: Path, parameter: str) -> dict[str, list[Any]]:
    """Read the columns of a .csv or .parquet file; values in a .csv file are texts.

    Errors name the parameter.

    Raises
    ------
    DataError
        If the file cannot be read, columns have the same name, or a line has another number of
        values than the first one.
    """
    if path.suffix not in _TABLES:
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


def read_known_items(name: str) -> KnownItems:
    """Read the file or folder of known items.

    Parameters
    ----------
    name
        Path of a .csv or .parquet file with one line per item; or of a fitted model, or of a folder
        of runs, whose latest fit is read.

    Raises
    ------
    DataError
        If the file or the artifact cannot be read.
    FitError
        If the table lacks columns, has items twice or values that are not numbers, or the artifact
        is of another model.
    """
    if not name.endswith(_TABLES) and (is_url(name) or check_local_path(Path(name)).is_dir()):
        fitted = load_fitted_model(parse_path(name))
        source = str(fitted.artifact.path.resolve())
        names = fitted.feature_names
        return get_fitted_items(fitted.model, fitted.params, names, source, fitted.digest)
    path = parse_local_path(name)
    if path.suffix not in _TABLES:
        raise DataError(
            f"{{items}}: {path} is neither a .csv or .parquet table nor the folder of a fit."
        )
    columns = read_parameter_table(path, "items")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for column in columns.keys() - {"feature"}:
        columns[column] = [None if _is_missing(value) else value for value in columns[column]]
    return parse_known_items(columns, str(path.resolve()), digest)


def _is_missing(value: Any) -> bool:
    return isinstance(value, str) and value.lower() in MISSING_TOKENS
