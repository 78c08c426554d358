"""Draws variables below their limits one after the other, each knowing the limits still to come.

For `orthant`, whose docstring says what is computed and gives the sources.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.gaussian.bivariate_normal import norm_cdf, norm_pdf, norm_ppf

Floats = NDArray[np.float64]

_FAR_LIMIT = -30.0  # Below it asymptotic series replace Φ, which ends in underflow.
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_MAX_ROUNDS = 20
_ROUND_TOLERANCE = 1e-3  # The sites need not be exact.
_MAX_SITE = 1e15  # Beyond it rounding has eaten the sites.
# A site of full strength thins out the tail on the side that its limit leaves free, where weights
# then grow without bound. Half its precision loses little elsewhere.
_SITE_STRENGTH = 0.5


class OrthantSampler(NamedTuple):
    """z_k = centre_k + slopes_k · z + spread_k y, y normal below limit_k + limit_slopes_k · z."""

    limit: Floats
    limit_slopes: Floats
    centre: Floats
    slopes: Floats
    spread: Floats


class OrthantDraws(NamedTuple):
    """A block of points: all variables but the last, its limits, log weights but for the spreads.

    The shapes are (n_variables, n_points), the last variable's place being free, and (n_points,).
    """

    z: Floats
    limits: Floats
    log_weights: Floats


@njit(nogil=True, cache=True, error_model="numpy")
def log_cdf(x: float) -> float:
    """Log Φ(x), precise in both tails."""
    if x > 0.0:
        return math.log1p(-norm_cdf(-x))
    if x > _FAR_LIMIT:
        return math.log(norm_cdf(x))
    r = 1.0 / (x * x)
    series = -r * (1.0 - 3.0 * r * (1.0 - 5.0 * r * (1.0 - 7.0 * r)))
    return -0.5 * x * x - _LOG_SQRT_2PI - math.log(-x) + math.log1p(series)


@njit(nogil=True, cache=True, error_model="numpy")
def _moments_below(x: float) -> tuple[float, float]:
    """Mean and variance of a standard normal below x."""
    if x > _FAR_LIMIT:
        hazard: float = norm_pdf(x) / norm_cdf(x)
        return -hazard, 1.0 - hazard * (hazard + x)
    r = 1.0 / (x * x)
    return x + (1.0 - 2.0 * r) / x, r * (1.0 - 6.0 * r)


@njit(nogil=True, cache=True, error_model="numpy")
def draw_below(x: float, u: float) -> tuple[float, float]:
    """Value at u of a standard normal below x, and log of normal density by density of the draw."""
    if x > _FAR_LIMIT:
        p: float = norm_cdf(x)
        return norm_ppf(u * p), math.log(p)
    # Its density is −y exp((x² − y²) / 2), all but proportional to the normal's this far out.
    y = -math.sqrt(x * x - 2.0 * math.log(u))
    return y, -0.5 * x * x - _LOG_SQRT_2PI - math.log(-y)


@njit(nogil=True, cache=True, error_model="numpy")
def order_variables(R: Floats, b: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Order of the variables, and the columns of the Cholesky root of R in it.

    The next variable is the least likely to keep its limit, given the truncated means of those
    before (Gibson, Glasbey & Elston 1994). Row i of the columns stays that of variable i.
    """
    n = len(b)
    order, columns = np.empty(n, np.int64), np.zeros((n, n))
    left, mean, residual = np.ones(n, np.bool_), np.zeros(n), R.copy()
    for k in range(n):
        best, lowest = -1, np.inf
        for i in range(n):
            if left[i] and (b[i] - mean[i]) / math.sqrt(residual[i, i]) < lowest:
                best, lowest = i, (b[i] - mean[i]) / math.sqrt(residual[i, i])
        deviation = math.sqrt(residual[best, best])
        drop, _ = _moments_below(lowest)
        for i in range(n):
            if left[i]:
                columns[i, k] = residual[i, best] / deviation
                mean[i] += drop * columns[i, k]
        for i in range(n):
            for j in range(n):
                residual[i, j] -= columns[i, k] * columns[j, k]
        order[k], left[best] = best, False
    return order, columns


@njit(nogil=True, cache=True, error_model="numpy")
def fit_sites(R: Floats, b: Floats) -> tuple[Floats, Floats]:
    """τ and ν of the sites exp(ν v − τ v² / 2) in place of the limits, at part of their strength.

    Less precision leaves the slope at the posterior mean as it is. Without sites, where rounding
    has eaten them, the rule is Genz's.
    """
    n = len(b)
    tau, nu, mean, covariance = np.zeros(n), np.zeros(n), np.zeros(n), R.copy()
    for _ in range(_MAX_ROUNDS):
        change = 0.0
        for i in range(n):
            change = max(change, _update_site(i, b[i], tau, nu, mean, covariance))
        if change < _ROUND_TOLERANCE:
            break
    for i in range(n):
        nu[i] -= (1.0 - _SITE_STRENGTH) * tau[i] * mean[i]
        tau[i] *= _SITE_STRENGTH
        if not tau[i] + abs(nu[i]) < _MAX_SITE:  # NaN included
            return np.zeros(n), np.zeros(n)
    return tau, nu


@njit(nogil=True, cache=True, error_model="numpy")
def _update_site(
    i: int, limit: float, tau: Floats, nu: Floats, mean: Floats, covariance: Floats
) -> float:
    """Match site i to the moments of v_i below its limit; the change in cavity deviations."""
    variance = covariance[i, i]
    remaining = 1.0 - tau[i] * variance
    c, m = variance / remaining, (mean[i] - variance * nu[i]) / remaining
    deviation = math.sqrt(c)
    offset, share = _moments_below((limit - m) / deviation)
    more_tau = (1.0 / share - 1.0) / c - tau[i]
    more_nu = m * (1.0 / share - 1.0) / c + offset / (share * deviation) - nu[i]
    tau[i] += more_tau
    nu[i] += more_nu
    gain = (more_nu - more_tau * mean[i]) * share / remaining
    loss = more_tau * share / remaining
    column = covariance[i].copy()
    for j in range(len(mean)):
        mean[j] += gain * column[j]
        for k in range(len(mean)):
            covariance[j, k] -= loss * column[j] * column[k]
    change: float = abs(more_tau) * c + abs(more_nu) * deviation
    return change


@njit(nogil=True, cache=True, error_model="numpy")
def compute_conditionals(
    columns: Floats, order: NDArray[np.int64], b: Floats, tau: Floats, nu: Floats
) -> OrthantSampler:
    """Conditionals of N(0, I) times the sites of later variables, by elimination from the last."""
    n = len(b)
    limit, centre, spread = np.empty(n), np.empty(n), np.empty(n)
    slopes, limit_slopes = np.zeros((n, n)), np.zeros((n, n))
    precision, linear = np.eye(n), np.zeros(n)
    for k in range(n - 1, -1, -1):
        root = columns[order[k]]
        pivot = max(precision[k, k], 1.0)  # Below 1 by rounding only.
        spread[k], centre[k] = 1.0 / math.sqrt(pivot), linear[k] / pivot
        limit[k] = (b[order[k]] / root[k] - centre[k]) / spread[k]
        for j in range(k):
            slopes[k, j] = -precision[k, j] / pivot
            limit_slopes[k, j] = -(root[j] / root[k] + slopes[k, j]) / spread[k]
        for i in range(k + 1):
            linear[i] += nu[order[k]] * root[i]
            for j in range(k + 1):
                precision[i, j] += tau[order[k]] * root[i] * root[j]
        for i in range(k):
            share = precision[i, k] / precision[k, k]
            linear[i] -= share * linear[k]
            for j in range(k):
                precision[i, j] -= share * precision[k, j]
    return OrthantSampler(limit, limit_slopes, centre, slopes, spread)


@njit(nogil=True, cache=True, error_model="numpy")
def make_orthant_sampler(R: Floats, b: Floats) -> tuple[OrthantSampler, Floats]:
    """Sampler of z, for v ~ N(0, R) below b, and the columns that make v of it."""
    tau, nu = fit_sites(R, b)
    order, columns = order_variables(R, b)
    return compute_conditionals(columns, order, b, tau, nu), columns


@njit(nogil=True, cache=True, error_model="numpy")
def add_moments(sums: Floats, scale: float, draws: OrthantDraws) -> float:
    """Add weight (z, 1) (z, 1)ᵀ of a block to the lower triangle of `sums`; the new scale.

    `sums` are in units of exp(scale). The last variable enters by its moments below its limits.
    """
    z, limits, log_weights = draws
    n, top = len(z), max(scale, float(log_weights.max()))
    sums *= math.exp(scale - top)
    point = np.ones(n + 1)
    for p in range(len(limits)):
        weight = math.exp(log_weights[p] - top)
        for k in range(n - 1):
            point[k] = z[k, p]
        point[n - 1], variance = _moments_below(limits[p])
        for i in range(n + 1):
            for j in range(i + 1):
                sums[i, j] += weight * point[i] * point[j]
        sums[n - 1, n - 1] += weight * variance
    return float(top)
