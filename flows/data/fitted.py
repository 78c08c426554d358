"""A fitted model from its artifact, and which data it can be used on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pipeline.errors import FitError
from pipeline.known_segments import known_segments
from pipeline.models.base import Model
from pipeline.models.registry import VARIABLE, models
from pipeline.models.settings import recorded_model
from pipeline.params import odd_arrays, params_from_arrays
from pipeline.using import features
from storage.artifacts import Artifact, load_artifact
from storage.dataset import BinaryDataset
from storage.errors import DataError
from storage.locations import Place

_RECORDED = ("model", "hyperparameters", "feature_names", "segment_names")


@dataclass(frozen=True)
class Fitted:
    """What a fit left; `load_fitted` makes it.

    Attributes
    ----------
    artifact
        The artifact.
    model
        Its hyperparameters.
    params
        Its parameters.
    """

    artifact: Artifact
    model: Model
    params: Any

    @property
    def digest(self) -> str:
        """Digest of the artifact: equal digest, equal parameters."""
        return str(self.artifact.manifest["manifest_digest"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in column order."""
        return tuple(self.artifact.manifest["feature_names"])

    @property
    def segments(self) -> dict[str, int]:
        """Index of each segment that has parameters of its own, by name."""
        return known_segments(self.params, self.artifact.manifest["segment_names"])


def load_fitted(path: str | Place) -> Fitted:
    """Load a fitted model, or the latest of a folder of runs.

    Raises
    ------
    DataError
        If there is no whole artifact of a model that is known here.
    """
    artifact = load_artifact(path)
    manifest = artifact.manifest
    if missing := [name for name in _RECORDED if name not in manifest]:
        raise DataError(
            f"{artifact.path}: Expected the artifact of a fit, got another without "
            f"{', '.join(missing)}. Give one that `flows.fit` wrote."
        )
    kind = models().get(manifest["model"])
    if kind is None:
        raise DataError(
            f"{artifact.path}: Expected a model among {', '.join(sorted(models()))}, "
            f"got {manifest['model']!r}. Upgrade latentbits to read it, or name the model's class "
            f"in {VARIABLE} if you trust its code."
        )
    return Fitted(artifact, _rebuilt(kind, artifact), _params(kind, artifact))


def _rebuilt(kind: type[Model], artifact: Artifact) -> Model:
    given = artifact.manifest["hyperparameters"]
    known = {f.name for f in fields(kind)} | {*kind.former}  # type: ignore[arg-type]
    _refuse(artifact, "setting", set(given) - known)
    return recorded_model(kind, given)


def _params(kind: type[Model], artifact: Artifact) -> Any:
    _refuse(artifact, "array", odd_arrays(kind.params, artifact))
    return params_from_arrays(kind.params, artifact)


def _refuse(artifact: Artifact, what: str, odd: set[str]) -> None:
    """Refuse what another version of the model has and this one has not, or the reverse."""
    if odd:
        raise DataError(
            f"{artifact.path}: Expected {what}s of {artifact.manifest['model']} as this version "
            f"has them, got others: {', '.join(sorted(odd))}. Fit again."
        )


def check_features(fitted: Fitted, dataset: BinaryDataset) -> None:
    """Refuse a dataset whose features are not those of the fit, in its order.

    Raises
    ------
    DataError
        Naming the first that differs, its position, and what came.
    """
    try:
        features.check_features(
            fitted.feature_names, dataset.feature_names, str(fitted.artifact.path)
        )
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}") from None
