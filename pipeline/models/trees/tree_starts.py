"""Where the EM of trees starts: from pairs of observed values in random groups of rows.

Kinds of rows that differ only in how features depend on each other are invisible to mixtures of
independent features. So some starts draw random groups of rows, and find the tree of each.

If values are missing, expected counts would hardly show how features depend that few rows observe
together. So only pairs of observed values are counted, and starts differ in how much such pairs
count: by the share of rows that observe them, by its square root, or as much as all others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.models.trees.feature_tree import sum_information
from pipeline.numerics.trees.messages import MISSING
from pipeline.numerics.trees.spanning_tree import find_maximum_spanning_tree, make_tables
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Levels = NDArray[np.uint8]

_SHARE_POWERS = (1.0, 0.5, 0.0)
"""Powers of the share of rows that observe a pair, by which its information is multiplied."""
N_SHARE_POWERS = len(_SHARE_POWERS)
_ROWS_PER_GROUPED_ROW = 16
_NOISE = 0.5
"""Standard deviation of the log-weights of pairs, in starts after the first of each power."""


def draw_groups(levels: Levels, n_levels: Counts, n_groups: int, rng: RowRandom) -> Array:
    """Draw small random groups of rows; return which rows they have, (n_samples, n_groups).

    One row in 16 is in a group; larger ones would be too alike for EM to tell them apart
    soon. A single group has all rows. Rows with equal values have the same group, so groups do not
    depend on the order of rows, nor on whether equal rows are repeated or counted, nor on which end
    all levels are counted from.
    """
    if n_groups == 1:
        return np.ones((len(levels), 1))
    stream = rng.stream("groups")
    highest = (n_levels - 1).astype(np.uint8)
    reversed_levels = np.where(levels == MISSING, levels, highest - levels)
    hashes = stream.hash_rows(_pad(levels)) + stream.hash_rows(_pad(reversed_levels))
    groups = hashes % np.uint64(_ROWS_PER_GROUPED_ROW * n_groups)
    is_in: NDArray[np.bool_] = groups[:, None] == np.arange(n_groups, dtype=np.uint64)
    return is_in.astype(np.float64)


def _pad(levels: Levels) -> NDArray[np.uint64]:
    """Return the levels of each row in 64-bit words."""
    n_bytes = -levels.shape[1] % 8 + levels.shape[1]
    contents = np.zeros((len(levels), n_bytes), np.uint8)
    contents[:, : levels.shape[1]] = levels
    words: NDArray[np.uint64] = contents.view("<u8")
    return words


def add_observed_pairs(levels: Levels, weights: Array, n_levels: Counts, sums: Array) -> None:
    """Add the weights of rows by pairs of observed levels, for each group.

    Parameters
    ----------
    levels
        Levels of the rows, `MISSING` if missing, (n_samples, n_features).
    weights
        Weight of each row in each group, (n_samples, n_groups).
    n_levels
        Number of levels of each feature, (n_features,).
    sums
        To which weights are added, (n_groups, n_levels in all, n_levels in all).
    """
    feature = np.repeat(np.arange(len(n_levels)), n_levels)
    step = np.arange(len(feature)) - (np.cumsum(n_levels) - n_levels)[feature]
    for own, total in zip(weights.T, sums, strict=True):
        rows = np.flatnonzero(own)
        is_level = (levels[rows][:, feature] == step).astype(np.float64)
        total += (is_level * own[rows, None]).T @ is_level


def find_start_tree(
    counts: Array, pseudo_rows: Array, n_levels: Counts, start: int, rng: np.random.Generator | None
) -> tuple[Counts, Array]:
    """Return the parents and the tables of the tree of a group.

    Parameters
    ----------
    counts
        Rows by pairs of observed levels, (n_levels in all, n_levels in all).
    pseudo_rows
        Rows of independent features that are added, of the same shape.
    n_levels
        Number of levels of each feature, (n_features,).
    start
        Number of the start, which selects how much pairs count that few rows observe.
    rng
        Draws noise for the starts after the first ones; None for no noise.
    """
    firsts = np.cumsum(n_levels) - n_levels
    n_rows = np.add.reduceat(np.add.reduceat(counts, firsts, axis=0), firsts, axis=1)
    counts = counts + pseudo_rows
    # Features that are independent share about half their degrees of freedom by chance.
    chance = 0.5 * np.outer(n_levels - 1, n_levels - 1)
    total = np.maximum(sum_information(counts, n_levels, n_levels) - chance, 0.0)
    weights = weight_pairs(total / np.maximum(n_rows, 1.0), n_rows, start, rng)
    parents = find_maximum_spanning_tree(weights)
    return parents, make_tables(counts, firsts, n_levels, parents)


def weight_pairs(
    information: Array,
    n_rows: Array,
    start: int,
    rng: np.random.Generator | None,
    noise: float = _NOISE,
) -> Array:
    """Return the weights of pairs of features as edges of a tree, (n_features, n_features).

    Parameters
    ----------
    information
        Mutual information of each pair in the rows that observe it, (n_features, n_features).
    n_rows
        The number of these rows; on the diagonal, those that observe a feature.
    start
        Number of the start, which selects how much pairs count that few rows observe.
    rng
        Draws noise for the starts after the first ones; None for no noise.
    noise
        Its standard deviation.
    """
    share = n_rows / max(float(n_rows.diagonal().max()), 1.0)
    weights: Array = information * share ** _SHARE_POWERS[start % N_SHARE_POWERS]
    if rng is not None and start >= N_SHARE_POWERS:
        draws = np.triu(rng.standard_normal(weights.shape))
        weights *= np.exp(noise * (draws + draws.T))
    return weights
