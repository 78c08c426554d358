"""What an artifact says of each feature, as a table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flows.exporting.columns import Array, Quantity, columns_of, segment_labels
from flows.exporting.files import Table, whole_table
from storage.artifacts.artifacts import Artifact
from storage.errors import DataError

_BOUNDS = ("low", "high")


def item_table(artifact: Artifact) -> Table:
    """Give a line for each feature: its name, and every array that has a number for each.

    Raises
    ------
    DataError
        If there is no such array.
    """
    columns = item_columns(artifact)
    if not columns:
        raise DataError(
            f"{artifact.path}: Expected an artifact with parameters of features, got one of "
            f"{artifact.manifest['model']}. Export codes."
        )
    features = pa.array(artifact.manifest["feature_names"], pa.string())
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return whole_table({"feature": features, **arrays})


def item_columns(artifact: Artifact) -> dict[str, Array]:
    """Give every array that has a number for each feature as columns, (n_features,) each."""
    names = {"segment": segment_labels(artifact)}
    columns: dict[str, Array] = {}
    for quantity in _quantities(artifact):
        columns |= columns_of(quantity, names)
    return columns


def _quantities(artifact: Artifact) -> Iterator[Quantity]:
    """Find the arrays over features, and beside each its standard errors and interval."""
    over_features = {
        name: _features_first(artifact, name)
        for name, values in artifact.items()
        if values.size and artifact.dims(name).count("feature") == 1
        if "feature_j" not in artifact.dims(name)
    }
    beside = {f"{name}{told}" for name in over_features for told in ("_error", "_interval")}
    for name, (dims, values) in over_features.items():
        if name not in beside:
            errors = over_features.get(f"{name}_error")
            arrays = {name: values, **({f"{name}_error": errors[1]} if errors else {})}
            yield Quantity(dims, {**arrays, **_interval(artifact, name)})


def _features_first(artifact: Artifact, name: str) -> tuple[tuple[str, ...], Array]:
    dims = artifact.dims(name)
    at = dims.index("feature")
    return (*dims[:at], *dims[at + 1 :]), np.moveaxis(artifact[name], at, 0)


def _interval(artifact: Artifact, name: str) -> dict[str, Array]:
    """Give the ends of the intervals of an array, where there are some."""
    other = f"{name}_interval"
    if other not in artifact or len(artifact[other]) != len(_BOUNDS):
        return {}
    at = artifact.dims(name).index("feature")
    ends = np.moveaxis(artifact[other], 1 + at, 1)
    return {f"{name}_{bound}": values for bound, values in zip(_BOUNDS, ends, strict=True)}


def without_bound(artifact: Artifact) -> NDArray[np.bool_]:
    """Tell which features have weights whose errors the data do not tell, (n_features,)."""
    n_features = len(artifact.manifest["feature_names"])
    has_errors = "weights_error" in artifact and artifact.dims("weights_error")[0] == "feature"
    if not has_errors:
        return np.zeros(n_features, np.bool_)
    errors = np.asarray(artifact["weights_error"], np.float64)
    return ~np.isfinite(errors).all(axis=1)
