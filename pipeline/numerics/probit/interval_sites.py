"""Posterior of a Gaussian latent given the levels of ordinal features, one row at a time.

Prior u ~ N(0, I); feature i has level c or higher iff w_iᵀ u + noise > −b_ic with noise ~ N(0, 1).
A level therefore tells that w_iᵀ u + noise lies within an interval, the whole tail for the lowest
and the highest level. This is expectation propagation with the skewness correction, as in
`expectation_propagation`, with other tilted distributions: under the cavity, w_iᵀ u + noise is
N(m, 1 + c), and in units of its standard deviation a normal t truncated to an interval,

    slope = E(t),   curvature = 1 − Var(t),   and the third and fourth cumulants of t.

The moments of t are sums over Gauss–Legendre nodes on the part of the interval where the density is
above e⁻³⁰ of its maximum. Their relative error is below 1e-9, also far in a tail and for an
interval of width 0, that is, between the equal thresholds of a level without rows.

The value v of a continuous feature, w_iᵀ u + noise = v, is an interval of width 0 at v. Its tilted
distribution is a point, so the site is Gaussian, and the posterior given such features is exact.

If the rounds, which update all sites at once, oscillate on a row, it starts again with damped ones.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.gaussian.level_bounds import place_bounds
from pipeline.numerics.probit.expectation_propagation import (
    add_skewness_to_moments,
    fill_cumulant_terms,
)
from pipeline.numerics.probit.probit_sites import (
    CAVITY_MEAN,
    CAVITY_VARIANCE,
    CURVATURE,
    MEAN,
    N_FIELDS,
    PRECISION,
    SHIFT,
    SITE_KERNEL_OPTIONS,
    SLOPE,
    VARIANCE,
    Floats,
    ProbitRow,
    allocate_workspace,
    move_sites,
    reset_sites,
    site_callee,
    update_moments,
)

# Further fields of the sites. LOG_SHARE is the log of the cavity's mass in the interval, or of its
# density at a value.
LOWER, UPPER, LOG_SHARE, _THIRD, _FOURTH = range(N_FIELDS, N_FIELDS + 5)
N_INTERVAL_FIELDS = N_FIELDS + 5
_DROP = 30.0  # Of the log density at the ends of the range of nodes.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(28)
_TOLERANCE, _MAX_ROUNDS = 1e-5, 200
_FULL_ROUNDS, _DAMPING = 15, 0.5
_LOG_DENSITY_AT_0 = -0.5 * math.log(2 * math.pi)


class IntervalRows(NamedTuple):
    """Rows of levels, the thresholds between levels, and rows of values.

    Feature i at level c has the interval from `bounds[first[i] + c]` to the next bound.
    """

    levels: NDArray[np.uint8]
    observed: NDArray[np.bool_]
    weights: Floats  # (K, n_features), those of values last
    bounds: Floats
    first: NDArray[np.int64]
    values: Floats  # (n_samples, n_values), NaN where missing


def interval_codes(
    levels: NDArray[np.uint8],
    weights: Floats,
    offsets: Floats,
    n_levels: NDArray[np.int64],
    observed: NDArray[Any] | None = None,
    values: Floats | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the `mean`, `variance` and `converged` of the posterior of every row.

    Parameters
    ----------
    levels
        Levels counted from 0, (n_samples, n_ordinal).
    weights
        The w_i of features with levels, then of continuous ones, (n_features, n_components).
    offsets
        The b_ic, decreasing within a feature, (n_planes,).
    n_levels
        Number of levels of each feature with levels, (n_ordinal,).
    observed
        False where a level is missing, (n_samples, n_ordinal).
    values
        Values of w_iᵀ u + noise of the continuous features, NaN where missing, (n_samples,
        n_continuous); None if there are none.

    Returns
    -------
    dict
        Means and variances, (n_samples, n_components), and `converged`, (n_samples,).
    """
    rows = make_interval_rows(levels, weights, offsets, n_levels, observed, values)
    means, variances = np.empty((2, len(levels), weights.shape[1]))
    converged = np.empty(len(levels), np.bool_)
    _fill_codes(rows, means, variances, converged)
    return {"mean": means, "variance": variances, "converged": converged}


def make_interval_rows(
    levels: NDArray[np.uint8],
    weights: Floats,
    offsets: Floats,
    n_levels: NDArray[np.int64],
    observed: NDArray[Any] | None = None,
    values: Floats | None = None,
) -> IntervalRows:
    """Return rows for the kernels; the arguments are those of `interval_codes`."""
    first, bounds = place_bounds(-offsets, n_levels)
    mask = np.ones(levels.shape, np.bool_) if observed is None else observed
    return IntervalRows(
        # For another layout, Numba would compile a kernel that may add in another order.
        np.ascontiguousarray(levels),
        np.ascontiguousarray(mask, np.bool_),
        np.ascontiguousarray(weights.T),
        bounds,
        first,
        np.zeros((len(levels), 0)) if values is None else np.ascontiguousarray(values),
    )


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_codes(
    rows: IntervalRows, means: Floats, variances: Floats, converged: NDArray[np.bool_]
) -> None:
    K, n_features = rows.weights.shape
    square, tensor = np.empty((K, K)), np.empty((K, K * (K + 1) // 2))
    features = np.empty(n_features, np.int64)
    row = allocate_workspace(K, n_features, N_INTERVAL_FIELDS)
    for sample in range(len(rows.levels)):
        row, converged[sample] = find_interval_fixed_point(rows, sample, row, features)
        fill_interval_skewness_terms(row, tensor, square)
        add_skewness_to_moments(square, row.linear, row.factor, row.mean, row.variance)
        for k in range(K):
            means[sample, k], variances[sample, k] = row.mean[k], row.variance[k]


@site_callee
def find_interval_fixed_point(
    rows: IntervalRows, sample: int, row: ProbitRow, features: NDArray[np.int64]
) -> tuple[ProbitRow, bool]:
    """Find the fixed point of a row, in `row` or, if its size differs, in new memory.

    Also returns whether the rounds converged. The cavities of the sites are set. `features` is
    filled with the observed features.
    """
    n_observed = _list_observed(rows, sample, features)
    if n_observed != row.sites.shape[1]:
        row = allocate_workspace(len(rows.weights), n_observed, N_INTERVAL_FIELDS)
    _read_row(rows, sample, row, features)
    converged = _iterate_rounds(row)
    _set_tilted_moments(row.sites)
    return row, converged


@site_callee
def fill_interval_skewness_terms(row: ProbitRow, tensor: Floats, square: Floats) -> float:
    """Do as `fill_skewness_terms`, with G in `square` and the shift of the mean in `row.linear`."""
    sites = row.sites
    for i in range(sites.shape[1]):
        c, third, fourth = sites[CAVITY_VARIANCE, i], sites[_THIRD, i], sites[_FOURTH, i]
        scale = c / (1.0 + c * (1.0 - sites[CURVATURE, i]))
        sites[CAVITY_MEAN, i] = third * scale * math.sqrt(scale)
        sites[CAVITY_VARIANCE, i] = fourth * scale * scale
    gain: float = fill_cumulant_terms(sites, row.directions, tensor, square, row.linear)
    return gain


@site_callee
def _list_observed(rows: IntervalRows, sample: int, features: NDArray[np.int64]) -> int:
    """Write the indices of the observed features; return their number."""
    n, n_ordinal = 0, rows.levels.shape[1]
    for feature in range(len(features)):
        if feature < n_ordinal:
            is_observed = rows.observed[sample, feature]
        else:
            is_observed = not math.isnan(rows.values[sample, feature - n_ordinal])
        if is_observed:
            features[n] = feature
            n += 1
    return n


@site_callee
def _read_row(rows: IntervalRows, sample: int, row: ProbitRow, features: NDArray[np.int64]) -> None:
    """Fill intervals and weights of the observed features."""
    n_ordinal = rows.levels.shape[1]
    for i in range(row.sites.shape[1]):
        feature = features[i]
        if feature < n_ordinal:
            place = rows.first[feature] + rows.levels[sample, feature]
            row.sites[LOWER, i], row.sites[UPPER, i] = rows.bounds[place], rows.bounds[place + 1]
        else:
            value = rows.values[sample, feature - n_ordinal]
            row.sites[LOWER, i] = row.sites[UPPER, i] = value
        for k in range(len(rows.weights)):
            row.weights[k, i] = rows.weights[k, feature]


@site_callee
def _iterate_rounds(row: ProbitRow) -> bool:
    """Iterate until the moments converge; return whether they did."""
    for n_before in range(_MAX_ROUNDS):
        if n_before in (0, _FULL_ROUNDS):
            reset_sites(row)
        _set_tilted_moments(row.sites)
        move_sites(row.sites, 1.0 if n_before < _FULL_ROUNDS else _DAMPING)
        if update_moments(row) < _TOLERANCE:
            return True
    return False


@site_callee
def _set_tilted_moments(sites: Floats) -> None:
    """Set cavity moments from marginals and sites, and the cumulants of the truncated normals."""
    for i in range(sites.shape[1]):
        # The floor is reached only if rounding has removed every digit, as in `probit_sites`.
        scale = 1.0 / max(1.0 - sites[PRECISION, i] * sites[VARIANCE, i], 1e-14)
        c = scale * sites[VARIANCE, i]
        m = scale * (sites[MEAN, i] - sites[VARIANCE, i] * sites[SHIFT, i])
        root = math.sqrt(1.0 + c)
        log_share, mean, variance, third, fourth = _find_cumulants(
            (sites[LOWER, i] - m) / root, (sites[UPPER, i] - m) / root
        )
        if sites[LOWER, i] == sites[UPPER, i]:
            log_share -= math.log(root)  # a density refers to the value, not to its standard units
        sites[LOG_SHARE, i] = log_share
        sites[CAVITY_VARIANCE, i], sites[CAVITY_MEAN, i] = c, m
        sites[SLOPE, i], sites[CURVATURE, i] = mean, 1.0 - variance
        sites[_THIRD, i], sites[_FOURTH, i] = third, fourth


@site_callee
def _find_cumulants(lower: float, upper: float) -> tuple[float, float, float, float, float]:
    """Return the log mass of an interval, and four cumulants of the normal truncated to it.

    For an interval of width 0, the first result is the log density.
    """
    # The density is greatest at `peak`; the nodes leave out where it is negligible.
    peak = min(max(0.0, lower), upper)
    reach = 2.0 * _DROP / (abs(peak) + math.sqrt(peak * peak + 2.0 * _DROP))
    start, stop = max(lower, peak - reach), min(upper, peak + reach)
    middle, half = 0.5 * (start + stop), 0.5 * (stop - start)
    total = first = second = third = fourth = 0.0
    for k in range(len(_NODES)):
        x = half * _NODES[k]
        t = middle + x
        w = _WEIGHTS[k] * math.exp(-0.5 * (t - peak) * (t + peak))
        total += w
        first += w * x
        second += w * x * x
        third += w * x * x * x
        fourth += w * x * x * x * x
    d, m2, m3, m4 = first / total, second / total, third / total, fourth / total
    variance = m2 - d * d
    mean_share = total * (half if half > 0.0 else 0.5)  # the weights of the nodes add up to 2
    return (
        math.log(mean_share) - 0.5 * peak * peak + _LOG_DENSITY_AT_0,
        middle + d,
        variance,
        m3 - 3.0 * d * m2 + 2.0 * d * d * d,
        m4 - 4.0 * d * m3 + 6.0 * d * d * m2 - 3.0 * d * d * d * d - 3.0 * variance * variance,
    )
