"""What tree models have in common: levels of features and their margins, and samples of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.learning.held_out import is_held_out
from pipeline.models.state import Arrays
from pipeline.random import RowRandom

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
