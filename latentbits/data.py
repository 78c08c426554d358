"""Datasets from arrays, data frames and files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from warnings import warn

from narwhals.dependencies import is_into_dataframe
from numpy.typing import ArrayLike

from pipeline.data.batches import is_lazy_frame, list_columns
from pipeline.data.datasets import Dataset, MemoryDataset, make_memory_dataset
from pipeline.data.features import BINARY_LEVELS, Feature, HasFeatures, join_levels, name_planes
from pipeline.data.tables import (
    BinaryTable,
    LevelsByFeature,
    NominalFeatures,
    TableBatches,
    convert_array,
    convert_frame,
    make_binarization_rule,
    wrap_frame,
)
from pipeline.errors import FitError, spell_parameters

if TYPE_CHECKING:
    from storage import BinaryDataset
    from storage.stores.locations import AnyPath


def make_dataset(
    data: Any, features: Sequence[Feature] = (), columns: Sequence[str] | None = None
) -> Dataset:
    """Make a dataset of anything that `fit` takes.

    `features` are those of a fit: the values of features with these names are matched with their
    levels. They also name the features of an array that has as many, or has a column per plane. A
    data frame may have other columns, which are left out. `columns` of a data frame are the only
    ones that are read.
    """
    if hasattr(type(data), "make_reader"):  # not of an object that has every attribute
        dataset: Dataset = data
        return dataset
    if isinstance(data, str | Path):
        return open_dataset(data)
    xarray = sys.modules.get("xarray")
    is_labelled = xarray is not None and isinstance(data, xarray.DataArray | xarray.Dataset)
    if is_labelled or is_lazy_frame(data) or is_into_dataframe(data):
        if features and {f.name for f in features} <= {*list_frame_columns(data)}:
            columns = [f.name for f in features]
        tables = convert_frame(data, None, (), columns)
        _check_orders(tables, features)
    else:
        tables = convert_array(handle_absent_chunks(data))
        names, planes = tuple(f.name for f in features), name_planes(features)
        if tables.rows.n_features in (len(names), len(planes)):
            is_per_plane = tables.rows.n_features != len(names)
            tables = replace(tables, feature_names=planes if is_per_plane else names)
            features = () if is_per_plane else features
    levels = {f.name: f.levels for f in features if f.levels != BINARY_LEVELS}
    nominal = frozenset(f.name for f in features if f.is_nominal)
    nominal |= tables.nominal - {f.name for f in features}
    named = replace(tables, levels={**tables.levels, **levels}, nominal=nominal)
    return make_memory_dataset(named)


def list_frame_columns(data: Any) -> list[str]:
    """Return the names of the columns of a data frame; none of anything else."""
    if is_lazy_frame(data):
        return list_columns(data)
    return list_columns(wrap_frame(data, "")) if is_into_dataframe(data) else []


def _check_orders(tables: TableBatches, features: Sequence[Feature]) -> None:
    """Raise `FitError` if columns declare another order of categories than the features of a fit.

    Categories that only one of them has are left out: an error about their values says more.
    """
    for name, fitted, is_nominal in features if tables.levels else ():
        order = () if is_nominal or name in tables.nominal else tables.levels.get(name, ())
        if [c for c in order if c in fitted] != [c for c in fitted if c in order]:
            raise FitError(
                f"Column {name!r} has the categories {join_levels(order)}, but feature {name!r} "
                f"of the fit has the levels {join_levels(fitted)}. Give them in the same order."
            )


def open_dataset(path: str | AnyPath) -> BinaryDataset:
    """Open a dataset.

    Parameters
    ----------
    path
        Its folder or URL, or an example: `example:digits`, `example:ring:rows=100000,features=256`.
        Examples are generated on first use and kept in the user's cache folder.

    Raises
    ------
    ValueError
        If there is no complete dataset, or it is from another version.
    """
    if isinstance(path, str) and path.startswith("example:"):
        from flows.data.datasets import open_dataset_or_example  # imports what reads files

        return open_dataset_or_example(path)
    from storage import open_dataset as open_stored  # Zarr is slow to import

    return open_stored(path)


def from_numpy(
    X: Any,
    feature_names: Sequence[str] | None = None,
    *,
    segment: ArrayLike | None = None,
    keep: Mapping[str, ArrayLike] | None = None,
    threshold: float | None = None,
    map: Mapping[Any, int | None] | None = None,
    levels: LevelsByFeature = None,
    continuous: Sequence[str] = (),
    nominal: NominalFeatures = (),
    absent_chunks: Literal["refuse", "fill", "missing"] | None = None,
    path: Any = None,
) -> Dataset:
    """Create a dataset from an array: dense, sparse (SciPy), or of Dask, Zarr or HDF5.

    The array is read in batches of rows (whole chunks, if it has any) and packed to one bit per
    value, so that one larger than the memory can be converted.

    Parameters
    ----------
    X
        Values 0, 1, True, False or missing (NaN, None or masked), (n_rows, n_features); with
        `levels`, these instead of 0 and 1.
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
    levels
        Ordered values of all features, from the lowest to the highest, such as `["no", "perhaps",
        "yes"]` or `range(5)`; or a dictionary of those of some features, and the others are binary.
        2 to 16 levels are possible.
    continuous
        Names of the features whose values are numbers, such as `["age"]`. They are stored as
        32-bit floats; infinite values are refused.
    nominal
        Features whose values are categories without an order: a dictionary such as `{"media":
        ["tv", "radio", "web"]}`, or names, such as `["media"]`, whose categories are the values
        that occur. 2 to 16 categories are possible.
    absent_chunks
        Chunks that an array of Zarr or HDF5 does not store: `"refuse"` raises an error, `"fill"`
        reads the fill value, and `"missing"` takes their cells as missing; None reads the fill
        value and warns.
    path
        Folder to write the dataset to, for `open_dataset`; None keeps it in memory.

    Raises
    ------
    ValueError
        If a value is neither binary nor a level, a name or a length does not fit, or the path
        exists.
    """
    rule = make_binarization_rule(threshold, map)
    kinds: dict[str, Any] = {"levels": levels, "continuous": continuous, "nominal": nominal}
    X = handle_absent_chunks(X, absent_chunks)
    tables = convert_array(X, feature_names, segment, keep, rule, **kinds)
    return _make_dataset(tables, path)


def from_dataframe(
    df: Any,
    *,
    segment: str | None = None,
    keep: Sequence[str] = (),
    features: Sequence[str] | None = None,
    threshold: float | None = None,
    map: Mapping[Any, int | None] | None = None,
    levels: LevelsByFeature = None,
    continuous: Sequence[str] = (),
    nominal: NominalFeatures = (),
    path: Any = None,
) -> Dataset:
    """Create a dataset from a data frame of pandas, Polars and others, or from an xarray object.

    Lazy frames of Polars are read in batches of rows.

    Parameters
    ----------
    df
        A data frame or lazy frame, whose feature columns hold 0, 1, True, False or missing values,
        or are categoricals of pandas, Polars or Arrow with up to 16 categories, which are nominal
        unless they have an order, as ordered categoricals and Enums (Polars) do; an xarray
        DataArray (row, feature); or an xarray Dataset with `values` and optionally `observed`, as
        returned by `to_xarray`.
    segment
        Name of the column (variable in xarray) with the segment of each row.
    keep
        Names of per-row columns to keep; the column `split` defines the splits.
    features
        Names of the feature columns; None takes all columns other than those above.
    threshold, map, levels, continuous, nominal, path
        As for `from_numpy`. `levels` take the place of a column's own categories. With `threshold`
        or `map`, all columns become binary.

    Raises
    ------
    ValueError
        If a value is neither binary nor a level, a column is missing, or the path exists.
    """
    rule = make_binarization_rule(threshold, map)
    kinds: dict[str, Any] = {"levels": levels, "continuous": continuous, "nominal": nominal}
    tables = convert_frame(df, segment, keep, features, rule, **kinds)
    return _make_dataset(tables, path)


def handle_absent_chunks(X: Any, rule: Any = None) -> Any:
    """Return an array as it is to be read, and warn if chunks of it are not stored."""
    zarr, h5py = sys.modules.get("zarr"), sys.modules.get("h5py")
    is_zarr = zarr is not None and isinstance(X, zarr.Array)
    # A closed dataset is false.
    if not (is_zarr or (h5py is not None and isinstance(X, h5py.Dataset) and X)):
        return X
    from storage.sources.zarr_arrays import handle_absent_chunks as handle

    array, text = handle("X", X, rule)
    if text is not None:
        warn(spell_parameters(text), stacklevel=3)
    return array


def _make_dataset(tables: TableBatches, path: Any) -> Dataset:
    if path is None:
        return make_memory_dataset(tables)
    columns, n_rows = tuple(tables.columns), tables.rows.n_rows
    return _write_tables(path, tables, tables, columns, n_rows)


def write_dataset(dataset: MemoryDataset, path: str | AnyPath) -> BinaryDataset:
    """Write a dataset that is in memory to disk."""
    columns = tuple(dataset.chunks[0].columns)
    tables, n_rows = dataset.iter_tables(), dataset.n_rows
    return _write_tables(path, tables, dataset, columns, n_rows)


def _write_tables(
    path: str | AnyPath,
    tables: Iterable[BinaryTable],
    about: HasFeatures,
    columns: Sequence[str],
    n_rows: int,
) -> BinaryDataset:
    from storage import open_dataset as open_stored  # Zarr is slow to import
    from storage.dataset.writer import create_dataset
    from storage.errors import DataError
    from storage.stores.locations import DATASET_FORMAT, is_free_target, parse_path

    if not is_free_target(parse_path(path), DATASET_FORMAT):
        raise DataError(f"{path} already exists. Choose another path.")
    with create_dataset(
        path,
        about.feature_names,
        feature_levels=about.feature_levels,
        nominal_features=about.nominal_features,
        columns=columns,
        expected_rows=n_rows,
    ) as writer:
        for table in tables:
            writer.add(table, table.segments)
    return open_stored(path)
