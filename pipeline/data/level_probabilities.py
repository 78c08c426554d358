"""Probabilities of the levels of features, given those of their planes.

Plane c of a feature is 1 if its value is at least level c, counted from 0, so P(x = c) =
P(plane c) − P(plane c + 1), with 1 before the first plane and 0 after the last. A model that does
not know which planes belong together may give a later plane a larger probability than an earlier
one. `order_planes` therefore sorts the probabilities of a feature in decreasing order. This keeps
their sum, the expected level, and brings them closer to any decreasing ones.

Chernozhukov, Fernández-Val, Galichon (2009), Improving point and interval estimators of monotone
functions by rearrangement, Biometrika 96, Proposition 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, find_first_planes, split_levels, sum_planes

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def name_levels(features: Sequence[Feature]) -> tuple[str, ...]:
    """Return a name of each level of each feature, such as `q3=often`, (n_levels in all,)."""
    own = ([f"{feature.name}={level}" for level in feature.levels] for feature in features)
    return tuple(chain.from_iterable(own))


def order_planes(planes: Array, features: Sequence[Feature]) -> Array:
    """Return probabilities of planes, (n_samples, n_planes), decreasing within each feature."""
    ordered = planes.copy()
    firsts = find_first_planes(features)
    for first, feature in zip(firsts.tolist(), features, strict=False):
        if feature.n_planes > 1:
            own = ordered[:, first : first + feature.n_planes]
            own[:] = -np.sort(-own, axis=1)
    return ordered


def order_bits(planes: NDArray[np.uint8], features: Sequence[Feature]) -> NDArray[np.uint8]:
    """Return bits of planes, with the ones of each feature first; `features` may be empty."""
    return split_levels(sum_planes(planes, features), features) if features else planes


def find_level_probabilities(planes: Array, n_levels: Counts) -> Array:
    """Return P(x = level), (n_samples, n_levels in all), given decreasing P(x ≥ level).

    `planes` has the shape (n_samples, n_planes), and `n_levels` (n_features,), 0 for a continuous
    feature.
    """
    parts, first = [], 0
    for n in (n_levels[n_levels > 0] - 1).tolist():
        own = np.pad(planes[:, first : first + n], ((0, 0), (1, 1)), constant_values=(1.0, 0.0))
        parts.append(own[:, :-1] - own[:, 1:])
        first += n
    return np.hstack([np.empty((len(planes), 0)), *parts])


def find_likely_levels(levels: Array, features: Sequence[Feature]) -> NDArray[np.uint8]:
    """Return the most likely level of each feature, counted from 0, (n_samples, n_features).

    `levels` are the probabilities of all levels. The lowest of several equally likely levels is
    chosen.
    """
    likely = np.empty((len(levels), len(features)), np.uint8)
    first = 0
    for index, feature in enumerate(features):
        likely[:, index] = levels[:, first : first + len(feature.levels)].argmax(axis=1)
        first += len(feature.levels)
    return likely


def count_levels(features: Sequence[Feature]) -> Counts:
    """Return the number of levels of each feature, (n_features,); 0 of a continuous one."""
    return np.array([len(feature.levels) for feature in features], np.int64)
