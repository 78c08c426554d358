"""Columns of arrays, and the parameters of features and groups as such columns.

Reports need these but no tables, so this file does not import pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, find_nominal, read_features
from pipeline.models.latent_trait.design import UNUSED_LOG_ODDS
from pipeline.models.loading_pattern import read_trait_names
from pipeline.models.registry import read_vocabulary
from pipeline.params import DimensionLabels, label_positions
from storage.artifacts.artifacts import Artifact
from storage.display import list_trait_names

_ERROR, _INTERVAL_ENDS = "error", ("low", "high")
_ALL_ROWS = "all"
_PARTS = ("plane", "level", "continuous")  # dimensions of parts of features
# By feature; nominal ones have slopes and offsets of their categories instead.
_NEEDS_ORDER = ("weights", "offsets", "rotated", "group_weights", "group_offsets")
_OF_CATEGORIES = ("level_weights", "level_offsets")
Array = NDArray[Any]


def list_segment_names(artifact: Artifact) -> list[str]:
    """List the names of the segments with their own parameters, in the order of the parameters."""
    if "segments" not in artifact:  # the parameters are those of all rows
        return [_ALL_ROWS]
    names = artifact.manifest["segment_names"]
    return [names[index] for index in artifact["segments"].tolist()]


class ParameterColumn(NamedTuple):
    """One column of an array of parameters, with its uncertainty if that is known.

    Attributes
    ----------
    array
        Name of the array.
    label
        Position of the column in the array, such as `_1`.
    values, error, low, high
        Values, standard errors and ends of the interval, (n_rows,) each.
    """

    array: str
    label: str
    values: Array
    error: Array | None = None
    low: Array | None = None
    high: Array | None = None

    @property
    def name(self) -> str:
        """Name of the column."""
        return self.array + self.label

    def iter_arrays(self) -> Iterator[tuple[str, Array]]:
        """Iterate over the values and their uncertainty, each with a name."""
        yield self.name, self.values
        for suffix in (_ERROR, *_INTERVAL_ENDS):
            if (values := getattr(self, suffix)) is not None:
                yield f"{self.array}_{suffix}{self.label}", values


def read_parameter_columns(artifact: Artifact, dim: str) -> list[ParameterColumn]:
    """Read the parameters of each `feature` or `segment` as columns.

    Parameters by feature and segment belong to the features, and so do those of planes and levels:
    they have a column for each level above the lowest, or for each. Features with fewer levels are
    NaN there. Parameters of continuous features are NaN for all others, and so are those that need
    an order for nominal features.
    """
    names = {"segment": list_segment_names(artifact), **list_trait_names(artifact.manifest)}
    columns: list[ParameterColumn] = []
    for name in _list_arrays(artifact, dim):
        dims, values = _move_first(artifact, name, dim)
        arrays = {"values": values, **_read_uncertainty(artifact, name, dim)}
        if dim == "feature" and name in _NEEDS_ORDER:
            arrays = {key: leave_out_nominal(artifact, v) for key, v in arrays.items()}
        if dims == ("component", "component_j") and "covariance" in name:
            variances = {key: np.diagonal(v, axis1=1, axis2=2) for key, v in arrays.items()}
            variance = name.replace("covariance", "variance")
            columns += _split_columns(variance, ("component",), variances, names)
        columns += _split_columns(name, dims, arrays, names)
    features = read_features(artifact.manifest) if dim == "feature" else ()
    n_levels = np.array([len(feature.levels) for feature in features], np.int64)
    sizes = {
        "plane": np.array([feature.n_planes for feature in features], np.int64),
        "level": n_levels,
        "continuous": (n_levels == 0).astype(np.int64),
    }
    for part in _PARTS if features else ():
        for name in _list_arrays(artifact, part) if sizes[part].any() else ():
            dims, values = _move_first(artifact, name, part)
            arrays = {"values": values, **_read_uncertainty(artifact, name, part)}
            own = {key: _spread_parts(array, sizes[part]) for key, array in arrays.items()}
            if part == "plane" and not name.endswith(_OF_CATEGORIES):  # such as P(x ≥ level)
                own = {key: leave_out_nominal(artifact, v) for key, v in own.items()}
                if np.isnan(own["values"]).all():
                    continue
            if part == "continuous":  # one number per feature
                own = {key: array[:, 0] for key, array in own.items()}
            else:
                dims = (part, *dims)
            columns += _split_columns(name, dims, own, names)
    return columns


def leave_out_nominal(artifact: Artifact, values: Array) -> Array:
    """Return values of features, (n_features, …), but NaN of nominal ones."""
    is_nominal = find_nominal(read_features(artifact.manifest))
    if is_nominal is None:
        return values
    values = np.array(values, np.float64)
    values[is_nominal] = np.nan
    return values


def read_level_columns(
    artifact: Artifact,
) -> tuple[list[tuple[str, str]], list[ParameterColumn]]:
    """Read the probabilities of levels in each class of a mixture, (n_levels,) each.

    Nominal items have slopes and offsets instead, which are 0 for the first level that rows have.

    Returns names of feature and level, and the columns; both are empty without such parameters.
    Binary features have only the level that means 1.
    """
    features = read_features(artifact.manifest)
    names = [(feature, level) for feature in features for level in feature.levels]
    shown = [k for k, (f, level) in enumerate(names) if f.kind != "binary" or level == f.levels[1]]
    columns: list[ParameterColumn] = []
    if "level_weights" in artifact:
        is_first = np.array([level == feature.levels[0] for feature, level in names])
        unused = _find_unused_references(names, artifact["level_offsets"].reshape(-1))
        for array in _OF_CATEGORIES:
            found = {}
            for key, name in (("values", array), (_ERROR, f"{array}_{_ERROR}")):
                if name in artifact:
                    found[key] = np.zeros(len(names))
                    found[key][~is_first] = artifact[name].reshape(-1)
            for own, reference in unused:
                if array == "level_offsets":
                    found["values"][own] -= UNUSED_LOG_ODDS
                if _ERROR in found:
                    found[_ERROR][own.start], found[_ERROR][reference] = np.nan, 0.0
            found = {key: values[shown] for key, values in found.items()}
            columns.append(ParameterColumn(array.removeprefix("level_"), "", **found))
    elif "level_probabilities" in artifact:
        array = "level_probabilities"
        values, errors = artifact[array], artifact.get(f"{array}_error")
        component = read_vocabulary(artifact.manifest).component
        columns = [
            ParameterColumn(
                component, f"_{k + 1}", own[shown], None if errors is None else errors[k][shown]
            )
            for k, own in enumerate(values)
        ]
    return [(names[k][0].name, names[k][1]) for k in shown] if columns else [], columns


def _find_unused_references(
    names: Sequence[tuple[Feature, str]], offsets: Array
) -> list[tuple[slice, int]]:
    """Return the levels of each nominal feature whose first level no row has, and the first in use.

    `offsets` are those of the other levels, (n_planes,): that of the first in use is
    `UNUSED_LOG_ODDS`.
    """
    found, first, plane = [], 0, 0
    for feature, own in groupby(names, key=lambda name: name[0]):
        n_levels = len([*own])
        is_first = offsets[plane : plane + n_levels - 1] == UNUSED_LOG_ODDS
        if feature.kind == "nominal" and is_first.any():
            found.append((slice(first, first + n_levels), first + 1 + int(np.argmax(is_first))))
        first, plane = first + n_levels, plane + n_levels - 1
    return found


def _spread_parts(values: Array, sizes: NDArray[np.int64]) -> Array:
    """Return values of the parts of features side by side, (n_features, n_most, …).

    `values` has those of all features one after the other, (n_parts, …), and `sizes` their numbers.
    """
    spread = np.full((len(sizes), sizes.max(initial=0), *values.shape[1:]), np.nan)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    spread[owners, np.arange(len(owners)) - (np.cumsum(sizes) - sizes)[owners]] = values
    return spread


def _split_columns(
    name: str, dims: tuple[str, ...], arrays: Mapping[str, Array], names: DimensionLabels
) -> Iterator[ParameterColumn]:
    for index, label in label_positions(dims, arrays["values"].shape[1:], names):
        place: tuple[Any, ...] = (slice(None), *index)
        yield ParameterColumn(
            name, label, **{key: np.ascontiguousarray(v[place]) for key, v in arrays.items()}
        )


def _list_arrays(artifact: Artifact, dim: str) -> list[str]:
    """List the arrays with a dimension, without standard errors and intervals of others."""
    # Parameters of parts of features belong to the features, in segments too.
    excluded = {"feature_j"} if dim == "feature" else {"feature", *_PARTS} - {dim}
    names = [
        name
        for name, values in artifact.items()
        if values.size and artifact.dims(name).count(dim) == 1
        if excluded.isdisjoint(artifact.dims(name)) and name != "segments"
    ]
    uncertainties = {f"{name}_{suffix}" for name in names for suffix in (_ERROR, "interval")}
    return [name for name in names if name not in uncertainties]


def _move_first(artifact: Artifact, name: str, dim: str) -> tuple[tuple[str, ...], Array]:
    dims = artifact.dims(name)
    axis = dims.index(dim)
    return (*dims[:axis], *dims[axis + 1 :]), np.moveaxis(artifact[name], axis, 0)


def _read_uncertainty(artifact: Artifact, name: str, dim: str) -> dict[str, Array]:
    found = {}
    if f"{name}_{_ERROR}" in artifact:
        found[_ERROR] = _move_first(artifact, f"{name}_{_ERROR}", dim)[1]
    interval = f"{name}_interval"
    if interval in artifact and len(artifact[interval]) == len(_INTERVAL_ENDS):
        ends = np.moveaxis(artifact[interval], 1 + artifact.dims(name).index(dim), 1)
        found |= zip(_INTERVAL_ENDS, ends, strict=True)
    return found


def read_factor_columns(artifact: Artifact) -> list[ParameterColumn]:
    """Return what each factor explains, and its correlations with all, (n_components,) each.

    The sums of squares allow for correlated factors, so that they add up to the communalities.
    Factors of models without communalities, other than the traits of a loading pattern, have none.
    """
    columns: list[ParameterColumn] = []
    if "communality" in artifact:
        loadings = np.asarray(artifact["loadings"], np.float64)
        correlation = artifact.get("component_correlation", np.eye(loadings.shape[1]))
        sums = np.diagonal(correlation @ loadings.T @ loadings)
        share = sums / max(len(loadings), 1)
        columns += [
            ParameterColumn("sum_of_squares", "", sums),
            ParameterColumn("share_of_variance", "", share),
        ]
        if "component_correlation" in artifact and not read_trait_names(artifact.manifest):
            columns += [
                ParameterColumn("correlation", f"_{k}", own)
                for k, own in enumerate(correlation.T, 1)
            ]
    return columns + read_trait_correlations(artifact)


def read_trait_correlations(artifact: Artifact) -> list[ParameterColumn]:
    """Read the correlations of the traits of a loading pattern, one column per trait.

    With groups, they are those of the first one. There are none with a single trait.
    """
    names = read_trait_names(artifact.manifest)
    if len(names) < 2:
        return []
    errors: Any = [None] * len(names)
    if "trait_covariance_error" in artifact:  # the variances are 1
        errors = artifact["trait_covariance_error"][0]
    return [
        ParameterColumn("correlation", f"_{name}", values, own)
        for name, values, own in zip(names, artifact["component_correlation"], errors, strict=True)
    ]


def find_unbounded_weights(artifact: Artifact) -> NDArray[np.bool_]:
    """Find features whose weights have no finite standard error, (n_features,)."""
    n_features = len(artifact.manifest["feature_names"])
    has_errors = "weights_error" in artifact and artifact.dims("weights_error")[0] == "feature"
    if not has_errors:
        return np.zeros(n_features, np.bool_)
    errors = np.asarray(artifact["weights_error"], np.float64)
    return np.asarray(~np.isfinite(errors).all(axis=1))
