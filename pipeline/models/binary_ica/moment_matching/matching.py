"""Algorithm 1 from pair counts to a solution, and the choices that come before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.models.binary_ica.moment_matching.bootstrap import bootstrap_mixing_interval
from pipeline.models.binary_ica.moment_matching.held_out import (
    HeldOutFold,
    ScoredSetting,
    score_independence,
    split_into_folds,
)
from pipeline.models.binary_ica.moment_matching.identifiability import count_surplus_equations
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import Optimum, maximise_from_seeds
from pipeline.models.binary_ica.moment_matching.refinement import (
    calibrate_variances,
    fill_gaps,
    normalize_solution,
)
from pipeline.models.binary_ica.moment_matching.segments import SegmentCorrelations
from pipeline.models.binary_ica.moment_matching.selection import (
    RIDGE_GRID,
    SettingChoice,
    choose_setting,
    refit_and_compare_halves,
    resample_ridges,
)
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MatchSettings:
    """How to match.

    Attributes
    ----------
    n_components, regularization
        Number of components and condition number to ridge to; None is chosen on held-out rows.
    n_groups
        Groups that the rows of a segment were dealt to; at least 2 where anything is held out or
        resampled.
    min_rows
        Rows below which a segment is left out.
    """

    n_components: int | None
    regularization: float | None
    n_groups: int
    min_rows: int


@dataclass(frozen=True)
class MomentMatch:
    """What came of it.

    Attributes
    ----------
    n_components, regularization
        The setting used.
    choice
        What was chosen on held-out rows; None where nothing was.
    agreement
        Mean cosine similarity of the mixings of two halves of the rows; None as well.
    tried
        Settings scored on held-out rows, independence first.
    n_starts
        Random starts, and that of the choice.
    optima
        Of the starts that stayed finite, best first, before gaps were filled.
    best
        The optimum taken, gaps filled.
    gap_rounds
        Fits that filling gaps took.
    segments
        What was matched.
    ridge
        δ of each segment used.
    solution
        For reading, of all segments.
    interval
        Bootstrap intervals of its mixing.
    """

    n_components: int
    regularization: float
    choice: SettingChoice | None
    agreement: float | None
    candidates: Sequence[ScoredSetting]
    n_starts: int
    optima: Sequence[Optimum]
    best: Optimum
    gap_rounds: int
    segments: SegmentCorrelations
    ridge: Array
    solution: MatchSolution
    interval: Array


def match_moments(
    counts: PairCounts,
    segments: SegmentCorrelations,
    settings: MatchSettings,
    seeds: Mapping[str, NDArray[np.int64]],
    map_items: MapFunction,
) -> MomentMatch:
    """Match correlations of segments.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.from_groups`.
    segments
        What they give.
    settings
        How to match.
    seeds
        `starts` and `bootstrap` replicates, one seed each.
    map_items
        Where starts, folds and replicates run.
    """
    n_components, r = settings.n_components, settings.regularization
    choice: SettingChoice | None = None
    agreement: float | None = None
    tried: Sequence[ScoredSetting] = ()
    if not (n_components and r):
        choice, agreement, tried = _choose_by_held_out(counts, segments, settings, map_items)
        n_components, r = choice.candidate.n_components, choice.candidate.regularization
    starts, also = seeds["starts"].tolist(), [choice.solution] if choice else []
    told = label_map(map_items, "starts", len(starts) + len(also))
    optima = maximise_from_seeds(segments.moments(r), n_components, starts, told, also=also)
    best, segments, gap_rounds = fill_gaps(optima[0], segments, r, map_items)
    solution = normalize_solution(
        calibrate_variances(best.solution, segments, r, map_items), segments
    )
    replicates = seeds["bootstrap"].tolist()
    ridges = resample_ridges(choice.ridges, replicates) if choice else [r] * len(replicates)
    interval = bootstrap_mixing_interval(
        counts,
        settings.n_groups,
        ridges,
        best.solution,
        solution.mixing,
        segments,
        replicates,
        map_items,
    )
    return MomentMatch(
        n_components,
        r,
        choice,
        agreement,
        tried,
        len(starts) + len(also),
        optima,
        best,
        gap_rounds,
        segments,
        segments.moments(r).ridge,
        solution,
        interval,
    )


def _choose_by_held_out(
    counts: PairCounts,
    segments: SegmentCorrelations,
    settings: MatchSettings,
    map_items: MapFunction,
) -> tuple[SettingChoice, float, Sequence[ScoredSetting]]:
    """Choose, compare the halves, and score; the folds, which are large, end with it."""
    folds = split_into_folds(counts, settings.n_groups, settings.min_rows, map_items)
    choice = _choose_identifiable(segments, folds, settings, map_items)
    agreement = refit_and_compare_halves(folds, choice.candidate, map_items)
    return choice, agreement, (score_independence(folds), *choice.candidates)


def _choose_identifiable(
    segments: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    settings: MatchSettings,
    map_items: MapFunction,
) -> SettingChoice:
    """Choose on held-out rows what is not given, among components that are identifiable."""
    n_components, r = settings.n_components, settings.regularization
    n, n_used = segments.correlation.shape[1], int(segments.is_used.sum())
    # By the paper's own count: beside it the fit would warn of what it chose itself.
    identifiable = [k for k in range(1, n + 1) if count_surplus_equations(n, k, n_used) >= 0] or [1]
    components = [n_components] if n_components else identifiable
    return choose_setting(segments, folds, components, [r] if r else RIDGE_GRID, map_items)
