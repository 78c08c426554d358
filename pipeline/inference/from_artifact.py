"""A fitted model from what an artifact records of it, which is data from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from numpy.typing import NDArray

from pipeline.data.segments import get_fitted_segments
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import MODELS_VARIABLE, find_models, restore_model
from pipeline.params import find_unexpected_arrays, get_named_arrays, params_from_arrays

REQUIRED_KEYS = (
    *("model", "hyperparameters", "seed", "split", "versions", "code", "dataset"),
    *("feature_names", "segment_names", "n_components", "iterations", "converged"),
    *("history", "diagnostics", "warnings"),
)
"""What every fit records."""


def objective_from_artifact(manifest: Mapping[str, Any]) -> float | None:
    """Give the objective of the parameters that were kept; None of a fit without passes.

    Artifacts of before record those of all passes alone, of which they kept the last.
    """
    history = manifest["history"]
    objective: float | None = manifest.get("objective", history[-1] if history else None)
    return objective


def model_from_artifact(
    manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> tuple[Model, Any]:
    """Give hyperparameters and parameters.

    Parameters
    ----------
    manifest
        What was recorded; its types were checked where it was read.
    arrays
        Parameters by name.

    Raises
    ------
    FitError
        If it is not of a fit, of a model that is not known here or of another version of it, or
        if its parts do not go together.
    """
    if missing := [name for name in REQUIRED_KEYS if name not in manifest]:
        raise FitError(
            f"Expected the artifact of a fit, got another without {', '.join(missing)}. "
            "Give one that `flows.fit` wrote."
        )
    kind = find_models().get(manifest["model"])
    if kind is None:
        raise FitError(
            f"Expected a model among {', '.join(sorted(find_models()))}, got {manifest['model']!r}. "
            f"Upgrade latentbits to read it, or name the model's class in {MODELS_VARIABLE} if you trust "
            "its code."
        )
    known = {f.name for f in fields(kind)} | {*kind.former}  # type: ignore[arg-type]
    _check_no_unknown(kind, "setting", {*manifest["hyperparameters"]} - known)
    _check_no_unknown(kind, "array", find_unexpected_arrays(kind.params, arrays))
    params = params_from_arrays(kind.params, arrays)
    _check_sizes(manifest, params)
    return _rebuild_model(kind, manifest["hyperparameters"]), params


def _check_no_unknown(kind: type[Model], what: str, odd: Collection[str]) -> None:
    """Refuse what another version of the model has and this one has not, or the reverse."""
    if odd:
        raise FitError(
            f"Expected {what}s of {kind.name} as this version has them, got others: "
            f"{', '.join(sorted(odd))}. Fit again."
        )


def _rebuild_model(kind: type[Model], recorded: Mapping[str, Any]) -> Model:
    """Make the model again, of settings of the declared types; tuples were recorded as lists."""
    from pydantic import TypeAdapter, ValidationError  # it takes its time to be imported

    for name, hint in get_type_hints(kind).items():
        if name not in recorded:
            continue
        value = recorded[name]
        value = tuple(value) if isinstance(value, list) else value
        try:
            TypeAdapter(hint).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise FitError(
                f"Expected {reason} for the setting {name} of {kind.name}, got {value!r:.60}. "
                "Fit again."
            ) from None
    return restore_model(kind, recorded)


def _check_sizes(manifest: Mapping[str, Any], params: Any) -> None:
    """Refuse arrays that are not of as many as are named, or not as many as each other."""
    expected = {"feature": len(manifest["feature_names"]), "component": manifest["n_components"]}
    for name, (dims, values) in get_named_arrays(params).items():
        if values.ndim != len(dims):
            raise FitError(f"Expected {name} of {len(dims)} dimensions, got {values.ndim}.")
        for dim, size in zip(dims, values.shape, strict=True):
            if (number := expected.setdefault(dim, size)) != size:
                raise FitError(f"Expected {name} of {number} {dim}s, got {size}. Fit again.")
    indices, _ = get_fitted_segments(params)
    n_segments = len(manifest["segment_names"])
    if len(indices) and not 0 <= indices.min() <= indices.max() < n_segments:
        raise FitError(
            f"Expected segments among the {n_segments} named, got number {indices.max() + 1}. "
            "Fit again."
        )
