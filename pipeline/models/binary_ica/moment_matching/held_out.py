"""Fits to halves of the rows, scored by the pairwise likelihood of the other halves.

Every score is of the same splits: the groups that rows were dealt to are halved in ways that share
half of every half, as the rows of a Hadamard matrix do. No seed and no other option moves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import Map
from pipeline.models.binary_ica.moment_matching.objective import Solution
from pipeline.models.binary_ica.moment_matching.optimiser import maximise, spread_over
from pipeline.models.binary_ica.moment_matching.segments import Segments, segments_of
from pipeline.numerics.pair_likelihood import pair_log_likelihood
from pipeline.progress import labelled
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

MOST_SPLITS = 2
_TOLERANCE = 1e-5
"""Of fits to half of the rows: their sampling error is larger still."""


class Candidate(NamedTuple):
    """A setting that was tried.

    Attributes
    ----------
    n_components, regularization
        The setting.
    nats
        Held-out log-likelihood of each fold's segments, all pairs and rows; 0 where a fold cannot
        use a segment, (n_folds, n_segments).
    n_pairs
        Pairs and rows that these are of.
    ends
        Where the fit of each fold ended.
    """

    n_components: int
    regularization: float
    nats: Array
    n_pairs: float
    ends: Sequence[Solution] = ()

    @property
    def score(self) -> float:
        """Nats a pair of features and row."""
        return float(self.nats.sum() / self.n_pairs)


@dataclass(frozen=True)
class Fold:
    """Correlations of one half of the rows, and the counts of the other, a row a segment."""

    train: Segments
    test: PairCounts


def folds_of(counts: PairCounts, n_groups: int, min_rows: int, map_items: Map) -> list[Fold]:
    """Split counts into halves by groups, and each half against the other both ways.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.of_groups`.
    n_groups
        Groups a segment, a power of two.
    min_rows
        Rows that a segment must have; half of them in a fold.
    map_items
        Where correlations are estimated.

    Returns
    -------
    list of Fold
        Two for each of up to `MOST_SPLITS` splits, one after the other.

    Raises
    ------
    FitError
        If a half of the rows leaves no segment to use.
    """
    folds = []
    for half in _halves(n_groups):
        odd = np.tile(half, (len(counts.grouped_segments(n_groups)), 1))
        halves = [counts.weighted(n_groups, 1 - odd), counts.weighted(n_groups, odd)]
        for train, test in (halves, halves[::-1]):
            folds.append(Fold(segments_of(train, max(1, min_rows // 2), map_items), test))
    if not all(fold.train.used.any() for fold in folds):
        raise FitError(
            "Expected segments that can be used when half of their rows are held out, got none. "
            "Give --components and --set regularization, or longer segments."
        )
    return folds


def _halves(n_groups: int) -> list[NDArray[np.int64]]:
    """Say for each split which groups are in its second half: rows of a Hadamard matrix."""
    splits = range(1, 1 + min(MOST_SPLITS, n_groups - 1))
    return [
        np.array([(group & split).bit_count() % 2 for group in range(n_groups)], np.int64)
        for split in splits
    ]


def independence(folds: Sequence[Fold]) -> Candidate:
    """Score independent features: no components, or what a condition number of 1 leaves."""
    none = np.eye(folds[0].test.n_features)
    scored = [_scored(fold, [none] * int(fold.train.used.sum())) for fold in folds]
    nats, n_pairs = zip(*scored, strict=True)
    return Candidate(0, 1.0, np.array(nats), float(sum(n_pairs)))


def try_setting(
    folds: Sequence[Fold],
    n_components: int,
    regularization: float,
    starts: Sequence[Solution],
    map_items: Map,
) -> Candidate:
    """Fit every fold from a start of its own and score it.

    Parameters
    ----------
    folds
        What `folds_of` gives.
    n_components, regularization
        The setting.
    starts
        One a fold.
    map_items
        Where folds are fitted.
    """
    fit = partial(_fit_fold, regularization)
    largest = max(fold.train.correlation.nbytes for fold in folds)
    label = f"choose, {n_components} components, regularization {regularization:g}"
    told = labelled(map_items, label, len(folds))
    found = spread_over(fit, zip(folds, starts, strict=True), largest, told)
    nats, n_pairs, ends = zip(*found, strict=True)
    return Candidate(n_components, regularization, np.array(nats), float(sum(n_pairs)), ends)


def starts_of(folds: Sequence[Fold], solution: Solution, used: NDArray[np.bool_]) -> list[Solution]:
    """Begin every fold where all rows' fit ended: `solution` is of the segments `used`."""
    place = np.cumsum(used) - 1
    at = [np.where(used, place, 0)[fold.train.used] for fold in folds]
    return [
        Solution(solution.mixing, solution.log_variances[u], solution.log_precisions[u]) for u in at
    ]


def _fit_fold(
    regularization: float, task: tuple[Fold, Solution], spread: Map = map
) -> tuple[Array, float, Solution]:
    """Fit one half; held-out nats of its segments, pairs and rows they are of, the solution."""
    fold, start = task
    moments = fold.train.moments(regularization)
    end = maximise(moments, start, _TOLERANCE, spread).solution
    stretched = [end.stretched_correlation(u, delta) for u, delta in enumerate(moments.ridge)]
    return *_scored(fold, stretched), end


def _scored(fold: Fold, correlations: Sequence[Array]) -> tuple[Array, float]:
    """Nats of every segment under correlations of those that the fold uses, and their pairs."""
    nats, n_pairs = np.zeros(len(fold.train.used)), 0.0
    used = np.flatnonzero(fold.train.used).tolist()
    for segment, correlation in zip(used, correlations, strict=True):
        nats[segment], n = _held_out(fold, segment, correlation)
        n_pairs += n
    return nats, n_pairs


def _held_out(fold: Fold, segment: int, correlation: Array) -> tuple[float, float]:
    """Log-likelihood of a segment's tables under thresholds and correlations of the other half."""
    table, thresholds = fold.test.table(segment), fold.train.thresholds[segment]
    i, j = np.triu_indices(len(thresholds), 1)
    n, ones_i, ones_j, joint = (np.broadcast_to(a, correlation.shape)[i, j] for a in table)
    latent = (thresholds[i], thresholds[j], correlation[i, j])
    nats = pair_log_likelihood(n, ones_i, ones_j, joint, *latent)
    return float(nats.sum()), float(n.sum())
