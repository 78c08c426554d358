"""Counts of pairs of levels, weighted by the posterior of each component.

Posteriors that are nearly 0 are set to 0 before, see `drop_negligible`, so that each component is
counted only in rows for which its posterior is not negligible.

Rows are stored as planes: plane c of a feature is 1 if its level is at least c. Tasks sum products
of planes. Differences of neighbouring planes are indicators of levels, so the counts of pairs of
levels follow from the sums. Weights are in the unit of the rows' weights; where all are whole
numbers, the sums are exact.
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array, Counts, Levels
from pipeline.data.blocks import BinaryBlock
from pipeline.models.trees.feature_tree import count_cells
from pipeline.numerics.bits.weighted_pairs import add_weighted_pairs
from pipeline.numerics.trees.binary_rows import sum_complete_tables
from pipeline.numerics.trees.messages import MISSING, add_expected_tables, add_missing_pairs
from pipeline.statistics.counts import PairTable

_NEGLIGIBLE = 1e-10  # posterior that a row may lose


def drop_negligible(posterior: Array) -> Array:
    """Set probabilities to 0 that are too small to matter, (n_samples, n_components).

    A row loses at most 1e-10 in all. An M-step with the others raises the objective per row as far
    as one with all of them, up to 1e-10 (R. M. Neal, G. E. Hinton, "A view of the EM algorithm
    that justifies incremental, sparse, and other variants", 1998, section 5).
    """
    return np.where(posterior * posterior.shape[1] < _NEGLIGIBLE, 0.0, posterior)


def add_edge_tables(
    block: BinaryBlock,
    levels: Levels | None,
    weights: Array,
    parents: Counts,
    orders: Counts | None,
    tables: Array,
    n_levels: Counts,
    sums: Array,
) -> None:
    """Add the expected numbers of rows by the level of each feature and of its parent.

    The other parameters are those of `add_expected_pairs`. Numbers are added to `sums`,
    (n_components, n_features, n_levels, n_levels), at [k, i, level of the parent, level of i].
    """
    if levels is None or orders is None:
        sums += sum_complete_tables(block.words, weights, parents)
        return
    firsts = np.cumsum([0, *n_levels])
    for k, own in enumerate(np.ascontiguousarray(weights.T)):
        add_expected_tables(levels, parents[k], orders[k], tables[k], own, firsts, sums[k])


def add_expected_pairs(
    block: BinaryBlock,
    levels: Levels | None,
    weights: Array,
    parents: Counts,
    orders: Counts | None,
    tables: Array,
    n_levels: Counts,
    sums: Array,
) -> None:
    """Add the expected products of planes, for each component.

    Parameters
    ----------
    block
        The rows.
    levels, orders
        Levels of the rows, `MISSING` if missing, (n_samples, n_features), and the features with
        parents first, (n_components, n_features). None if all features are binary and no value is
        missing.
    weights
        Posterior of the components times the weight of the row, (n_samples, n_components).
    parents, tables
        The trees; see `pipeline.numerics.trees.messages`.
    n_levels
        Number of levels of each feature, (n_features,).
    sums
        To which products are added, (n_components, n_planes, n_planes). Those of planes p and q
        are the sum of what is added at [p, q] and at [q, p]; see `symmetrize`.
    """
    add_weighted_pairs(block.words, weights, sums)
    if levels is None or orders is None or block.observed_words is None:
        return
    firsts, values = np.cumsum([0, *n_levels]), block.unpack_values()
    is_incomplete = (levels == MISSING).any(axis=1)
    for k, own in enumerate(weights.T):
        rows = np.flatnonzero(is_incomplete & (own > 0))
        tree = (parents[k], orders[k], tables[k])
        add_missing_pairs(levels[rows], values[rows], *tree, own[rows], firsts, sums[k])


def symmetrize(sums: Array) -> None:
    """Add the products at [q, p] to those at [p, q], and the other way round, in place."""
    for products in sums:
        ones = products.diagonal().copy()
        products += products.T.copy()
        np.fill_diagonal(products, ones)


def count_level_pairs(products: Array, mass: float, n_levels: Counts) -> Array:
    """Return counts of pairs of levels, (n_levels in all, n_levels in all), for one component.

    `products`, (n_planes, n_planes), are an entry of the symmetrized sums of `add_expected_pairs`,
    and `mass` is the weight of all rows. Rounding below 0 is cut off.
    """
    ones = products.diagonal()
    table = PairTable(np.array(mass), ones[:, None], ones, products)
    cells = count_cells(table, n_levels, n_levels)
    reached = np.insert(ones, np.cumsum(n_levels - 1) - (n_levels - 1), mass)
    above = np.append(reached[1:], 0.0)
    above[np.cumsum(n_levels) - 1] = 0.0
    return with_margins(cells, np.maximum(reached - above, 0.0), n_levels)


def with_margins(counts: Array, margins: Array, n_levels: Counts) -> Array:
    """Return counts whose blocks of a feature with itself are diagonal and have these margins."""
    feature = np.repeat(np.arange(len(n_levels)), n_levels)
    counts = np.where(feature[:, None] == feature, 0.0, counts)
    np.fill_diagonal(counts, margins)
    return counts
