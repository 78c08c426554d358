"""From an optimum to what a person reads: gaps filled, columns in order, source means."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution
from pipeline.models.binary_ica.moment_matching.optimiser import (
    Optimum,
    map_or_thread,
    maximise,
    maximise_variances,
)
from pipeline.models.binary_ica.moment_matching.segments import SegmentCorrelations
from pipeline.numerics.spectra.linalg import fix_signs

Array = NDArray[np.float64]

MAX_ROUNDS = 20
_MAX_CHANGE = 1e-3
_TOLERANCE = 1e-11
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
        refit = partial(maximise, segments.moments(regularization), tol=_TOLERANCE)
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
