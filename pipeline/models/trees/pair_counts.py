"""Counts of pairs of levels, weighted by the posterior of each component.

Posteriors that are nearly 0 are set to 0 before, see `drop_negligible`, so that each component is
counted only in rows for which its posterior is not negligible.

Rows are stored as planes: plane c of a feature is 1 if its level is at least c. Tasks sum products
of planes. Differences of neighbouring planes are indicators of levels, so the counts of pairs of
levels follow from the sums. A first column of ones adds the counts of levels and of rows.
"""

from __future__ import annotations

import numpy as np
import scipy

from pipeline.arrays import Array, Counts, Levels
from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.trees.binary_rows import sum_complete_tables
from pipeline.numerics.trees.messages import MISSING, add_expected_tables, fill_expectations

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

    The other parameters are those of `add_weighted_pairs`. Numbers are added to `sums`,
    (n_components, n_features, n_levels, n_levels), at [k, i, level of the parent, level of i].
    """
    if levels is None or orders is None:
        sums += sum_complete_tables(block.words, weights, parents)
        return
    firsts = np.cumsum([0, *n_levels])
    for k, own in enumerate(np.ascontiguousarray(weights.T)):
        add_expected_tables(levels, parents[k], orders[k], tables[k], own, firsts, sums[k])


def add_weighted_pairs(
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
        To which products are added, (n_components, 1 + n_planes, 1 + n_planes); the first column
        stands for 1.
    """
    values, n_planes = block.unpack_values(), 1 + block.n_features
    is_incomplete = np.zeros(len(values), np.bool_)
    if levels is not None:
        is_incomplete = (levels == MISSING).any(axis=1)
    firsts = np.cumsum([0, *n_levels])
    to_planes = _make_planes_from_levels(n_levels) if is_incomplete.any() else None
    for k, own in enumerate(np.ascontiguousarray(weights.T)):
        (rows,) = np.nonzero(own)
        planes = np.ones((len(rows), n_planes))
        planes[:, 1:] = values[rows]
        places = np.flatnonzero(is_incomplete[rows])
        if levels is not None and orders is not None and to_planes is not None and len(places):
            expected = np.empty((len(places), firsts[-1]))
            joint = np.zeros((firsts[-1], firsts[-1]))
            tree = (parents[k], orders[k], tables[k])
            incomplete = rows[places]
            fill_expectations(levels[incomplete], *tree, own[incomplete], firsts, expected, joint)
            planes[places] = (to_planes @ expected.T).T
            sums[k] += to_planes @ (to_planes @ joint).T
        planes *= np.sqrt(own[rows])[:, None]
        sums[k] += planes.T @ planes


def count_level_pairs(products: Array, n_levels: Counts) -> Array:
    """Return counts of pairs of levels, (n_levels in all, n_levels in all), for one component.

    `products`, (1 + n_planes, 1 + n_planes), are an entry of what `add_weighted_pairs` adds to.
    Rounding below 0 is cut off.
    """
    to_levels = _make_levels_from_planes(n_levels)
    counts = np.maximum(to_levels @ (to_levels @ products).T, 0.0)
    margins = np.maximum(to_levels @ products[0], 0.0)
    return with_margins(counts, margins, n_levels)


def with_margins(counts: Array, margins: Array, n_levels: Counts) -> Array:
    """Return counts whose blocks of a feature with itself are diagonal and have these margins."""
    feature = np.repeat(np.arange(len(n_levels)), n_levels)
    counts = np.where(feature[:, None] == feature, 0.0, counts)
    np.fill_diagonal(counts, margins)
    return counts


def _make_planes_from_levels(n_levels: Counts) -> scipy.sparse.csr_array:
    """Return the matrix of 1 and planes given indicators of levels, (1 + n_planes, n_levels)."""
    feature, step = _list_levels(n_levels)
    column = np.arange(len(feature)) - feature  # of the plane that begins at a level
    # 1 is the sum of the levels of the first feature; plane c sums the levels from c on.
    entries = [(0, level) for level in range(n_levels[0])]
    entries += [
        (int(column[level]) - back, level)
        for level in range(len(feature))
        for back in range(step[level])
    ]
    rows, columns = np.array(entries).T
    shape = (1 + int((n_levels - 1).sum()), len(feature))
    return scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)


def _make_levels_from_planes(n_levels: Counts) -> scipy.sparse.csr_array:
    """Return the matrix of indicators of levels given 1 and planes, (n_levels, 1 + n_planes)."""
    feature, step = _list_levels(n_levels)
    level = np.arange(len(feature))
    column = level - feature
    has_next = step < n_levels[feature] - 1
    rows = np.append(level, level[has_next])
    columns = np.append(np.where(step == 0, 0, column), column[has_next] + 1)
    values = np.append(np.ones(len(level)), -np.ones(has_next.sum()))
    shape = (len(feature), 1 + int((n_levels - 1).sum()))
    return scipy.sparse.csr_array((values, (rows, columns)), shape=shape)


def _list_levels(n_levels: Counts) -> tuple[Counts, Counts]:
    """Return the feature of each level, and its step within the feature, (n_levels in all,)."""
    feature = np.repeat(np.arange(len(n_levels)), n_levels)
    return feature, np.arange(len(feature)) - (np.cumsum(n_levels) - n_levels)[feature]
