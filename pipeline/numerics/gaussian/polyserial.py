"""Polyserial correlations: of a continuous feature with the latent normal behind ordered levels.

A feature has level a iff a standard normal latent y lies between the thresholds h_a and h_a+1. The
continuous feature x has mean 0 and variance 1, and (x, y) is bivariate normal with correlation ρ.
With ρ = tanh z, level a has the probability, given x,

    P_a = Φ(u_a+1) − Φ(u_a),   u_a = (h_a − ρ x) / √(1 − ρ²) = h_a cosh z − x sinh z.

Given the thresholds, and mean and variance of x, ρ maximizes Σ log P over rows: the two-step
estimate of Olsson, Drasgow & Dorans (1982), The polyserial correlation coefficient, Psychometrika
47. For two levels it is the biserial correlation. Newton's method on z needs the first two
derivatives of the sum, from one pass over the rows per step. With u'' = u, both follow from the
densities at u_a and u_a+1.

The start is the estimate from moments (ibid.): the covariance of x with the level, over Σ φ(h_a).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.numerics.compilation import callee
from pipeline.numerics.gaussian.bivariate_normal import norm_cdf, norm_pdf
from pipeline.numerics.gaussian.level_bounds import place_bounds
from pipeline.numerics.gaussian.pair_tables import MAX_CORRELATION

MAX_Z = math.atanh(MAX_CORRELATION)
_MAX_START = 1.5
_TOLERANCE = 1e-6  # Of the last step in z. Its square is the order of the error left.
_FAR_TAIL = 30.0
_STEEP = 3.0
NOT_OBSERVED = 255
"""Stands for the level of a missing value."""

_Floats = npt.NDArray[np.float64]
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_kernel = njit(**_OPTIONS, cache=True)
_callee = callee(**_OPTIONS)


@_callee
def _mills_ratio(x: float) -> float:
    """Return Φ(−x) / φ(x) for x ≥ 0."""
    if x < _FAR_TAIL:
        return norm_cdf(-x) / norm_pdf(x)
    return 1.0 / (x + 1.0 / (x + 2.0 / (x + 3.0 / (x + 4.0 / x))))


@_callee
def _level_derivatives(
    lower: float, upper: float, x: float, cosh: float, sinh: float
) -> tuple[float, float]:
    """Return the first two derivatives of P by z, each divided by P, for a level given x."""
    u0 = u1 = slope0 = slope1 = 0.0
    if lower > -math.inf:
        u0, slope0 = lower * cosh - x * sinh, lower * sinh - x * cosh
    if upper < math.inf:
        u1, slope1 = upper * cosh - x * sinh, upper * sinh - x * cosh
    has0, has1 = lower > -math.inf, upper < math.inf
    if has0 and (not has1 or u0 + u1 > 0.0):  # by symmetry, into the lower tail
        u0, u1, slope0, slope1, has0, has1 = -u1, -u0, -slope1, -slope0, has1, has0
    # All terms relative to φ(u1), or to φ(0) if u1 > 0: none of them underflows.
    if u1 > 0.0:
        weight1, probability = math.exp(-0.5 * u1 * u1), norm_cdf(u1)
        weight0 = math.exp(-0.5 * u0 * u0) if has0 else 0.0
        probability -= norm_cdf(u0) if has0 else 0.0
        probability /= norm_pdf(0.0)
    else:
        weight1, probability = 1.0, _mills_ratio(-u1)
        weight0 = math.exp(0.5 * (u1 - u0) * (u1 + u0)) if has0 else 0.0
        probability -= weight0 * _mills_ratio(-u0) if has0 else 0.0
    first = weight1 * slope1 - weight0 * slope0
    second = weight1 * u1 * (1.0 - slope1 * slope1) - weight0 * u0 * (1.0 - slope0 * slope0)
    return first / probability, second / probability


@_kernel
def _add_derivatives(
    x: _Floats,
    levels: npt.NDArray[np.uint8],
    weights: _Floats,
    first: npt.NDArray[np.int64],
    bounds: _Floats,
    centers: _Floats,
    scales: _Floats,
    z: _Floats,
    is_active: npt.NDArray[np.bool_],
    sums: _Floats,
) -> None:
    for c in range(len(x)):
        for f in range(len(levels)):
            if not is_active[c, f]:
                continue
            cosh, sinh = math.cosh(z[c, f]), math.sinh(z[c, f])
            slope = curvature = squares = 0.0
            for row in range(x.shape[1]):
                level = levels[f, row]
                if level == NOT_OBSERVED or math.isnan(x[c, row]):
                    continue
                place = first[f] + level
                score, bend = _level_derivatives(
                    bounds[c, place],
                    bounds[c, place + 1],
                    (x[c, row] - centers[c, f]) / scales[c, f],
                    cosh,
                    sinh,
                )
                slope += weights[row] * score
                curvature += weights[row] * (bend - score * score)
                squares += weights[row] * score * score
            sums[0, c, f] += slope
            sums[1, c, f] += curvature
            sums[2, c, f] += squares


@_kernel
def fill_scores(
    x: _Floats,
    levels: npt.NDArray[np.uint8],
    first: npt.NDArray[np.int64],
    bounds: _Floats,
    z: _Floats,
    scores: _Floats,
) -> None:
    """Fill in the derivatives of log P by z, (n_rows, n_features), of one continuous feature.

    `x` is standardized, (n_rows,), `levels` are (n_rows, n_features); `first` and `bounds` are the
    results of `place_bounds`, and `z` is (n_features,).
    """
    for f in range(levels.shape[1]):
        cosh, sinh = math.cosh(z[f]), math.sinh(z[f])
        for row in range(len(x)):
            place = first[f] + levels[row, f]
            scores[row, f], _ = _level_derivatives(
                bounds[place], bounds[place + 1], x[row], cosh, sinh
            )


class PolyserialPairs(NamedTuple):
    """Pairs of continuous features with features of levels, (n_continuous, n_features).

    Attributes
    ----------
    thresholds
        Thresholds of all levels but the lowest, (n_continuous, n_planes).
    centers, scales
        Mean and standard deviation of the continuous feature.
    z
        atanh of the correlation.
    is_active
        Whether Newton's method has not converged yet.
    """

    thresholds: _Floats
    centers: _Floats
    scales: _Floats
    z: _Floats
    is_active: npt.NDArray[np.bool_]


def sum_polyserial_derivatives(
    pairs: PolyserialPairs,
    x: _Floats,
    levels: npt.NDArray[np.uint8],
    weights: _Floats,
    n_levels: npt.NDArray[np.int64],
) -> _Floats:
    """Sum derivatives of log P by z over rows.

    Parameters
    ----------
    pairs
        The pairs; sums of those that are not active are 0.
    x
        Continuous features, (n_continuous, n_rows), NaN where missing.
    levels
        Levels counted from 0, (n_features, n_rows), `NOT_OBSERVED` where missing.
    weights
        Weights of the rows, (n_rows,).
    n_levels
        Number of levels of each feature, (n_features,).

    Returns
    -------
    ndarray
        Sums of the first derivatives, of the second derivatives, and of the squares of the first
        ones, (3, n_continuous, n_features).
    """
    first, bounds = place_bounds(pairs.thresholds, n_levels)
    sums = np.zeros((3, *pairs.z.shape))
    _add_derivatives(
        np.ascontiguousarray(x),
        np.ascontiguousarray(levels),
        weights,
        first,
        bounds,
        pairs.centers,
        pairs.scales,
        pairs.z,
        pairs.is_active,
        sums,
    )
    return sums


def start_polyserial(covariance: _Floats, density: _Floats) -> _Floats:
    """Return a first z, given the covariance of x / σ_x with the level, and Σ φ(h_a)."""
    rho = np.divide(covariance, density, out=np.zeros_like(covariance), where=density > 0)
    start: _Floats = np.clip(np.arctanh(np.clip(rho, -0.99, 0.99)), -_MAX_START, _MAX_START)
    return start


class NewtonBounds(NamedTuple):
    """The interval of z that Newton's method has narrowed down to."""

    lower: _Floats
    upper: _Floats


def step_polyserial(
    pairs: PolyserialPairs, bounds: NewtonBounds, sums: _Floats
) -> tuple[PolyserialPairs, NewtonBounds]:
    """Move the z of active pairs by a step of Newton's method, given the sums of derivatives.

    A step out of the bounds is replaced by their middle. Correlations end at ±MAX_CORRELATION: a z
    that rises beyond ±3 goes there at once, since the steps of Newton's method would become short.
    """
    slope, curvature, squares = sums
    z, active = pairs.z, pairs.is_active
    lower = np.where(active & (slope > 0), z, bounds.lower)
    upper = np.where(active & (slope <= 0), z, bounds.upper)
    # Where the likelihood is not concave, the scores' squares stand for its curvature.
    information = np.where(curvature < 0, -curvature, squares)
    step = np.divide(slope, information, out=np.zeros_like(slope), where=information > 0)
    moved = np.clip(z + step, -MAX_Z, MAX_Z)
    moved = np.where((z > _STEEP) & (slope > 0) & (upper == MAX_Z), MAX_Z, moved)
    moved = np.where((z < -_STEEP) & (slope <= 0) & (lower == -MAX_Z), -MAX_Z, moved)
    moved = np.where((moved < lower) | (moved > upper), 0.5 * (lower + upper), moved)
    moved = np.where(active, moved, z)
    still = active & (np.abs(moved - z) > _TOLERANCE)
    return pairs._replace(z=moved, is_active=still), NewtonBounds(lower, upper)
