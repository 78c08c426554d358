"""Where the EM of trees starts: from random groups of rows, and from passes that draw at random.

Kinds of rows that differ only in how features depend on each other are invisible to mixtures of
independent features. So some starts draw random groups of rows, and find the tree of each. In the
first passes, the component of each row is drawn from its posterior, as EM would stay with the
groups that it began with (G. Celeux, J. Diebolt, "The SEM algorithm", Computational Statistics
Quarterly 2, 1985). The weights of the edges of trees have random noise, which decreases to 0. So
edges are tried that expected counts hardly show, because few rows observe both of their ends.

If values are missing, the first trees are found from pairs of observed values only, and starts
differ in how much such pairs count: by the share of rows that observe them, by its square root, or
as much as all others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts, Levels
from pipeline.numerics.trees.dependence import sum_information
from pipeline.numerics.trees.messages import MISSING
from pipeline.numerics.trees.spanning_tree import find_maximum_spanning_tree, make_tables
from pipeline.random import RowRandom

_SHARE_POWERS = (1.0, 0.5, 0.0)
"""Powers of the share of rows that observe a pair, by which its information is multiplied."""
N_SHARE_POWERS = len(_SHARE_POWERS)


def draw_components(
    levels: Levels, n_levels: Counts, posterior: Array, rng: RowRandom, share: float = 1.0
) -> Array:
    """Draw the component of each row from its posterior; return indicators of the same shape.

    A random `share` of the rows has a component, the others none. Rows with equal values have the
    same draw. So the draws do not depend on the order of rows, nor on whether equal rows are
    repeated or counted, nor on which end all levels are counted from.
    """
    stream = rng.stream("components")
    highest = (n_levels - 1).astype(np.uint8)
    reversed_levels = np.where(levels == MISSING, levels, highest - levels)
    hashes = stream.hash_rows(_pad(levels)) + stream.hash_rows(_pad(reversed_levels))
    uniform = (hashes >> np.uint64(11)) * 2.0**-53 / share
    drawn = (uniform[:, None] >= posterior.cumsum(axis=1)[:, :-1]).sum(axis=1)
    is_drawn: NDArray[np.bool_] = drawn[:, None] == np.arange(posterior.shape[1])
    return (is_drawn & (uniform[:, None] < 1)).astype(np.float64)


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
    counts: Array,
    pseudo_rows: Array,
    n_levels: Counts,
    start: int,
    noise: float,
    rng: np.random.Generator,
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
    noise, rng
        Noise of the weights of edges; see `add_noise`.
    """
    firsts = np.cumsum(n_levels) - n_levels
    n_rows = np.add.reduceat(np.add.reduceat(counts, firsts, axis=0), firsts, axis=1)
    counts = counts + pseudo_rows
    # Features that are independent share about half their degrees of freedom by chance.
    chance = 0.5 * np.outer(n_levels - 1, n_levels - 1)
    total = np.maximum(sum_information(counts, n_levels, n_levels) - chance, 0.0)
    weights = weight_pairs(total / np.maximum(n_rows, 1.0), n_rows, start)
    parents = find_maximum_spanning_tree(add_noise(weights, noise, rng))
    return parents, make_tables(counts, firsts, n_levels, parents)


def weight_pairs(information: Array, n_rows: Array, start: int) -> Array:
    """Return the weights of pairs of features as edges of a tree, (n_features, n_features).

    Parameters
    ----------
    information
        Mutual information of each pair in the rows that observe it, (n_features, n_features).
    n_rows
        The number of these rows; on the diagonal, those that observe a feature.
    start
        Number of the start, which selects how much pairs count that few rows observe.
    """
    share = n_rows / max(float(n_rows.diagonal().max()), 1.0)
    weights: Array = information * share ** _SHARE_POWERS[start % N_SHARE_POWERS]
    return weights


def add_noise(weights: Array, noise: float, rng: np.random.Generator) -> Array:
    """Add normal noise with the standard deviation `noise` to the logarithm of each weight."""
    draws = np.triu(rng.standard_normal(weights.shape), 1)
    noisy: Array = weights * np.exp(noise * (draws + draws.T))
    return noisy
