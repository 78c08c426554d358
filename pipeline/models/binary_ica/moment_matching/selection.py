"""Chooses the ridge and the number of components by held-out pairwise likelihood."""

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
from pipeline.models.binary_ica.moment_matching.optimiser import maximise, random_start, spread_over
from pipeline.models.binary_ica.moment_matching.segments import Segments, segments_of
from pipeline.numerics.pair_likelihood import pair_log_likelihood
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]

GRID = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 1e4)
"""Condition numbers to choose from."""
_FIRST = GRID.index(10.0)
_PATIENCE = 2
_TOLERANCE = 1e-6
"""Of fits to half of the rows: their sampling error is larger still."""


class Candidate(NamedTuple):
    """A setting that was tried.

    Attributes
    ----------
    n_components, regularization
        The setting.
    nats
        Held-out log-likelihood of each fold's segments, all pairs and rows, (n,).
    n_pairs
        Pairs and rows that these are of.
    """

    n_components: int
    regularization: float
    nats: Array
    n_pairs: float

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
    """Split counts by groups: even against odd ones, and the other way round.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.of_groups`.
    n_groups
        Groups a segment.
    min_rows
        Rows that a segment must have; half of them in a fold.
    map_items
        Where correlations are estimated.

    Raises
    ------
    FitError
        If a half of the rows leaves no segment to use.
    """
    odd = np.tile(np.arange(n_groups) % 2, (len(counts.grouped_segments(n_groups)), 1))
    halves = [counts.weighted(n_groups, 1 - odd), counts.weighted(n_groups, odd)]
    folds = [
        Fold(segments_of(train, max(1, min_rows // 2), map_items), test)
        for train, test in (halves, halves[::-1])
    ]
    if not all(fold.train.used.any() for fold in folds):
        raise FitError(
            "Expected segments that can be used when half of their rows are held out, got none. "
            "Give --components and --set regularization, or longer segments."
        )
    return folds


def try_settings(
    folds: Sequence[Fold],
    components: Sequence[int],
    grid: Sequence[float],
    seed: int,
    map_items: Map,
) -> list[Candidate]:
    """Score numbers of components in turn, each with the ridges that seem best.

    Parameters
    ----------
    folds
        What `folds_of` gives.
    components
        Numbers of components, ascending; they end once two in a row were no better than the best.
    grid
        Condition numbers, ascending.
    seed
        Of the random starts.
    map_items
        Where folds are fitted.

    Returns
    -------
    list of Candidate
        In the order tried.
    """
    tried: list[Candidate] = []
    first, last_better = min(_FIRST, len(grid) - 1), 0
    for place, n_components in enumerate(components):
        tried += _try_grid(folds, n_components, grid, first, seed, map_items)
        best = best_of(tried)
        if best.n_components == n_components:
            first, last_better = grid.index(best.regularization), place
        elif place - last_better >= _PATIENCE:
            break
    return tried


def independence(folds: Sequence[Fold]) -> Candidate:
    """Score independent features: no components, or what a condition number of 1 leaves."""
    none = np.eye(folds[0].test.n_features)
    scored = [
        _held_out(fold, place, none)
        for fold in folds
        for place in np.flatnonzero(fold.train.used).tolist()
    ]
    nats, n_pairs = np.array(scored).T
    return Candidate(0, 1.0, nats, float(n_pairs.sum()))


def best_of(tried: Sequence[Candidate]) -> Candidate:
    """Take the candidate of the highest score; of equals, the first."""
    return max(tried, key=lambda candidate: candidate.score)


def choose(tried: Sequence[Candidate]) -> Candidate:
    """Take the fewest components that are within one standard error of the best score.

    The standard error is that of the sum of differences over segments and folds.
    """
    best = best_of(tried)
    for n_components in sorted({candidate.n_components for candidate in tried}):
        fewer = best_of([c for c in tried if c.n_components == n_components])
        lost = best.nats - fewer.nats
        if lost.sum() <= np.sqrt(len(lost)) * lost.std(ddof=1):
            return fewer
    return best


def _try_grid(
    folds: Sequence[Fold],
    n_components: int,
    grid: Sequence[float],
    first: int,
    seed: int,
    map_items: Map,
) -> list[Candidate]:
    """Climb the grid from its place `first`; each fit begins where the one beside it ended."""
    done: dict[int, Candidate] = {}
    ends: dict[int, Sequence[Solution]] = {}

    def visit(place: int, beside: int | None) -> float:
        starts = [None] * len(folds) if beside is None else ends[beside]
        fit = partial(_fit_fold, n_components, grid[place], seed)
        tasks = zip(folds, starts, strict=True)
        largest = max(fold.train.correlation.nbytes for fold in folds)
        nats, n_pairs, ends[place] = zip(*spread_over(fit, tasks, largest, map_items), strict=True)
        done[place] = Candidate(n_components, grid[place], np.concatenate(nats), sum(n_pairs))
        return done[place].score

    visit(first, None)
    for step in (1, -1):
        place = first
        while 0 <= place + step < len(grid) and visit(place + step, place) > done[place].score:
            place += step
        if place != first:
            break  # What rises on one side of the start falls on the other.
    return list(done.values())


def _fit_fold(
    n_components: int,
    regularization: float,
    seed: int,
    task: tuple[Fold, Solution | None],
    spread: Map = map,
) -> tuple[Array, float, Solution]:
    """Fit one half; held-out nats of its segments, pairs and rows they are of, the solution."""
    fold, start = task
    moments = fold.train.moments(regularization)
    begin = random_start(moments, n_components, seed) if start is None else start
    end = maximise(moments, begin, _TOLERANCE, spread).solution
    places = np.flatnonzero(fold.train.used)
    held_out = [
        _held_out(fold, place, end.stretched_correlation(u, moments.ridge[u]))
        for u, place in enumerate(places.tolist())
    ]
    nats, n_pairs = np.array(held_out).T
    return nats, float(n_pairs.sum()), end


def _held_out(fold: Fold, segment: int, correlation: Array) -> tuple[float, float]:
    """Log-likelihood of a segment's tables under thresholds and correlations of the other half."""
    table, thresholds = fold.test.table(segment), fold.train.thresholds[segment]
    i, j = np.triu_indices(len(thresholds), 1)
    n, ones_i, ones_j, joint = (np.broadcast_to(a, correlation.shape)[i, j] for a in table)
    latent = (thresholds[i], thresholds[j], correlation[i, j])
    nats = pair_log_likelihood(n, ones_i, ones_j, joint, *latent)
    return float(nats.sum()), float(n.sum())
