"""Expectation propagation of one row: Gaussian sites in place of its factors, and rounds over them.

Feature i with levels has level c or higher iff w_iᵀ u + noise > −b_ic, with u ~ N(0, I) and noise ~
N(0, 1); a binary feature has two levels. The lowest and the highest level are tails. Data are
mirrored so that the site of a tail stands for Φ(w_iᵀ u + b_i). Any other level is an interval, and
the value of a continuous feature, w_iᵀ u + noise = v, is an interval of width 0 at v.

The marginal of a site is the distribution of w_iᵀ u. The marginal without the site is its cavity,
with mean m and variance c. The cavity times the factor is the tilted distribution: with
w_iᵀ u + noise in units of its standard deviation under the cavity, a normal t truncated to a tail
or to an interval. With a tail at −z,

    slope = E(t) = φ(z) / Φ(z),   curvature = 1 − Var(t) = slope (slope + z).

For intervals, the moments of t are sums over Gauss–Legendre nodes on the part of the interval where
the density is above e⁻³⁰ of its maximum. Their relative error is below 1e-9, also far in a tail and
for an interval of width 0, that is, between the equal thresholds of a level without rows. The
tilted distribution of a value is a point, so its site is Gaussian, and the posterior given values
is exact.

Tails come first in a row, and need no nodes: they take a twentieth of the time. Equation numbers
refer to Rasmussen & Williams (2006), chapter 3. `expectation_propagation` describes the whole
method.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError
from pipeline.numerics.compilation import callee

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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

# Rows of `sites`, (N_FIELDS, n).
LOWER, UPPER = 0, 1  # of w_iᵀ u + noise; a tail has no upper bound
PRECISION, SHIFT = 2, 3  # τ and ν: the site is exp(ν s − τ s² / 2) at s = w_iᵀ u
MEAN, VARIANCE = 4, 5  # of the marginal
CAVITY_MEAN, CAVITY_VARIANCE = 6, 7
SLOPE, CURVATURE = 8, 9
Z = 10  # of a tail: its probability is Φ(z) under the cavity
EXCESS = 11  # of a tail: slope + z, which adding the two would not give for z far below 0
LOG_SHARE = 12  # of others: log of the cavity's mass in the interval, or of its density at a value
THIRD, FOURTH = 13, 14  # cumulants of t
N_FIELDS = 15

TAIL_DEGREE = 24
DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)
LOG_DENSITY_AT_0 = -0.5 * math.log(2 * math.pi)
_DROP = 30.0  # of the log density at the ends of the range of nodes
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(28)
# Rows of a fitted model need 5 to 15 rounds; a row that needs more oscillates.
_PARALLEL_ROUNDS = 15
_DAMPING = 0.8


class ProbitRows(NamedTuple):
    """Rows of levels and values, their model, and the stopping rule."""

    levels: NDArray[np.uint8]  # (n_samples, n_features), 0 of continuous features
    observed: NDArray[np.bool_]  # (n_samples, n_features)
    values: Floats  # (n_samples, n_continuous)
    n_levels: Integers  # of each feature, 1 of a continuous one, (n_features,)
    columns: Integers  # of each continuous feature in `values`, (n_features,)
    places: Integers  # of each feature's first derivative by offsets, (n_features,)
    weights: Floats  # (K, n_features)
    offsets: Floats  # (n_planes,)
    only_tails: bool  # whether all features are binary
    tail: Floats
    tol: float
    max_rounds: int


def make_rows(
    levels: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    observed: ArrayLike | None = None,
    n_levels: Integers | None = None,
    values: Floats | None = None,
    *,
    tol: float | None,
    max_rounds: int = 200,
) -> ProbitRows:
    """Check rows and parameters; the arguments are those of `probit_posterior`.

    Without a tolerance, the rows get one that suffices for scores.
    """
    if n_levels is None:
        rows, mask = check_binary_matrix(levels, observed)
        n_levels = np.full(rows.shape[1], 2)
    else:
        rows = np.asarray(levels, np.uint8)
        mask = np.ones(rows.shape, np.bool_) if observed is None else np.asarray(observed, np.bool_)
    w, b = np.asarray(weights, np.float64), np.asarray(offsets, np.float64)
    is_continuous, n_planes = n_levels == 1, n_levels - 1
    _check_parameters(len(n_levels), int(n_planes.sum()), w, b)
    only_tails = bool((n_levels == 2).all())
    if tol is None:
        tol = 1e-4 if only_tails else 1e-5
    if not (tol > 0 and max_rounds >= 1):
        raise FitError(
            f"`tol` is {tol} and `max_rounds` is {max_rounds}, but tol must be above 0 and "
            "max_rounds at least 1."
        )
    columns = np.cumsum(is_continuous) - 1
    places = np.where(is_continuous, len(b) + columns, np.cumsum(n_planes) - n_planes)
    numbers = np.zeros((len(rows), 0)) if values is None else values
    if len(is_continuous) > rows.shape[1]:
        all_rows = np.zeros((len(rows), len(is_continuous)), np.uint8)
        all_observed = np.empty(all_rows.shape, np.bool_)
        all_rows[:, ~is_continuous], all_observed[:, ~is_continuous] = rows, mask
        all_observed[:, is_continuous] = ~np.isnan(numbers)
        rows, mask = all_rows, all_observed
    return ProbitRows(
        # For another layout, Numba would compile a kernel that may add in another order.
        np.ascontiguousarray(rows),
        np.ascontiguousarray(mask),
        np.ascontiguousarray(numbers),
        np.ascontiguousarray(n_levels, np.int64),
        columns,
        places,
        np.ascontiguousarray(w.T),
        b,
        only_tails,
        tail_coefficients(),
        tol,
        max_rounds,
    )


def check_binary_matrix(
    X: ArrayLike, observed: ArrayLike | None
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Check bits and their mask, and return C-contiguous copies; missing bits become 0."""
    values = np.asarray(X)
    mask = np.ones(values.shape, np.bool_) if observed is None else np.asarray(observed, np.bool_)
    if values.ndim != 2 or mask.shape != values.shape:
        raise FitError(
            f"The bits have shape {values.shape} and `observed` {mask.shape}, but both must be "
            "(n_samples, n_features)."
        )
    wrong = mask & (values != 0) & (values != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise FitError(
            f"The bits have the value {values[row, column]} in row {row}, column {column}, which "
            "is not 0 or 1. Binarise it, or mark it as not observed."
        )
    binary = np.where(mask, values, 0).astype(np.uint8, order="C")
    return binary, np.ascontiguousarray(mask)


def _check_parameters(n_features: int, n_planes: int, w: Floats, b: Floats) -> None:
    """Check that the parameters are finite and fit each other and the features."""
    if w.ndim != 2 or (len(w), b.shape) != (n_features, (n_planes,)):
        raise FitError(
            f"Weights and offsets have shapes {w.shape} and {b.shape}, but {n_features} features "
            f"need ({n_features}, n_components) and ({n_planes},)."
        )
    for name, array in {"weights": w, "offsets": b}.items():
        if not np.isfinite(array).all():
            raise FitError(f"`{name}` contains NaN or infinity. Check the fit.")


class ProbitRow(NamedTuple):
    """Working memory of one row with n observed sites and K components."""

    n_tails: int  # the first sites
    sites: Floats  # (N_FIELDS, n), the fields above
    weights: Floats  # (K, n), mirrored like the sites
    directions: Floats  # (K, n), L⁻¹ w_i for A = L Lᵀ
    factor: Floats  # (K, K), L below the diagonal, 1 / L_kk on it, L⁻ᵀ above it
    linear: Floats  # (K,), L⁻¹ Σ ν_i w_i
    mean: Floats  # (K,), of u
    variance: Floats  # (K,)


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
def _match_site_moments(sites: Floats, n_tails: int, step: float, tail: Floats) -> None:
    """Move every site by `step` towards the moments of its tilted distribution; 1 moves it there.

    Equations 3.58 and 3.59, in a form without differences of reciprocal variances.
    """
    _set_cavities(sites, n_tails, tail)
    for i in range(sites.shape[1]):
        c, g = sites[CAVITY_VARIANCE, i], sites[CURVATURE, i]
        scale = 1.0 / (1.0 + c * (1.0 - g))
        shift = sites[SLOPE, i] * math.sqrt(1.0 + c) + sites[CAVITY_MEAN, i] * g
        sites[PRECISION, i] += step * (scale * g - sites[PRECISION, i])
        sites[SHIFT, i] += step * (scale * shift - sites[SHIFT, i])


@site_callee
def _set_cavities(sites: Floats, n_tails: int, tail: Floats) -> None:
    """Set cavity moments from marginals and sites (equation 3.56), and the moments of t."""
    for i in range(sites.shape[1]):
        # The floor is reached only if rounding has removed every digit, at |w_i|² of 1e14.
        scale = 1.0 / max(1.0 - sites[PRECISION, i] * sites[VARIANCE, i], 1e-14)
        c = scale * sites[VARIANCE, i]
        m = scale * (sites[MEAN, i] - sites[VARIANCE, i] * sites[SHIFT, i])
        sites[CAVITY_VARIANCE, i], sites[CAVITY_MEAN, i] = c, m
        sites[Z, i] = (m - sites[LOWER, i]) / math.sqrt(1.0 + c)
    _set_tail_excess(sites, n_tails, tail)
    for i in range(n_tails):
        z, excess = sites[Z, i], sites[EXCESS, i]
        slope = excess - z
        if z > 0.0:
            density = DENSITY_AT_0 * math.exp(-0.5 * z * z)
            slope = density / (1.0 - density / (z + excess))
            excess = z + slope
        sites[SLOPE, i], sites[EXCESS, i] = slope, excess
        sites[CURVATURE, i] = slope * excess
    for i in range(n_tails, sites.shape[1]):
        m, root = sites[CAVITY_MEAN, i], math.sqrt(1.0 + sites[CAVITY_VARIANCE, i])
        log_share, mean, variance, third, fourth = _find_cumulants(
            (sites[LOWER, i] - m) / root, (sites[UPPER, i] - m) / root
        )
        if sites[LOWER, i] == sites[UPPER, i]:
            log_share -= math.log(root)  # a density refers to the value, not to its standard units
        sites[LOG_SHARE, i] = log_share
        sites[SLOPE, i], sites[CURVATURE, i] = mean, 1.0 - variance
        sites[THIRD, i], sites[FOURTH, i] = third, fourth


@site_callee
def _set_tail_excess(sites: Floats, n_tails: int, tail: Floats) -> None:
    """Write h(|z|) − |z| by Horner's rule, four powers in one sweep over the tails."""
    z, ratio, excess = sites[Z], sites[SLOPE], sites[EXCESS]
    for i in range(n_tails):
        ratio[i] = (abs(z[i]) - 4.0) / (abs(z[i]) + 4.0)
        excess[i] = tail[-1]
    for power in range(len(tail) - 5, -1, -4):
        a, b, c, d = tail[power], tail[power + 1], tail[power + 2], tail[power + 3]
        for i in range(n_tails):
            t = ratio[i]
            excess[i] = (((excess[i] * t + d) * t + c) * t + b) * t + a
    for i in range(n_tails):
        excess[i] /= abs(z[i]) + 1.25


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
        math.log(mean_share) - 0.5 * peak * peak + LOG_DENSITY_AT_0,
        middle + d,
        variance,
        m3 - 3.0 * d * m2 + 2.0 * d * d * d,
        m4 - 4.0 * d * m3 + 6.0 * d * d * m2 - 3.0 * d * d * d * d - 3.0 * variance * variance,
    )


@site_callee
def _update_moments(row: ProbitRow) -> float:
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
def _log_site_scales(sites: Floats, n_tails: int) -> float:
    """Sum over sites the log of the tilted mass, and of the site's own scale (equation 3.65)."""
    total = 0.0
    for i in range(n_tails):
        z = sites[Z, i]
        if z > 0.0:
            total += math.log1p(-0.5 * math.erfc(z * math.sqrt(0.5)))
        else:
            total += math.log(DENSITY_AT_0 / sites[SLOPE, i]) - 0.5 * z * z
        total += _log_gaussian_scale(sites, i)
    for i in range(n_tails, sites.shape[1]):
        total += sites[LOG_SHARE, i] + _log_gaussian_scale(sites, i)
    return total


@site_callee
def _log_gaussian_scale(sites: Floats, i: int) -> float:
    """Return the log of the scale of a site itself: its term of equation 3.65 without log Z."""
    c, m = sites[CAVITY_VARIANCE, i], sites[CAVITY_MEAN, i]
    tau, nu = sites[PRECISION, i], sites[SHIFT, i]
    gain = 1.0 + tau * c
    scale: float = 0.5 * (math.log(gain) + (m * (tau * m - 2.0 * nu) - c * nu * nu) / gain)
    return scale


@site_callee
def set_tilted_cumulants(sites: Floats, n_tails: int, skewness: Floats, kurtosis: Floats) -> None:
    """Set skewness and excess kurtosis of the tilted distributions.

    Those of tails follow from derivatives of log Φ.
    """
    for i in range(n_tails):
        g, z, slope, excess = sites[CURVATURE, i], sites[Z, i], sites[SLOPE, i], sites[EXCESS, i]
        third = g * excess - slope * (1.0 - g)
        fourth = 2.0 * g * (1.0 - g) - third * (excess + slope)
        if z < -100.0:  # the differences cancel; the tilted distribution is nearly exponential
            third, fourth = -2.0 / z**3, 6.0 / z**4
        sites[THIRD, i], sites[FOURTH, i] = third, fourth
    for i in range(sites.shape[1]):
        c, g = sites[CAVITY_VARIANCE, i], sites[CURVATURE, i]
        scale = c / (1.0 + c * (1.0 - g))
        skewness[i] = sites[THIRD, i] * scale * math.sqrt(scale)
        kurtosis[i] = sites[FOURTH, i] * scale * scale


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


@site_callee
def allocate_workspace(n_components: int, n: int) -> ProbitRow:
    """Allocate working memory for a row with n observed sites."""
    return ProbitRow(
        n,
        np.empty((N_FIELDS, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n_components)),
        np.empty(n_components),
        np.empty(n_components),
        np.empty(n_components),
    )


@site_callee
def find_fixed_point(
    rows: ProbitRows, sample: int, row: ProbitRow, square: Floats, features: Integers
) -> tuple[ProbitRow, int, float]:
    """Find the fixed point of a row, in `row` or, if its size differs, in new memory.

    Also returns the number of rounds and the last change. The cavities of the sites are set.
    `square` is (K, K) of scratch; `features` is filled with the observed features, tails first.
    """
    n_tails, n_observed = _list_observed(rows, sample, features)
    if n_observed != row.sites.shape[1]:
        row = allocate_workspace(len(rows.weights), n_observed)
    row = ProbitRow(
        n_tails,
        row.sites,
        row.weights,
        row.directions,
        row.factor,
        row.linear,
        row.mean,
        row.variance,
    )
    _read_row(rows, sample, features, row)
    n_rounds, change = _iterate_rounds(row, square, rows.tail, rows.tol, rows.max_rounds)
    _set_cavities(row.sites, n_tails, rows.tail)
    return row, n_rounds, change


@site_callee
def find_sign(rows: ProbitRows, sample: int, feature: int) -> float:
    """Return 1 if a feature is at its highest level, −1 at its lowest, and 0 otherwise."""
    level = np.int64(rows.levels[sample, feature])  # the arithmetic has no branch to mispredict
    is_highest, is_lowest = level == rows.n_levels[feature] - 1, level == 0
    return np.float64(is_highest) - np.float64(is_lowest)


@site_callee
def find_place(rows: ProbitRows, sample: int, feature: int) -> int:
    """Return where the derivative by the lowest bound of a feature's level or value goes."""
    place: int = rows.places[feature] + max(np.int64(rows.levels[sample, feature]) - 1, 0)
    return place


@site_callee
def _list_observed(rows: ProbitRows, sample: int, features: Integers) -> tuple[int, int]:
    """Write the indices of the observed features; return the numbers of tails and of all."""
    n = 0
    for feature in range(len(features)):
        is_tail = rows.only_tails or find_sign(rows, sample, feature) != 0.0
        if rows.observed[sample, feature] and is_tail:
            features[n] = feature
            n += 1
    n_tails = n
    if not rows.only_tails:
        for feature in range(len(features)):
            if rows.observed[sample, feature] and find_sign(rows, sample, feature) == 0.0:
                features[n] = feature
                n += 1
    return n_tails, n


@site_callee
def _read_row(rows: ProbitRows, sample: int, features: Integers, row: ProbitRow) -> None:
    """Copy bounds and weights of `features`, signed so that every tail has a lower bound only."""
    signs, n_tails = row.sites[Z], row.n_tails
    for i in range(n_tails):
        signs[i] = find_sign(rows, sample, features[i])
        row.sites[LOWER, i] = -signs[i] * rows.offsets[find_place(rows, sample, features[i])]
    for i in range(n_tails, len(signs)):
        place, signs[i] = find_place(rows, sample, features[i]), 1.0
        if rows.n_levels[features[i]] > 1:
            row.sites[LOWER, i], row.sites[UPPER, i] = (
                -rows.offsets[place],
                -rows.offsets[place + 1],
            )
        else:
            value = rows.values[sample, rows.columns[features[i]]]
            row.sites[LOWER, i] = row.sites[UPPER, i] = value
    for k in range(len(rows.weights)):
        for i in range(len(signs)):
            row.weights[k, i] = signs[i] * rows.weights[k, features[i]]


@site_callee
def _iterate_rounds(
    row: ProbitRow, square: Floats, tail: Floats, tol: float, max_rounds: int
) -> tuple[int, float]:
    """Iterate until the moments converge, parallel rounds first; return rounds and last change."""
    rounds, change = 0, np.inf
    while not change < tol and rounds < max_rounds:
        if rounds in (0, _PARALLEL_ROUNDS):
            _reset_sites(row)
        if rounds < _PARALLEL_ROUNDS:
            _match_site_moments(row.sites, row.n_tails, 1.0, tail)
        else:
            _sweep_sites(row, square, 1.0 if rounds == _PARALLEL_ROUNDS else _DAMPING, tail)
        change = _update_moments(row)
        rounds += 1
    return rounds, change


@site_callee
def integrate_sites(row: ProbitRow) -> float:
    """Return log P(x) by the sites (equation 3.65); their cavities must be set."""
    total: float = _log_site_scales(row.sites, row.n_tails) + 0.5 * dot(row.linear, row.linear)
    for k in range(len(row.mean)):
        total += math.log(row.factor[k, k])
    return total


@site_callee
def _reset_sites(row: ProbitRow) -> None:
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
        for field in (LOWER, UPPER, PRECISION, SHIFT):
            site[field, 0] = row.sites[field, i]
        n_tails = 1 if i < row.n_tails else 0
        _update_site(site, n_tails, row.weights, i, step, tail, centre, covariance, image)
        row.sites[PRECISION, i], row.sites[SHIFT, i] = site[PRECISION, 0], site[SHIFT, 0]


@site_callee
def _update_site(
    site: Floats,
    n_tails: int,
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
    _match_site_moments(site, n_tails, step, tail)
    precision, shift = site[PRECISION, 0] - precision, site[SHIFT, 0] - shift
    gain = 1.0 / (1.0 + precision * variance)
    for k in range(len(centre)):
        centre[k] += gain * (shift - precision * mean) * image[k]
        for j in range(len(centre)):
            covariance[k, j] -= gain * precision * image[k] * image[j]
