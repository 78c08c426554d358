"""The fitted models that an evaluation is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flows.data.fitted import LoadedModel, check_dataset_features, load_fitted_model
from flows.fitting.training import TrainingRows, find_training_rows
from pipeline.data.segments import describe_unknown_segments, find_segment_indices
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.prediction import TargetLabels, find_target_labels
from pipeline.models.capabilities import CanPredict
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import parse_path

NO_SEGMENTS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ComparedModel:
    """A fitted model to evaluate, and what to say of it.

    Attributes
    ----------
    name, artifact
        What it is called, and where it lies; None of a simple model.
    subject, n_components
        The model.
    training
        The rows that it was fitted to, where they are to be had.
    seed
        Of its fit.
    segments
        Index of each segment that has parameters of its own, by name.
    warnings
        What to say beside its numbers.
    manifest
        Of its artifact.
    """

    name: str
    artifact: str | None
    subject: EvaluatedModel
    n_components: int
    training_rows: TrainingRows | None
    seed: int = 0
    segments: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)


def load_compared_model(path: str, dataset: BinaryDataset) -> ComparedModel:
    """Load an artifact for a dataset: features must be its own, segments are found by name.

    Raises
    ------
    DataError, FitError
        If there is no whole artifact of a model that is known here, or the dataset has other
        features, or not the labels that it predicts.
    """
    fitted = load_fitted_model(parse_path(path))
    check_dataset_features(fitted, dataset)
    known, names = fitted.segments, dataset.segment_names
    segments = find_segment_indices(known, names) if known else NO_SEGMENTS
    return ComparedModel(
        path,
        str(fitted.artifact.path.resolve()),
        EvaluatedModel(fitted.model, fitted.params, segments, _find_labels(fitted, dataset)),
        fitted.artifact.manifest["n_components"],
        find_training_rows(fitted.artifact.manifest, dataset),
        fitted.artifact.manifest["seed"],
        known,
        tuple(describe_unknown_segments(known, names)),
        fitted.artifact.manifest,
    )


def _find_labels(fitted: LoadedModel, dataset: BinaryDataset) -> TargetLabels | None:
    """Find the labels that a model predicts; the dataset must have them."""
    if not isinstance(fitted.model, CanPredict):
        return None
    dataset.check_columns(fitted.model.list_required_columns())
    names = fitted.artifact.manifest.get("labels", ())
    return find_target_labels(fitted.model, fitted.params, names, dataset)
