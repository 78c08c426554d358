"""Columns of arrays, and the parameters of features as such columns.

Reports need these but no tables, so this file does not import pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.params import DimensionLabels, label_positions
from storage.artifacts.artifacts import Artifact

_INTERVAL_ENDS = ("low", "high")
Array = NDArray[Any]


class ArrayGroup(NamedTuple):
    """Arrays of the same dimensions, (n_rows, …) each, whose columns stand next to each other.

    `dims` are all dimensions except the rows.
    """

    dims: tuple[str, ...]
    arrays: Mapping[str, Array]


def iter_columns(group: ArrayGroup, names: DimensionLabels) -> Iterator[tuple[str, Array]]:
    """Iterate over the named columns of a group, position by position."""
    shape = next(iter(group.arrays.values())).shape[1:]
    for index, suffix in label_positions(group.dims, shape, names):
        place: tuple[Any, ...] = (slice(None), *index)
        for name, values in group.arrays.items():
            yield name + suffix, np.ascontiguousarray(values[place])


def list_segment_names(artifact: Artifact) -> list[str]:
    """List the names of the segments with their own parameters, in the order of the parameters."""
    names = artifact.manifest["segment_names"]
    indices = artifact["segments"].tolist() if "segments" in artifact else range(len(names))
    return [names[index] for index in indices]


def read_item_columns(artifact: Artifact) -> dict[str, Array]:
    """Read all parameters of features as columns, (n_features,) each."""
    names = {"segment": list_segment_names(artifact)}
    columns: dict[str, Array] = {}
    for group in _iter_array_groups(artifact):
        columns |= iter_columns(group, names)
    return columns


def _iter_array_groups(artifact: Artifact) -> Iterator[ArrayGroup]:
    """Iterate over the arrays of features, each with its standard errors and interval."""
    over_features = {
        name: _move_features_first(artifact, name)
        for name, values in artifact.items()
        if values.size and artifact.dims(name).count("feature") == 1
        if "feature_j" not in artifact.dims(name)
    }
    suffixes = ("_error", "_interval")
    companions = {f"{name}{suffix}" for name in over_features for suffix in suffixes}
    for name, (dims, values) in over_features.items():
        if name not in companions:
            errors = over_features.get(f"{name}_error")
            arrays = {name: values, **({f"{name}_error": errors[1]} if errors else {})}
            yield ArrayGroup(dims, {**arrays, **_read_interval(artifact, name)})


def _move_features_first(artifact: Artifact, name: str) -> tuple[tuple[str, ...], Array]:
    dims = artifact.dims(name)
    axis = dims.index("feature")
    return (*dims[:axis], *dims[axis + 1 :]), np.moveaxis(artifact[name], axis, 0)


def _read_interval(artifact: Artifact, name: str) -> dict[str, Array]:
    interval = f"{name}_interval"
    if interval not in artifact or len(artifact[interval]) != len(_INTERVAL_ENDS):
        return {}
    axis = artifact.dims(name).index("feature")
    ends = np.moveaxis(artifact[interval], 1 + axis, 1)
    return {f"{name}_{bound}": values for bound, values in zip(_INTERVAL_ENDS, ends, strict=True)}


def find_unbounded_weights(artifact: Artifact) -> NDArray[np.bool_]:
    """Find features whose weights have no finite standard error, (n_features,)."""
    n_features = len(artifact.manifest["feature_names"])
    has_errors = "weights_error" in artifact and artifact.dims("weights_error")[0] == "feature"
    if not has_errors:
        return np.zeros(n_features, np.bool_)
    errors = np.asarray(artifact["weights_error"], np.float64)
    return np.asarray(~np.isfinite(errors).all(axis=1))
