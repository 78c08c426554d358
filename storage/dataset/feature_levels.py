"""Levels of features, and the bits that store them.

A feature with k levels is stored as k − 1 bits per value, its planes: plane c is 1 if the value is
at least level c + 1, counted from 0. The planes of a feature are next to each other, and a binary
feature has one plane. The levels of a nominal feature are categories, in an order that means
nothing. A continuous feature has no levels and no planes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.quoting import join_levels, quote

MAX_LEVELS = 16
"""Maximum number of levels of a feature."""
BINARY_LEVELS = ("0", "1")
_KINDS = {"binary": 0, "ordinal": 1, "continuous": 2, "nominal": 3}


@dataclass(frozen=True)
class Planes:
    """The planes of all features.

    Attributes
    ----------
    levels
        Names of the levels of each feature, in increasing order; empty for a continuous feature.
    """

    levels: tuple[tuple[str, ...], ...]

    @classmethod
    def of_features(
        cls, names: Sequence[str], feature_levels: Mapping[str, Sequence[str]]
    ) -> Planes:
        """Return the planes of features; those without entry in `feature_levels` are binary."""
        if not feature_levels:
            return cls((BINARY_LEVELS,) * len(names))
        return cls(tuple(tuple(feature_levels.get(name, BINARY_LEVELS)) for name in names))

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> Planes:
        """Return the planes of a stored dataset."""
        return cls.of_features(manifest["feature_names"], manifest.get("feature_levels", {}))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """First plane of each feature, and the number of planes, (n_features + 1,)."""
        n_levels = np.fromiter(map(len, self.levels), np.int64, len(self.levels))
        return np.concatenate([[0], np.cumsum(np.maximum(n_levels - 1, 0))])

    @cached_property
    def features(self) -> NDArray[np.int64]:
        """Feature of each plane, (n_planes,)."""
        return np.repeat(np.arange(len(self.levels)), np.diff(self.firsts))

    @property
    def are_features(self) -> bool:
        """Whether every feature has exactly one plane."""
        return len(self) == len(self.levels) and bool((np.diff(self.firsts) == 1).all())

    def split_levels(self, levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the packed bits of each plane, (n_planes, n_bytes).

        `levels` are the packed bits of levels counted from 0, from the lowest bit up, (n_bits,
        n_features, n_bytes).
        """
        if self.are_features:
            bits: NDArray[np.uint8] = levels[0]
            return bits if len(levels) == 1 else np.bitwise_or.reduce(levels)
        steps = np.arange(len(self)) - self.firsts[self.features]
        return compare_levels(levels[:, self.features], steps)

    def sum_planes(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return levels, (n_rows, n_features), given the bits of planes; continuous ones are 0."""
        if self.are_features:
            return bits
        sums = np.cumsum(np.pad(bits, ((0, 0), (1, 0))), axis=1, dtype=np.int64)
        return np.diff(sums[:, self.firsts], axis=1).astype(np.uint8)

    def repeat_mask(self, mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Repeat the mask of each feature for its planes: (n_features, n_bytes) to planes."""
        return mask if self.are_features else mask[self.features]

    @cached_property
    def continuous(self) -> NDArray[np.int64]:
        """Indices of the continuous features."""
        return np.array([k for k, levels in enumerate(self.levels) if not levels], np.int64)

    def name_planes(self, names: Sequence[str], nominal: Collection[str]) -> list[str]:
        """Return a name of each plane, given the names of the features, and of the nominal ones."""
        plane_names = []
        for name, levels in zip(names, self.levels, strict=True):
            if len(levels) == 2:
                plane_names.append(name)
            elif name in nominal:
                later = (levels[first:] for first in range(1, len(levels)))
                plane_names += [f"{name}={'|'.join(categories)}" for categories in later]
            else:
                plane_names += [f"{name}>={level}" for level in levels[1:]]
        return plane_names

    def tabulate(self, names: Sequence[str], nominal: Collection[str]) -> NDArray[np.int64]:
        """Return first plane, number of planes and kind of each feature, (n_features, 3).

        `names` are those of the features, and `nominal` those of the nominal ones.
        """
        kinds = {0: "continuous", 2: "binary"}
        codes = [
            _KINDS[kinds.get(len(levels), "nominal" if name in nominal else "ordinal")]
            for name, levels in zip(names, self.levels, strict=True)
        ]
        return np.column_stack([self.firsts[:-1], np.diff(self.firsts), codes])


def compare_levels(levels: NDArray[np.uint8], thresholds: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return which levels exceed a threshold of their row, (n, n_bytes), from the highest bit down.

    `levels` are packed bits, (n_bits, n, n_bytes), and `thresholds` are (n,).
    """
    n_bits = max(len(levels), int(thresholds.max(initial=0)).bit_length())
    is_above = np.zeros(levels.shape[1:], np.uint8)
    is_equal = ~is_above
    for k in reversed(range(n_bits)):
        bits = levels[k] if k < len(levels) else np.zeros_like(is_above)
        own = np.where(thresholds[:, None] >> k & 1, np.uint8(255), np.uint8(0))
        is_above |= is_equal & bits & ~own
        is_equal &= ~(bits ^ own)
    return is_above


def format_levels(levels: Sequence[str], is_nominal: bool = False) -> str:
    """Describe the levels of a feature for a message."""
    if len(levels) > MAX_LEVELS:  # candidates
        return f"whole numbers as {'categories' if is_nominal else 'levels'}"
    if is_nominal:
        return f"the categories {', '.join(map(quote, levels))}"
    return f"the levels {join_levels(levels)}" if levels else "continuous values"


def check_feature_levels(
    names: Sequence[str], feature_levels: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Check the levels of features, and return those that are not 0 and 1, in column order.

    A continuous feature has no levels. Raises `DataError` if a feature does not exist, or has too
    many or equal levels, or only one.
    """
    known = set(names)
    if unknown := [name for name in feature_levels if name not in known]:
        raise DataError(f"There are levels of {unknown[0]!r}, which is no feature.")
    checked = {}
    for name in names:
        levels = [*map(str, feature_levels.get(name, BINARY_LEVELS))]
        if levels and not 2 <= len(levels) <= MAX_LEVELS:
            raise DataError(
                f"Feature {name!r} has {len(levels)} level{'s' * (len(levels) != 1)}. "
                f"Name 2 to {MAX_LEVELS} levels."
            )
        if len({*levels}) < len(levels):
            repeated = next(level for level in levels if levels.count(level) > 1)
            raise DataError(f"Feature {name!r} has the level {repeated!r} twice. Name it once.")
        if tuple(levels) != BINARY_LEVELS:
            checked[name] = levels
    return checked
