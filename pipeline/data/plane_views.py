"""Views of a dataset: some of its features, reversed ones, and planes that are features themselves.

Continuous features can be cut in two, which makes a plane of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, TypeVar

from pipeline.data.datasets import NO_NAMES, Dataset, PlaneSource
from pipeline.data.features import (
    BINARY_LEVELS,
    Feature,
    find_first_planes,
    join_levels,
    list_features,
    name_planes,
    name_reversed,
    parse_number,
    read_dataset_features,
)
from pipeline.data.row_columns import RowColumns
from pipeline.errors import REVERSED, FitError, format_suggestion

DatasetT = TypeVar("DatasetT", bound=Dataset)
_Place = tuple[Feature, Sequence[PlaneSource]]
"""A feature of a view, and its planes."""


def view_planes_as_features(dataset: DatasetT) -> DatasetT:
    """Return the dataset with a binary feature per plane; see `name_planes`.

    Continuous and nominal features remain.
    """
    places: list[_Place] = []
    for feature, planes in _find_places(list_features(dataset)).values():
        names = feature.name_planes()
        own = [(Feature(n), [plane]) for n, plane in zip(names, planes, strict=True)]
        is_split = feature.kind in ("binary", "ordinal")
        places += own if is_split else [(feature, planes)]
    return _view(dataset, places)


def select_features(dataset: DatasetT, names: Sequence[str]) -> DatasetT:
    """Return the dataset with some of its features, in this order."""
    if tuple(names) == tuple(dataset.feature_names):
        return dataset
    places = _find_places(list_features(dataset))
    return _view(dataset, [places[name] for name in names])


def reverse_features(dataset: DatasetT, names: Sequence[str]) -> DatasetT:
    """Return the dataset with features reversed, which get new names; see `name_reversed`.

    The lowest level counts as the highest and so on, and 0 as 1; continuous features change their
    sign.

    Raises
    ------
    FitError
        If a feature of the new name exists already.
    """
    if not names:
        return dataset
    features, reversed_names = list_features(dataset), {*names}
    for feature in features:
        if feature.kind == "nominal" and feature.name in reversed_names:
            raise FitError(
                f"{{reverse}}: feature {feature.name!r} is nominal, and categories without order "
                "cannot be reversed. Leave it out of {reverse}."
            )
    if twice := {name_reversed(name) for name in names} & {*dataset.feature_names}:
        raise FitError(
            f"{{reverse}} would make a second feature {min(twice)!r}. Leave out one of them by "
            "{drop}."
        )
    places: list[_Place] = []
    for feature, planes in _find_places(features).values():
        if feature.name in reversed_names:
            own = Feature(name_reversed(feature.name), feature.levels)
            opposites = [~plane for plane in reversed(planes) if isinstance(plane, int)]
            places.append((own, opposites))
        else:
            places.append((feature, planes))
    continuous = [f.name for f in features if f.name in reversed_names and not f.levels]
    return _view(dataset, places, {name_reversed(name): name for name in continuous})


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
    places = [*_find_places(features).values()]
    for cut in cuts:
        level, own = _parse_cut(cut, features)
        for index in own:
            if index in chosen:
                raise FitError(f"{{cut}} cuts feature {features[index].name!r} twice. Cut it once.")
            feature = features[index]
            if feature.kind == "nominal":
                raise FitError(
                    f"{{cut={cut}}}: feature {feature.name!r} is nominal, and categories without "
                    "order cannot be cut in two. Leave it out of {cut}."
                )
            name = f"{feature.name}>={level}"
            if feature.kind == "continuous":
                chosen[index] = name, (feature.name, _parse_threshold(feature, level, cut))
            else:
                step = _find_level(feature, level, cut) - 1
                chosen[index] = feature.name_planes()[step], int(firsts[index]) + step
    for index, (name, plane) in chosen.items():
        places[index] = Feature(name), [plane]
    return _view(dataset, places)


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
        name = cut[: places[-1]]
        names = [feature.name for feature in features]
        is_reversed = name_reversed(name) in names
        hint = format_suggestion(name_reversed(name) if is_reversed else name, names)
        raise FitError(f"{{cut={cut}}}: no feature is named {name!r}.{hint}")
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
    """Return the dataset with the features of a fit, by their names.

    They may also be its features reversed, planes of them, or cuts of continuous ones. If one is
    none of these, the dataset is returned as it is.
    """
    names, fitted_names = {*dataset.feature_names}, [feature.name for feature in fitted]
    if fitted_names == [*dataset.feature_names]:
        return dataset
    bases = {name.rpartition(REVERSED)[0] for name in fitted_names if name not in names}
    to_reverse = [
        name for name in dataset.feature_names if name in bases and name_reversed(name) not in names
    ]
    view = reverse_features(dataset, to_reverse)
    features = list_features(view)
    places = _find_places(features)
    places |= {
        name: (Feature(name), [plane])
        for plane, name in enumerate(name_planes(features))
        if name not in places
    }
    continuous = {feature.name for feature in features if feature.kind == "continuous"}
    for feature in fitted:
        name, _, text = feature.name.rpartition(">=")
        threshold = parse_number(text)
        if feature.name not in places and name in continuous and threshold is not None:
            places[feature.name] = Feature(feature.name), [(name, threshold)]
    if any(name not in places for name in fitted_names):
        return dataset
    return _view(view, [places[name] for name in fitted_names])


def _find_places(features: Sequence[Feature]) -> dict[str, _Place]:
    """Return the features and their planes by name."""
    firsts = find_first_planes(features).tolist()
    return {
        feature.name: (feature, range(first, stop))
        for feature, (first, stop) in zip(features, pairwise(firsts), strict=True)
    }


def _view(
    dataset: DatasetT, places: Sequence[_Place], negatives: Mapping[str, str] = NO_NAMES
) -> DatasetT:
    levels = {f.name: f.levels for f, _ in places if f.levels != BINARY_LEVELS}
    planes = [plane for _, own in places for plane in own]
    return dataset.view_planes([f.name for f, _ in places], levels, planes, negatives)
