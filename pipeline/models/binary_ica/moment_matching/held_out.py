"""Fits to halves of the rows, scored by the pairwise likelihood of the other halves.

Every score is of the same splits: the groups that rows were dealt to are halved in ways that share
half of every half, as the rows of a Hadamard matrix do. No seed and no other option moves them.
Beyond 512 features it is of 131,072 pairs drawn at random, the same for all segments and settings:
standard errors are those over segments, and all pairs would cost more than the fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.models.binary_ica.moment_matching.group_sums import GroupSums
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import map_or_thread, maximise
from pipeline.models.binary_ica.moment_matching.segments import (
    SegmentCorrelations,
    estimate_segments,
)
from pipeline.numerics.gaussian.pair_likelihood import pair_log_likelihood
from pipeline.statistics.counts import PairCounts, PairTable

Array = NDArray[np.float64]
FeaturePairs = tuple[NDArray[np.int64], NDArray[np.int64]]

MAX_SPLITS = 2
MAX_PAIRS = 1 << 17
"""Pairs of features that are scored."""
_TOLERANCE = 1e-5
"""Of fits to half of the rows: their sampling error is larger still."""


class ScoredSetting(NamedTuple):
    """A setting that was tried.

    Attributes
    ----------
    n_components, regularization
        The setting.
    nats
        Held-out log-likelihood of each fold's segments, all pairs scored and rows; 0 where a fold
        cannot use a segment, (n_folds, n_segments).
    n_pairs
        Pairs and rows that these are of.
    ends
        Where the fit of each fold ended.
    """

    n_components: int
    regularization: float
    nats: Array
    n_pairs: float
    solutions: Sequence[MatchSolution] = ()

    @property
    def score(self) -> float:
        """Nats a pair of features and row."""
        return float(self.nats.sum() / self.n_pairs)


@dataclass(frozen=True)
class HeldOutFold:
    """Correlations of one half of the rows, and tables of the other.

    Attributes
    ----------
    train
        Segments of the one half.
    pairs
        Features i < j of the pairs that are scored, (n_pairs,) each.
    test
        Their tables of the other half, an entry a segment.
    """

    train: SegmentCorrelations
    pairs: FeaturePairs
    test: Sequence[PairTable]


def split_into_folds(
    counts: PairCounts, n_groups: int, min_rows: int, map_items: MapFunction
) -> list[HeldOutFold]:
    """Split counts into halves by groups, and each half against the other both ways.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.from_groups`.
    n_groups
        Groups a segment, a power of two.
    min_rows
        Rows that a segment must have; half of them in a fold.
    map_items
        Where correlations are estimated.

    Returns
    -------
    list of Fold
        Two for each of up to `MAX_SPLITS` splits, one after the other.

    Raises
    ------
    FitError
        If a half of the rows leaves no segment to use.
    """
    folds, pairs = [], choose_pairs(counts.n_features)
    for half in _choose_halves(n_groups):
        odd = np.tile(half, (len(counts.list_grouped_segments(n_groups)), 1))
        halves = [GroupSums(counts, n_groups, weights) for weights in (1 - odd, odd)]
        for train, test in (halves, halves[::-1]):
            trained = estimate_segments(train, max(1, min_rows // 2), map_items)
            folds.append(HeldOutFold(trained, pairs, _select_tables(test, pairs)))
    if not all(fold.train.is_used.any() for fold in folds):
        raise FitError(
            "Expected segments that can be used when half of their rows are held out, got none. "
            "Give --components and --set regularization, or longer segments."
        )
    return folds


def _choose_halves(n_groups: int) -> list[NDArray[np.int64]]:
    """Say for each split which groups are in its second half: rows of a Hadamard matrix."""
    splits = range(1, 1 + min(MAX_SPLITS, n_groups - 1))
    return [
        np.array([(group & split).bit_count() % 2 for group in range(n_groups)], np.int64)
        for split in splits
    ]


def choose_pairs(n_features: int) -> FeaturePairs:
    """Give features i < j of all pairs, or of as many as are scored."""
    i, j = np.triu_indices(n_features, 1)
    if len(i) <= MAX_PAIRS:
        return i, j
    drawn = np.random.default_rng(0).choice(len(i), MAX_PAIRS, replace=False)
    drawn.sort()
    return i[drawn], j[drawn]


def _select_tables(sums: GroupSums, pairs: FeaturePairs) -> list[PairTable]:
    """Pick the tables of some pairs from those of every segment."""
    square, found = (sums.n_features, sums.n_features), []
    for segment, n_rows in enumerate(sums.rows.tolist()):
        picked = (np.broadcast_to(a, square)[pairs] for a in sums.table(segment))
        found.append(PairTable(*(a.astype(np.min_scalar_type(n_rows)) for a in picked)))
    return found


def score_independence(folds: Sequence[HeldOutFold]) -> ScoredSetting:
    """Score independent features: no components, or what a condition number of 1 leaves."""
    none = np.zeros(len(folds[0].pairs[0]))
    scored = [_score_fold(fold, lambda place: none) for fold in folds]
    nats, n_pairs = zip(*scored, strict=True)
    return ScoredSetting(0, 1.0, np.array(nats), float(sum(n_pairs)))


def score_setting(
    folds: Sequence[HeldOutFold],
    n_components: int,
    regularization: float,
    starts: Sequence[MatchSolution],
    map_items: MapFunction,
) -> ScoredSetting:
    """Fit every fold from a start of its own and score it.

    Parameters
    ----------
    folds
        What `split_into_folds` gives.
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
    told = label_map(map_items, label, len(folds))
    found = map_or_thread(fit, zip(folds, starts, strict=True), largest, told)
    nats, n_pairs, ends = zip(*found, strict=True)
    return ScoredSetting(n_components, regularization, np.array(nats), float(sum(n_pairs)), ends)


def make_fold_starts(
    folds: Sequence[HeldOutFold], solution: MatchSolution, used: NDArray[np.bool_]
) -> list[MatchSolution]:
    """Begin every fold where all rows' fit ended: `solution` is of the segments `is_used`."""
    place = np.cumsum(used) - 1
    at = [np.where(used, place, 0)[fold.train.is_used] for fold in folds]
    return [
        MatchSolution(solution.mixing, solution.log_variances[u], solution.log_precisions[u])
        for u in at
    ]


def _fit_fold(
    regularization: float, task: tuple[HeldOutFold, MatchSolution], spread: MapFunction = map
) -> tuple[Array, float, MatchSolution]:
    """Fit one half; held-out nats of its segments, pairs and rows they are of, the solution."""
    fold, start = task
    moments = fold.train.moments(regularization)
    end = maximise(moments, start, _TOLERANCE, spread).solution
    ridge = moments.ridge
    return *_score_fold(
        fold, lambda u: end.unshrink_correlation(u, ridge[u])[fold.pairs], spread
    ), end


def _score_fold(
    fold: HeldOutFold, correlations: Callable[[int], Array], spread: MapFunction = map
) -> tuple[Array, float]:
    """Nats of every segment, and the pairs that they are of.

    `correlations` gives those of the pairs scored in each of the segments that the fold uses.
    """
    nats, used = np.zeros(len(fold.train.is_used)), np.flatnonzero(fold.train.is_used)

    def held_out(task: tuple[int, int]) -> tuple[float, float]:
        place, segment = task
        return _score_segment(fold, segment, correlations(place))

    nats[used], n_pairs = zip(*spread(held_out, enumerate(used.tolist())), strict=True)
    return nats, sum(n_pairs)


def _score_segment(fold: HeldOutFold, segment: int, correlation: Array) -> tuple[float, float]:
    """Log-likelihood of a segment's tables under thresholds and correlations of the other half."""
    table, thresholds = fold.test[segment], fold.train.thresholds[segment]
    i, j = fold.pairs
    nats = pair_log_likelihood(*table, thresholds[i], thresholds[j], correlation)
    return float(nats.sum()), float(table.n.sum())
