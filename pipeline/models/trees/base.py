"""What tree models have in common: levels of features and their margins, and samples of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature, are_binary
from pipeline.errors import FitWarning
from pipeline.learning.held_out import is_held_out
from pipeline.models.state import Arrays
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    count_level_rows,
    make_constant_feature_warnings,
    make_empty_level_warnings,
    pool_margins,
)

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SAMPLE_ROWS = 4000
"""About as many rows are used by short runs from trees."""


class TreeParams:
    """What the parameters of tree models have in common: levels and their margins.

    Attributes
    ----------
    margins
        Share of each level of each feature, (n_levels in all,).
    n_levels
        Numbers of levels of the features; None if all features are binary.
    """

    margins: Array
    n_levels: Counts | None

    @property
    def levels_per_feature(self) -> Counts:
        """Number of levels of each feature, (n_features,)."""
        if self.n_levels is None:
            return np.full(len(self.margins) // 2, 2, np.int64)
        return self.n_levels

    def place_margins(self) -> Array:
        """Return the margins by feature, (n_features, n_levels); 0 beyond a feature's levels."""
        sizes = self.levels_per_feature
        placed = np.zeros((len(sizes), sizes.max()))
        placed[np.arange(sizes.max()) < sizes[:, None]] = self.margins
        return placed


def take_sample(working: Arrays, block: BinaryBlock, rng: RowRandom) -> BinaryBlock:
    """Return the rows of a block that short runs use: a random share, `working["sample"]`."""
    share = float(working.get("sample", 1.0))
    if share == 1:
        return block
    return block.take_rows(np.flatnonzero(~is_held_out(block.rows, 1 - share, rng.seed)))


def count_rows_by_level(counts: FeatureCounts, features: Sequence[Feature]) -> tuple[Array, ...]:
    """Count the rows, or their weight, at each level of each feature, (n_levels,) each."""
    if not are_binary(features):
        return count_level_rows(counts, features)
    observed, ones = pool_margins(counts)
    return tuple(np.stack([observed - ones, ones], axis=1).astype(np.float64))


def compute_margins(level_rows: Sequence[Array]) -> Array:
    """Return the share of each level among the observed values, (n_levels in all,).

    Half a pseudo-row at each level keeps shares above 0.
    """
    by_feature = [rows + 0.5 for rows in level_rows]
    return np.concatenate([rows / rows.sum() for rows in by_feature])


def convert_to_planes(levels: Array, n_levels: Counts) -> Array:
    """Return P(x_i ≥ c) of each plane c, given the probabilities of levels.

    Parameters
    ----------
    levels
        P(x_i = level) in each case, (n_cases, n_features, n_levels).
    n_levels
        Number of levels of each feature, (n_features,).

    Returns
    -------
    ndarray
        (n_cases, n_planes).
    """
    reached = levels[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    by_feature = [reached[:, i, 1:size] for i, size in enumerate(n_levels.tolist())]
    return np.concatenate(by_feature, axis=1)


def warn_about_levels(
    level_rows: Sequence[Array], features: Sequence[Feature]
) -> tuple[FitWarning, ...]:
    """Warn about constant features, and levels without rows, given `count_rows_by_level`."""
    consequence = "only the smoothing determines their probabilities"
    total, largest = (np.array([f(r) for r in level_rows]) for f in (np.sum, np.max))
    warnings = (
        *make_constant_feature_warnings(total, largest, consequence),
        *make_empty_level_warnings(level_rows, consequence),
    )
    names = tuple(feature.name for feature in features)
    return tuple(warning.with_names(names) for warning in warnings)
