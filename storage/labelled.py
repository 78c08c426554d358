"""Datasets, artifacts and codes as xarray, with names for rows, features and segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storage.errors import DataError

if TYPE_CHECKING:
    import xarray

    from storage.dataset import BinaryDataset

Variables = Mapping[str, tuple[tuple[str, ...], Any]]


def to_xarray(
    variables: Variables, names: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any]
) -> xarray.Dataset:
    """Make a dataset of named arrays.

    Parameters
    ----------
    variables
        Dimensions and values by name.
    names
        What the places along a dimension are called; `feature_j` goes by the name of `feature`.
    attributes
        What to record with it; only text and numbers are kept.

    Raises
    ------
    DataError
        If xarray is not installed.
    """
    try:
        import xarray
    except ImportError:
        raise DataError("Expected xarray, got none. pip install latentbits[notebooks]") from None
    sizes = {
        dim: size
        for dims, values in variables.values()
        for dim, size in zip(dims, values.shape, strict=True)
    }
    labels = {dim: names.get(dim.removesuffix("_j")) for dim in sizes}
    coordinates = {
        dim: (dim, list(label))
        for dim, label in labels.items()
        if label is not None and len(label) == sizes[dim]
    }
    kept = {
        name: value for name, value in attributes.items() if isinstance(value, str | int | float)
    }
    return xarray.Dataset(dict(variables), coordinates, kept)


def dataset_to_xarray(dataset: BinaryDataset) -> xarray.Dataset:
    """Give `values` and `observed`, (row, feature), lazily, and all that is known of each row."""
    variables: dict[str, tuple[tuple[str, ...], Any]] = {
        name: (("row", "feature"), dataset.to_dask(name)) for name in ("values", "observed")
    }
    variables["segment"] = (("row",), dataset.segments())
    for name in dataset.column_names:
        free = name if name not in (*variables, "row", "feature") else f"column_{name}"
        variables[free] = (("row",), dataset.column(name))
    names = {"feature": dataset.feature_names}
    return to_xarray(variables, names, {"path": str(dataset.path), "digest": dataset.digest})
