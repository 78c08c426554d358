"""Shares of ones and of joint ones: in the data, and as a fitted model has them.

What a model says of features and pairs is taken from a sample of it, so that every model can be
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource, pack_block
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.inference.sample import (
    SamplingTask,
    count_rows_by_segment,
    draw_model_rows,
    iter_sampling_tasks,
)
from pipeline.models.base import Model
from pipeline.params import get_named_arrays
from pipeline.passes.map_reduce import (
    TASK_MEMORY,
    collect_statistics,
    split_chunks_into_groups,
    tree_merge,
)
from pipeline.statistics.counts import PairCounts, PairTable, make_tiles

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

N_SAMPLE_ROWS = 200_000
"""Rows drawn from a model."""
MAX_COMPARED_FEATURES = 2000
"""Features whose pairs are compared: of more, so many are drawn."""
BIN_EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""Edges of the bins of implied shares."""
_N_LARGEST = 5  # differences that are told by name


class ShareComparison(NamedTuple):
    """Shares of ones, or of joint ones, in the data and in a sample of the model.

    Attributes
    ----------
    features
        Indices, (n, 1) or (n, 2).
    observed, implied
        Shares, (n,).
    error
        Standard error of their difference, were the model right: of the data and of the sample.
    """

    features: NDArray[np.intp]
    observed: Array
    implied: Array
    error: Array

    @property
    def z(self) -> Array:
        """Observed less implied in standard errors; 0 where both are certain."""
        scores: Array = (self.observed - self.implied) / np.where(self.error > 0, self.error, 1.0)
        return scores

    @property
    def rmse(self) -> float:
        """Root mean square difference."""
        return _root_mean_square(self.observed - self.implied)

    @property
    def chance_rmse(self) -> float:
        """What it would be about, were the model right."""
        return _root_mean_square(self.error)

    def find_largest(self, number: int) -> NDArray[np.intp]:
        """Return the places of the largest differences in standard errors."""
        return np.argsort(-np.abs(self.z), kind="stable")[:number]

    def describe_largest(
        self, names: Sequence[str], observed: str = "observed", implied: str = "implied"
    ) -> list[dict[str, Any]]:
        """Return the largest differences with feature names, for a manifest or a table.

        Parameters
        ----------
        names
            Of the features.
        observed, implied
            What these shares are called.
        """
        return [
            {
                "features": [names[i] for i in self.features[at]],
                observed: float(self.observed[at]),
                implied: float(self.implied[at]),
                "z": float(self.z[at]),
            }
            for at in self.find_largest(_N_LARGEST)
        ]

    def bin_shares(self) -> list[dict[str, float]]:
        """Return the mean shares of those whose implied share lies between two edges."""
        place = np.digitize(self.implied, BIN_EDGES[1:-1])
        bins = []
        for k in np.unique(place):
            here = place == k
            means = {"implied": self.implied[here].mean(), "observed": self.observed[here].mean()}
            edges = {"from": BIN_EDGES[k], "to": BIN_EDGES[k + 1]}
            shares = {name: float(mean) for name, mean in means.items()}
            bins.append({**edges, "number": int(here.sum()), **shares})
        return bins


def choose_compared_features(n_features: int, seed: int) -> NDArray[np.intp]:
    """Draw the features whose pairs are compared, rising; all where they are few."""
    if n_features <= MAX_COMPARED_FEATURES:
        return np.arange(n_features)
    chosen = np.random.default_rng(seed).choice(n_features, MAX_COMPARED_FEATURES, replace=False)
    return np.sort(chosen)


def count_observed_pairs(
    rows: RowSource,
    features: NDArray[np.intp],
    executor: Executor,
    progress: Progress = ignore_progress,
) -> PairCounts:
    """Count the pairs of some features in all rows, segments pooled."""
    count, cut = partial(_count_pairs_among, features), make_tiles(len(features), 1, TASK_MEMORY)
    return collect_statistics(count, rows, executor, PairCounts.label, cut, progress)


def _count_pairs_among(features: NDArray[np.intp], block: BinaryBlock) -> PairCounts:
    mask = block.observed_words
    if len(features) < block.n_features:
        chosen = None if mask is None else mask[features]
        block = replace(block, words=block.words[features], observed_words=chosen)
    return PairCounts.from_block(block, pooled=True)


def count_implied_pairs(
    subject: EvaluatedModel,
    segment_rows: Counts,
    n_features: int,
    features: NDArray[np.intp],
    executor: Executor,
    seed: int,
) -> PairCounts:
    """Count pairs in rows drawn from a model, segments as often as in the data.

    Parameters
    ----------
    subject
        What is evaluated.
    segment_rows
        Rows of every segment of the data; empty where the model has no segments.
    n_features
        Number of features.
    features
        Those whose pairs are counted.
    executor
        Where rows are drawn.
    seed
        Of the draws.
    """
    n_rows, segments = np.array([N_SAMPLE_ROWS]), subject.segments
    if len(segments):
        seen = np.flatnonzero(segment_rows)
        n_rows = count_rows_by_segment(segment_rows[seen].astype(np.float64), N_SAMPLE_ROWS)
        segments = segments[seen]
    draws = list(iter_sampling_tasks(n_rows, segments, n_features))
    grouped = [draws[keys.start : keys.stop] for keys in split_chunks_into_groups(len(draws))]
    arrays = {name: values for name, (_, values) in get_named_arrays(subject.params).items()}
    count = partial(_count_drawn_pairs, subject.model, arrays, n_features, features, seed)
    return tree_merge(executor.map(count, grouped))


def _count_drawn_pairs(
    model: Model,
    arrays: dict[str, NDArray[Any]],
    n_features: int,
    features: NDArray[np.intp],
    seed: int,
    some: Sequence[SamplingTask],
) -> PairCounts:
    parts = []
    for draw in some:
        packed = draw_model_rows(model, lambda: arrays, seed, draw)
        X = np.unpackbits(packed, axis=1, count=n_features, bitorder="little")[:, features]
        parts.append(PairCounts.from_block(pack_block(X), pooled=True))
    return tree_merge(parts)


def compare_features(observed: PairCounts, implied: PairCounts) -> ShareComparison:
    """Compare the shares of ones of all features."""
    features = np.arange(observed.n_features)
    return _compare_shares(observed, implied, (features, features))._replace(
        features=features[:, None]
    )


def compare_pairs(observed: PairCounts, implied: PairCounts) -> ShareComparison:
    """Compare the shares of joint ones of all pairs of features observed together."""
    return _compare_shares(observed, implied, np.triu_indices(observed.n_features, 1))


def _compare_shares(
    observed: PairCounts, implied: PairCounts, at: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> ShareComparison:
    (n, ones), (m, drawn) = (
        _select_joint_counts(counts.table(0), at) for counts in (observed, implied)
    )
    seen = n > 0
    n, ones, m, drawn = n[seen], ones[seen], m[seen], drawn[seen]
    pooled = (ones + drawn) / (n + m)
    error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return ShareComparison(np.column_stack(at)[seen], ones / n, drawn / m, error)


def _root_mean_square(differences: Array) -> float:
    """Return 0 where there are none."""
    return float(np.sqrt((differences**2).sum() / max(len(differences), 1)))


def _select_joint_counts(
    table: PairTable, at: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> tuple[Array, Array]:
    """Return rows and joint ones of some pairs."""
    n = np.broadcast_to(table.n, table.joint.shape)[at]
    return n.astype(np.float64), table.joint[at].astype(np.float64)
