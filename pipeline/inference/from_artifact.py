"""Load a fitted model from its artifact, and check the artifact's content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.datasets import StoredArtifact
from pipeline.data.features import (
    Feature,
    name_planes,
    read_dataset_features,
    read_features,
)
from pipeline.data.matching import get_fitted_segments, map_fitted_segments
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import (
    MODELS_VARIABLE,
    get_known_model,
    list_model_names,
    restore_model,
    select_variant,
)
from pipeline.models.settings import check_types, list_settings
from pipeline.params import (
    find_unexpected_arrays,
    get_named_arrays,
    list_arrays,
    params_from_arrays,
)

ArtifactT = TypeVar("ArtifactT", bound=StoredArtifact)
REQUIRED_KEYS = (
    *("model", "hyperparameters", "seed", "split", "versions", "code", "dataset"),
    *("feature_names", "segment_names", "n_components", "iterations", "converged"),
    *("history", "objective", "diagnostics", "warnings"),
)
"""Keys that the manifest of every fit has."""
# Its square fits single precision, in which codes are stored.
_LARGEST_PARAMETER = 1e18
_TOTAL_TOLERANCE = 1e-9


@dataclass(frozen=True)
class LoadedModel(Generic[ArtifactT]):
    """A fitted model (hyperparameters and parameters), and the artifact it comes from."""

    artifact: ArtifactT
    model: Model
    params: Any

    @property
    def digest(self) -> str:
        """Digest of the artifact; equal digests mean equal parameters."""
        return str(self.artifact.manifest["manifest_digest"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the fitted features, in column order."""
        return tuple(self.artifact.manifest["feature_names"])

    @property
    def features(self) -> tuple[Feature, ...]:
        """The fitted features, in column order."""
        return read_features(self.artifact.manifest)

    @property
    def dataset_features(self) -> tuple[Feature, ...]:
        """The features of the fitted data; the model may have taken each plane as a feature."""
        return read_dataset_features(self.artifact.manifest)

    @property
    def plane_names(self) -> tuple[str, ...]:
        """Names of the rows of bits of a block; those of the features if all are binary."""
        return name_planes(self.features)

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments of the fitted data."""
        return tuple(self.artifact.manifest["segment_names"])

    @property
    def segments(self) -> dict[str, int]:
        """Index of each segment with its own parameters, by name."""
        return map_fitted_segments(self.params, self.segment_names)


def model_from_artifact(artifact: ArtifactT) -> LoadedModel[ArtifactT]:
    """Load a model and its parameters, and check that they are consistent.

    Raises
    ------
    FitError
        If the artifact is not from a fit, its model is unknown or has another version, or its
        parts contradict each other.
    """
    manifest = artifact.manifest
    if missing := [name for name in REQUIRED_KEYS if name not in manifest]:
        raise FitError(
            "This artifact is not from a fit, or from another version of latentbits: it has no "
            f"{', '.join(missing)}. Fit again."
        )
    kind, settings = get_known_model(manifest["model"]), manifest["hyperparameters"]
    if kind is None:
        raise FitError(
            f"The model {manifest['model']!r} is unknown; known models are "
            f"{', '.join(list_model_names())}. Upgrade latentbits, or name the model's class in "
            f"{MODELS_VARIABLE} if you trust its code."
        )
    kind = select_variant(kind, {**settings})
    _check_no_difference(kind, "settings", {*settings} - {own.name for own in list_settings(kind)})
    arrays: Mapping[str, NDArray[Any]] = artifact  # type: ignore[assignment]
    _check_no_difference(kind, "arrays", find_unexpected_arrays(kind.params, arrays))
    params = params_from_arrays(kind.params, arrays)
    _check_values(params)
    _check_sizes(manifest, params)
    return LoadedModel(artifact, _rebuild_model(kind, settings), params)


def _check_no_difference(kind: type[Model], noun: str, names: Collection[str]) -> None:
    if names:
        raise FitError(
            f"The artifact comes from another version of {kind.name}, whose {noun} differ: "
            f"{', '.join(sorted(names))}. Fit again."
        )


def _rebuild_model(kind: type[Model], settings: Mapping[str, Any]) -> Model:
    """Create the model from settings of the declared types; tuples were recorded as lists."""
    try:
        check_types(kind, settings)
        return restore_model(kind, settings)
    except FitError as error:
        raise FitError(
            f"The artifact has a setting that {kind.name} does not accept: {error} Fit again."
        ) from None


def _check_sizes(manifest: Mapping[str, Any], params: Any) -> None:
    """Refuse arrays whose sizes differ from the manifest or from each other."""
    n_planes = [feature.n_planes for feature in read_features(manifest)]
    sizes = {
        "feature": len(n_planes),
        "plane": sum(n_planes),
        "component": manifest["n_components"],
    }
    named = get_named_arrays(params)
    for name, (dims, values) in named.items():
        if values.ndim != len(dims):
            raise FitError(
                f"The array {name} has {values.ndim} dimensions instead of {len(dims)}. Fit again."
            )
        for dim, size in zip(dims, values.shape, strict=True):
            if (expected := sizes.setdefault(dim, size)) != size:
                raise FitError(
                    f"The array {name} has {size} {dim}s instead of {expected}. Fit again."
                )
    if "n_levels" in named and (named["n_levels"][1] - 1).tolist() != n_planes:
        raise FitError("The array n_levels contradicts the levels of the features. Fit again.")
    indices, _ = get_fitted_segments(params)
    n_segments = len(manifest["segment_names"])
    if len(indices) and indices.max() >= n_segments:
        raise FitError(
            f"The parameters name segment number {indices.max() + 1}, but there are {n_segments}. "
            "Fit again."
        )


def _check_values(params: Any) -> None:
    """Refuse parameters that are not finite, too large to compute with, or outside their range.

    Errors and optional arrays, such as statistics of items, describe the fit: they may have any
    size.
    """
    arrays = list_arrays(type(params))
    for name, (_, values) in get_named_arrays(params).items():
        declared = arrays.get(name) or arrays[name.rpartition("_")[0]]  # `NAME_0` is a layer
        is_limited = declared.is_required and not declared.may_be_nan
        largest = _LARGEST_PARAMETER if is_limited else np.finfo(np.float64).max
        is_usable = np.abs(values) <= largest
        if declared.may_be_nan:
            is_usable |= np.isnan(values)
        _check_entries(name, values, is_usable, f"a finite number up to {largest:.3g}")
        _check_entries(name, values, declared.allowed.compare(values), str(declared.allowed))
        total = declared.total
        if total is not None and abs(values.sum() - total) > _TOTAL_TOLERANCE:
            raise FitError(
                f"The entries of {name} sum to {values.sum():.6g}, but must sum to {total:g}. "
                "Fit again."
            )


def _check_entries(
    name: str, values: NDArray[Any], is_usable: NDArray[np.bool_], expected: str
) -> None:
    if not is_usable.all():
        place = np.argwhere(~is_usable)[0].tolist()
        raise FitError(
            f"The entry {name}{place or ''} is {values[tuple(place)]}, but must be {expected}. "
            "Fit again."
        )
