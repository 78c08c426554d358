"""A fitted model from its artifact, and which data it can be used on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.data import features
from pipeline.data.segments import map_fitted_segments
from pipeline.errors import FitError
from pipeline.inference.from_artifact import model_from_artifact
from pipeline.models.base import Model
from storage.artifacts.artifacts import Artifact, load_artifact
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.stores.locations import AnyPath


@dataclass(frozen=True)
class LoadedModel:
    """What a fit left; `load_fitted_model` makes it.

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
        return map_fitted_segments(self.params, self.artifact.manifest["segment_names"])


def load_fitted_model(path: str | AnyPath) -> LoadedModel:
    """Load a fitted model, or the latest of a folder of runs.

    Raises
    ------
    DataError
        If there is no whole artifact of a model that is known here.
    """
    artifact = load_artifact(path)
    try:
        return LoadedModel(artifact, *model_from_artifact(artifact.manifest, artifact))
    except FitError as error:
        raise DataError(f"{artifact.path}: {error}") from None


def check_dataset_features(fitted: LoadedModel, dataset: BinaryDataset) -> None:
    """Refuse a dataset whose features are not those of the fit, in its order.

    Raises
    ------
    DataError
        Naming the first that differs, its position, and what came.
    """
    try:
        features.check_same_features(
            fitted.feature_names, dataset.feature_names, str(fitted.artifact.path)
        )
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}") from None
