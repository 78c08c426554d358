"""Load a fitted model, and check that a dataset has its features."""

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
    """A fitted model: its artifact, hyperparameters and parameters."""

    artifact: Artifact
    model: Model
    params: Any

    @property
    def digest(self) -> str:
        """Digest of the artifact: equal digests mean equal parameters."""
        return str(self.artifact.manifest["manifest_digest"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in their order."""
        return tuple(self.artifact.manifest["feature_names"])

    @property
    def segments(self) -> dict[str, int]:
        """Maps the name of each segment with its own parameters to its index."""
        return map_fitted_segments(self.params, self.artifact.manifest["segment_names"])


def load_fitted_model(path: str | AnyPath) -> LoadedModel:
    """Load a fitted model, or the latest one in a folder of runs.

    Raises
    ------
    DataError
        If there is no complete artifact, or its model is unknown.
    """
    artifact = load_artifact(path)
    try:
        return LoadedModel(artifact, *model_from_artifact(artifact.manifest, artifact))
    except FitError as error:
        raise DataError(f"{artifact.path}: {error}") from None


def check_dataset_features(fitted: LoadedModel, dataset: BinaryDataset) -> None:
    """Check that a dataset has the features of the fit, in the same order.

    Raises
    ------
    DataError
        If it does not; the message names the first feature that differs.
    """
    try:
        features.check_same_features(
            fitted.feature_names, dataset.feature_names, str(fitted.artifact.path)
        )
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}") from None
