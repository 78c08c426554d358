"""Load a fitted model, and check that a dataset has its features."""

from __future__ import annotations

from pipeline.data.features import check_same_features
from pipeline.errors import FitError
from pipeline.inference.from_artifact import LoadedModel, model_from_artifact
from storage.artifacts.artifacts import load_artifact
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.stores.locations import AnyPath


def load_fitted_model(path: str | AnyPath) -> LoadedModel:
    """Load a fitted model, or the latest one in a folder of runs.

    Raises
    ------
    DataError
        If there is no complete artifact, or its model is unknown.
    """
    artifact = load_artifact(path)
    try:
        return model_from_artifact(artifact)
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
        check_same_features(fitted.feature_names, dataset.feature_names, str(fitted.artifact.path))
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}") from None
