"""Algorithm 1 from pair counts to a solution, with the steps before and after the optimisation.

`match_moments` chooses the setting on held-out rows if needed, maximises from several starts, fills
undefined correlations, calibrates the variances, orders the columns, and adds bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import (
    Optimum,
    map_or_thread,
    maximise,
    maximise_from_seeds,
    maximise_variances,
)
from pipeline.models.binary_ica.moment_matching.segments import (
    SegmentCorrelations,
    SegmentStatus,
    estimate_segments,
)
from pipeline.models.binary_ica.moment_matching.selection import (
    RIDGE_GRID,
    HeldOutFold,
    ScoredSetting,
    SettingChoice,
    choose_setting,
    refit_and_compare_halves,
    resample_ridges,
    score_independence,
    split_into_folds,
)
from pipeline.numerics.metrics import match_columns
from pipeline.numerics.spectra.linalg import fix_signs
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


MAX_ROUNDS = 20
_MAX_CHANGE = 1e-3
_REFIT_TOLERANCE = 1e-11
"""Small, or a refit that begins near its end would stop before it has moved."""


def fill_gaps(
    optimum: Optimum, segments: SegmentCorrelations, regularization: float, map_items: MapFunction
) -> tuple[Optimum, SegmentCorrelations, int]:
    """Set undefined correlations to those of the model and fit again, until they rest.

    Parameters
    ----------
    optimum
        Of the segments as they are.
    segments
        The segments.
    regularization
        Condition number to ridge to.
    map_items
        Where eigenvalues are computed and fits run.

    Returns
    -------
    optimum, segments, n_rounds
        The last fit, what it was fitted to, and how many there were, at the most `MAX_ROUNDS`.
    """
    gaps = segments.find_undefined_pairs() & segments.is_used[:, None, None]
    if not gaps.any():
        return optimum, segments, 0
    n_rounds, moved = 0, np.inf
    correlation = segments.correlation.copy()  # once: it is large, and every round changes this one
    while moved > _MAX_CHANGE and n_rounds < MAX_ROUNDS:
        moved, ridge = 0.0, segments.moments(regularization).ridge
        for u, place in enumerate(np.flatnonzero(segments.is_used)):
            predicted = optimum.solution.unshrink_correlation(u, ridge[u])[gaps[place]]
            change = np.abs(predicted - correlation[place][gaps[place]])
            moved = max(moved, change.max(initial=0.0))
            correlation[place][gaps[place]] = predicted
        segments = segments.with_correlation(correlation, map_items)
        refit = partial(maximise, segments.moments(regularization), tol=_REFIT_TOLERANCE)
        (optimum,) = map_or_thread(refit, [optimum.solution], correlation.nbytes, map_items)
        n_rounds += 1
    return optimum, segments, n_rounds


def calibrate_variances(
    solution: MatchSolution,
    segments: SegmentCorrelations,
    regularization: float,
    map_items: MapFunction,
) -> MatchSolution:
    """Fit variances and scales again, the mixing kept, with the ridge in the model as well.

    A ridge on the data alone steadies the mixing, but shrinks what it explains: variances come out
    several times too small.

    Parameters
    ----------
    solution
        Of the segments used.
    segments
        All of them.
    regularization
        Condition number to ridge to.
    map_items
        Where the fit runs.
    """
    moments = segments.moments(regularization)
    both = replace(moments, model_ridge=moments.ridge)
    fit = partial(maximise_variances, both, segments.pair_rows[segments.is_used].sum())
    ((found, *_),) = map_or_thread(fit, [solution], moments.correlation.nbytes, map_items)
    power = np.exp(found.log_variances) @ found.mixing.T**2
    ridge = moments.ridge[:, None]
    shift = 0.5 * np.log((1 + ridge * (1 + power)) / (1 + ridge))
    return MatchSolution(found.mixing, found.log_variances, found.log_precisions + shift)


def normalize_solution(solution: MatchSolution, segments: SegmentCorrelations) -> MatchSolution:
    """Give columns length 1, their sign and order, and segments left out the mean variances.

    Parameters
    ----------
    solution
        Of the segments used.
    segments
        All of them.

    Returns
    -------
    Solution
        Of all segments. Columns are ordered by the variance they explain, most first; the entry of
        largest size is positive.
    """
    used, weights = segments.is_used, segments.pair_rows[segments.is_used]
    lengths = np.linalg.norm(solution.mixing, axis=0)
    variances = np.exp(solution.log_variances) * lengths**2
    mean = weights @ variances / weights.sum()
    order = np.argsort(-mean, kind="stable")
    mixing = fix_signs((solution.mixing / lengths)[:, order])
    everywhere = np.tile(mean[order], (len(used), 1))
    everywhere[used] = variances[:, order]
    precisions = 0.5 * np.log1p(everywhere @ mixing.T**2)
    precisions[used] = np.where(segments.varies[used], solution.log_precisions, precisions[used])
    return MatchSolution(mixing, np.log(everywhere), precisions)


def estimate_source_means(mixing: Array, outputs: Array, errors: Array) -> tuple[Array, Array]:
    """Project the outputs that margins ask for on the mixing, by weighted least squares.

    Parameters
    ----------
    mixing
        A, (n_features, n_components).
    outputs
        Means of y = A z that would give the margins, (n_segments, n_features).
    errors
        Their standard errors, infinite where nothing is known, (n_segments, n_features).

    Returns
    -------
    means, misfit
        μ of each segment, (n_segments, n_components), and the root mean square of the residuals in
        standard errors, (n_segments,).
    """
    means, misfits = [], []
    for output, error in zip(outputs, errors, strict=True):
        weights = 1 / error
        mean = np.linalg.lstsq(mixing * weights[:, None], output * weights, rcond=None)[0]
        residuals = (output - mixing @ mean) * weights
        means.append(mean)
        misfits.append(np.sqrt((residuals**2).sum() / max((weights > 0).sum(), 1)))
    return np.array(means), np.array(misfits)


def count_surplus_equations(n_features: int, n_components: int, n_segments: int) -> int:
    """Statistics minus unknowns of binary ICA fitted to the correlations of its segments.

    With n features, K components and U segments this is U [n (n − 1) / 2 − K] − n K. A segment
    gives n (n − 1) / 2 correlations and brings K variances of its sources; the mixing matrix has
    n K entries, shared by all segments. The length of a column can be traded for its source's
    variances, so K of the unknowns are free, but they count here as they do in the paper: below −K
    the model cannot be identified, and with exact correlations it was wherever the count is not.

    The paper also counts the n margins and the K source means of a segment, which gives
    U [n (n + 1) / 2 − 2 K] − n K, the same at K = n. Here the thresholds of a segment are free, so
    that its margins say nothing about the mixing.

    Hyttinen, Barin-Pacela and Hyvärinen (2022), Binary independent component analysis: a
    non-stationarity-based approach, UAI, table 1.

    Parameters
    ----------
    n_features, n_components, n_segments
        Shape of the model.

    Returns
    -------
    int
        Statistics minus unknowns.
    """
    correlations = n_features * (n_features - 1) // 2
    return n_segments * (correlations - n_components) - n_features * n_components


INTERVAL_LEVEL = 0.95
_REPLICATE_TOLERANCE = 1e-6
"""Of replicates: it moves them by about a tenth of what they differ by."""


def bootstrap_mixing_interval(
    counts: PairCounts,
    n_groups: int,
    regularizations: Sequence[float],
    optimum: MatchSolution,
    mixing: Array,
    segments: SegmentCorrelations,
    seeds: Sequence[int],
    map_items: MapFunction,
) -> Array:
    """Find percentile intervals of the mixing's entries.

    In each segment n_groups − 1 of the groups are drawn with replacement (Rao, Wu, "Resampling
    inference with complex survey data", JASA 1988): drawing all of them would give too small a
    spread where groups are few.

    Parameters
    ----------
    counts
        Counts by segment and group, see `PairCounts.from_groups`.
    n_groups
        Groups a segment, at least 2.
    regularizations
        Condition number to ridge to, one a replicate.
    optimum
        Where every fit starts: of the segments used, as the likelihood found it.
    mixing
        Whose order and signs of columns the replicates take, (n_features, n_components).
    segments
        Those of the fit: what it left out is left out here.
    seeds
        One a replicate.
    map_items
        Where replicates run.

    Returns
    -------
    ndarray
        Lower and upper ends, (2, n_features, n_components); without seeds (0, …).
    """
    if not seeds:
        return np.zeros((0, *mixing.shape))
    fit = partial(_fit_replicate, optimum, mixing, segments.status)
    drawn = zip(_iter_resampled_counts(counts, n_groups, seeds), regularizations, strict=True)
    told = label_map(map_items, "bootstrap", len(seeds))
    found = map_or_thread(fit, drawn, counts.joint.nbytes, told)
    tail = (1 - INTERVAL_LEVEL) / 2
    interval: Array = np.quantile(np.array(found), [tail, 1 - tail], axis=0)
    return interval


def _iter_resampled_counts(
    counts: PairCounts, n_groups: int, seeds: Iterable[int]
) -> Iterator[PairCounts]:
    n_segments = len(counts.list_grouped_segments(n_groups))
    shares = np.full(n_groups, 1 / n_groups)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        yield counts.sum_weighted_groups(
            n_groups, rng.multinomial(n_groups - 1, shares, n_segments)
        )


def _fit_replicate(
    optimum: MatchSolution,
    mixing: Array,
    status: NDArray[np.uint8],
    task: tuple[PairCounts, float],
    spread: MapFunction = map,
) -> Array:
    """Fit resampled counts; the mixing with columns of length 1, in the order of the one given."""
    counts, regularization = task
    drawn = estimate_segments(counts, 1, spread)  # A part of the rows is not to be too few.
    fitted = status == SegmentStatus.USED
    drawn = replace(drawn, status=np.where(fitted, drawn.status, status))
    if not drawn.is_used.any():
        raise FitError(
            "bootstrap: Expected segments that can be used when a part of their rows is drawn, "
            "got none. Fit without --set bootstrap."
        )
    here = drawn.is_used[fitted]
    start = MatchSolution(optimum.mixing, optimum.log_variances[here], optimum.log_precisions[here])
    moments = drawn.moments(regularization)
    found = maximise(moments, start, _REPLICATE_TOLERANCE, spread).solution.mixing
    return match_columns(found / np.linalg.norm(found, axis=0), mixing)
