"""Expectation propagation of one row: Gaussian sites in place of its factors, and rounds over them.

A site stands for Φ(w_iᵀ u + b_i). Its marginal is the distribution of w_iᵀ u. The marginal without
the site is its cavity, with mean m and variance c. The cavity times Φ is the tilted distribution.
Equation numbers refer to Rasmussen & Williams (2006), chapter 3. `expectation_propagation`
describes the whole method.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from pipeline.numerics.compilation import callee

Floats = NDArray[np.float64]

# Sums are reordered, but only at compile time.
SITE_KERNEL_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract"},
}
# For functions that only other kernels call. Without `forceinline`, a process that compiles the
# caller may use another copy of a kernel, with sums in another order, than a process that loads the
# caller from the cache.
site_callee = callee(**SITE_KERNEL_OPTIONS, forceinline=True)

# Rows of `sites`, (N_FIELDS, n). Data are mirrored so that every site stands for x = 1.
OFFSET, PRECISION, SHIFT = 0, 1, 2  # b, τ and ν: the site is exp(ν s − τ s² / 2) at s = w_iᵀ u
MEAN, VARIANCE = 3, 4  # of the marginal
CAVITY_MEAN, CAVITY_VARIANCE = 5, 6
Z = 7  # P(x_i = 1) = Φ(z) under the cavity
SLOPE, CURVATURE = 8, 9  # d log Φ(z) / dz and −d² log Φ(z) / dz²
EXCESS = 10  # slope + z, which adding the two would not give for z far below 0
N_FIELDS = 11


class ProbitRow(NamedTuple):
    """Working memory of one row with n observed sites and K components."""

    sites: Floats  # (N_FIELDS, n), the fields above
    weights: Floats  # (K, n), mirrored like the sites
    directions: Floats  # (K, n), L⁻¹ w_i for A = L Lᵀ
    factor: Floats  # (K, K), L below the diagonal, 1 / L_kk on it, L⁻ᵀ above it
    linear: Floats  # (K,), L⁻¹ Σ ν_i w_i
    mean: Floats  # (K,), of u
    variance: Floats  # (K,)


TAIL_DEGREE = 24
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


@cache
def tail_coefficients(degree: int = TAIL_DEGREE) -> Floats:
    """Return the coefficients of (x + 5/4) (h(x) − x) in powers of t = (x − 4) / (x + 4).

    h(x) = φ(x) / Φ(−x), x ≥ 0, is the hazard. In this form it loses nothing to cancellation at any
    x; the relative error is 1e-14.
    """
    t = chebyshev.chebpts1(degree + 1)
    x = 4 * (1 + t) / (1 - t)
    near = math.sqrt(2 / math.pi) / scipy.special.erfcx(x / math.sqrt(2)) - x
    far = np.maximum(x, 3.0)
    fraction = far
    for k in range(300, 1, -1):  # Laplace's continued fraction
        fraction = far + k / fraction
    excess = np.where(x < 3, near, 1 / fraction)
    return np.asarray(chebyshev.cheb2poly(chebyshev.chebfit(t, (x + 1.25) * excess, degree)))


@site_callee
def match_site_moments(sites: Floats, step: float, tail: Floats) -> None:
    """Move every site by `step` towards the moments of its tilted distribution; 1 moves it there.

    Equations 3.58 and 3.59, in a form without differences of reciprocal variances.
    """
    set_cavities(sites, tail)
    move_sites(sites, step)


@site_callee
def move_sites(sites: Floats, step: float) -> None:
    """Move every site by `step`, given its cavity and the derivatives of its log evidence."""
    for i in range(sites.shape[1]):
        c, g = sites[CAVITY_VARIANCE, i], sites[CURVATURE, i]
        scale = 1.0 / (1.0 + c * (1.0 - g))
        shift = sites[SLOPE, i] * math.sqrt(1.0 + c) + sites[CAVITY_MEAN, i] * g
        sites[PRECISION, i] += step * (scale * g - sites[PRECISION, i])
        sites[SHIFT, i] += step * (scale * shift - sites[SHIFT, i])


@site_callee
def set_cavities(sites: Floats, tail: Floats) -> None:
    """Set cavity moments from marginals and sites (equation 3.56), z, and its derivatives."""
    for i in range(sites.shape[1]):
        # The floor is reached only if rounding has removed every digit, at |w_i|² of 1e14.
        scale = 1.0 / max(1.0 - sites[PRECISION, i] * sites[VARIANCE, i], 1e-14)
        c = scale * sites[VARIANCE, i]
        m = scale * (sites[MEAN, i] - sites[VARIANCE, i] * sites[SHIFT, i])
        sites[CAVITY_VARIANCE, i], sites[CAVITY_MEAN, i] = c, m
        sites[Z, i] = (m + sites[OFFSET, i]) / math.sqrt(1.0 + c)
    _set_tail_excess(sites, tail)
    for i in range(sites.shape[1]):
        z, excess = sites[Z, i], sites[EXCESS, i]
        slope = excess - z
        if z > 0.0:
            density = _DENSITY_AT_0 * math.exp(-0.5 * z * z)
            slope = density / (1.0 - density / (z + excess))
            excess = z + slope
        sites[SLOPE, i], sites[EXCESS, i] = slope, excess
        sites[CURVATURE, i] = slope * excess


@site_callee
def _set_tail_excess(sites: Floats, tail: Floats) -> None:
    """Write h(|z|) − |z| by Horner's rule, four powers in one sweep over the sites."""
    z, ratio, excess = sites[Z], sites[SLOPE], sites[EXCESS]
    for i in range(len(z)):
        ratio[i] = (abs(z[i]) - 4.0) / (abs(z[i]) + 4.0)
        excess[i] = tail[-1]
    for power in range(len(tail) - 5, -1, -4):
        a, b, c, d = tail[power], tail[power + 1], tail[power + 2], tail[power + 3]
        for i in range(len(z)):
            t = ratio[i]
            excess[i] = (((excess[i] * t + d) * t + c) * t + b) * t + a
    for i in range(len(z)):
        excess[i] /= abs(z[i]) + 1.25


@site_callee
def update_moments(row: ProbitRow) -> float:
    """Compute moments of u and marginals of the sites from the sites; return the largest change."""
    _factorise(row.sites, row.weights, row.factor, row.linear)
    _project(row.sites, row.weights, row.directions, row.factor, row.linear)
    largest = 0.0
    for k in range(len(row.mean)):
        inverse = row.factor[k, k:]
        mean, variance = dot(inverse, row.linear[k:]), dot(inverse, inverse)
        change = abs(mean - row.mean[k]) + abs(variance - row.variance[k])
        if not change <= largest:  # this form keeps a NaN, which spreads to the last k
            largest = change
        row.mean[k], row.variance[k] = mean, variance
    return largest


@site_callee
def _factorise(sites: Floats, weights: Floats, L: Floats, linear: Floats) -> None:
    """Compute A = L Lᵀ, then L⁻ᵀ and L⁻¹ Σ ν_i w_i."""
    weighted = np.empty(sites.shape[1])
    for k in range(len(linear)):
        for i in range(len(weighted)):
            weighted[i] = sites[PRECISION, i] * weights[k, i]
        for j in range(k):
            L[k, j] = L[j, j] * (dot(weighted, weights[j]) - dot(L[k, :j], L[j, :j]))
        pivot = 1.0 + dot(weighted, weights[k]) - dot(L[k, :k], L[k, :k])
        L[k, k] = 1.0 / math.sqrt(pivot)
        linear[k] = L[k, k] * (dot(sites[SHIFT], weights[k]) - dot(L[k, :k], linear[:k]))
    for j in range(len(linear)):
        for k in range(j + 1, len(linear)):
            L[j, k] = -L[k, k] * (L[k, j] * L[j, j] + dot(L[k, j + 1 : k], L[j, j + 1 : k]))


@site_callee
def _project(
    sites: Floats, weights: Floats, directions: Floats, factor: Floats, linear: Floats
) -> None:
    """Compute the directions L⁻¹ w_i, and from them the marginals of the sites."""
    for i in range(sites.shape[1]):
        sites[MEAN, i] = sites[VARIANCE, i] = 0.0
    for k in range(len(linear)):
        combine_rows(factor[k, :k], directions, directions[k])
        for i in range(sites.shape[1]):
            along = factor[k, k] * (weights[k, i] - directions[k, i])
            directions[k, i] = along
            sites[MEAN, i] += linear[k] * along
            sites[VARIANCE, i] += along * along


@site_callee
def log_site_scales(sites: Floats) -> float:
    """Sum over sites log Φ(z) and the log of the site's own scale (terms of equation 3.65)."""
    total = 0.0
    for i in range(sites.shape[1]):
        z = sites[Z, i]
        if z > 0.0:
            total += math.log1p(-0.5 * math.erfc(z * math.sqrt(0.5)))
        else:
            total += math.log(_DENSITY_AT_0 / sites[SLOPE, i]) - 0.5 * z * z
        total += log_gaussian_scale(sites, i)
    return total


@site_callee
def log_gaussian_scale(sites: Floats, i: int) -> float:
    """Return the log of the scale of a site itself: its term of equation 3.65 without log Z."""
    c, m = sites[CAVITY_VARIANCE, i], sites[CAVITY_MEAN, i]
    tau, nu = sites[PRECISION, i], sites[SHIFT, i]
    gain = 1.0 + tau * c
    scale: float = 0.5 * (math.log(gain) + (m * (tau * m - 2.0 * nu) - c * nu * nu) / gain)
    return scale


@site_callee
def set_tilted_cumulants(sites: Floats, skewness: Floats, kurtosis: Floats) -> None:
    """Set skewness and excess kurtosis of the tilted distributions from derivatives of log Φ."""
    for i in range(sites.shape[1]):
        c, g, z = sites[CAVITY_VARIANCE, i], sites[CURVATURE, i], sites[Z, i]
        slope, excess = sites[SLOPE, i], sites[EXCESS, i]
        third = g * excess - slope * (1.0 - g)
        fourth = 2.0 * g * (1.0 - g) - third * (excess + slope)
        if z < -100.0:  # the differences cancel; the tilted distribution is nearly exponential
            third, fourth = -2.0 / z**3, 6.0 / z**4
        scale = c / (1.0 + c * (1.0 - g))
        skewness[i], kurtosis[i] = third * scale * math.sqrt(scale), fourth * scale * scale


@site_callee
def combine_rows(coefficients: Floats, rows: Floats, out: Floats) -> None:
    """Compute out = Σ_k coefficients[k] rows[k]."""
    for i in range(len(out)):
        out[i] = 0.0
    for k in range(len(coefficients)):
        for i in range(len(out)):
            out[i] += coefficients[k] * rows[k, i]


@site_callee
def dot(a: Floats, b: Floats) -> float:
    """Return aᵀ b; NumPy's dot would call BLAS, which is slower at these sizes."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


# Rows of a fitted model need 5 to 15 rounds; a row that needs more oscillates.
_PARALLEL_ROUNDS = 15
_DAMPING = 0.8


class ProbitRows(NamedTuple):
    """Rows, their model in units of the prior, and the stopping rule."""

    X: NDArray[np.uint8]
    observed: NDArray[np.bool_]
    weights: Floats  # (K, n_features)
    offsets: Floats
    tail: Floats
    tol: float
    max_rounds: int


@site_callee
def allocate_workspace(n_components: int, n: int, n_fields: int = N_FIELDS) -> ProbitRow:
    """Allocate working memory for a row with n observed sites."""
    return ProbitRow(
        np.empty((n_fields, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n_components)),
        np.empty(n_components),
        np.empty(n_components),
        np.empty(n_components),
    )


@site_callee
def find_fixed_point(
    rows: ProbitRows, sample: int, row: ProbitRow, square: Floats, features: NDArray[np.int64]
) -> tuple[ProbitRow, int, float]:
    """Find the fixed point of a row, in `row` or, if its size differs, in new memory.

    Also returns the number of rounds and the last change. The cavities of the sites are set.
    `square` is (K, K) of scratch; `features` is filled with the observed features.
    """
    n_observed = _list_observed(rows.observed[sample], features)
    if n_observed != row.sites.shape[1]:
        row = allocate_workspace(len(rows.weights), n_observed)
    _mirror_row(rows.X[sample], features, rows.weights, rows.offsets, row)
    n_rounds, change = _iterate_rounds(row, square, rows.tail, rows.tol, rows.max_rounds)
    set_cavities(row.sites, rows.tail)
    return row, n_rounds, change


@site_callee
def _list_observed(observed: NDArray[np.bool_], features: NDArray[np.int64]) -> int:
    """Write the indices of the observed features; return their number."""
    n = 0
    for feature in range(len(observed)):
        if observed[feature]:
            features[n] = feature
            n += 1
    return n


@site_callee
def _mirror_row(
    x: NDArray[np.uint8],
    features: NDArray[np.int64],
    weights: Floats,
    offsets: Floats,
    row: ProbitRow,
) -> None:
    """Copy weights and offsets of `features`, signed so that every site stands for x = 1."""
    signs = row.sites[Z]
    for i in range(len(signs)):
        signs[i] = 2.0 * x[features[i]] - 1.0
        row.sites[OFFSET, i] = signs[i] * offsets[features[i]]
    for k in range(len(weights)):
        for i in range(len(signs)):
            row.weights[k, i] = signs[i] * weights[k, features[i]]


@site_callee
def _iterate_rounds(
    row: ProbitRow, square: Floats, tail: Floats, tol: float, max_rounds: int
) -> tuple[int, float]:
    """Iterate until the moments converge, parallel rounds first; return rounds and last change."""
    rounds, change = 0, np.inf
    while not change < tol and rounds < max_rounds:
        if rounds in (0, _PARALLEL_ROUNDS):
            reset_sites(row)
        if rounds < _PARALLEL_ROUNDS:
            match_site_moments(row.sites, 1.0, tail)
        else:
            _sweep_sites(row, square, 1.0 if rounds == _PARALLEL_ROUNDS else _DAMPING, tail)
        change = update_moments(row)
        rounds += 1
    return rounds, change


@site_callee
def site_log_evidence(row: ProbitRow) -> float:
    """Return log P(x) by the sites (equation 3.65); their cavities must be set."""
    evidence: float = integrate_sites(row, log_site_scales(row.sites))
    return evidence


@site_callee
def integrate_sites(row: ProbitRow, log_scales: float) -> float:
    """Return the log of the prior's integral over all sites, given the sum of their log scales."""
    total: float = log_scales + 0.5 * dot(row.linear, row.linear)
    for k in range(len(row.mean)):
        total += math.log(row.factor[k, k])
    return total


@site_callee
def reset_sites(row: ProbitRow) -> None:
    """Set the sites to zero and all moments to those of the prior."""
    sites = row.sites
    for i in range(sites.shape[1]):
        sites[PRECISION, i] = sites[SHIFT, i] = sites[MEAN, i] = sites[VARIANCE, i] = 0.0
    for k in range(len(row.mean)):
        row.mean[k], row.variance[k] = 0.0, 1.0
        for j in range(len(row.mean)):
            row.factor[k, j] = 1.0 if k == j else 0.0
        for i in range(sites.shape[1]):
            sites[VARIANCE, i] += row.weights[k, i] ** 2


@site_callee
def _sweep_sites(row: ProbitRow, covariance: Floats, step: float, tail: Floats) -> None:
    """Update the sites in turn, and the moments of u after each one."""
    centre, image = np.empty(len(row.mean)), np.empty(len(row.mean))
    for k in range(len(centre)):
        centre[k] = row.mean[k]
        for j in range(k + 1):
            covariance[j, k] = covariance[k, j] = dot(row.factor[k, k:], row.factor[j, k:])
    site = np.empty((N_FIELDS, 1))
    for i in range(row.sites.shape[1]):
        site[OFFSET, 0] = row.sites[OFFSET, i]
        site[PRECISION, 0], site[SHIFT, 0] = row.sites[PRECISION, i], row.sites[SHIFT, i]
        _update_site(site, row.weights, i, step, tail, centre, covariance, image)
        row.sites[PRECISION, i], row.sites[SHIFT, i] = site[PRECISION, 0], site[SHIFT, 0]


@site_callee
def _update_site(
    site: Floats,
    weights: Floats,
    i: int,
    step: float,
    tail: Floats,
    centre: Floats,
    covariance: Floats,
    image: Floats,
) -> None:
    """Update site i, held in `site`, and with it `centre` and `covariance`; `image` is scratch."""
    mean, variance = 0.0, 0.0
    for k in range(len(centre)):
        image[k] = 0.0
        for j in range(len(centre)):
            image[k] += weights[j, i] * covariance[k, j]
        mean += weights[k, i] * centre[k]
        variance += weights[k, i] * image[k]
    precision, shift = site[PRECISION, 0], site[SHIFT, 0]
    site[MEAN, 0], site[VARIANCE, 0] = mean, variance
    match_site_moments(site, step, tail)
    precision, shift = site[PRECISION, 0] - precision, site[SHIFT, 0] - shift
    gain = 1.0 / (1.0 + precision * variance)
    for k in range(len(centre)):
        centre[k] += gain * (shift - precision * mean) * image[k]
        for j in range(len(centre)):
            covariance[k, j] -= gain * precision * image[k] * image[j]
