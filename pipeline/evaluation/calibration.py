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

from pipeline.data.blocks import BinaryBlock, Rows, block_of
from pipeline.evaluation.evaluate import Subject
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, silent
from pipeline.inference.sample import Draw, draw_rows, draws_of, rows_by_segment
from pipeline.models.base import Model
from pipeline.params import named_arrays
from pipeline.passes.collect import TASK_MEMORY, collect
from pipeline.passes.map_reduce import groups, tree_merge
from pipeline.statistics.counts import PairCounts, PairTable, tiles

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SAMPLE_ROWS = 200_000
"""Rows drawn from a model."""
MOST_JUDGED = 2000
"""Features whose pairs are compared: of more, so many are drawn."""
EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""Edges of the bins of implied shares."""
_LARGEST = 5  # differences that are told by name


class Comparison(NamedTuple):
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
    def rmse_by_chance(self) -> float:
        """What it would be about, were the model right."""
        return _root_mean_square(self.error)

    def largest(self, number: int) -> NDArray[np.intp]:
        """Give the places of the largest differences in standard errors."""
        return np.argsort(-np.abs(self.z), kind="stable")[:number]

    def largest_by_name(
        self, names: Sequence[str], observed: str = "observed", implied: str = "implied"
    ) -> list[dict[str, Any]]:
        """Give the largest differences with the names of their features, for a manifest or a table.

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
            for at in self.largest(_LARGEST)
        ]

    def binned(self) -> list[dict[str, float]]:
        """Give the mean shares of those whose implied share lies between two edges."""
        place = np.digitize(self.implied, EDGES[1:-1])
        bins = []
        for k in np.unique(place):
            here = place == k
            means = {"implied": self.implied[here].mean(), "observed": self.observed[here].mean()}
            edges = {"from": EDGES[k], "to": EDGES[k + 1]}
            shares = {name: float(mean) for name, mean in means.items()}
            bins.append({**edges, "number": int(here.sum()), **shares})
        return bins


def judged_features(n_features: int, seed: int) -> NDArray[np.intp]:
    """Draw the features whose pairs are compared, rising; all where they are few."""
    if n_features <= MOST_JUDGED:
        return np.arange(n_features)
    chosen = np.random.default_rng(seed).choice(n_features, MOST_JUDGED, replace=False)
    return np.sort(chosen)


def observed_pairs(
    rows: Rows, features: NDArray[np.intp], executor: Executor, progress: Progress = silent
) -> PairCounts:
    """Count the pairs of some features in all rows, segments pooled."""
    count, cut = partial(_pairs_among, features), tiles(len(features), 1, TASK_MEMORY)
    return collect(count, rows, executor, PairCounts.label, cut, progress)


def _pairs_among(features: NDArray[np.intp], block: BinaryBlock) -> PairCounts:
    mask = block.observed_words
    if len(features) < block.n_features:
        chosen = None if mask is None else mask[features]
        block = replace(block, words=block.words[features], observed_words=chosen)
    return PairCounts.of_block(block, pooled=True)


def implied_pairs(
    subject: Subject,
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
    n_rows, segments = np.array([SAMPLE_ROWS]), subject.segments
    if len(segments):
        seen = np.flatnonzero(segment_rows)
        n_rows = rows_by_segment(segment_rows[seen].astype(np.float64), SAMPLE_ROWS)
        segments = segments[seen]
    draws = list(draws_of(n_rows, segments, n_features))
    grouped = [draws[keys.start : keys.stop] for keys in groups(len(draws))]
    arrays = {name: values for name, (_, values) in named_arrays(subject.params).items()}
    count = partial(_drawn_pairs, subject.model, arrays, n_features, features, seed)
    return tree_merge(executor.map(count, grouped))


def _drawn_pairs(
    model: Model,
    arrays: dict[str, NDArray[Any]],
    n_features: int,
    features: NDArray[np.intp],
    seed: int,
    some: Sequence[Draw],
) -> PairCounts:
    parts = []
    for draw in some:
        packed = draw_rows(model, lambda: arrays, seed, draw)
        X = np.unpackbits(packed, axis=1, count=n_features, bitorder="little")[:, features]
        parts.append(PairCounts.of_block(block_of(X), pooled=True))
    return tree_merge(parts)


def compare_features(observed: PairCounts, implied: PairCounts) -> Comparison:
    """Compare the shares of ones of all features."""
    features = np.arange(observed.n_features)
    return _compared(observed, implied, (features, features))._replace(features=features[:, None])


def compare_pairs(observed: PairCounts, implied: PairCounts) -> Comparison:
    """Compare the shares of joint ones of all pairs of features observed together."""
    return _compared(observed, implied, np.triu_indices(observed.n_features, 1))


def _compared(
    observed: PairCounts, implied: PairCounts, at: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> Comparison:
    (n, ones), (m, drawn) = (_joint(counts.table(0), at) for counts in (observed, implied))
    seen = n > 0
    n, ones, m, drawn = n[seen], ones[seen], m[seen], drawn[seen]
    pooled = (ones + drawn) / (n + m)
    error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return Comparison(np.column_stack(at)[seen], ones / n, drawn / m, error)


def _root_mean_square(differences: Array) -> float:
    """Give 0 where there are none."""
    return float(np.sqrt((differences**2).sum() / max(len(differences), 1)))


def _joint(table: PairTable, at: tuple[NDArray[np.intp], NDArray[np.intp]]) -> tuple[Array, Array]:
    """Give rows and joint ones of some pairs."""
    n = np.broadcast_to(table.n, table.joint.shape)[at]
    return n.astype(np.float64), table.joint[at].astype(np.float64)
