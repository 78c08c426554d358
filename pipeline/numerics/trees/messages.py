"""Exact inference in trees over features, row by row, by belief propagation (Pearl 1988).

The tables of a tree are P(x_i = a | x_parent = b) at [i, b, a]; the table of a root has P(x_i = a)
at b = 0.
An observed feature cuts the tree, so messages pass only among missing features. An exception is
`fill_plane_probabilities`, which leaves out each value in turn.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.trees.spanning_tree import ROOT

Array = NDArray[np.float64]
Levels = NDArray[np.uint8]
Indices = NDArray[np.int64]

MISSING = 255
"""Level of a missing value."""
_SMALL = 1e-100  # evidence below it is rescaled before it underflows
_TINY = 1e-150  # evidence for a level below it is kept as a logarithm

_kernel = njit(nogil=True, cache=True, error_model="numpy")


@_kernel
def fill_log_likelihoods(
    levels: Levels, parents: Indices, orders: Indices, tables: Array, nats: Array
) -> None:
    """Fill in log P of the observed values of each row under each tree.

    Parameters
    ----------
    levels
        Levels counted from 0, `MISSING` if missing, (n_samples, n_features).
    parents, orders
        Parent of each feature, and the features with parents first, (n_trees, n_features) each.
    tables
        (n_trees, n_features, n_levels, n_levels).
    nats
        To be filled, (n_samples, n_trees).
    """
    n_trees, n_features = parents.shape
    n_levels = tables.shape[2]
    logs = np.empty_like(tables)
    for k in range(n_trees):
        for i in range(n_features):
            for b in range(n_levels):
                for a in range(n_levels):
                    value = tables[k, i, b, a]
                    logs[k, i, b, a] = math.log(value) if value > 0 else -math.inf
    evidence = np.empty((n_features, n_levels))
    for row in range(len(levels)):
        own = levels[row]
        is_complete = True
        for i in range(n_features):
            is_complete &= own[i] != MISSING
        for k in range(n_trees):
            if is_complete:
                total = 0.0
                for i in range(n_features):
                    parent = parents[k, i]
                    total += logs[k, i, own[parent] if parent != ROOT else 0, own[i]]
                nats[row, k] = total
            else:
                nats[row, k] = _pass_up(own, parents[k], orders[k], tables[k], logs[k], evidence)


@_kernel
def _pass_up(
    own: Levels, parents: Indices, order: Indices, tables: Array, logs: Array, evidence: Array
) -> float:
    """Return log P of the observed values, and fill in the evidence about missing ones.

    `evidence[i, a]` becomes proportional to P(observed values below i | x_i = a).
    """
    n_features, n_levels = evidence.shape
    for i in range(n_features):
        if own[i] == MISSING:
            evidence[i] = 1.0
    # Of many children, the last may favour a level that is nearly impossible given the first.
    needs_logs, has_logs = False, np.empty(0, np.bool_)
    total = 0.0
    for place in range(n_features - 1, -1, -1):
        i = order[place]
        parent = parents[i]
        if needs_logs and has_logs[i]:
            largest = evidence[i].max()
            total += largest
            evidence[i] = np.exp(evidence[i] - largest)
        level_above = 0
        if parent != ROOT:
            level_above = own[parent]
        if level_above != MISSING:  # the parent is observed, or i is a root
            if own[i] != MISSING:
                total += logs[i, level_above, own[i]]
            else:
                message = 0.0
                for a in range(n_levels):
                    message += tables[i, level_above, a] * evidence[i, a]
                total += math.log(message)
            continue
        largest, is_tiny = 0.0, False
        is_log = needs_logs and has_logs[parent]
        for b in range(n_levels):
            if own[i] != MISSING:
                message = tables[i, b, own[i]]
            else:
                message = 0.0
                for a in range(n_levels):
                    message += tables[i, b, a] * evidence[i, a]
            if is_log:
                evidence[parent, b] += math.log(message) if message > 0 else -math.inf
                continue
            evidence[parent, b] *= message
            largest = max(largest, evidence[parent, b])
            is_tiny |= 0 < evidence[parent, b] < _TINY
        if 0 < largest < _SMALL:
            evidence[parent] /= largest
            total += math.log(largest)
        if is_tiny:
            if not needs_logs:
                needs_logs, has_logs = True, np.zeros(n_features, np.bool_)
            has_logs[parent] = True
            for b in range(n_levels):
                value = evidence[parent, b]
                evidence[parent, b] = math.log(value) if value > 0 else -math.inf
    return total


@_kernel
def add_missing_pairs(
    levels: Levels,
    values: Levels,
    parents: Indices,
    order: Indices,
    tables: Array,
    shares: Array,
    firsts: Indices,
    sums: Array,
) -> None:
    """Add what missing values add to the expected products of all pairs of planes.

    Parameters
    ----------
    levels
        (n_samples, n_features), as for `fill_log_likelihoods`.
    values
        Planes of the rows, 0 where missing, (n_samples, n_planes).
    parents, order, tables
        A single tree.
    shares
        Weight of each row, (n_samples,).
    firsts
        Column of the first level of each feature, and the number of columns, (n_features + 1,).
    sums
        To which products are added at either [p, q] or [q, p], or a part of them at each, and once
        at [p, p], (n_planes, n_planes). Those of planes of the same feature are not added.
    """
    n_features = len(parents)
    n_levels = tables.shape[1]
    logs = np.zeros_like(tables)
    evidence = np.empty((n_features, n_levels))
    given_parent = np.empty((n_features, n_levels, n_levels))
    missing = np.empty(n_features, np.int64)
    places = np.empty(n_features, np.int64)  # of missing features among them
    tops = np.empty(n_features, np.int64)
    marginals, reached = np.empty((2, firsts[-1]))
    planes = np.empty(values.shape[1])
    most = 0
    for row in range(len(levels)):
        n_missing = 0
        for i in range(n_features):
            n_missing += levels[row, i] == MISSING
        most = max(most, n_missing)
    pairs = np.empty((most, most, n_levels, n_levels))
    for row in range(len(levels)):
        own, share, n_missing = levels[row], shares[row], 0
        _pass_up(own, parents, order, tables, logs, evidence)
        for plane in range(len(planes)):
            planes[plane] = values[row, plane]
        for place in range(n_features):
            i = order[place]
            if own[i] != MISSING:
                continue
            parent = parents[i]
            is_top = parent == ROOT or own[parent] != MISSING
            tops[i] = i if is_top else tops[parent]
            missing[n_missing] = i
            places[i] = n_missing
            marginals[firsts[i] : firsts[i + 1]] = 0.0
            _pass_down(own, i, parent, is_top, tables, evidence, given_parent, firsts, marginals)
            total = 0.0
            for column in range(firsts[i + 1] - 1, firsts[i], -1):
                total += marginals[column]
                reached[column] = total
                planes[column - i - 1] = total / 2
            # Features before i in the order are not below i: given its parent, independent of it.
            for other in range(n_missing):
                j = missing[other]
                if tops[j] != tops[i]:
                    continue
                above = pairs[other, places[parent]]
                _join(i, j, parent, given_parent, firsts, marginals, above, pairs[other, n_missing])
                _transpose(pairs[other, n_missing], pairs[n_missing, other])
                _add_covariance(i, j, pairs[other, n_missing], firsts, reached, share, sums)
            n_missing += 1
        # Half of the product of two expectations is added at [p, q], half at [q, p].
        for place in range(n_missing):
            i = missing[place]
            for column in range(firsts[i] + 1, firsts[i + 1]):
                plane, factor = column - i - 1, share * reached[column]
                products = sums[plane]
                for other in range(len(planes)):
                    products[other] += factor * planes[other]
                products[plane] += factor - factor * planes[plane]


@_kernel
def add_expected_tables(
    levels: Levels,
    parents: Indices,
    order: Indices,
    tables: Array,
    shares: Array,
    firsts: Indices,
    sums: Array,
) -> None:
    """Add the expected numbers of rows by the level of each feature and of its parent.

    Parameters
    ----------
    levels, parents, order, tables, shares, firsts
        As for `add_missing_pairs`.
    sums
        To which P(x_parent = b, x_i = a | observed values), summed over rows times `shares`, are
        added at [i, b, a], (n_features, n_levels, n_levels); at b = 0 for roots.
    """
    n_features = len(parents)
    n_levels = tables.shape[1]
    logs = np.zeros_like(tables)
    evidence = np.empty((n_features, n_levels))
    given_parent = np.empty((n_features, n_levels, n_levels))
    marginals = np.zeros(firsts[-1])
    for row in range(len(levels)):
        own, share = levels[row], shares[row]
        if share == 0:
            continue
        is_complete = True
        for i in range(n_features):
            is_complete &= own[i] != MISSING
        if not is_complete:
            _pass_up(own, parents, order, tables, logs, evidence)
            marginals[:] = 0.0
        for place in range(n_features):
            i = order[place]
            parent = parents[i]
            is_top = parent == ROOT or own[parent] != MISSING
            level_above = own[parent] if is_top and parent != ROOT else 0
            if own[i] != MISSING:
                if is_top:
                    sums[i, level_above, own[i]] += share
                else:
                    for b in range(firsts[parent + 1] - firsts[parent]):
                        sums[i, b, own[i]] += share * marginals[firsts[parent] + b]
                continue
            _pass_down(own, i, parent, is_top, tables, evidence, given_parent, firsts, marginals)
            for a in range(firsts[i + 1] - firsts[i]):
                if is_top:
                    sums[i, level_above, a] += share * marginals[firsts[i] + a]
                else:
                    for b in range(firsts[parent + 1] - firsts[parent]):
                        joint = marginals[firsts[parent] + b] * given_parent[i, b, a]
                        sums[i, b, a] += share * joint


@_kernel
def _pass_down(
    own: Levels,
    i: int,
    parent: int,
    is_top: bool,
    tables: Array,
    evidence: Array,
    given_parent: Array,
    firsts: Indices,
    marginals: Array,
) -> None:
    """Fill in P(x_i = a | x_parent = b, observed values), and the marginals of i."""
    n_own = firsts[i + 1] - firsts[i]
    n_above = 1
    if not is_top:
        n_above = firsts[parent + 1] - firsts[parent]
    for b in range(n_above):
        level_above, weight = b, 1.0
        if is_top:
            level_above = 0 if parent == ROOT else own[parent]
        else:
            weight = marginals[firsts[parent] + b]
        total = 0.0
        for a in range(n_own):
            given_parent[i, b, a] = tables[i, level_above, a] * evidence[i, a]
            total += given_parent[i, b, a]
        for a in range(n_own):
            if total > 0:
                given_parent[i, b, a] /= total
            marginals[firsts[i] + a] += weight * given_parent[i, b, a]


@_kernel
def _join(
    i: int,
    j: int,
    parent: int,
    given_parent: Array,
    firsts: Indices,
    marginals: Array,
    above: Array,
    joint: Array,
) -> None:
    """Fill in P(x_j, x_i | observed values), given P(x_j, x_parent | observed values)."""
    n_above = firsts[parent + 1] - firsts[parent]
    for c in range(firsts[j + 1] - firsts[j]):
        for a in range(firsts[i + 1] - firsts[i]):
            if j == parent:
                joint[c, a] = marginals[firsts[j] + c] * given_parent[i, c, a]
                continue
            joint[c, a] = 0.0
            for b in range(n_above):
                joint[c, a] += above[c, b] * given_parent[i, b, a]


@_kernel
def _transpose(table: Array, transposed: Array) -> None:
    for a in range(len(table)):
        for b in range(len(table)):
            transposed[b, a] = table[a, b]


@_kernel
def _add_covariance(
    i: int, j: int, joint: Array, firsts: Indices, reached: Array, share: float, sums: Array
) -> None:
    """Add the covariances of the planes of two missing features, given P(x_j, x_i)."""
    for c in range(1, firsts[j + 1] - firsts[j]):
        for a in range(1, firsts[i + 1] - firsts[i]):
            both = 0.0
            for d in range(c, firsts[j + 1] - firsts[j]):
                for b in range(a, firsts[i + 1] - firsts[i]):
                    both += joint[d, b]
            excess = both - reached[firsts[j] + c] * reached[firsts[i] + a]
            sums[firsts[j] + c - j - 1, firsts[i] + a - i - 1] += share * excess


@_kernel
def fill_plane_probabilities(
    levels: Levels,
    parents: Indices,
    orders: Indices,
    tables: Array,
    weights: Array,
    n_planes: Indices,
    planes: Array,
) -> None:
    """Fill in P(x_i > c | the observed values of all other features) of a mixture of trees.

    Parameters
    ----------
    levels, parents, orders, tables
        As for `fill_log_likelihoods`.
    weights
        Probability of each tree, (n_trees,).
    n_planes
        Number of planes c = 0, 1, … of each feature, (n_features,).
    planes
        To be filled, (n_samples, n_planes in all); NaN where the other values are impossible.
    """
    n_trees, n_features = parents.shape
    n_levels = tables.shape[2]
    logs, log_weights = np.log(tables), np.log(weights)
    joint = np.empty((n_trees, n_features, n_levels))
    scratch = np.empty((5, n_features + 1, n_levels))
    shares = np.empty(n_levels)
    for row in range(len(levels)):
        for k in range(n_trees):
            _fill_joint(levels[row], parents[k], orders[k], logs[k], scratch, joint[k])
            joint[k] += log_weights[k]
        first = 0
        for i in range(n_features):
            largest = joint[:, i].max()
            for a in range(n_levels):
                shares[a] = 0.0
                for k in range(n_trees):
                    shares[a] += math.exp(joint[k, i, a] - largest)
            total, above = shares.sum(), 0.0
            for c in range(n_planes[i] - 1, -1, -1):
                above += shares[c + 1]
                planes[row, first + c] = above / total
            first += n_planes[i]


@_kernel
def _fill_joint(
    own: Levels, parents: Indices, order: Indices, logs: Array, scratch: Array, joint: Array
) -> None:
    """Fill in log P(x_i = a, the observed values of all other features), (n_features, n_levels).

    `scratch` has the shape (5, n_features + 1, n_levels). Logarithms of messages are added, not
    subtracted, so that they may be −∞.
    """
    n_features, n_levels = joint.shape
    # Messages to the parent, their sums over the children of a feature, the parts of these sums
    # from the siblings after and before a feature, and messages from the parent.
    to_parent, below, after, before, above = scratch
    below[:] = 0.0
    before[:] = 0.0
    above[ROOT] = 0.0  # The last place is the parent of all roots, which has one level.
    for place in range(n_features - 1, -1, -1):
        i = order[place]
        parent = parents[i]
        for b in range(1 if parent == ROOT else n_levels):
            if own[i] != MISSING:
                to_parent[i, b] = logs[i, b, own[i]] + below[i, own[i]]
            else:
                to_parent[i, b] = _sum_in_logs(logs[i, b], below[i])
            after[i, b] = below[parent, b]
            below[parent, b] += to_parent[i, b]
    for place in range(n_features):
        i = order[place]
        parent = parents[i]
        n_above = 1 if parent == ROOT else n_levels
        given_rest = to_parent[n_features]  # log P(x_parent = b, all that is not below i)
        for b in range(n_above):
            given_rest[b] = above[parent, b] + before[parent, b] + after[i, b]
            before[parent, b] += to_parent[i, b]
        level_above = 0 if parent == ROOT else own[parent]
        for a in range(n_levels):
            if level_above != MISSING:
                above[i, a] = logs[i, level_above, a] + given_rest[level_above]
            else:
                above[i, a] = _sum_in_logs(logs[i, :, a], given_rest)
            joint[i, a] = above[i, a] + below[i, a]


@_kernel
def _sum_in_logs(a: Array, b: Array) -> float:
    """Return log Σ exp(a + b)."""
    largest = -math.inf
    for k in range(len(a)):
        largest = max(largest, a[k] + b[k])
    if largest == -math.inf:
        return largest
    total = 0.0
    for k in range(len(a)):
        total += math.exp(a[k] + b[k] - largest)
    return float(largest + math.log(total))
