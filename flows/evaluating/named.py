"""The fitted models that an evaluation is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flows.data.fitted import Fitted, check_features, load_fitted
from flows.fitting.training import Training, training_of
from pipeline.data.segments import segment_indices, unknown_segments
from pipeline.evaluation.evaluate import Subject
from pipeline.evaluation.prediction import Labels, labels_for
from pipeline.models.capabilities import Supervised
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import place

NO_SEGMENTS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Named:
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
    subject: Subject
    n_components: int
    training: Training | None
    seed: int = 0
    segments: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)


def load_named(path: str, dataset: BinaryDataset) -> Named:
    """Load an artifact for a dataset: features must be its own, segments are found by name.

    Raises
    ------
    DataError, FitError
        If there is no whole artifact of a model that is known here, or the dataset has other
        features, or not the labels that it predicts.
    """
    fitted = load_fitted(place(path))
    check_features(fitted, dataset)
    known, names = fitted.segments, dataset.segment_names
    segments = segment_indices(known, names) if known else NO_SEGMENTS
    return Named(
        path,
        str(fitted.artifact.path.resolve()),
        Subject(fitted.model, fitted.params, segments, _labels(fitted, dataset)),
        fitted.artifact.manifest["n_components"],
        training_of(fitted.artifact.manifest, dataset),
        fitted.artifact.manifest["seed"],
        known,
        tuple(unknown_segments(known, names)),
        fitted.artifact.manifest,
    )


def _labels(fitted: Fitted, dataset: BinaryDataset) -> Labels | None:
    """Find the labels that a model predicts; the dataset must have them."""
    if not isinstance(fitted.model, Supervised):
        return None
    dataset.check_columns(fitted.model.reads_columns())
    names = fitted.artifact.manifest.get("labels", ())
    return labels_for(fitted.model, fitted.params, names, dataset)
