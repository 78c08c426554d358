"""Log-likelihoods of rows of ordered levels under thresholded normals: rectangle probabilities.

With w ~ N(0, R), feature i is at level c iff t_ic < w_i ≤ t_i,c+1, so P(x) is the probability of a
rectangle. It is integrated by separation of variables (Genz 1992): w = L z with z ~ N(0, I), drawn
one variable after the other, each within its interval. P is the mean product of the probabilities
of the intervals. The points are a Kronecker sequence of the square roots of primes, folded by the
baker's transformation and shifted at random; independent shifts give the standard error.

Genz (1992), Numerical computation of multivariate normal probabilities, Journal of Computational
and Graphical Statistics 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.compilation import callee
from pipeline.numerics.gaussian.bivariate_normal import norm_cdf, norm_ppf
from pipeline.random import RowRandom

Floats = NDArray[np.float64]

_N_SHIFTS, _MIN_POINTS, _MAX_POINTS = 8, 64, 4096
_TOLERANCE = 1e-3
_FAR = 38.0
_LEAST, _MAX_EXPONENT = 1e-300, 600.0
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def log_interval_probability(
    levels: NDArray[np.uint8],
    correlation: Floats,
    thresholds: Floats,
    n_levels: NDArray[np.int64],
    observed: NDArray[Any] | None = None,
) -> tuple[Floats, Floats]:
    """Estimate log P(x) of every row of levels.

    The result of a row depends on that row alone.

    Parameters
    ----------
    levels
        Levels counted from 0, (n_samples, n_features).
    correlation
        R, positive definite with unit diagonal, (n_features, n_features).
    thresholds
        The t, increasing within a feature, (n_planes,).
    n_levels
        Number of levels of each feature, (n_features,).
    observed
        False where a value is missing, (n_samples, n_features). Missing values are integrated out.

    Returns
    -------
    ndarray, ndarray
        Nats, and the standard error of each row that the shifts give, (n_samples,) each. All rows
        share the shifts, so their errors are not independent.
    """
    n_features = len(n_levels)
    first = np.cumsum(n_levels + 1) - (n_levels + 1)
    bounds = np.full(int((n_levels + 1).sum()), _FAR)
    bounds[first] = -_FAR
    inner = np.ones(len(bounds), np.bool_)
    inner[first] = inner[first + n_levels] = False
    bounds[inner] = np.clip(thresholds, -_FAR, _FAR)
    places = first + levels
    mask = np.ones(levels.shape, np.bool_) if observed is None else observed.astype(np.bool_)
    lower = np.where(mask, bounds[places], -_FAR)
    upper = np.where(mask, bounds[places + 1], _FAR)
    shifts = RowRandom(0).uniform(np.arange(_N_SHIFTS), n_features)
    steps = np.sqrt(_list_primes(n_features)) % 1.0
    nats, errors = np.empty((2, len(levels)))
    _fill(np.linalg.cholesky(correlation), lower, upper, shifts, steps, nats, errors)
    return nats, errors


def _list_primes(n: int) -> NDArray[np.int64]:
    """Return the first primes."""
    sieve = np.ones(max(16, 20 * n), np.bool_)
    sieve[:2] = False
    for k in range(2, math.isqrt(len(sieve)) + 1):
        sieve[k * k :: k] = False
    return np.flatnonzero(sieve)[:n]


@callee(**_OPTIONS)
def _share_between(lower: float, upper: float) -> float:
    """Return Φ(upper) − Φ(lower), precise in both tails."""
    if lower + upper > 0.0:
        lower, upper = -upper, -lower
    share: float = norm_cdf(upper) - norm_cdf(lower)
    return max(share, _LEAST)


@callee(**_OPTIONS)
def _draw_between(lower: float, upper: float, u: float) -> float:
    """Return the quantile u of a normal within an interval."""
    if lower + upper > 0.0:
        return -_draw_in_lower_tail(-upper, -lower, 1.0 - u)
    return _draw_in_lower_tail(lower, upper, u)


@callee(**_OPTIONS)
def _draw_in_lower_tail(lower: float, upper: float, u: float) -> float:
    below: float = norm_cdf(lower)
    quantile: float = norm_ppf(max(below + u * (norm_cdf(upper) - below), _LEAST))
    return min(max(quantile, lower), upper)


@njit(**_OPTIONS, cache=True)
def _fill(
    root: Floats,
    lower: Floats,
    upper: Floats,
    shifts: Floats,
    steps: Floats,
    nats: Floats,
    errors: Floats,
) -> None:
    n, z = len(root), np.zeros(len(root))
    for row in range(len(lower)):
        sums, n_points, first = np.zeros(len(shifts)), _MIN_POINTS, 0
        base = 0.0  # of logarithms: products of many probabilities would underflow
        while True:
            for s in range(len(shifts)):
                for point in range(first, n_points):
                    log_weight = 0.0
                    for i in range(n):
                        mean = 0.0
                        for j in range(i):
                            mean += root[i, j] * z[j]
                        a = (lower[row, i] - mean) / root[i, i]
                        b = (upper[row, i] - mean) / root[i, i]
                        log_weight += math.log(_share_between(a, b))
                        if i + 1 < n:
                            position = (point + 1) * steps[i] + shifts[s, i]
                            u = abs(2.0 * (position - math.floor(position)) - 1.0)
                            z[i] = _draw_between(a, b, u)
                    if s == 0 and point == 0:
                        base = log_weight
                    sums[s] += math.exp(min(log_weight - base, _MAX_EXPONENT))
            means = sums / n_points
            mean_weight = max(means.mean(), _LEAST)
            error = means.std() / math.sqrt(len(shifts) - 1.0) / mean_weight
            if error <= _TOLERANCE or 2 * n_points > _MAX_POINTS:
                break
            first, n_points = n_points, 2 * n_points
        nats[row], errors[row] = base + math.log(mean_weight), error
