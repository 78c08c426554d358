"""What an artifact says of each feature, as a table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flows.exporting.columns import Array, ArrayGroup, iter_columns, list_segment_names
from flows.exporting.files import BatchedTable, make_table
from storage.artifacts.artifacts import Artifact
from storage.errors import DataError

_INTERVAL_ENDS = ("low", "high")


def make_item_table(artifact: Artifact) -> BatchedTable:
    """Give a line for each feature: its name, and every array that has a number for each.

    Raises
    ------
    DataError
        If there is no such array.
    """
    columns = read_item_columns(artifact)
    if not columns:
        raise DataError(
            f"{artifact.path}: Expected an artifact with parameters of features, got one of "
            f"{artifact.manifest['model']}. Export codes."
        )
    features = pa.array(artifact.manifest["feature_names"], pa.string())
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return make_table({"feature": features, **arrays})


def read_item_columns(artifact: Artifact) -> dict[str, Array]:
    """Give every array that has a number for each feature as columns, (n_features,) each."""
    names = {"segment": list_segment_names(artifact)}
    columns: dict[str, Array] = {}
    for quantity in _iter_array_groups(artifact):
        columns |= iter_columns(quantity, names)
    return columns


def _iter_array_groups(artifact: Artifact) -> Iterator[ArrayGroup]:
    """Find the arrays over features, and beside each its standard errors and interval."""
    over_features = {
        name: _move_features_first(artifact, name)
        for name, values in artifact.items()
        if values.size and artifact.dims(name).count("feature") == 1
        if "feature_j" not in artifact.dims(name)
    }
    beside = {f"{name}{told}" for name in over_features for told in ("_error", "_interval")}
    for name, (dims, values) in over_features.items():
        if name not in beside:
            errors = over_features.get(f"{name}_error")
            arrays = {name: values, **({f"{name}_error": errors[1]} if errors else {})}
            yield ArrayGroup(dims, {**arrays, **_read_interval(artifact, name)})


def _move_features_first(artifact: Artifact, name: str) -> tuple[tuple[str, ...], Array]:
    dims = artifact.dims(name)
    at = dims.index("feature")
    return (*dims[:at], *dims[at + 1 :]), np.moveaxis(artifact[name], at, 0)


def _read_interval(artifact: Artifact, name: str) -> dict[str, Array]:
    """Give the ends of the intervals of an array, where there are some."""
    other = f"{name}_interval"
    if other not in artifact or len(artifact[other]) != len(_INTERVAL_ENDS):
        return {}
    at = artifact.dims(name).index("feature")
    ends = np.moveaxis(artifact[other], 1 + at, 1)
    return {f"{name}_{bound}": values for bound, values in zip(_INTERVAL_ENDS, ends, strict=True)}


def find_unbounded_weights(artifact: Artifact) -> NDArray[np.bool_]:
    """Tell which features have weights whose errors the data do not tell, (n_features,)."""
    n_features = len(artifact.manifest["feature_names"])
    has_errors = "weights_error" in artifact and artifact.dims("weights_error")[0] == "feature"
    if not has_errors:
        return np.zeros(n_features, np.bool_)
    errors = np.asarray(artifact["weights_error"], np.float64)
    return ~np.isfinite(errors).all(axis=1)
