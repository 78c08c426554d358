"""Read known items: a table of slopes and offsets, or the artifact of a latent-trait fit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from flows.cli.options import parse_local_path
from flows.data.datasets import load_fitted_model
from flows.data.parameter_tables import read_parameter_table
from pipeline.models.known_items import KnownItems, get_fitted_items, parse_known_items
from storage.errors import DataError
from storage.sources.value_codes import MISSING_TOKENS
from storage.stores.local_path import check_local_path
from storage.stores.locations import parse_path
from storage.stores.object_path import is_url

_TABLES = (".csv", ".parquet")


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
