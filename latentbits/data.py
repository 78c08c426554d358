"""Datasets from arrays, data frames and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from pipeline.data.datasets import Dataset, make_memory_dataset
from pipeline.data.tables import (
    BinaryTable,
    make_binarization_rule,
    make_binary_table,
    make_table_from_frame,
)


def from_numpy(
    X: ArrayLike,
    feature_names: Sequence[str] | None = None,
    *,
    segment: ArrayLike | None = None,
    keep: Mapping[str, ArrayLike] | None = None,
    threshold: float | None = None,
    map: Mapping[Any, int | None] | None = None,
    path: Any = None,
) -> Dataset:
    """Create a dataset from an array.

    Parameters
    ----------
    X
        Values 0, 1, True, False or missing (NaN, None or masked), (n_rows, n_features).
    feature_names
        Names of the features, (n_features,); None names them f0, f1, ….
    segment
        Name of each row's segment, (n_rows,).
    keep
        Per-row columns by name, (n_rows,) each; the column `split` defines the splits.
    threshold
        Numbers greater than this become 1, all others 0.
    map
        Meaning of other values, such as `{"yea": 1, "nay": 0, "absent": None}`; None is missing.
    path
        Folder to write the dataset to, for `open_dataset`; None keeps it in memory.

    Raises
    ------
    ValueError
        If a value is not binary, a name or a length does not fit, or the path exists.
    """
    rule = make_binarization_rule(threshold, map)
    return _make_dataset(make_binary_table(X, feature_names, segment, keep, rule), path)


def from_dataframe(
    df: Any,
    *,
    segment: str | None = None,
    keep: Sequence[str] = (),
    features: Sequence[str] | None = None,
    threshold: float | None = None,
    map: Mapping[Any, int | None] | None = None,
    path: Any = None,
) -> Dataset:
    """Create a dataset from a data frame of pandas, Polars and others, or from an xarray object.

    Parameters
    ----------
    df
        A data frame, whose feature columns hold 0, 1, True, False or missing values; an xarray
        DataArray (row, feature); or an xarray Dataset with `values` and optionally `observed`, as
        returned by `to_xarray`.
    segment
        Name of the column (variable in xarray) with the segment of each row.
    keep
        Names of per-row columns to keep; the column `split` defines the splits.
    features
        Names of the feature columns; None takes all columns other than those above.
    threshold, map, path
        As for `from_numpy`.

    Raises
    ------
    ValueError
        If a value is not binary, a column is missing, or the path exists.
    """
    rule = make_binarization_rule(threshold, map)
    return _make_dataset(make_table_from_frame(df, segment, keep, features, rule), path)


def _make_dataset(table: BinaryTable, path: Any) -> Dataset:
    if path is None:
        return make_memory_dataset(table)
    from storage import open_dataset  # Zarr is slow to import
    from storage.dataset.writer import create_dataset
    from storage.errors import DataError
    from storage.stores.locations import parse_path

    if parse_path(path).exists():
        raise DataError(f"{path} already exists. Choose another path.")
    names, columns = table.feature_names, tuple(table.columns)
    with create_dataset(path, names, columns=columns, expected_rows=len(table.X)) as writer:
        writer.add(table, table.segments)
    return open_dataset(path)
