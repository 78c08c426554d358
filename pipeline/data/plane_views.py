"""Views of a dataset in which planes of ordinal features are features themselves.

Continuous features can be cut in two, which makes a plane of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from pipeline.data.datasets import Dataset, PlaneSource
from pipeline.data.features import (
    BINARY_LEVELS,
    Feature,
    are_binary,
    find_first_planes,
    join_levels,
    list_features,
    list_plane_names,
    name_planes,
    parse_number,
    read_dataset_features,
)
from pipeline.data.row_columns import RowColumns
from pipeline.errors import FitError

DatasetT = TypeVar("DatasetT", bound=Dataset)


def view_planes_as_features(dataset: DatasetT) -> DatasetT:
    """Return the dataset with a binary feature per plane; see `name_planes`.

    Continuous features remain.
    """
    own: list[Feature] = []
    for feature in list_features(dataset):
        own += [feature] if feature.kind == "continuous" else map(Feature, feature.name_planes())
    return _view(dataset, own, range(len(list_plane_names(dataset))))


def cut_levels(dataset: DatasetT, cuts: Sequence[str]) -> DatasetT:
    """Return the dataset with features cut in two, such as `q*>=often` or `age>=40`.

    Such a feature becomes a binary one with a name such as `q3>=often`, which is that of a plane of
    an ordinal feature.

    Raises
    ------
    FitError
        If a cut names no feature, no level or the lowest level, or no number for a continuous
        feature, or a feature is cut twice.
    """
    if not cuts:
        return dataset
    features = list_features(dataset)
    chosen: dict[int, tuple[str, PlaneSource]] = {}
    firsts = find_first_planes(features)
    for cut in cuts:
        level, own = _parse_cut(cut, features)
        for index in own:
            if index in chosen:
                raise FitError(f"{{cut}} cuts feature {features[index].name!r} twice. Cut it once.")
            feature = features[index]
            name = f"{feature.name}>={level}"
            if feature.kind == "continuous":
                chosen[index] = name, (feature.name, _parse_threshold(feature, level, cut))
            else:
                step = _find_level(feature, level, cut) - 1
                chosen[index] = feature.name_planes()[step], int(firsts[index]) + step
    own_features: list[Feature] = []
    planes: list[PlaneSource] = []
    for index, feature in enumerate(features):
        if index in chosen:
            name, plane = chosen[index]
            own_features.append(Feature(name))
            planes.append(plane)
        else:
            own_features.append(feature)
            planes.extend(range(firsts[index], firsts[index + 1]))
    return _view(dataset, own_features, planes)


def _parse_cut(cut: str, features: Sequence[Feature]) -> tuple[str, list[int]]:
    """Return the level of a cut, and the features whose names match.

    Names and levels may contain `>=` too: of several readings, the one with a known level counts.
    """
    places = [place for place in range(1, len(cut)) if cut.startswith(">=", place)]
    if not places:
        raise FitError(
            f"{{cut}} is {cut!r}. Name a feature and the lowest level that counts as 1, such as "
            "{cut=q3>=often}."
        )
    readings = []
    for name, level in ((cut[:place], cut[place + 2 :]) for place in reversed(places)):
        own = [i for i, feature in enumerate(features) if fnmatchcase(feature.name, name)]
        if own and all(level in features[index].levels for index in own):
            return level, own
        readings += [(level, own)] * bool(own)
    if not readings:
        raise FitError(f"{{cut={cut}}}: no feature is named {cut[: places[-1]]!r}.")
    return readings[0]


def _parse_threshold(feature: Feature, text: str, cut: str) -> float:
    """Return the lowest value of a continuous feature that counts as 1."""
    threshold = parse_number(text)
    if threshold is None or not math.isfinite(threshold):
        raise FitError(
            f"{{cut={cut}}}: {feature.name!r} is continuous, but {text!r} is not a number. Name "
            "the lowest value that counts as 1."
        )
    return threshold


def _find_level(feature: Feature, level: str, cut: str) -> int:
    """Return the index of a level of a feature at which it can be cut."""
    levels = join_levels(feature.levels)
    if level not in feature.levels:
        raise FitError(
            f"{{cut={cut}}}: feature {feature.name!r} has no level {level!r}. It has {levels}."
        )
    if level == feature.levels[0]:
        raise FitError(
            f"{{cut={cut}}}: all values of feature {feature.name!r} are at least {level!r}, its "
            f"lowest level. Choose a higher one of {levels}."
        )
    return feature.levels.index(level)


def adapt_to_manifest(
    dataset: DatasetT, manifest: Mapping[str, Any], make_error: Callable[[str, str], Exception]
) -> DatasetT:
    """Return the dataset with the features of a fit, its groups as segments, and its columns.

    `manifest` is that of the fit, or of codes that it computed. `make_error` makes the error about
    a column that the dataset lacks, given its name and what its values are for the fit.
    """
    if "feature_names" in manifest:
        dataset = view_as_fitted(dataset, read_dataset_features(manifest))
    group, row_columns = manifest.get("group"), RowColumns.read(manifest)
    for name, role in {**({group: "groups"} if group else {}), **row_columns.roles}.items():
        try:
            dataset.check_columns([name])
        except ValueError:
            raise make_error(name, role) from None
    dataset = dataset if group is None else dataset.segment_by(group)
    return dataset.with_row_columns(row_columns)


def view_as_fitted(dataset: DatasetT, fitted: Sequence[Feature]) -> DatasetT:
    """Return the dataset with the features of a fit, if some of them are planes of its own.

    They may also be cuts of its continuous features. Otherwise the dataset is returned as it is.
    """
    features = list_features(dataset)
    if are_binary(features) or [f.name for f in fitted] == [f.name for f in features]:
        return dataset
    firsts = find_first_planes(features)
    places: dict[str, tuple[Feature, Sequence[PlaneSource]]] = {
        feature.name: (feature, range(firsts[index], firsts[index + 1]))
        for index, feature in enumerate(features)
    }
    names = name_planes(features)
    places |= {
        name: (Feature(name), range(plane, plane + 1))
        for plane, name in enumerate(names)
        if name not in places
    }
    continuous = {feature.name for feature in features if feature.kind == "continuous"}
    for feature in fitted:
        name, _, text = feature.name.rpartition(">=")
        threshold = parse_number(text)
        if feature.name not in places and name in continuous and threshold is not None:
            places[feature.name] = Feature(feature.name), [(name, threshold)]
    if any(feature.name not in places for feature in fitted):
        return dataset
    chosen = [places[feature.name] for feature in fitted]
    return _view(dataset, [f for f, _ in chosen], [plane for _, own in chosen for plane in own])


def _view(
    dataset: DatasetT, features: Sequence[Feature], planes: Sequence[PlaneSource]
) -> DatasetT:
    levels = {f.name: f.levels for f in features if f.levels != BINARY_LEVELS}
    return dataset.view_planes([feature.name for feature in features], levels, planes)
