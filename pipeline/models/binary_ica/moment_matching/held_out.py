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
from pipeline.executors.base import Map
from pipeline.executors.progress import labelled
from pipeline.models.binary_ica.moment_matching.group_sums import GroupSums
from pipeline.models.binary_ica.moment_matching.objective import Solution
from pipeline.models.binary_ica.moment_matching.optimiser import maximise, spread_over
from pipeline.models.binary_ica.moment_matching.segments import Segments, segments_of
from pipeline.numerics.gaussian.pair_likelihood import pair_log_likelihood
from pipeline.statistics.counts import PairCounts, PairTable

Array = NDArray[np.float64]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

MOST_SPLITS = 2
MOST_PAIRS = 1 << 17
"""Pairs of features that are scored."""
_TOLERANCE = 1e-5
"""Of fits to half of the rows: their sampling error is larger still."""


class Candidate(NamedTuple):
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
    ends: Sequence[Solution] = ()

    @property
    def score(self) -> float:
        """Nats a pair of features and row."""
        return float(self.nats.sum() / self.n_pairs)


@dataclass(frozen=True)
class Fold:
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

    train: Segments
    pairs: Pairs
    test: Sequence[PairTable]


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
    folds, pairs = [], scored_pairs(counts.n_features)
    for half in _halves(n_groups):
        odd = np.tile(half, (len(counts.grouped_segments(n_groups)), 1))
        halves = [GroupSums(counts, n_groups, weights) for weights in (1 - odd, odd)]
        for train, test in (halves, halves[::-1]):
            trained = segments_of(train, max(1, min_rows // 2), map_items)
            folds.append(Fold(trained, pairs, _tables_of(test, pairs)))
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


def scored_pairs(n_features: int) -> Pairs:
    """Give features i < j of all pairs, or of as many as are scored."""
    i, j = np.triu_indices(n_features, 1)
    if len(i) <= MOST_PAIRS:
        return i, j
    drawn = np.random.default_rng(0).choice(len(i), MOST_PAIRS, replace=False)
    drawn.sort()
    return i[drawn], j[drawn]


def _tables_of(sums: GroupSums, pairs: Pairs) -> list[PairTable]:
    """Pick the tables of some pairs from those of every segment."""
    square, found = (sums.n_features, sums.n_features), []
    for segment, n_rows in enumerate(sums.rows.tolist()):
        picked = (np.broadcast_to(a, square)[pairs] for a in sums.table(segment))
        found.append(PairTable(*(a.astype(np.min_scalar_type(n_rows)) for a in picked)))
    return found


def independence(folds: Sequence[Fold]) -> Candidate:
    """Score independent features: no components, or what a condition number of 1 leaves."""
    none = np.zeros(len(folds[0].pairs[0]))
    scored = [_scored(fold, lambda place: none) for fold in folds]
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
    ridge = moments.ridge
    return *_scored(fold, lambda u: end.stretched_correlation(u, ridge[u])[fold.pairs], spread), end


def _scored(
    fold: Fold, correlations: Callable[[int], Array], spread: Map = map
) -> tuple[Array, float]:
    """Nats of every segment, and the pairs that they are of.

    `correlations` gives those of the pairs scored in each of the segments that the fold uses.
    """
    nats, used = np.zeros(len(fold.train.used)), np.flatnonzero(fold.train.used)

    def held_out(task: tuple[int, int]) -> tuple[float, float]:
        place, segment = task
        return _held_out(fold, segment, correlations(place))

    nats[used], n_pairs = zip(*spread(held_out, enumerate(used.tolist())), strict=True)
    return nats, sum(n_pairs)


def _held_out(fold: Fold, segment: int, correlation: Array) -> tuple[float, float]:
    """Log-likelihood of a segment's tables under thresholds and correlations of the other half."""
    table, thresholds = fold.test[segment], fold.train.thresholds[segment]
    i, j = fold.pairs
    nats = pair_log_likelihood(*table, thresholds[i], thresholds[j], correlation)
    return float(nats.sum()), float(table.n.sum())
