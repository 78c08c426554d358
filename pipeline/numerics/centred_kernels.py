"""Row by row: log P(t | x) at many points, moments of points, the mode of p(x | t).

`centred_points` says what for. No row's result depends on its neighbours.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_FACTORS = 8  # of up to 2 before a logarithm
_MOST_STEPS, _LEAST_GAIN = 50, 1e-8  # of Newton's method; nats


@njit(nogil=True, cache=True, error_model="numpy")
def integrate(
    X: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    log_weights: Floats,
    mean: Floats,
    covariance: Floats,
    log_likelihood: Floats,
    standard_error: Floats,
) -> None:
    """Fill in the results of some rows, row by row."""
    n_points = x.shape[1]
    scores = np.empty(n_points)
    for n in range(len(X)):
        for point in range(n_points):
            log_p = _log_conditional(X[n], observed[n], weights, offsets, x[n, point])
            scores[point] = log_weights[n, point] + log_p
        largest = scores.max()
        scores[:] = np.exp(scores - largest)
        total = scores.sum()
        scores /= total
        log_likelihood[n] = largest + math.log(total)
        excess = (scores**2).sum() - 1 / n_points
        standard_error[n] = math.sqrt(max(excess, 0.0) * n_points / (n_points - 1))
        _moments(scores, x[n], mean[n], covariance[n])


@njit(nogil=True, cache=True, error_model="numpy")
def _log_conditional(t: Bits, observed: Bits, weights: Floats, offsets: Floats, x: Floats) -> float:
    """log P(t | x) = −Σ_i log(1 + exp(−η_i)), with η_i of the sign that t_i asks for."""
    below, product, n_factors = 0.0, 1.0, 0
    for i in range(len(t)):
        if observed[i]:
            eta = offsets[i]
            for k in range(len(x)):
                eta += weights[i, k] * x[k]
            eta = eta if t[i] else -eta
            below += min(eta, 0.0)
            product *= 1 + math.exp(-abs(eta))
            n_factors += 1
            if n_factors == _FACTORS:
                below, product, n_factors = below - math.log(product), 1.0, 0
    return below - math.log(product)


@njit(nogil=True, cache=True, error_model="numpy")
def _moments(shares: Floats, x: Floats, mean: Floats, covariance: Floats) -> None:
    """Mean and covariance of points that have these shares."""
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
def climb(
    X: Bits, observed: Bits, weights: Floats, offsets: Floats, mode: Floats, covariance: Floats
) -> None:
    """Fill in modes, from a first guess, and covariances."""
    q = mode.shape[1]
    gradient, precision = np.empty(q), np.empty((q, q))
    for n in range(len(X)):
        row = (X[n], observed[n], weights, offsets)
        for _ in range(_MOST_STEPS):
            _derivatives(*row, mode[n], gradient, precision)
            step = np.linalg.solve(precision, gradient)
            gain = (step * gradient).sum()
            if gain < _LEAST_GAIN:
                break
            mode[n] = _ascended(*row, mode[n], step, gain)
        covariance[n] = np.linalg.inv(precision)


@njit(nogil=True, cache=True, error_model="numpy")
def _ascended(
    t: Bits, observed: Bits, weights: Floats, offsets: Floats, x: Floats, step: Any, gain: float
) -> Any:
    """Go as far along a step as the posterior rises by a share of what its slope promises."""
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
def _derivatives(
    t: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    gradient: Floats,
    precision: Floats,
) -> None:
    """Fill in the gradient of log p(x | t) and minus its Hessian."""
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
