"""Networks of different rows, fitted together: of groups, of draws with replacement, of new labels.

All networks share the passes. Each is of a set of rows:

* all rows of a group, or of the dataset if there are no groups;
* rows drawn with replacement (the bootstrap): every row counts a random number of times, Poisson
  with the mean of its weight (N. Oza, S. Russell, AISTATS 2001);
* rows of two groups whose labels are drawn anew (a permutation test): every row belongs to one of
  the groups, with probabilities like their sizes. A row with the weight w is w rows with labels of
  their own.

A draw depends on the row alone, not on how rows are cut. It keeps the penalties of the fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from pipeline.arrays import Array, Indices
from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.logistic.node_regressions import (
    Regressions,
    RegressionSums,
    sum_regressions,
)
from pipeline.numerics.row_random import draw_first_uniforms
from pipeline.random import RowRandom

_DRAW_PASS = 1 << 33
"""Pass number for draws that are the same in every pass; no fit has as many passes."""
_ALL = -1


class RowSetSums(NamedTuple):
    """Sums of the regressions of all networks, and the weight of the rows of each."""

    sums: RegressionSums
    weights: Array


def list_groups(n_groups: int) -> Indices:
    """Return the sets of all rows of each group: draw, group and group of exchange, (n_sets, 3)."""
    return np.array([(_ALL, group, group) for group in range(n_groups)], np.int64)


def list_bootstraps(n_draws: int) -> Indices:
    """Return the sets of rows drawn with replacement, without groups, (n_draws, 3)."""
    return np.array([(draw, 0, 0) for draw in range(n_draws)], np.int64)


def list_permutations(n_draws: int, n_groups: int) -> Indices:
    """Return the sets of two groups with new labels: pair by pair, draw by draw, (n_sets, 3)."""
    return np.array(
        [
            (draw, *order)
            for a, b in list_pairs(n_groups)
            for draw in range(n_draws)
            for order in ((a, b), (b, a))
        ],
        np.int64,
    ).reshape(-1, 3)


def list_pairs(n_groups: int) -> list[tuple[int, int]]:
    """Return all pairs of groups."""
    return [(a, b) for a in range(n_groups) for b in range(a + 1, n_groups)]


def concatenate_regressions(parts: Sequence[Regressions]) -> Regressions:
    """Return the regressions of all networks."""

    def join(arrays: Sequence[Any]) -> Any:
        return np.concatenate([*arrays])

    def shift(arrays: Sequence[Indices], sizes: Sequence[Any]) -> list[Indices]:
        ends = np.cumsum([0, *map(len, sizes)])
        return [values + end for values, end in zip(arrays, ends[:-1], strict=True)]

    def shift_edges(arrays: Sequence[Indices], sizes: Sequence[Any]) -> Indices:
        shifted = shift(arrays, sizes)
        edges: Indices = join([shifted[0][:1], *(values[1:] for values in shifted)])
        return edges

    own: Any = Regressions(*zip(*parts, strict=True))  # type: ignore[arg-type]
    return Regressions(
        join(own.targets),
        shift_edges(own.starts, own.columns),
        join(own.columns),
        join(shift(own.groups, own.targets)),
        shift_edges(own.places, own.values),
        join(own.values),
        join(own.is_active),
        join(own.is_running),
    )


def take_network(own: Regressions, network: int, n_networks: int) -> Regressions:
    """Return the regressions of one network; all have the same targets and numbers of penalties."""
    n, n_rows = len(own.targets) // n_networks, len(own.groups) // n_networks
    groups = slice(network * n, (network + 1) * n)
    rows = slice(network * n_rows, (network + 1) * n_rows)
    starts = own.starts[groups.start : groups.stop + 1]
    places = own.places[rows.start : rows.stop + 1]
    values = slice(places[0], places[-1])
    return Regressions(
        own.targets[groups],
        starts - starts[0],
        own.columns[starts[0] : starts[-1]],
        own.groups[rows] - groups.start,
        places - places[0],
        own.values[values],
        own.is_active[values],
        own.is_running[rows],
    )


def iter_networks(own: Regressions, n_networks: int) -> Iterator[Regressions]:
    """Yield the regressions of each network."""
    for network in range(n_networks):
        yield take_network(own, network, n_networks)


def count_rows(
    block: BinaryBlock, row_set: Sequence[int], group: int, sizes: Array, rng: RowRandom
) -> Array:
    """Return how often each row of a block is in a set, (n_samples,), or (0,) if none is.

    `group` is that of the block, and `sizes` are the weights of the groups.
    """
    draw, own, other = row_set
    if group not in (own, other):
        return np.zeros(0)
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    if draw == _ALL:
        return weights
    kind = "draw" if own == other else "permutation"
    key = RowRandom(rng.seed, _DRAW_PASS).stream(f"{kind} {draw}").key
    uniform = draw_first_uniforms(key, block.rows)
    if own == other:
        if (weights == 1).all():
            cumulated = scipy.special.pdtr(np.arange(20), 1.0)
            return np.searchsorted(cumulated, uniform).astype(np.float64)
        return np.asarray(np.ceil(scipy.special.pdtrik(uniform, np.maximum(weights, 1e-9))))
    # Both sets of a draw share it: the rows that are not in the first of the two are in the other.
    first, second = min(own, other), max(own, other)
    share = sizes[first] / max(sizes[first] + sizes[second], 1e-300)
    n_labels = np.ceil(weights)
    if (n_labels <= 1).all():
        counts = weights * (uniform < share)
    else:
        counts = scipy.stats.binom.ppf(uniform, n_labels, share) * weights / np.maximum(n_labels, 1)
    return np.asarray(counts if own == first else weights - counts)


def sum_networks(
    block: BinaryBlock,
    own: Regressions,
    row_sets: Indices,
    group: int,
    sizes: Array,
    rng: RowRandom,
) -> RowSetSums:
    """Sum the regressions of all networks over a block without missing values."""
    words = np.ascontiguousarray(block.words)
    found, totals = [], np.zeros(len(row_sets))
    for k, part in enumerate(iter_networks(own, len(row_sets))):
        counts = count_rows(block, row_sets[k].tolist(), group, sizes, rng)
        totals[k] = counts.sum()
        found.append(sum_regressions(words, counts, part))
    return RowSetSums(RegressionSums._make(map(np.concatenate, zip(*found, strict=True))), totals)
