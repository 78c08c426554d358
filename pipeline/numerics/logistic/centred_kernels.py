"""Kernels of `centred_points`: log P(t | x) at many points, moments, and the mode of p(x | t).

Rows are processed one by one, and no row's result depends on other rows.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.logistic.logistic_lanes import (
    copy,
    expm1_minus,
    fill,
    fma,
    inlined,
    kernel,
)

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_FACTORS = 512  # factors of at most 2 per logarithm: 2**512 does not overflow
EDGE_REACH = 5.0  # standard deviations within which an edge matters
_MAX_STEPS, _MIN_GAIN = 50, 1e-8  # of Newton's method; nats


@njit(nogil=True, cache=True, error_model="numpy")
def integrate_rows(
    X: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    log_weights: Floats,
    second: Floats,
    mean: Floats,
    covariance: Floats,
    log_likelihood: Floats,
    standard_error: Floats,
) -> None:
    """Compute the posterior moments, log-likelihood and error of each row.

    `second` holds the weights of a second rule relative to those of the points; none for draws.
    """
    n_points = x.shape[1]
    scores, scratch = np.empty(n_points), np.empty((x.shape[2] + 2, n_points))
    for n in range(len(X)):
        _add_log_conditionals(X[n], observed[n], weights, offsets, x[n], scratch, scores)
        scores += log_weights[n]
        largest = scores.max()
        scores[:] = np.exp(scores - largest)
        total = scores.sum()
        scores /= total
        log_likelihood[n] = largest + math.log(total)
        standard_error[n] = (
            _rule_difference(scores, second) if len(second) else _sampling_error(scores)
        )
        _moments_by_share(scores, x[n], mean[n], covariance[n])


@njit(nogil=True, cache=True, error_model="numpy")
def _sampling_error(shares: Floats) -> float:
    """Return the standard error of the log of a mean of draws with these shares."""
    n = len(shares)
    return math.sqrt(max((shares**2).sum() - 1 / n, 0.0) * n / (n - 1))


@njit(nogil=True, cache=True, error_model="numpy")
def _rule_difference(shares: Floats, second: Floats) -> float:
    """Return the difference between the logs of two rules, at most 1 nat."""
    total = 0.0
    for point in range(len(shares)):
        total += shares[point] * second[point]
    return min(abs(math.log(total)), 1.0) if total > 0 else 1.0


@njit(nogil=True, cache=True, error_model="numpy")
def fill_steepest_edges(
    observed: Bits, weights: Floats, offsets: Floats, mean: Floats, root: Floats, steepest: Floats
) -> None:
    """Compute the steepest slope among the observed items whose edge the row's Gaussian reaches.

    Slopes, (n_samples,), are in units of the Gaussian.
    """
    q = mean.shape[1]
    for n in range(len(mean)):
        largest = 0.0
        for i in range(len(weights)):
            if observed[n, i]:
                eta, size = offsets[i], 0.0
                for k in range(q):
                    eta += weights[i, k] * mean[n, k]
                    slope = 0.0
                    for j in range(k, q):
                        slope += weights[i, j] * root[n, j, k]
                    size += slope * slope
                if eta * eta <= EDGE_REACH * EDGE_REACH * size:
                    largest = max(largest, size)
        steepest[n] = math.sqrt(largest)


@kernel
def _add_log_conditionals(
    t: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    scratch: Floats,
    scores: Floats,
) -> None:
    """Compute log P(t | x) = −Σ_i log(1 + exp(∓η_i)) at all points.

    The loops over points have no branches, so that they are vectorized.
    """
    product, eta, n_factors = scratch[-2], scratch[-1], 0
    for k in range(x.shape[1]):
        copy(x[:, k], scratch[k])
    fill(scores, 0.0)
    fill(product, 1.0)
    for i in range(len(t)):
        if observed[i]:
            sign = 1.0 if t[i] else -1.0
            fill(eta, sign * offsets[i])
            for k in range(x.shape[1]):
                _add_multiple(sign * weights[i, k], scratch[k], eta)
            _multiply_factors(eta, scores, product)
            n_factors += 1
            if n_factors == _FACTORS:
                _take_logarithms(product, scores)
                n_factors = 0
    _take_logarithms(product, scores)


@inlined
def _add_multiple(factor: float, source: Floats, out: Floats) -> None:
    for point in range(len(out)):
        out[point] = fma(factor, source[point], out[point])


@inlined
def _multiply_factors(eta: Floats, scores: Floats, product: Floats) -> None:
    """Subtract log(1 + exp(−η)): max(−η, 0) at once, 1 + exp(−|η|) as a factor."""
    for point in range(len(eta)):
        scores[point] += min(eta[point], 0.0)
        product[point] *= 2.0 + expm1_minus(abs(eta[point]))


@inlined
def _take_logarithms(product: Floats, scores: Floats) -> None:
    for point in range(len(scores)):
        scores[point] -= math.log(product[point])
        product[point] = 1.0


@njit(nogil=True, cache=True, error_model="numpy")
def _log_conditional(t: Bits, observed: Bits, weights: Floats, offsets: Floats, x: Floats) -> float:
    """Return log P(t | x) at one point."""
    total = 0.0
    for i in range(len(t)):
        if observed[i]:
            eta = offsets[i]
            for k in range(len(x)):
                eta += weights[i, k] * x[k]
            eta = eta if t[i] else -eta
            total += min(eta, 0.0) - math.log1p(math.exp(-abs(eta)))
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def _moments_by_share(shares: Floats, x: Floats, mean: Floats, covariance: Floats) -> None:
    """Compute the mean and covariance of points with these shares."""
    mean[:], covariance[:] = 0.0, 0.0
    for point in range(len(shares)):
        for k in range(len(mean)):
            mean[k] += shares[point] * x[point, k]
    for point in range(len(shares)):
        for k in range(len(mean)):
            for j in range(k + 1):
                gap = (x[point, k] - mean[k]) * (x[point, j] - mean[j])
                covariance[k, j] += shares[point] * gap
    for k in range(len(mean)):
        for j in range(k):
            covariance[j, k] = covariance[k, j]


@njit(nogil=True, cache=True, error_model="numpy")
def fill_modes(
    X: Bits, observed: Bits, weights: Floats, offsets: Floats, mode: Floats, covariance: Floats
) -> None:
    """Compute modes, starting from the given ones, and covariances."""
    q = mode.shape[1]
    gradient, precision = np.empty(q), np.empty((q, q))
    for n in range(len(X)):
        row = (X[n], observed[n], weights, offsets)
        for _ in range(_MAX_STEPS):
            _fill_derivatives(*row, mode[n], gradient, precision)
            step = np.linalg.solve(precision, gradient)
            gain = (step * gradient).sum()
            if gain < _MIN_GAIN:
                break
            mode[n] = _backtrack_step(*row, mode[n], step, gain)
        covariance[n] = np.linalg.inv(precision)


@njit(nogil=True, cache=True, error_model="numpy")
def _backtrack_step(
    t: Bits, observed: Bits, weights: Floats, offsets: Floats, x: Floats, step: Any, gain: float
) -> Any:
    """Shorten a step until the posterior rises by a share of what its gradient predicts."""
    start = _log_conditional(t, observed, weights, offsets, x) - 0.5 * (x**2).sum()
    size = 1.0
    while size > 1e-6:
        trial = x + size * step
        reached = _log_conditional(t, observed, weights, offsets, trial) - 0.5 * (trial**2).sum()
        if reached >= start + 1e-4 * size * gain:
            return trial
        size *= 0.5
    return x


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_derivatives(
    t: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    gradient: Floats,
    precision: Floats,
) -> None:
    """Compute the gradient of log p(x | t) and minus its Hessian."""
    gradient[:] = -x
    precision[:] = np.eye(len(x))
    for i in range(len(t)):
        if observed[i]:
            eta = offsets[i]
            for k in range(len(x)):
                eta += weights[i, k] * x[k]
            p = 1 / (1 + math.exp(-eta))
            for k in range(len(x)):
                gradient[k] += (t[i] - p) * weights[i, k]
                for j in range(len(x)):
                    precision[k, j] += p * (1 - p) * weights[i, k] * weights[i, j]
