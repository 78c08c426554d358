"""Chooses the ridge and the number of components by held-out pairwise likelihood.

Both are the plainest setting that is not clearly worse than the best (Breiman, Friedman, Olshen,
Stone, "Classification and Regression Trees", 1984, section 3.4.3): the fewest components within
2.7 standard errors, and the weakest ridge within one that halves of the rows agree on, because a
ridge biases the mixing however many rows there are. The standard error is that of a sum of
differences over segments. It is too small, as folds of a segment are not independent: in simulated
data one component too many has gained 2.5 of them. One too few lost 3.0 with 8 segments and 6 to 14
with 40.

Fits to halves begin where the fit to all rows ended, which is the best of several starts: scores
then compare settings, and not the optima that this or that start happened to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.models.binary_ica.moment_matching.held_out import (
    HeldOutFold,
    ScoredSetting,
    make_fold_starts,
    score_setting,
)
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import (
    add_component,
    maximise_from_seeds,
)
from pipeline.models.binary_ica.moment_matching.segments import SegmentCorrelations, find_ridge
from pipeline.numerics.metrics import mean_cosine_similarity

Array = NDArray[np.float64]

RIDGE_GRID = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 1e4)
"""Condition numbers to choose from: the larger, the weaker the ridge."""
_FIRST_RIDGE_INDEX = RIDGE_GRID.index(10.0)
_PATIENCE = 2
_N_STARTS = 2
_TOLERANCE = 1e-5
_MAX_LOSS_OF_FEWER = 2.7
_MIN_HALVES_SIMILARITY, _SIMILARITY_TOLERANCE = 0.9, 0.05
"""Similarity of halves to ask for, and how much less than that of the best score: a strong ridge
makes halves agree on what is biased, so little is asked of a weaker one."""


class ComponentsTrial(NamedTuple):
    """A number of components that was tried.

    Attributes
    ----------
    solution
        The best fit to all rows, of the segments used, with the ridge that it began with.
    candidates
        The ridges tried, from the strongest.
    """

    solution: MatchSolution
    candidates: Sequence[ScoredSetting]

    @property
    def best(self) -> ScoredSetting:
        """The ridge of the highest score; of equals, the strongest."""
        return max(self.candidates, key=lambda candidate: candidate.score)


class SettingChoice(NamedTuple):
    """What was chosen, and from what.

    Attributes
    ----------
    candidate
        The setting.
    solution
        A fit to all rows with so many components: a start for the last one.
    ridges
        Candidates with so many components.
    tried
        All candidates, in the order of components.
    """

    candidate: ScoredSetting
    solution: MatchSolution
    ridges: Sequence[ScoredSetting]
    candidates: Sequence[ScoredSetting]


def choose_setting(
    whole: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    components: Sequence[int],
    grid: Sequence[float],
    map_items: MapFunction,
) -> SettingChoice:
    """Choose the number of components, each tried at its best ridge, and then the ridge.

    Parameters
    ----------
    whole
        Segments of all rows.
    folds
        What `split_into_folds` gives.
    components
        Numbers of components, one by one; they end once two in a row were not better by a standard
        error.
    grid
        Condition numbers, ascending.
    map_items
        Where folds are fitted.
    """
    trials = try_components(whole, folds, components, grid, map_items)
    trial = choose_components(trials)
    trial = trial._replace(candidates=_try_weaker_ridges(folds, trial, grid, map_items))
    by_number = {t.best.n_components: t for t in (*trials, trial)}
    tried = [c for t in by_number.values() for c in t.candidates]
    return SettingChoice(choose_ridge(trial.candidates), trial.solution, trial.candidates, tried)


def try_components(
    whole: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    components: Sequence[int],
    grid: Sequence[float],
    map_items: MapFunction,
) -> list[ComponentsTrial]:
    """Score numbers of components in turn, each with the ridges that seem best."""
    trials: list[ComponentsTrial] = []
    first, last_better = min(_FIRST_RIDGE_INDEX, len(grid) - 1), 0
    for place, n_components in enumerate(components):
        before = trials[-1].solution if trials else None
        solution = _fit_all_rows(whole, n_components, grid[first], before, map_items)
        trials.append(
            ComponentsTrial(solution, _climb_grid(whole, folds, solution, grid, first, map_items))
        )
        first = grid.index(trials[-1].best.regularization)
        if not _is_as_good(trials[last_better].best, trials[place].best):
            last_better = place
        elif place - last_better >= _PATIENCE:
            break
    return trials


def choose_components(trials: Sequence[ComponentsTrial]) -> ComponentsTrial:
    """Take the fewest components that are within 2.7 standard errors of the best score."""
    best = max((trial.best for trial in trials), key=lambda candidate: candidate.score)
    return next(trial for trial in trials if _is_as_good(trial.best, best, _MAX_LOSS_OF_FEWER))


def choose_ridge(ridges: Sequence[ScoredSetting]) -> ScoredSetting:
    """Take the weakest steady ridge within one standard error of the best score.

    Of few rows every weak ridge leaves nothing: where none is steady it is the strongest of them.
    """
    best = max(ridges, key=lambda candidate: candidate.score)
    good = [candidate for candidate in ridges if _is_as_good(candidate, best)]
    asked = max(_MIN_HALVES_SIMILARITY, halves_similarity(best) - _SIMILARITY_TOLERANCE)
    steady = [candidate for candidate in good if halves_similarity(candidate) >= asked]
    return steady[-1] if steady else good[0]


def resample_ridges(ridges: Sequence[ScoredSetting], seeds: Sequence[int]) -> list[float]:
    """Choose the ridge anew, once a seed, from scores of segments drawn with replacement."""
    n_segments = ridges[0].nats.shape[1]
    chosen = []
    for seed in seeds:
        drawn = np.random.default_rng([seed, 1]).integers(n_segments, size=n_segments)
        anew = [c._replace(nats=c.nats[:, drawn]) for c in ridges]
        chosen.append(choose_ridge(anew).regularization)
    return chosen


def halves_similarity(candidate: ScoredSetting) -> float:
    """Mean over splits of the mean cosine similarity of the mixings of their two halves."""
    mixings = [end.mixing for end in candidate.solutions]
    pairs = zip(mixings[::2], mixings[1::2], strict=True)
    return float(np.mean([mean_cosine_similarity(a, b) for a, b in pairs]))


def refit_and_compare_halves(
    folds: Sequence[HeldOutFold], chosen: ScoredSetting, map_items: MapFunction
) -> float:
    """Fit two halves of the rows by themselves; the mean cosine similarity of their mixings."""
    label = f"halves, {chosen.n_components} components"
    told, mixings = label_map(map_items, label, _N_STARTS + 1), []
    for fold, end in zip(folds[:2], chosen.solutions, strict=False):
        moments, seeds = fold.train.moments(chosen.regularization), range(_N_STARTS)
        fits = maximise_from_seeds(moments, chosen.n_components, seeds, told, also=[end])
        mixings.append(fits[0].solution.mixing)
    return mean_cosine_similarity(*mixings)


def _is_as_good(candidate: ScoredSetting, best: ScoredSetting, n_errors: float = 1.0) -> bool:
    """Whether a score is within so many standard errors of the best, over segments."""
    lost = (best.nats - candidate.nats).sum(axis=0)[best.nats.any(axis=0)]
    error = np.sqrt(len(lost)) * lost.std(ddof=1) if len(lost) > 1 else 0.0
    return bool(lost.sum() <= n_errors * error)


def _fit_all_rows(
    whole: SegmentCorrelations,
    n_components: int,
    r: float,
    before: MatchSolution | None,
    map_items: MapFunction,
) -> MatchSolution:
    """Fit all rows from random starts of a fixed stream, and from one component less."""
    moments = whole.moments(r)
    also = [] if before is None else [add_component(moments, before)]
    label = f"choose, {n_components} components, all rows"
    told, seeds = label_map(map_items, label, _N_STARTS + len(also)), range(_N_STARTS)
    found = maximise_from_seeds(moments, n_components, seeds, told, _TOLERANCE, also)
    return found[0].solution


def _climb_grid(
    whole: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    solution: MatchSolution,
    grid: Sequence[float],
    first: int,
    map_items: MapFunction,
) -> list[ScoredSetting]:
    """Climb the grid from its place `first`; each fit begins where the one beside it ended."""
    n_components, done = solution.mixing.shape[1], {}
    starts: Sequence[MatchSolution] = make_fold_starts(folds, solution, whole.is_used)
    done[first] = score_setting(folds, n_components, grid[first], starts, map_items)
    for step in (1, -1):
        place = first
        while 0 <= place + step < len(grid) and (step < 0 or has_ridge(folds, grid[place])):
            beside = done[place]
            done[place + step] = score_setting(
                folds, n_components, grid[place + step], beside.solutions, map_items
            )
            if done[place + step].score <= beside.score:
                break
            place += step
        if place != first:
            break  # What rises on one side of the start falls on the other.
    return [done[place] for place in sorted(done)]


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
    """Whether a ridge does anything; if not, weaker ones are the same."""
    trained = [fold.train for fold in folds]
    return any(find_ridge(t.extremes[t.is_used], regularization).any() for t in trained)
