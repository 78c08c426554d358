"""Choose the ridge and the number of components by held-out pairwise likelihood.

Each choice is the simplest setting that is not clearly worse than the best (Breiman, Friedman,
Olshen, Stone, "Classification and Regression Trees", 1984, section 3.4.3):

* the fewest components within 2.7 standard errors of the best;
* the weakest ridge within one standard error on which halves of the rows agree, because a ridge
  biases the mixing however many rows there are.

Differences of scores are summed over segments, and the standard error is estimated from their
spread. It is too small, because the folds of a segment are not independent: in simulated data, one
component too many gained up to 2.5 standard errors. One component too few lost 3.0 standard errors
with 8 segments, and 6 to 14 with 40.

Every setting is fitted to halves of the rows and scored on the other halves. All settings use the
same splits: the row groups are halved like the rows of a Hadamard matrix, so that any two splits
share half of every half. Neither the seed nor any other option changes the splits. Beyond 512
features, scores use 131,072 random pairs, the same for all segments and settings: standard errors
are taken over segments, and scoring all pairs would cost more than the fits.

Fits to halves begin where the fit to all rows ended, which is the best of several starts. Scores
therefore compare settings, not the optima that different starts happened to find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import enter_stage, label_map
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    add_component,
    map_or_thread,
    maximise,
    maximise_from_seeds,
)
from pipeline.models.binary_ica.segment_correlations import (
    GroupSums,
    SegmentCorrelations,
    estimate_segments,
    find_ridge,
)
from pipeline.models.vocabulary import format_count
from pipeline.numerics.gaussian.pair_tables import pair_log_likelihood
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.statistics.counts import PairCounts, PairTable

RIDGE_GRID = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 1e4)
"""Condition numbers to choose from: the larger, the weaker the ridge."""
_FIRST_RIDGE_INDEX = RIDGE_GRID.index(10.0)
_PATIENCE = 2
_N_STARTS = 2
_TOLERANCE = 1e-5
_MAX_LOSS_OF_FEWER = 2.7
_MIN_HALVES_SIMILARITY, _SIMILARITY_TOLERANCE = 0.9, 0.05
"""Required similarity of halves: at least the first, and at most the second below the similarity at
the best score. A strong ridge makes halves agree on a biased mixing, so this tolerance is large."""
FeaturePairs = tuple[NDArray[np.int64], NDArray[np.int64]]
CHOOSE_COMPONENTS, CHOOSE_RIDGE, COMPARE_HALVES = (
    "choosing the number of components",
    "choosing the regularization",
    "comparing halves",
)
"""Stages of the choice."""
MAX_SPLITS = 2
MAX_PAIRS = 1 << 17
"""Maximum number of pairs of features that are scored."""


class ComponentsTrial(NamedTuple):
    """Trial of one number of components.

    `solution` is the best fit to all rows with the first ridge, for the segments used; `candidates`
    are the ridges tried, from the strongest.
    """

    solution: MatchSolution
    candidates: Sequence[ScoredSetting]

    @property
    def best(self) -> ScoredSetting:
        """The ridge with the highest score; among equals, the strongest."""
        return max(self.candidates, key=lambda candidate: candidate.score)


class SettingChoice(NamedTuple):
    """The chosen setting, `candidate`, and its alternatives.

    `solution` is a fit to all rows with the chosen number of components, from which the final fit
    also starts. `ridges` are the candidates with this number of components, and `candidates` all
    candidates, in the order of components.
    """

    candidate: ScoredSetting
    solution: MatchSolution
    ridges: Sequence[ScoredSetting]
    candidates: Sequence[ScoredSetting]


def choose_setting(
    segments: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    components: Sequence[int],
    grid: Sequence[float],
    map_items: MapFunction,
) -> SettingChoice:
    """Choose the number of components, each tried at its best ridge, and then the ridge.

    `segments` are of all rows, and `folds` are from `split_into_folds`. Both `components` and the
    condition numbers in `grid` are in ascending order. The search stops after two numbers of
    components in a row that are not better by a standard error. `map_items` maps over folds.
    """
    first_stage = CHOOSE_COMPONENTS if len(components) > 1 else CHOOSE_RIDGE
    map_first = enter_stage(map_items, first_stage)
    trials = try_components(segments, folds, components, grid, map_first)
    map_items = enter_stage(map_items, CHOOSE_RIDGE)
    trial = choose_components(trials)
    trial = trial._replace(candidates=_try_weaker_ridges(folds, trial, grid, map_items))
    by_number = {t.best.n_components: t for t in (*trials, trial)}
    candidates = [c for t in by_number.values() for c in t.candidates]
    return SettingChoice(
        choose_ridge(trial.candidates), trial.solution, trial.candidates, candidates
    )


def try_components(
    segments: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    components: Sequence[int],
    grid: Sequence[float],
    map_items: MapFunction,
) -> list[ComponentsTrial]:
    """Score one number of components after another, each with the most promising ridges."""
    trials: list[ComponentsTrial] = []
    first, last_better = min(_FIRST_RIDGE_INDEX, len(grid) - 1), 0
    for place, n_components in enumerate(components):
        smaller_fit = trials[-1].solution if trials else None
        solution = _fit_all_rows(segments, n_components, grid[first], smaller_fit, map_items)
        ridges = _climb_grid(segments, folds, solution, grid, first, map_items)
        trials.append(ComponentsTrial(solution, ridges))
        first = grid.index(trials[-1].best.regularization)
        if not _is_as_good(trials[last_better].best, trials[place].best):
            last_better = place
        elif place - last_better >= _PATIENCE:
            break
    return trials


def choose_components(trials: Sequence[ComponentsTrial]) -> ComponentsTrial:
    """Choose the fewest components within 2.7 standard errors of the best score."""
    best = max((trial.best for trial in trials), key=lambda candidate: candidate.score)
    return next(trial for trial in trials if _is_as_good(trial.best, best, _MAX_LOSS_OF_FEWER))


def choose_ridge(ridges: Sequence[ScoredSetting]) -> ScoredSetting:
    """Choose the weakest stable ridge within one standard error of the best score.

    A ridge is stable if halves of the rows agree on the mixing. With few rows no weak ridge may be
    stable; the strongest ridge within one standard error is chosen then.
    """
    best = max(ridges, key=lambda candidate: candidate.score)
    good = [candidate for candidate in ridges if _is_as_good(candidate, best)]
    min_similarity = max(_MIN_HALVES_SIMILARITY, halves_similarity(best) - _SIMILARITY_TOLERANCE)
    stable = [candidate for candidate in good if halves_similarity(candidate) >= min_similarity]
    return stable[-1] if stable else good[0]


def resample_ridges(ridges: Sequence[ScoredSetting], seeds: Sequence[int]) -> list[float]:
    """Choose a ridge for each seed, from the scores of segments drawn with replacement."""
    n_segments = ridges[0].nats.shape[1]
    regularizations = []
    for seed in seeds:
        places = np.random.default_rng([seed, 1]).integers(n_segments, size=n_segments)
        resampled = [c._replace(nats=c.nats[:, places]) for c in ridges]
        regularizations.append(choose_ridge(resampled).regularization)
    return regularizations


def halves_similarity(candidate: ScoredSetting) -> float:
    """Return the mean cosine similarity of the mixings of two halves, averaged over splits."""
    mixings = [end.mixing for end in candidate.solutions]
    pairs = zip(mixings[::2], mixings[1::2], strict=True)
    return float(np.mean([mean_cosine_similarity(a, b) for a, b in pairs]))


def refit_and_compare_halves(
    folds: Sequence[HeldOutFold], chosen: ScoredSetting, map_items: MapFunction
) -> float:
    """Fit two halves independently; return the mean cosine similarity of their mixings."""
    map_items = enter_stage(map_items, COMPARE_HALVES, 2 * (_N_STARTS + 1))
    map_labelled, mixings = label_map(map_items, "", _N_STARTS + 1), []
    for fold, end in zip(folds[:2], chosen.solutions, strict=False):
        moments, seeds = fold.train.moments(chosen.regularization), range(_N_STARTS)
        fits = maximise_from_seeds(
            moments, chosen.n_components, seeds, map_labelled, extra_starts=[end]
        )
        mixings.append(fits[0].solution.mixing)
    return mean_cosine_similarity(*mixings)


def _is_as_good(candidate: ScoredSetting, best: ScoredSetting, n_errors: float = 1.0) -> bool:
    """Check whether a score is within this many standard errors (over segments) of the best."""
    lost = (best.nats - candidate.nats).sum(axis=0)[best.nats.any(axis=0)]
    error = np.sqrt(len(lost)) * lost.std(ddof=1) if len(lost) > 1 else 0.0
    return bool(lost.sum() <= n_errors * error)


def _fit_all_rows(
    segments: SegmentCorrelations,
    n_components: int,
    r: float,
    smaller_fit: MatchSolution | None,
    map_items: MapFunction,
) -> MatchSolution:
    """Fit all rows from fixed random starts, and from the fit with one component less."""
    moments = segments.moments(r)
    extra_starts = [] if smaller_fit is None else [add_component(moments, smaller_fit)]
    label = f"{format_count(n_components, 'component')}, all rows"
    map_labelled = label_map(map_items, label, _N_STARTS + len(extra_starts))
    optima = maximise_from_seeds(
        moments, n_components, range(_N_STARTS), map_labelled, _TOLERANCE, extra_starts, True
    )
    return optima[0].solution


def _climb_grid(
    segments: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    solution: MatchSolution,
    grid: Sequence[float],
    first: int,
    map_items: MapFunction,
) -> list[ScoredSetting]:
    """Climb the grid from place `first`; each fit starts from the fit with the adjacent ridge."""
    n_components, settings = solution.mixing.shape[1], {}
    starts: Sequence[MatchSolution] = make_fold_starts(folds, solution, segments.is_used)
    settings[first] = score_setting(folds, n_components, grid[first], starts, map_items)
    for step in (1, -1):
        place = first
        while 0 <= place + step < len(grid) and (step < 0 or has_ridge(folds, grid[place])):
            neighbour = settings[place]
            settings[place + step] = score_setting(
                folds, n_components, grid[place + step], neighbour.solutions, map_items
            )
            if settings[place + step].score <= neighbour.score:
                break
            place += step
        if place != first:
            break  # If the score rises on one side of the start, it falls on the other.
    return [settings[place] for place in sorted(settings)]


def _try_weaker_ridges(
    folds: Sequence[HeldOutFold],
    trial: ComponentsTrial,
    grid: Sequence[float],
    map_items: MapFunction,
) -> list[ScoredSetting]:
    """Try weaker ridges too, as long as they are within one standard error of the best."""
    ridges = list(trial.candidates)
    while choose_ridge(ridges) is (last := ridges[-1]) and has_ridge(folds, last.regularization):
        if (place := grid.index(last.regularization) + 1) == len(grid):
            break
        ridges.append(
            score_setting(folds, last.n_components, grid[place], last.solutions, map_items)
        )
    return ridges


def has_ridge(folds: Sequence[HeldOutFold], regularization: float) -> bool:
    """Return whether the ridge changes any fold; if not, weaker ridges give the same fit."""
    halves = [fold.train for fold in folds]
    return any(find_ridge(h.extremes[h.is_used], regularization).any() for h in halves)


class ScoredSetting(NamedTuple):
    """Setting with its held-out score."""

    n_components: int
    regularization: float
    # Held-out log-likelihood of each fold's segments, over all scored pairs and rows; 0 if a fold
    # cannot use a segment, (n_folds, n_segments).
    nats: Array
    n_pairs: float  # number of scored pairs and rows
    solutions: Sequence[MatchSolution] = ()  # solution of each fold's fit

    @property
    def score(self) -> float:
        """Mean score in nats per pair of features and row."""
        return float(self.nats.sum() / self.n_pairs)


@dataclass(frozen=True)
class HeldOutFold:
    """Correlations of one half of the rows, and tables of the other.

    `train` are the segments of the first half, `pairs` the features i < j of the scored pairs,
    (n_pairs,) each, `planes` their planes, one of each feature, and `test` the tables of these in
    the other half, one per segment.
    """

    train: SegmentCorrelations
    pairs: FeaturePairs
    test: Sequence[PairTable]
    planes: FeaturePairs


def split_into_folds(
    counts: PairCounts,
    n_groups: int,
    min_rows: int,
    map_items: MapFunction,
    first_planes: NDArray[np.int64] | None = None,
) -> list[HeldOutFold]:
    """Split row groups into halves; each half is fitted once and scored once.

    There are two folds for each of up to `MAX_SPLITS` splits, one after the other. `n_groups` is
    the number of groups per segment in `counts`, a power of two. A segment of a fold needs half of
    `min_rows`.
    """
    if first_planes is None:
        first_planes = np.arange(counts.n_features + 1)
    folds, planes = [], choose_pairs(first_planes)
    i, j = (np.searchsorted(first_planes, plane, "right") - 1 for plane in planes)
    for half in _choose_halves(n_groups):
        odd = np.tile(half, (len(counts.list_grouped_segments(n_groups)), 1))
        halves = [GroupSums(counts, n_groups, weights) for weights in (1 - odd, odd)]
        for train, test in (halves, halves[::-1]):
            least = max(1, min_rows // 2)
            train_segments = estimate_segments(train, least, map_items, first_planes)
            tables = _select_tables(test, planes)
            folds.append(HeldOutFold(train_segments, (i, j), tables, planes))
    if not all(fold.train.is_used.any() for fold in folds):
        raise FitError(
            "No segment remains usable when half of its rows are held out. "
            "Set {components} and {regularization}, or use longer segments."
        )
    return folds


def _choose_halves(n_groups: int) -> list[NDArray[np.int64]]:
    """Return for each split which groups form its second half: rows of a Hadamard matrix."""
    splits = range(1, 1 + min(MAX_SPLITS, n_groups - 1))
    return [
        np.array([(group & split).bit_count() % 2 for group in range(n_groups)], np.int64)
        for split in splits
    ]


def choose_pairs(first_planes: NDArray[np.int64]) -> FeaturePairs:
    """Return the planes of pairs of different features: all, or a random sample of `MAX_PAIRS`."""
    owners = np.repeat(np.arange(len(first_planes) - 1), np.diff(first_planes))
    i, j = np.triu_indices(len(owners), 1)
    is_pair = owners[i] != owners[j]
    i, j = i[is_pair], j[is_pair]
    if len(i) <= MAX_PAIRS:
        return i, j
    places = np.random.default_rng(0).choice(len(i), MAX_PAIRS, replace=False)
    places.sort()
    return i[places], j[places]


def _select_tables(sums: GroupSums, pairs: FeaturePairs) -> list[PairTable]:
    square, tables = (sums.n_features, sums.n_features), []
    for segment, n_rows in enumerate(sums.rows.tolist()):
        parts = (np.broadcast_to(a, square)[pairs] for a in sums.table(segment))
        tables.append(PairTable(*(a.astype(np.min_scalar_type(n_rows)) for a in parts)))
    return tables


def score_independence(folds: Sequence[HeldOutFold]) -> ScoredSetting:
    """Score independent features: no components, the limit of a condition number of 1."""
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
    """Fit every fold from the start at its place in `starts`, and score it."""
    fit = partial(_fit_fold, regularization)
    largest = max(fold.train.correlation.nbytes for fold in folds)
    label = f"{format_count(n_components, 'component')}, regularization {regularization:g}"
    map_labelled = label_map(map_items, label, len(folds))
    results = map_or_thread(fit, zip(folds, starts, strict=True), largest, map_labelled)
    nats, n_pairs, solutions = zip(*results, strict=True)
    return ScoredSetting(
        n_components, regularization, np.array(nats), float(sum(n_pairs)), solutions
    )


def make_fold_starts(
    folds: Sequence[HeldOutFold], solution: MatchSolution, used: NDArray[np.bool_]
) -> list[MatchSolution]:
    """Start every fold at the solution of all rows, which covers the segments marked in `used`."""
    place_by_segment = np.cumsum(used) - 1
    places = [np.where(used, place_by_segment, 0)[fold.train.is_used] for fold in folds]
    return [
        MatchSolution(solution.mixing, solution.log_variances[u], solution.log_precisions[u])
        for u in places
    ]


def _fit_fold(
    regularization: float, task: tuple[HeldOutFold, MatchSolution], map_parts: MapFunction = map
) -> tuple[Array, float, MatchSolution]:
    """Fit one half; return held-out nats by segment, the number of pairs and rows, the solution."""
    fold, start = task
    moments = fold.train.moments(regularization)
    solution = maximise(moments, start, _TOLERANCE, map_parts, True).solution
    ridge = moments.ridge
    return *_score_fold(
        fold, lambda u: solution.unshrink_correlation(u, ridge[u])[fold.pairs], map_parts
    ), solution


def _score_fold(
    fold: HeldOutFold, correlations: Callable[[int], Array], map_parts: MapFunction = map
) -> tuple[Array, float]:
    """Return the nats of every segment, and the number of scored pairs and rows.

    `correlations` returns the correlations of the scored pairs in a segment, by its place among the
    segments that the fold uses.
    """
    nats, used = np.zeros(len(fold.train.is_used)), np.flatnonzero(fold.train.is_used)

    def score_segment(task: tuple[int, int]) -> tuple[float, float]:
        place, segment = task
        return _score_segment(fold, segment, correlations(place))

    nats[used], n_pairs = zip(*map_parts(score_segment, enumerate(used.tolist())), strict=True)
    return nats, sum(n_pairs)


def _score_segment(fold: HeldOutFold, segment: int, correlation: Array) -> tuple[float, float]:
    """Score a segment's tables with the thresholds and correlations of the other half."""
    table, thresholds = fold.test[segment], fold.train.thresholds[segment]
    nats = pair_log_likelihood(table, thresholds, *fold.planes, correlation)
    return float(nats.sum()), float(table.n.sum())
