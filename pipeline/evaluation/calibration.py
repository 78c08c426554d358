"""Compare the shares of ones of features, and of joint ones of pairs, in data and model.

Features with several levels have the shares of their levels, and of pairs of levels, instead.

The model's shares come from rows drawn from it, so that all models that draw rows are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock, RowSource, pack_block
from pipeline.data.features import Feature, are_binary, find_first_planes
from pipeline.data.level_probabilities import count_levels, name_levels, order_bits
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.inference.sample import (
    SamplingTask,
    count_rows_by_segment,
    draw_model_rows,
    iter_sampling_tasks,
)
from pipeline.params import get_named_arrays
from pipeline.passes.map_reduce import (
    TASK_MEMORY,
    collect_statistics,
    split_chunks_into_groups,
    tree_merge,
)
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.statistics.counts import PairCounts, PairTable, make_tiles

N_SAMPLE_ROWS = 200_000
"""Number of rows drawn from a model."""
MAX_COMPARED_FEATURES = 2000
"""Maximum number of features whose pairs are compared; a random choice if there are more."""
BIN_EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""Edges of the bins of the model's shares."""
_N_LARGEST = 5  # differences listed with feature names


class ShareComparison(NamedTuple):
    """Shares of ones, or of joint ones, in the data and in a sample of the model.

    Attributes
    ----------
    features
        Feature indices, (n, 1), or indices of pairs, (n, 2).
    observed, implied
        Shares in the data and in the sample, (n,) each.
    error
        Standard error of their difference under the model, (n,), with the sampling error of both.
    """

    features: NDArray[np.intp]
    observed: Array
    implied: Array
    error: Array

    @property
    def z(self) -> Array:
        """Observed minus implied share in standard errors; 0 where the standard error is 0."""
        scores: Array = (self.observed - self.implied) / np.where(self.error > 0, self.error, 1.0)
        return scores

    @property
    def rmse(self) -> float:
        """Root mean square difference."""
        return _root_mean_square(self.observed - self.implied)

    @property
    def chance_rmse(self) -> float:
        """Root mean square difference to expect under the model, from sampling alone."""
        return _root_mean_square(self.error)

    def find_largest(self, number: int) -> NDArray[np.intp]:
        """Return the indices of the largest differences in standard errors, (number,)."""
        return np.argsort(-np.abs(self.z), kind="stable")[:number]

    def describe_largest(
        self, names: Sequence[str], observed: str = "observed", implied: str = "implied"
    ) -> list[dict[str, Any]]:
        """Return the largest differences with feature names, for a manifest or a table.

        `observed` and `implied` are the keys for the two shares.
        """
        return [
            {
                "features": [names[i] for i in self.features[k]],
                observed: float(self.observed[k]),
                implied: float(self.implied[k]),
                "z": float(self.z[k]),
            }
            for k in self.find_largest(_N_LARGEST)
        ]

    def bin_shares(self) -> list[dict[str, float]]:
        """Return the mean shares in each bin of the implied share that is not empty."""
        bin_index = np.digitize(self.implied, BIN_EDGES[1:-1])
        bins = []
        for k in np.unique(bin_index):
            in_bin = bin_index == k
            edges = {"from": BIN_EDGES[k], "to": BIN_EDGES[k + 1]}
            shares = {
                "implied": float(self.implied[in_bin].mean()),
                "observed": float(self.observed[in_bin].mean()),
            }
            bins.append({**edges, "number": int(in_bin.sum()), **shares})
        return bins


def choose_compared_features(n_features: int, seed: int) -> NDArray[np.intp]:
    """Draw the features whose pairs are compared, in increasing order; all if they are few."""
    if n_features <= MAX_COMPARED_FEATURES:
        return np.arange(n_features)
    chosen = np.random.default_rng(seed).choice(n_features, MAX_COMPARED_FEATURES, replace=False)
    return np.sort(chosen)


def choose_compared_planes(
    features: Sequence[Feature], seed: int
) -> tuple[NDArray[np.intp], tuple[Feature, ...]]:
    """Draw features whose pairs are compared; all if they are few.

    Returns their planes, in increasing order, and the features; no features if all are binary.
    """
    if are_binary(features):
        return choose_compared_features(len(features), seed), ()
    firsts = find_first_planes(features)
    order = np.arange(len(features))
    if firsts[-1] > MAX_COMPARED_FEATURES:
        order = np.random.default_rng(seed).permutation(len(features))
        n_planes = np.cumsum(np.diff(firsts)[order])
        order = np.sort(order[n_planes <= MAX_COMPARED_FEATURES])
    chosen = order.tolist()
    planes = np.concatenate([np.arange(firsts[i], firsts[i + 1]) for i in chosen])
    return planes, tuple(features[i] for i in chosen)


def count_observed_pairs(
    rows: RowSource,
    features: NDArray[np.intp],
    executor: Executor,
    progress: Progress = ignore_progress,
) -> PairCounts:
    """Count the pairs of some features in all rows, with segments pooled."""
    count, cut = partial(_count_pairs_among, features), make_tiles(len(features), 1, TASK_MEMORY)
    work = WorkEstimate(0, 4 * 8 * len(features) ** 2)  # with missing values, four tables
    return collect_statistics(count, rows, executor, PairCounts.label, cut, progress, work=work)


def _count_pairs_among(features: NDArray[np.intp], block: BinaryBlock) -> PairCounts:
    mask = block.observed_words
    if len(features) < block.n_features:
        chosen = None if mask is None else mask[features]
        block = replace(block, words=block.words[features], observed_words=chosen)
    return PairCounts.from_block(block, pooled=True)


def describe_calibration(
    subject: EvaluatedModel,
    segment_rows: Counts,
    observed: PairCounts,
    planes: NDArray[np.intp],
    features: Sequence[Feature],
    plane_names: Sequence[str],
    executor: Executor,
    seed: int,
) -> dict[str, Any]:
    """Compare shares of ones, and of joint ones, in the data and in rows drawn from a model.

    `observed` are the counts of the chosen planes of features; see `choose_compared_planes` and
    `count_implied_pairs`. The result has the entries `marginals` and `pairs`.
    """
    implied = count_implied_pairs(subject, segment_rows, len(plane_names), planes, executor, seed)
    names = name_levels(features) if features else [plane_names[i] for i in planes]
    return {
        "marginals": _describe_shares(compare_features(observed, implied, features), names),
        "pairs": _describe_shares(compare_pairs(observed, implied, features), names),
    }


def _describe_shares(shares: ShareComparison, names: Sequence[str]) -> dict[str, Any]:
    """Describe how shares differ between data and model; name the largest differences."""
    return {
        "number": len(shares.observed),
        "rmse": shares.rmse,
        "rmse_by_chance": shares.chance_rmse,
        "largest": shares.describe_largest(names),
        "calibration": shares.bin_shares(),
    }


def count_implied_pairs(
    subject: EvaluatedModel,
    segment_rows: Counts,
    n_features: int,
    features: NDArray[np.intp],
    executor: Executor,
    seed: int,
) -> PairCounts:
    """Count the pairs of some features in rows drawn from a model.

    The sample's segments are proportional to `segment_rows`, the number of rows of each segment of
    the data; it is empty if the model has no segments. `features` are the indices of the features
    to count.
    """
    n_rows, segments = np.array([N_SAMPLE_ROWS]), subject.segments
    if len(segments):
        occupied = np.flatnonzero(segment_rows)
        n_rows = count_rows_by_segment(segment_rows[occupied].astype(np.float64), N_SAMPLE_ROWS)
        segments = segments[occupied]
    tasks = list(iter_sampling_tasks(n_rows, segments, n_features))
    groups = [tasks[keys.start : keys.stop] for keys in split_chunks_into_groups(len(tasks))]
    arrays = {name: values for name, (_, values) in get_named_arrays(subject.params).items()}
    count = partial(_count_drawn_pairs, subject, arrays, n_features, features, seed)
    return tree_merge(executor.map(count, groups))


def _count_drawn_pairs(
    subject: EvaluatedModel,
    arrays: dict[str, NDArray[Any]],
    n_features: int,
    features: NDArray[np.intp],
    seed: int,
    tasks: Sequence[SamplingTask],
) -> PairCounts:
    parts = []
    for task in tasks:
        packed = draw_model_rows(subject.model, lambda: arrays, seed, task)
        X = np.unpackbits(packed, axis=1, count=n_features, bitorder="little")
        X = order_bits(X, subject.features)[:, features]
        parts.append(PairCounts.from_block(pack_block(X), pooled=True))
    return tree_merge(parts)


def compare_features(
    observed: PairCounts, implied: PairCounts, features: Sequence[Feature] = ()
) -> ShareComparison:
    """Compare the shares of ones of each feature.

    If `features` have several levels, the shares of all their levels are compared, and the indices
    are those of `name_levels`.
    """
    own = _list_compared_levels(observed, features)
    return _compare_shares(observed, implied, (own, own), features)._replace(features=own[:, None])


def compare_pairs(
    observed: PairCounts, implied: PairCounts, features: Sequence[Feature] = ()
) -> ShareComparison:
    """Compare the shares of joint ones of all pairs of features observed together.

    If `features` have several levels, all pairs of levels of two features are compared, and the
    indices are those of `name_levels`.
    """
    own = _list_compared_levels(observed, features)
    left, right = np.triu_indices(len(own), 1)
    pairs = own[left], own[right]
    if features:
        owners = np.repeat(np.arange(len(features)), count_levels(features))
        differ = owners[pairs[0]] != owners[pairs[1]]
        pairs = pairs[0][differ], pairs[1][differ]
    return _compare_shares(observed, implied, pairs, features)


def _list_compared_levels(counts: PairCounts, features: Sequence[Feature]) -> NDArray[np.intp]:
    """Return indices of features; with levels, of all levels but the lower one of binary ones."""
    if not features:
        return np.arange(counts.n_features)
    n_levels = count_levels(features)
    is_lowest = np.zeros(n_levels.sum(), np.bool_)
    is_lowest[np.cumsum(n_levels) - n_levels] = n_levels == 2
    return np.flatnonzero(~is_lowest)


def tabulate_levels(table: PairTable, features: Sequence[Feature]) -> PairTable:
    """Return the table of all pairs of levels, given that of all pairs of planes.

    The indicator of a level is the difference of its plane and the next one, and the plane below
    the first one is 1 in all observed rows, so counts of levels are differences of counts of
    planes. The arrays `n` and `joint` are (n_levels in all, n_levels in all).
    """
    n_planes = [feature.n_planes for feature in features]
    firsts = find_first_planes(features)[:-1]
    is_first = np.zeros(sum(n_planes) + len(features), np.bool_)
    is_first[firsts + np.arange(len(features))] = True
    # Each feature gets a plane of ones before its own planes.
    planes = np.cumsum(~is_first) - 1 + is_first
    shape = table.joint.shape
    n, ones_i, ones_j, joint = (np.broadcast_to(counts, shape) for counts in table)
    at = np.ix_(planes, planes)
    left, right = is_first[:, None], is_first[None, :]
    counts = np.where(left & right, n[at], np.where(left, ones_j[at], joint[at]))
    counts = np.where(right & ~left, ones_i[at], counts)
    has_next = ~np.append(is_first[1:], True)
    for _ in range(2):
        higher = np.roll(counts, -1, axis=0) * has_next[:, None]
        counts = (counts - higher).T
    return PairTable(n[at], counts.diagonal()[:, None], counts.diagonal()[None, :], counts)


def _compare_shares(
    observed: PairCounts,
    implied: PairCounts,
    pairs: tuple[NDArray[np.intp], NDArray[np.intp]],
    features: Sequence[Feature],
) -> ShareComparison:
    tables = [counts.table(0) for counts in (observed, implied)]
    if features:
        tables = [tabulate_levels(table, features) for table in tables]
    (n, n_ones), (m, m_ones) = (_select_joint_counts(table, pairs) for table in tables)
    is_observed = n > 0
    n, n_ones, m, m_ones = n[is_observed], n_ones[is_observed], m[is_observed], m_ones[is_observed]
    pooled = (n_ones + m_ones) / (n + m)
    error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return ShareComparison(np.column_stack(pairs)[is_observed], n_ones / n, m_ones / m, error)


def _root_mean_square(differences: Array) -> float:
    """Return the root mean square, 0 if there are no differences."""
    return float(np.sqrt((differences**2).sum() / max(len(differences), 1)))


def _select_joint_counts(
    table: PairTable, pairs: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> tuple[Array, Array]:
    n = np.broadcast_to(table.n, table.joint.shape)[pairs]
    return n.astype(np.float64), table.joint[pairs].astype(np.float64)
