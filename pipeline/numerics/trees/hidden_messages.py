"""Exact inference in a tree of hidden states, each with one observed feature (Pearl 1988).

The hidden variable z_i has the table P(z_i = a | z_parent = b) at [i, b, a] of `transitions`, and
its feature the table P(x_i = level | z_i = a) at [i, a, level] of `emissions`. A missing value has
one level more than all others, whose entries of `emissions` are 1.

Messages are computed for tiles of 64 rows, (n_states, 64) each, so that all loops over rows have a
fixed length and become vector instructions. A row's results do not depend on the other rows of its
tile. Messages are scaled before they underflow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.trees.spanning_tree import ROOT

Array = NDArray[np.float64]
Levels = NDArray[np.uint8]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

TILE_ROWS = 64
"""Rows whose messages are in memory at once."""
_SMALL = 1e-100  # beliefs below it are scaled before they underflow
_TINY = 1e-150  # rows in which a state has a smaller belief need logarithms
_MANY_CHILDREN = (
    8  # probabilities of fits are above 1e-15: with fewer messages no belief underflows
)

_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_reordering_kernel = njit(  # sums over rows may be added in another order
    nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"}
)


class StateTree(NamedTuple):
    """A tree of hidden states with its tables.

    Attributes
    ----------
    parents, order
        Parent of each feature, and the features with parents first, (n_features,) each.
    root
        P(z = a) at the root, (n_states,).
    transitions, emissions
        (n_features, n_states, n_states) and (n_features, n_states, n_levels + 1).
    """

    parents: Indices
    order: Indices
    root: Array
    transitions: Array
    emissions: Array


@_kernel
def fill_root_posteriors(levels: Levels, tree: StateTree, nats: Array, posteriors: Array) -> None:
    """Fill in log P of the observed values of each row, and the posterior of the root's state.

    Parameters
    ----------
    levels
        Levels counted from 0, (n_features, n_samples).
    tree
        The tree.
    nats, posteriors
        To be filled, (n_samples,) and (n_samples, n_states).
    """
    n_features, n_samples = levels.shape
    n_states = len(tree.root)
    own = np.empty((n_features, TILE_ROWS), np.uint8)
    beliefs = np.empty((n_features, n_states, TILE_ROWS))
    upward = np.empty((n_features, n_states, TILE_ROWS))
    tile_nats = np.empty(TILE_ROWS)
    for first in range(0, n_samples, TILE_ROWS):
        n_rows = min(TILE_ROWS, n_samples - first)
        _copy_levels(levels, first, n_rows, tree.emissions.shape[2] - 1, own)
        _pass_up(own, tree, beliefs, upward, tile_nats)
        top = beliefs[tree.order[0]]
        for r in range(n_rows):
            nats[first + r] = tile_nats[r]
            for s in range(n_states):
                posteriors[first + r, s] = top[s, r]


@_kernel
def add_expected_counts(
    levels: Levels,
    weights: Array,
    tree: StateTree,
    nats: Array,
    root_counts: Array,
    edge_counts: Array,
    level_counts: Array,
) -> None:
    """Add the expected counts of states, of pairs of states along edges, and of states and levels.

    Parameters
    ----------
    levels, tree, nats
        As for `fill_root_posteriors`.
    weights
        Weight of each row, (n_samples,).
    root_counts
        To which the expected counts of the root's states are added, (n_states,).
    edge_counts
        To which the expected counts of (parent state, own state), divided by `transitions`, are
        added, (n_features, n_states, n_states); nothing at the root.
    level_counts
        To which the expected counts of (state, level) are added, (n_features, n_states,
        n_levels).
    """
    n_features, n_samples = levels.shape
    n_states = len(tree.root)
    parents, order, transitions = tree.parents, tree.order, tree.transitions
    own = np.empty((n_features, TILE_ROWS), np.uint8)
    beliefs = np.empty((n_features, n_states, TILE_ROWS))
    upward = np.empty((n_features, n_states, TILE_ROWS))
    above = np.empty((n_states, TILE_ROWS))
    downward = np.empty((n_states, TILE_ROWS))
    tile_nats = np.empty(TILE_ROWS)
    for first in range(0, n_samples, TILE_ROWS):
        n_rows = min(TILE_ROWS, n_samples - first)
        _copy_levels(levels, first, n_rows, tree.emissions.shape[2] - 1, own)
        _pass_up(own, tree, beliefs, upward, tile_nats)
        for r in range(n_rows):
            nats[first + r] = tile_nats[r]
        top = beliefs[order[0]]
        for s in range(n_states):
            for r in range(TILE_ROWS):
                top[s, r] *= weights[first + r] if r < n_rows else 0.0
            root_counts[s] += top[s].sum()
        for i in order:
            if parents[i] != ROOT:
                _divide(beliefs[parents[i]], upward[i], above)
                _add_products(above, beliefs[i], edge_counts[i])
                _pass_down(above, transitions[i], downward, beliefs[i])
            _add_levels(own[i], beliefs[i], level_counts[i])


@_kernel
def add_conditionals(
    levels: Levels,
    shares: Array,
    tree: StateTree,
    firsts: Indices,
    conditionals: Array,
) -> None:
    """Add P(x_i = level | all other values), times P(other values) / P(all values).

    Parameters
    ----------
    levels, tree
        As for `fill_root_posteriors`.
    shares
        A factor of each row, (n_samples,).
    firsts
        Column of the first level of each feature, and the number of columns, (n_features + 1,).
    conditionals
        To which the results are added, (n_samples, n_columns).
    """
    n_features, n_samples = levels.shape
    n_states = len(tree.root)
    parents, order, transitions = tree.parents, tree.order, tree.transitions
    own = np.empty((n_features, TILE_ROWS), np.uint8)
    beliefs = np.empty((n_features, n_states, TILE_ROWS))
    upward = np.empty((n_features, n_states, TILE_ROWS))
    above = np.empty((n_states, TILE_ROWS))
    downward = np.empty((n_states, TILE_ROWS))
    tile_nats = np.empty(TILE_ROWS)
    for first in range(0, n_samples, TILE_ROWS):
        n_rows = min(TILE_ROWS, n_samples - first)
        _copy_levels(levels, first, n_rows, tree.emissions.shape[2] - 1, own)
        _pass_up(own, tree, beliefs, upward, tile_nats)
        for i in order:
            if parents[i] != ROOT:
                _divide(beliefs[parents[i]], upward[i], above)
                _pass_down(above, transitions[i], downward, beliefs[i])
            for s in range(n_states):
                table = tree.emissions[i, s]
                for r in range(n_rows):
                    likelihood = table[own[i, r]]
                    # P(z = s | all values), without the factor of the own value.
                    factor = beliefs[i, s, r] / likelihood if likelihood > 0 else 0.0
                    factor *= shares[first + r]
                    for level in range(firsts[i + 1] - firsts[i]):
                        conditionals[first + r, firsts[i] + level] += factor * table[level]


@_kernel
def _copy_levels(levels: Levels, first: int, n_rows: int, missing: int, own: Levels) -> None:
    """Copy the levels of a tile; rows after the last have no values."""
    for i in range(len(own)):
        for r in range(n_rows):
            own[i, r] = levels[i, first + r]
        for r in range(n_rows, TILE_ROWS):
            own[i, r] = missing


@_kernel
def _pass_up(own: Levels, tree: StateTree, beliefs: Array, upward: Array, nats: Array) -> None:
    """Fill in the messages from the leaves to the root, and log P of the observed values.

    `beliefs[i, a]` becomes proportional to P(values at and below i | z_i = a), and at the root, the
    posterior of its state. `upward[i, b]` becomes proportional to P(values at and below i |
    z_parent = b).
    """
    n_features, n_states = beliefs.shape[:2]
    parents, order = tree.parents, tree.order
    totals = np.empty(TILE_ROWS)
    # Of many children, the last may favour a state that is nearly impossible given the first.
    needs_logs, n_children = False, np.zeros(n_features, np.int64)
    logs, has_logs = np.empty((0, 0, 0)), np.empty((0, 0), np.bool_)
    nats[:] = 0.0
    for i in range(n_features):
        for s in range(n_states):
            table = tree.emissions[i, s]
            for r in range(TILE_ROWS):
                beliefs[i, s, r] = table[own[i, r]]
    for place in range(n_features - 1, 0, -1):
        i = order[place]
        parent = parents[i]
        if needs_logs:
            _leave_logs(logs[i], has_logs[i], beliefs[i], nats)
        _multiply(tree.transitions[i], beliefs[i], upward[i])
        if needs_logs:
            _add_logs(upward[i], has_logs[parent], logs[parent])
        belief = beliefs[parent]
        totals[:] = 0.0
        for s in range(n_states):
            for r in range(TILE_ROWS):
                belief[s, r] *= upward[i, s, r]
                totals[r] += belief[s, r]
        if totals.min() < _SMALL:
            for r in range(TILE_ROWS):
                if 0 < totals[r] < _SMALL and not (needs_logs and has_logs[parent, r]):
                    nats[r] += math.log(totals[r])
                    for s in range(n_states):
                        belief[s, r] /= totals[r]
        n_children[parent] += 1
        if n_children[parent] > _MANY_CHILDREN and belief.min() < _TINY:
            if not needs_logs:
                needs_logs = True
                logs, has_logs = np.empty_like(beliefs), np.zeros((n_features, TILE_ROWS), np.bool_)
            _begin_logs(belief, has_logs[parent], logs[parent])
    top = beliefs[order[0]]
    if needs_logs:
        _leave_logs(logs[order[0]], has_logs[order[0]], top, nats)
    totals[:] = 0.0
    for s in range(n_states):
        for r in range(TILE_ROWS):
            top[s, r] *= tree.root[s]
            totals[r] += top[s, r]
    for s in range(n_states):
        for r in range(TILE_ROWS):
            top[s, r] /= totals[r]
    for r in range(TILE_ROWS):
        nats[r] += math.log(totals[r])


@_kernel
def _begin_logs(belief: Array, has_logs: Flags, logs: Array) -> None:
    """Take the logarithms of the beliefs of a feature in rows where one is tiny."""
    for r in range(TILE_ROWS):
        if not has_logs[r] and belief[:, r].min() < _TINY:
            has_logs[r] = True
            for s in range(len(belief)):
                logs[s, r] = math.log(belief[s, r]) if belief[s, r] > 0 else -math.inf


@_kernel
def _add_logs(message: Array, has_logs: Flags, logs: Array) -> None:
    """Add the logarithms of the message of a child, in rows that have logarithms."""
    for r in range(TILE_ROWS):
        if has_logs[r]:
            for s in range(len(message)):
                logs[s, r] += math.log(message[s, r]) if message[s, r] > 0 else -math.inf


@_kernel
def _leave_logs(logs: Array, has_logs: Flags, belief: Array, nats: Array) -> None:
    """Replace the beliefs of a feature in rows that have logarithms."""
    for r in range(TILE_ROWS):
        if has_logs[r]:
            largest = logs[:, r].max()
            nats[r] += largest
            for s in range(len(belief)):
                belief[s, r] = math.exp(logs[s, r] - largest)


@_kernel
def _divide(posterior: Array, message: Array, quotient: Array) -> None:
    """Fill in the posterior of the parent's states without the message of a child."""
    for s in range(len(message)):
        for r in range(TILE_ROWS):
            value = message[s, r]
            quotient[s, r] = posterior[s, r] / value if value > 0 else 0.0


@_kernel
def _pass_down(above: Array, table: Array, downward: Array, belief: Array) -> None:
    """Turn the belief of a child into the posterior of its states."""
    _multiply(table.T, above, downward)
    for s in range(len(belief)):
        for r in range(TILE_ROWS):
            belief[s, r] *= downward[s, r]


@_kernel
def _multiply(table: Array, messages: Array, products: Array) -> None:
    """Fill in `table @ messages`; four rows of messages at a time, as memory is slow."""
    n = len(messages)
    n_whole = n // 4 * 4
    for b in range(n):
        product = products[b]
        for r in range(TILE_ROWS):
            product[r] = 0.0
        for a in range(0, n_whole, 4):
            p0, p1, p2, p3 = table[b, a], table[b, a + 1], table[b, a + 2], table[b, a + 3]
            m0, m1, m2, m3 = messages[a], messages[a + 1], messages[a + 2], messages[a + 3]
            for r in range(TILE_ROWS):
                product[r] += p0 * m0[r] + p1 * m1[r] + p2 * m2[r] + p3 * m3[r]
        for a in range(n_whole, n):
            p0, m0 = table[b, a], messages[a]
            for r in range(TILE_ROWS):
                product[r] += p0 * m0[r]


@_reordering_kernel
def _add_products(above: Array, beliefs: Array, counts: Array) -> None:
    """Add `above @ beliefs.T` to the counts, four entries at a time."""
    n = len(above)
    n_whole = n // 4 * 4
    for b in range(n):
        left = above[b]
        for a in range(0, n_whole, 4):
            m0, m1, m2, m3 = beliefs[a], beliefs[a + 1], beliefs[a + 2], beliefs[a + 3]
            s0 = s1 = s2 = s3 = 0.0
            for r in range(TILE_ROWS):
                s0 += left[r] * m0[r]
                s1 += left[r] * m1[r]
                s2 += left[r] * m2[r]
                s3 += left[r] * m3[r]
            counts[b, a] += s0
            counts[b, a + 1] += s1
            counts[b, a + 2] += s2
            counts[b, a + 3] += s3
        for a in range(n_whole, n):
            m0, s0 = beliefs[a], 0.0
            for r in range(TILE_ROWS):
                s0 += left[r] * m0[r]
            counts[b, a] += s0


@_reordering_kernel
def _add_levels(own: Levels, posterior: Array, counts: Array) -> None:
    """Add the posterior of each state to the counts of the rows' levels."""
    for s in range(len(posterior)):
        for level in range(counts.shape[1]):
            total = 0.0
            for r in range(TILE_ROWS):
                total += posterior[s, r] if own[r] == level else 0.0
            counts[s, level] += total
