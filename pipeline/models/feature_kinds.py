"""Check that a model can explain the features of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.data.datasets import Dataset
from pipeline.data.features import Feature, are_binary, list_features
from pipeline.data.plane_views import DatasetT, view_planes_as_features
from pipeline.models.base import Model
from pipeline.models.registry import find_models
from pipeline.models.support import check_features


def split_levels_for(model: Model, dataset: DatasetT) -> DatasetT:
    """Return the dataset as a model takes it: some have a binary feature per plane."""
    if not model.support.splits_levels or are_binary(list_features(dataset)):
        return dataset
    return view_planes_as_features(dataset)


def find_split_levels(model: Model, dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """Return the levels of the features that `split_levels_for` splits; empty if it splits none."""
    if not model.support.splits_levels or are_binary(list_features(dataset)):
        return {}
    return dataset.feature_levels


def find_cut_levels(uncut: Dataset, dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """Return the levels of the features that `cut_levels` replaced by one of their planes."""
    levels = uncut.feature_levels
    return {name: own for name, own in levels.items() if own and name not in dataset.feature_names}


def check_can_have_features(model: Model, features: Sequence[Feature]) -> None:
    """Raise `FitError` if a feature is of a kind that the model cannot explain."""
    check_features(model, features, find_models)
