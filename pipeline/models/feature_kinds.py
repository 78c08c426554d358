"""Check that a model can explain the features of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.data.datasets import Dataset
from pipeline.data.features import Feature, are_binary, list_features
from pipeline.data.plane_views import DatasetT, view_planes_as_features
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import find_models


def split_levels_for(model: Model, dataset: DatasetT) -> DatasetT:
    """Return the dataset as a model takes it: some have a binary feature per plane."""
    if not model.splits_levels or are_binary(list_features(dataset)):
        return dataset
    return view_planes_as_features(dataset)


def find_split_levels(model: Model, dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """Return the levels of the features that `split_levels_for` splits; empty if it splits none."""
    if not model.splits_levels or are_binary(list_features(dataset)):
        return {}
    return dataset.feature_levels


def find_cut_levels(uncut: Dataset, dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """Return the levels of the features that `cut_levels` replaced by one of their planes."""
    levels = uncut.feature_levels
    return {name: own for name, own in levels.items() if own and name not in dataset.feature_names}


def check_can_have_features(model: Model, features: Sequence[Feature]) -> None:
    """Raise `FitError` if a feature is of a kind that the model cannot explain."""
    kinds = dict.fromkeys(f.kind for f in features if f.kind not in model.feature_kinds)
    if not kinds:
        return
    problems, cuts = [], []
    for kind in kinds:
        first, *others = (feature for feature in features if feature.kind == kind)
        subject = f"{first.name!r}{f' and {len(others)} more' if others else ''}"
        what = "values that are numbers" if kind == "continuous" else "more than two levels"
        problems.append(f"{subject} {'have' if others else 'has'} {what}")
        value = first.levels[len(first.levels) // 2] if first.levels else "VALUE"
        pattern = "*" if all(value in feature.levels for feature in features) else first.name
        cuts.append(f"{{cut={pattern}>={value}}}")
    models = sorted(find_models().items(), key=lambda item: item[1].splits_levels)
    names = [name for name, cls in models if {*kinds} <= {*cls.feature_kinds}]
    raise FitError(
        f"{model.name} takes {' and '.join(model.feature_kinds)} features, but "
        f"{' and '.join(problems)}. Cut each in two, such as by {' '.join(cuts)}"
        f"{', or use one of ' + ', '.join(names) if names else ''}."
    )
