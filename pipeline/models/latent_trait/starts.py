"""Starts of latent-trait fits from pair counts.

If traits and the normals behind the levels of features have loadings l_i, features i and j have
scores that correlate by about g_i g_j l_i·l_j, with g_i the correlation of a score with its normal.
So a low-rank approximation of the correlations of scores gives loadings, and these give slopes.
Where several approximations are nearly as good, a fit tries them all.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.categories.gaussian_items import MIN_DEVIATION
from pipeline.numerics.spectra.factor_analysis import fit_factors
from pipeline.numerics.spectra.low_rank import LowRankFit, find_low_rank_fits
from pipeline.numerics.spectra.rotations import principal_axes
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.pair_moments import PairMoments

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

LOGISTIC_SCALE = 1.702  # of the logistic curve that is nearest to the normal one
_MAX_STARTS = 3
_MAX_LOSS = 60.0  # above the lowest one, of starts to try: about 30 nats
_N_RANDOM, _N_RANDOM_IF_COMPLETE = 8, 2
_MAX_COMMUNALITY = 0.85
_MAX_FACTOR_FEATURES = 300  # of a factor analysis by eigenvalues
_LEAST_LOADING = 0.1  # columns with a smaller root mean square, and loadings of a pattern
_MAX_TURNS, _NEAR = 20, 1e-3
_DRAWN_LOADING = 0.3  # standard deviation of loadings that are drawn instead


def find_start_loadings(
    first: PairMoments,
    n_planes: Indices,
    loads: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    are_correlated: bool = False,
    known: Array | None = None,
) -> list[Array]:
    """Find loadings of the normals behind all features, the best first.

    Parameters
    ----------
    first
        Moments of pairs of features.
    n_planes
        Number of planes of each feature, 0 of continuous ones, (n_features,).
    loads
        Which features load on which traits, (n_features, n_components).
    rng
        Generator of the random starts of the approximation.
    are_correlated
        Whether traits correlate.
    known
        Slopes that are known, NaN if unknown, (n_features, n_components); None if there are none.

    Returns
    -------
    list of (n_features, n_components)
        Without missing values, only one: of continuous features alone, the likeliest. Traits
        without any loading get random ones.
    """
    pairs, counts = first.compute_correlations(), first.counts
    own = compute_score_correlations(counts, n_planes)
    fits = find_low_rank_fits(
        pairs.values,
        pairs.rows,
        pairs.anchors,
        loads & (own > 0)[:, None],
        rng,
        n_starts=_N_RANDOM_IF_COMPLETE if counts.is_complete else _N_RANDOM,
        are_correlated=are_correlated,
    )
    is_exact = counts.is_complete and len(loads) <= _MAX_FACTOR_FEATURES and bool(loads.all())
    if is_exact and known is None and not n_planes.any():
        loadings = fit_factors(pairs.values, fits[0].loadings, MIN_DEVIATION**2)
        return [principal_axes(loadings)]
    n_kept = 1 if counts.is_complete else _MAX_STARTS
    near = [fit for fit in fits if fit.loss <= fits[0].loss + _MAX_LOSS][:n_kept]
    return [_complete_loadings(fit, own, loads, rng, known) for fit in near]


def _complete_loadings(
    fit: LowRankFit,
    own: Array,
    loads: NDArray[np.bool_],
    rng: np.random.Generator,
    known: Array | None,
) -> Array:
    """Return loadings of normals, turned to axes that depend on them or on known slopes alone."""
    loadings = np.divide(
        fit.loadings, own[:, None], out=np.zeros(loads.shape), where=own[:, None] > 0
    )
    length = np.sqrt((loadings**2).sum(axis=1, keepdims=True))
    loadings *= np.minimum(1.0, np.sqrt(_MAX_COMMUNALITY) / np.maximum(length, 1e-300))
    if not loads.all():
        loadings *= np.where(loadings.sum(axis=0) < 0, -1.0, 1.0)
        is_small = np.abs(loadings) < _LEAST_LOADING
        return np.where(loads & is_small, np.copysign(_LEAST_LOADING, loadings), loadings)
    loadings = principal_axes(loadings)
    if known is not None:
        has_slopes = ~np.isnan(known).any(axis=1)
        left, _, right = np.linalg.svd(loadings[has_slopes].T @ known[has_slopes])
        loadings = loadings @ left @ right
    empty = np.sqrt((loadings**2).mean(axis=0)) < _LEAST_LOADING
    drawn = _DRAWN_LOADING * rng.standard_normal((len(loadings), int(empty.sum())))
    loadings[:, empty] = drawn
    return loadings


def compute_score_correlations(counts: FeatureCounts, n_planes: Indices) -> Array:
    """Return the correlation of each feature's score with the normal behind it, (n_features,).

    It is 0 for constant features, and 1 for continuous ones.
    """
    observed, ones = counts.observed.sum(axis=0), counts.ones.sum(axis=0)
    reached = np.clip(ones / np.maximum(observed, 1), 0.0, 1.0)
    density = np.exp(-0.5 * scipy.special.ndtri(reached) ** 2) / np.sqrt(2 * np.pi)
    items = np.repeat(np.arange(len(n_planes)), n_planes)
    place = np.arange(len(items)) - (np.cumsum(n_planes) - n_planes)[items]
    mean, second, slope = (
        np.bincount(items, values, len(n_planes))
        for values in (reached, (2 * place + 1) * reached, density)
    )
    deviation = np.sqrt(np.maximum(second - mean**2, 0.0))
    correlation = np.divide(slope, deviation, out=np.zeros(len(n_planes)), where=deviation > 0)
    return np.where(n_planes == 0, 1.0, correlation)


def find_moved_features(slopes: Array, others: Array) -> Indices:
    """Return the features that two fits relate to the others in another way.

    The traits of the second fit are turned to those of the first so that most features agree: by a
    rotation and reflection, which changes no likelihood. `slopes` and `others` are
    (n_features, q) each.
    """
    first, second = (
        w / np.sqrt(LOGISTIC_SCALE**2 + (w**2).sum(axis=1, keepdims=True)) for w in (slopes, others)
    )
    shares = np.ones(len(first))
    for _ in range(_MAX_TURNS):
        left, _, right = np.linalg.svd((second * shares[:, None]).T @ first)
        distance = np.linalg.norm(second @ left @ right - first, axis=1)
        shares = 1 / np.maximum(distance, _NEAR)
    length = np.minimum(*(np.linalg.norm(own, axis=1) for own in (first, second)))
    return np.flatnonzero((distance > length) & (length > _LEAST_LOADING))


def convert_to_slopes(loadings: Array, n_planes: Indices | None = None) -> Array:
    """Return the slopes of logistic curves; continuous features keep their loadings."""
    unique = np.maximum(1.0 - (loadings**2).sum(axis=1, keepdims=True), 1.0 - _MAX_COMMUNALITY)
    slopes = LOGISTIC_SCALE * loadings / np.sqrt(unique)
    return slopes if n_planes is None else np.where(n_planes[:, None] == 0, loadings, slopes)


def stretch_offsets(slopes: Array) -> Array:
    """Return how many times larger offsets with these slopes are for the same margins, (n,)."""
    return np.asarray(np.sqrt(1.0 + (slopes / LOGISTIC_SCALE) ** 2 @ np.ones(slopes.shape[1])))
