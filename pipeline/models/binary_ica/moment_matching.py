"""Moment matching for BLICA: from pair counts to a mixing and source variances (algorithm 1).

`match_moments` chooses the setting on held-out rows if needed, maximises from several starts, fills
undefined correlations, calibrates the variances, orders the columns, and adds bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import enter_stage, label_map, plan_stages
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    Optimum,
    map_or_thread,
    maximise,
    maximise_from_seeds,
    maximise_variances,
)
from pipeline.models.binary_ica.segment_correlations import (
    SegmentCorrelations,
    SegmentStatus,
    estimate_segments,
)
from pipeline.models.binary_ica.selection import (
    CHOOSE_COMPONENTS,
    CHOOSE_RIDGE,
    COMPARE_HALVES,
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

FIT, BOOTSTRAP = "final fit", "bootstrap"
"""Stages after the choice."""
MAX_ROUNDS = 20
INTERVAL_LEVEL = 0.95
_MAX_CHANGE = 1e-3
_REFIT_TOLERANCE = 1e-11  # small, because a refit starts so near its optimum
_REPLICATE_TOLERANCE = 1e-6  # changes a replicate by a tenth of the spread of the replicates


@dataclass(frozen=True)
class MatchSettings:
    """Settings of moment matching.

    Attributes
    ----------
    n_components, regularization
        Number of components, and condition number to ridge to; None is chosen on held-out rows.
    n_groups
        Number of groups that the rows of a segment were dealt to; at least 2 if anything is held
        out or resampled.
    min_rows
        Minimum number of rows of a segment.
    first_planes
        First plane of each feature, and the number of planes; None if all are binary.
    """

    n_components: int | None
    regularization: float | None
    n_groups: int
    min_rows: int
    first_planes: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class MomentMatch:
    """Result of moment matching.

    Attributes
    ----------
    n_components, regularization
        The setting used.
    choice, agreement, candidates
        The choice on held-out rows, the mean cosine similarity of the mixings of two halves of the
        rows, and the scored settings, independence first; None, None and empty if the setting was
        given.
    n_starts, optima
        Number of starts (random, and from the choice), and the results that stayed finite, best
        first, before gaps were filled.
    best, gap_rounds
        The best optimum, with gaps filled, and the number of fits that filled gaps.
    segments, ridge
        The correlations that were matched, and δ of each segment used.
    solution, interval
        The normalised solution of all segments, and bootstrap intervals of its mixing.
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
    """Match the correlations of segments, which were estimated from the counts.

    `counts` are by segment and group, see `PairCounts.from_groups`. `seeds` has the seeds of the
    `starts` and of the `bootstrap` replicates. `map_items` maps over starts, folds and replicates.
    """
    n_components, r = settings.n_components, settings.regularization
    choice: SettingChoice | None = None
    agreement: float | None = None
    candidates: Sequence[ScoredSetting] = ()
    stages = [FIT, BOOTSTRAP] if seeds["bootstrap"].size else [FIT]
    if not (n_components and r):
        choices = [CHOOSE_COMPONENTS] * (not n_components) + [CHOOSE_RIDGE] * (not r)
        stages = [*choices, COMPARE_HALVES, *stages]
    map_items = plan_stages(map_items, stages)
    if not (n_components and r):
        choice, agreement, candidates = _choose_by_held_out(counts, segments, settings, map_items)
        n_components, r = choice.candidate.n_components, choice.candidate.regularization
    starts, extra_starts = seeds["starts"].tolist(), [choice.solution] if choice else []
    n_starts = len(starts) + len(extra_starts)
    map_fits = enter_stage(map_items, FIT, 0 if find_gaps(segments).any() else n_starts + 1)
    map_labelled = label_map(map_fits, "starts", n_starts)
    optima = maximise_from_seeds(
        segments.moments(r), n_components, starts, map_labelled, extra_starts=extra_starts
    )
    best, segments, gap_rounds = fill_gaps(optima[0], segments, r, map_fits)
    solution = normalize_solution(
        calibrate_variances(best.solution, segments, r, map_fits), segments
    )
    replicates = seeds["bootstrap"].tolist()
    ridges = resample_ridges(choice.ridges, replicates) if choice else [r] * len(replicates)
    interval = bootstrap_mixing_interval(
        counts, settings, ridges, best.solution, solution.mixing, segments, replicates, map_items
    )
    return MomentMatch(
        n_components,
        r,
        choice,
        agreement,
        candidates,
        n_starts,
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
    """Choose the setting, compare the halves, and score independence.

    The large folds are freed on return.
    """
    folds = split_into_folds(
        counts, settings.n_groups, settings.min_rows, map_items, settings.first_planes
    )
    choice = _choose_identifiable(segments, folds, settings, map_items)
    agreement = refit_and_compare_halves(folds, choice.candidate, map_items)
    return choice, agreement, (score_independence(folds), *choice.candidates)


def _choose_identifiable(
    segments: SegmentCorrelations,
    folds: Sequence[HeldOutFold],
    settings: MatchSettings,
    map_items: MapFunction,
) -> SettingChoice:
    """Choose the missing settings on held-out rows, among identifiable numbers of components."""
    n_components, r = settings.n_components, settings.regularization
    n, n_used = segments.correlation.shape[1], int(segments.is_used.sum())
    # Use the same count as the warnings, so that the fit never warns about its own choice.
    identifiable = [k for k in range(1, n + 1) if count_surplus_equations(n, k, n_used) >= 0] or [1]
    components = [n_components] if n_components else identifiable
    return choose_setting(segments, folds, components, [r] if r else RIDGE_GRID, map_items)


def find_gaps(segments: SegmentCorrelations) -> NDArray[np.bool_]:
    """Return which correlations of the segments used are undefined, as `segments.correlation`."""
    return segments.find_undefined_pairs() & segments.is_used[:, None, None]


def fill_gaps(
    optimum: Optimum, segments: SegmentCorrelations, regularization: float, map_items: MapFunction
) -> tuple[Optimum, SegmentCorrelations, int]:
    """Replace undefined correlations by the model's and fit again, until they converge.

    `optimum` is a fit to the segments with the condition number `regularization`. Return the last
    fit, the segments it was fitted to, and the number of fits, at most `MAX_ROUNDS`.
    """
    gaps = find_gaps(segments)
    if not gaps.any():
        return optimum, segments, 0
    n_rounds, largest_change = 0, np.inf
    correlation = segments.correlation.copy()  # one copy only, because it is large
    while largest_change > _MAX_CHANGE and n_rounds < MAX_ROUNDS:
        largest_change, ridge = 0.0, segments.moments(regularization).ridge
        for u, place in enumerate(np.flatnonzero(segments.is_used)):
            predicted = optimum.solution.unshrink_correlation(u, ridge[u])[gaps[place]]
            change = np.abs(predicted - correlation[place][gaps[place]])
            largest_change = max(largest_change, change.max(initial=0.0))
            correlation[place][gaps[place]] = predicted
        segments = segments.with_correlation(correlation, map_items)
        refit = partial(maximise, segments.moments(regularization), tol=_REFIT_TOLERANCE)
        map_labelled = label_map(map_items, "gaps", 1)
        (optimum,) = map_or_thread(refit, [optimum.solution], correlation.nbytes, map_labelled)
        n_rounds += 1
    return optimum, segments, n_rounds


def calibrate_variances(
    solution: MatchSolution,
    segments: SegmentCorrelations,
    regularization: float,
    map_items: MapFunction,
) -> MatchSolution:
    """Fit variances and scales again with the mixing fixed and the ridge in the model as well.

    A ridge on the data alone stabilises the mixing but makes the variances several times too small.
    The scales of features with several levels are matched here too: in the search for the mixing,
    their errors would move sources with small variances. `solution` is for the segments used,
    `segments` are all segments.
    """
    moments, scales = segments.moments(regularization), segments.scales
    ridged_moments = replace(
        moments,
        model_ridge=moments.ridge,
        scales=None if scales is None else scales.select(segments.is_used),
    )
    fit = partial(maximise_variances, ridged_moments, segments.pair_rows[segments.is_used].sum())
    map_labelled = label_map(map_items, "variances", 1)
    ((fitted, *_),) = map_or_thread(fit, [solution], moments.correlation.nbytes, map_labelled)
    power = np.exp(fitted.log_variances) @ fitted.mixing.T**2
    ridge = moments.ridge[:, None]
    shift = 0.5 * np.log((1 + ridge * (1 + power)) / (1 + ridge))
    return MatchSolution(fitted.mixing, fitted.log_variances, fitted.log_precisions + shift)


def normalize_solution(solution: MatchSolution, segments: SegmentCorrelations) -> MatchSolution:
    """Normalise a solution of the segments used, and extend it to all segments.

    Columns get length 1 and a positive largest entry, and are ordered by explained variance,
    largest first. Segments that were left out get the mean variances.
    """
    used, weights = segments.is_used, segments.pair_rows[segments.is_used]
    lengths = np.linalg.norm(solution.mixing, axis=0)
    variances = np.exp(solution.log_variances) * lengths**2
    mean = weights @ variances / weights.sum()
    order = np.argsort(-mean, kind="stable")
    mixing = fix_signs((solution.mixing / lengths)[:, order])
    all_variances = np.tile(mean[order], (len(used), 1))
    all_variances[used] = variances[:, order]
    precisions = 0.5 * np.log1p(all_variances @ mixing.T**2)
    precisions[used] = np.where(segments.varies[used], solution.log_precisions, precisions[used])
    return MatchSolution(mixing, np.log(all_variances), precisions)


def estimate_source_means(mixing: Array, outputs: Array, errors: Array) -> tuple[Array, Array]:
    """Project the outputs implied by the margins on the mixing, by weighted least squares.

    `outputs` (n_segments, n_features) are the means of y = A z that would reproduce the margins,
    and `errors` their standard errors, infinite if unknown. Return μ of each segment, (n_segments,
    n_components), and the root mean square of the residuals in standard errors, (n_segments,).
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
    """Count the correlations of all segments minus the unknowns of binary ICA.

    With n features, K components and U segments this is U [n (n − 1) / 2 − K] − n K. Each segment
    has n (n − 1) / 2 correlations and K unknown variances of its sources; all segments share the n
    K unknown entries of the mixing matrix. The length of a column can be traded for its source's
    variances, so K of the unknowns are free, but they count here as in the paper (Hyttinen,
    Barin-Pacela and Hyvärinen 2022, table 1). Below −K the model cannot be identified; with exact
    correlations it was identified for every count of at least −K.

    The paper also counts the n margins and the K source means of a segment, which gives U [n (n +
    1) / 2 − 2 K] − n K, the same at K = n. Here the thresholds of a segment are free, so its
    margins carry no information about the mixing.
    """
    correlations = n_features * (n_features - 1) // 2
    return n_segments * (correlations - n_components) - n_features * n_components


def bootstrap_mixing_interval(
    counts: PairCounts,
    settings: MatchSettings,
    regularizations: Sequence[float],
    optimum: MatchSolution,
    mixing: Array,
    segments: SegmentCorrelations,
    seeds: Sequence[int],
    map_items: MapFunction,
) -> Array:
    """Compute percentile intervals of the mixing's entries.

    In each segment n_groups − 1 of the groups are drawn with replacement (Rao, Wu, "Resampling
    inference with complex survey data", JASA 1988). Drawing n_groups would underestimate the spread
    if there are few groups.

    Parameters
    ----------
    counts, settings
        Counts by segment and group, see `PairCounts.from_groups`, and the settings of the match; at
        least 2 groups per segment.
    regularizations, seeds
        Condition number to ridge to, and random seed, for each replicate.
    optimum
        Start of every fit: the optimum of the segments used.
    mixing
        Mixing whose column order and signs the replicates adopt, (n_features, n_components).
    segments
        Segments of the fit; segments that it left out are left out here too.
    map_items
        Map over replicates.

    Returns
    -------
    ndarray
        Lower and upper ends, (2, n_features, n_components); without seeds (0, …).
    """
    if not seeds:
        return np.zeros((0, *mixing.shape))
    fit = partial(_fit_replicate, optimum, mixing, segments.status, settings.first_planes)
    resampled = _iter_resampled_counts(counts, settings.n_groups, seeds)
    replicates = zip(resampled, regularizations, strict=True)
    map_labelled = label_map(enter_stage(map_items, BOOTSTRAP, len(seeds)), "", len(seeds))
    mixings = map_or_thread(fit, replicates, counts.joint.nbytes, map_labelled)
    tail = (1 - INTERVAL_LEVEL) / 2
    interval: Array = np.quantile(np.array(mixings), [tail, 1 - tail], axis=0)
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
    first_planes: NDArray[np.int64] | None,
    task: tuple[PairCounts, float],
    map_parts: MapFunction = map,
) -> Array:
    """Fit resampled counts; return the mixing with columns of length 1 in the order of `mixing`."""
    counts, regularization = task
    # Resampling must not make a segment too small.
    segments = estimate_segments(counts, 1, map_parts, first_planes)
    fitted = status == SegmentStatus.USED
    segments = replace(segments, status=np.where(fitted, segments.status, status))
    if not segments.is_used.any():
        raise FitError(
            "No segment remains usable when part of its rows is resampled. Use {bootstrap=0}.",
            parameter="bootstrap",
        )
    is_used = segments.is_used[fitted]
    start = MatchSolution(
        optimum.mixing, optimum.log_variances[is_used], optimum.log_precisions[is_used]
    )
    moments = segments.moments(regularization)
    fitted_mixing = maximise(moments, start, _REPLICATE_TOLERANCE, map_parts).solution.mixing
    return match_columns(fitted_mixing / np.linalg.norm(fitted_mixing, axis=0), mixing)
