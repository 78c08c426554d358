"""Algorithm 1 from pair counts to a solution, and the choices that come before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import Map
from pipeline.executors.progress import labelled
from pipeline.models.binary_ica.moment_matching.bootstrap import mixing_interval
from pipeline.models.binary_ica.moment_matching.held_out import (
    Candidate,
    Fold,
    folds_of,
    independence,
)
from pipeline.models.binary_ica.moment_matching.identifiability import surplus
from pipeline.models.binary_ica.moment_matching.objective import Solution
from pipeline.models.binary_ica.moment_matching.optimiser import Optimum, maximise_from_seeds
from pipeline.models.binary_ica.moment_matching.refinement import calibrated, fit_gaps, readable
from pipeline.models.binary_ica.moment_matching.segments import Segments
from pipeline.models.binary_ica.moment_matching.selection import (
    GRID,
    Choice,
    agreement_of_halves,
    choose,
    resampled_ridges,
)
from pipeline.statistics.counts import PairCounts

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
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
class Match:
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
    choice: Choice | None
    agreement: float | None
    tried: Sequence[Candidate]
    n_starts: int
    optima: Sequence[Optimum]
    best: Optimum
    gap_rounds: int
    segments: Segments
    ridge: Array
    solution: Solution
    interval: Array


def match_moments(
    counts: PairCounts,
    segments: Segments,
    settings: Settings,
    seeds: Mapping[str, NDArray[np.int64]],
    map_items: Map,
) -> Match:
    """Match correlations of segments.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.of_groups`.
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
    choice: Choice | None = None
    agreement: float | None = None
    tried: Sequence[Candidate] = ()
    if not (n_components and r):
        choice, agreement, tried = _held_out_choice(counts, segments, settings, map_items)
        n_components, r = choice.candidate.n_components, choice.candidate.regularization
    starts, also = seeds["starts"].tolist(), [choice.solution] if choice else []
    told = labelled(map_items, "starts", len(starts) + len(also))
    optima = maximise_from_seeds(segments.moments(r), n_components, starts, told, also=also)
    best, segments, gap_rounds = fit_gaps(optima[0], segments, r, map_items)
    solution = readable(calibrated(best.solution, segments, r, map_items), segments)
    replicates = seeds["bootstrap"].tolist()
    ridges = resampled_ridges(choice.ridges, replicates) if choice else [r] * len(replicates)
    interval = mixing_interval(
        counts,
        settings.n_groups,
        ridges,
        best.solution,
        solution.mixing,
        segments,
        replicates,
        map_items,
    )
    return Match(
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


def _held_out_choice(
    counts: PairCounts, segments: Segments, settings: Settings, map_items: Map
) -> tuple[Choice, float, Sequence[Candidate]]:
    """Choose, compare the halves, and score; the folds, which are large, end with it."""
    folds = folds_of(counts, settings.n_groups, settings.min_rows, map_items)
    choice = _chosen(segments, folds, settings, map_items)
    agreement = agreement_of_halves(folds, choice.candidate, map_items)
    return choice, agreement, (independence(folds), *choice.tried)


def _chosen(
    segments: Segments, folds: Sequence[Fold], settings: Settings, map_items: Map
) -> Choice:
    """Choose on held-out rows what is not given, among components that are identifiable."""
    n_components, r = settings.n_components, settings.regularization
    n, n_used = segments.correlation.shape[1], int(segments.used.sum())
    # By the paper's own count: beside it the fit would warn of what it chose itself.
    identifiable = [k for k in range(1, n + 1) if surplus(n, k, n_used) >= 0] or [1]
    components = [n_components] if n_components else identifiable
    return choose(segments, folds, components, [r] if r else GRID, map_items)
