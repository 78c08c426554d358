"""Datasets, artifacts and codes as xarray, with names for rows, features and segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storage.errors import DataError

if TYPE_CHECKING:
    import xarray

NamedVariables = Mapping[str, tuple[tuple[str, ...], Any]]


def build_xarray(
    variables: NamedVariables, names: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any]
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


def build_row_variables(
    bits: Mapping[str, Any], segments: Any, columns: Mapping[str, Any]
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Name what is known of each row: bits (row, feature), its segment, and columns.

    A column whose name is taken is called `column_NAME`.
    """
    variables: dict[str, tuple[tuple[str, ...], Any]] = {
        name: (("row", "feature"), values) for name, values in bits.items()
    }
    variables["segment"] = (("row",), segments)
    for name, values in columns.items():
        free = name if name not in (*variables, "row", "feature") else f"column_{name}"
        variables[free] = (("row",), values)
    return variables
