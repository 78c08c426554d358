"""Features: their names, and the levels that their values can have.

A feature with k levels is stored as k − 1 bits per value, its planes: plane c is 1 if the value is
at least level c + 1. The planes of a feature are next to each other, so a block has the planes of
all features one after the other. A binary feature has two levels and one plane, its value.
The levels of a nominal feature are categories: they have numbers and planes in the order in which
they are listed, which means nothing. A continuous feature has no levels and no planes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import REVERSED, quote_name

ScalarT = TypeVar("ScalarT", np.uint8, np.float64)
FeatureKind = Literal["binary", "ordinal", "nominal", "continuous"]
MAX_LEVELS = 16
"""Maximum number of levels of a feature."""
BINARY_LEVELS = ("0", "1")


class Feature(NamedTuple):
    """A feature: its name, and the names of its levels in increasing order.

    `levels` is empty for a continuous feature. With `is_nominal`, levels are categories, of which
    two are those of a binary feature.
    """

    name: str
    levels: tuple[str, ...] = BINARY_LEVELS
    is_nominal: bool = False

    @property
    def kind(self) -> FeatureKind:
        """What the values are."""
        if not self.levels:
            return "continuous"
        if len(self.levels) == 2:
            return "binary"
        return "nominal" if self.is_nominal else "ordinal"

    @property
    def n_planes(self) -> int:
        """Number of bits per value."""
        return max(0, len(self.levels) - 1)

    def describe_levels(self) -> str:
        """Describe the levels for a message."""
        if self.kind == "nominal":
            return f"the categories {self.list_categories()}"
        return f"the levels {join_levels(self.levels)}" if self.levels else "continuous values"

    def list_categories(self) -> str:
        """List the categories of a nominal feature in a text; empty for others."""
        return ", ".join(map(quote_name, self.levels)) if self.kind == "nominal" else ""

    def name_planes(self) -> list[str]:
        """Return a name of each plane; that of a binary feature is the feature's name."""
        if self.kind == "binary":
            return [self.name]
        if self.kind == "nominal":  # a plane is 1 for this category and all later ones
            later = (self.levels[first:] for first in range(1, len(self.levels)))
            return [f"{self.name}={'|'.join(categories)}" for categories in later]
        return [f"{self.name}>={level}" for level in self.levels[1:]]


class HasFeatures(Protocol):
    """A dataset: names of its features, and the levels of those that are not binary."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""

    @property
    def feature_levels(self) -> Mapping[str, tuple[str, ...]]:
        """Levels of each feature that is not binary, or has level names other than 0 and 1."""

    @property
    def nominal_features(self) -> frozenset[str]:
        """Names of the features whose levels are categories without an order."""


def join_levels(levels: Sequence[str]) -> str:
    """Write levels as the option of `ingest` does: LOW<MIDDLE<"<HIGH"."""
    return "<".join(map(quote_name, levels))


def parse_number(value: Any) -> float | None:
    """Return the number that a value is, or that a text states; None for anything else.

    Truth values, durations and complex numbers are none. Python also reads 1_000, digits of other
    alphabets, and infinity as numbers; no file means them.
    """
    if isinstance(value, str):
        value = value.strip()
        if "_" in value or not value.isascii() or value.lower().endswith("infinity"):
            return None
    elif isinstance(value, bool | np.bool | np.timedelta64 | np.complexfloating):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def list_features(dataset: HasFeatures) -> tuple[Feature, ...]:
    """Return the features of a dataset."""
    return make_features(dataset.feature_names, dataset.feature_levels, dataset.nominal_features)


def make_features(
    names: Sequence[str], levels: Mapping[str, Sequence[str]], nominal: Collection[str] = ()
) -> tuple[Feature, ...]:
    """Return features with these names and levels; those without levels are binary."""
    return tuple(Feature(n, tuple(levels.get(n, BINARY_LEVELS)), n in nominal) for n in names)


def select_with_levels(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """Return the features that have levels: all but the continuous ones."""
    return tuple(feature for feature in features if feature.levels)


def list_features_to_reconstruct(dataset: HasFeatures) -> tuple[Feature, ...]:
    """Return the features of a dataset; none if all are binary."""
    features = list_features(dataset)
    return () if are_binary(features) else features


def read_features(manifest: Mapping[str, Any]) -> tuple[Feature, ...]:
    """Return the features that a manifest of a fit or of codes records."""
    levels, nominal = manifest.get("feature_levels", {}), manifest.get("nominal_features", ())
    return make_features(manifest["feature_names"], levels, nominal)


def join_split_planes(
    features: Sequence[Feature], split_levels: Mapping[str, Sequence[str]]
) -> tuple[Feature, ...]:
    """Return the features that were split into a binary feature per plane, and all others.

    `split_levels` has the levels of the features that were split.
    """
    split = [Feature(name, tuple(levels)) for name, levels in split_levels.items()]
    firsts = {feature.name_planes()[0]: feature for feature in split if feature.levels}
    joined: list[Feature] = []
    place = 0
    while place < len(features):
        feature = firsts.get(features[place].name, features[place])
        n_planes = max(1, feature.n_planes)
        if feature.name_planes() != [own.name for own in features[place : place + n_planes]]:
            feature, n_planes = features[place], 1
        joined.append(feature)
        place += n_planes
    return tuple(joined)


def read_dataset_features(manifest: Mapping[str, Any]) -> tuple[Feature, ...]:
    """Return the features of the dataset of a fit; `read_features` has those of the model.

    They differ if the model took each plane of a feature with several levels as a feature.
    """
    return join_split_planes(read_features(manifest), manifest.get("split_levels", {}))


def name_reversed(name: str) -> str:
    """Return the name of a feature once it is reversed."""
    return f"{name}{REVERSED}"


def restore_names(features: Sequence[Feature], manifest: Mapping[str, Any]) -> tuple[Feature, ...]:
    """Return features of a fit with the names that they have in the data, before a reversal."""
    old_names = {name_reversed(name): name for name in manifest.get("reversed", ())}
    return tuple(f._replace(name=old_names.get(f.name, f.name)) for f in features)


def read_source_features(manifest: Mapping[str, Any]) -> tuple[Feature, ...]:
    """Return the features of the data that a fit reads, before any of them are reversed."""
    return restore_names(read_dataset_features(manifest), manifest)


def make_binary_features(names: Sequence[str]) -> tuple[Feature, ...]:
    """Return binary features with these names."""
    return tuple(map(Feature, names))


def are_binary(features: Sequence[Feature]) -> bool:
    """Return whether all features are binary."""
    return all(feature.kind == "binary" for feature in features)


def find_first_planes(features: Sequence[Feature]) -> NDArray[np.int64]:
    """Return the first plane of each feature and the number of planes, (n_features + 1,)."""
    return np.cumsum([0, *(feature.n_planes for feature in features)])


def count_planes(dataset: HasFeatures) -> int:
    """Return the number of planes of all features: that of rows of bits in a block."""
    n_binary = len(dataset.feature_names) - len(dataset.feature_levels)
    return n_binary + sum(max(0, len(levels) - 1) for levels in dataset.feature_levels.values())


def find_continuous(features: Sequence[Feature]) -> list[int]:
    """Return the indices of the continuous features."""
    return [index for index, feature in enumerate(features) if feature.kind == "continuous"]


def find_nominal(features: Sequence[Feature]) -> NDArray[np.bool_] | None:
    """Return which features have categories without an order, (n_features,); None if none has."""
    is_nominal = np.array([feature.kind == "nominal" for feature in features], np.bool_)
    return is_nominal if is_nominal.any() else None


def name_planes(features: Sequence[Feature]) -> tuple[str, ...]:
    """Return a name of each plane, (n_planes,)."""
    return tuple(chain.from_iterable(feature.name_planes() for feature in features))


def list_plane_names(dataset: HasFeatures) -> tuple[str, ...]:
    """Return a name of each plane of a dataset: of each row of bits in its blocks."""
    return name_planes(list_features(dataset))


def sum_planes(planes: NDArray[ScalarT], features: Sequence[Feature]) -> NDArray[ScalarT]:
    """Return levels counted from 0, given bits, or expected levels, given probabilities.

    Parameters
    ----------
    planes
        Bits of each plane, or probabilities that they are 1, (n_samples, n_planes).
    features
        The features.

    Returns
    -------
    ndarray
        Levels, (n_samples, n_features); 0 of continuous features.
    """
    firsts = find_first_planes(features)
    with_planes = np.flatnonzero(np.diff(firsts))
    levels = np.zeros((len(planes), len(features)), planes.dtype)
    if len(with_planes):
        sums = np.add.reduceat(planes, firsts[with_planes], axis=1, dtype=planes.dtype)
        levels[:, with_planes] = sums
    return levels


def split_levels(levels: NDArray[np.uint8], features: Sequence[Feature]) -> NDArray[np.uint8]:
    """Return the bits of each plane, (n_samples, n_planes); undoes `sum_planes`."""
    return split_into_planes(levels, [feature.n_planes for feature in features])


def split_into_planes(
    levels: NDArray[np.uint8], n_planes: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the bits of each plane, (n_samples, n_planes in all), given planes per feature."""
    steps = np.concatenate([np.arange(n, dtype=np.uint8) for n in n_planes])
    return (np.repeat(levels, n_planes, axis=1) > steps).astype(np.uint8)


def split_values(
    levels: NDArray[np.uint8], observed: NDArray[np.uint8] | None, features: Sequence[Feature]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Return the bits of each plane and their mask, (n_samples, n_planes) each.

    Parameters
    ----------
    levels
        Levels counted from 0, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    features
        The features; continuous ones have no planes.
    """
    if are_binary(features):
        return levels, observed
    n_planes = [feature.n_planes for feature in features]
    mask = None if observed is None else np.repeat(observed, n_planes, axis=1)
    return split_levels(levels, features), mask


def join_values(
    bits: NDArray[np.uint8], observed: NDArray[np.uint8] | None, features: Sequence[Feature]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Return levels counted from 0 and their mask; undoes `split_values`.

    Continuous features are 0 and observed.
    """
    if are_binary(features):
        return bits, observed
    if observed is not None:
        firsts = find_first_planes(features)
        with_planes = np.flatnonzero(np.diff(firsts))
        own = observed[:, firsts[with_planes]]
        observed = np.ones((len(bits), len(features)), np.uint8)
        observed[:, with_planes] = own
    return sum_planes(bits, features), observed


def count_free_moments(features: Sequence[Feature]) -> int | None:
    """Return the number of probabilities of cells that are free, or of means and covariances.

    The first is for features with levels only, the second for continuous ones only, whose other
    moments follow. None if there are both kinds.
    """
    n, continuous = len(features), find_continuous(features)
    if not continuous:
        return math.prod(feature.n_planes + 1 for feature in features) - 1
    return n + n * (n + 1) // 2 if len(continuous) == n else None
