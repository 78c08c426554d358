"""Posteriors by expectation propagation against the same rounds in NumPy.

python -m tests.benchmarks expectation_propagation

Prints rows per second on one core, the speed relative to NumPy with BLAS, and the iterations per
row. The NumPy version omits the skewness correction, which is most of the work at 50 components.
"""

import time

import numpy as np
from scipy.special import log_ndtr

from pipeline.numerics.probit.expectation_propagation import probit_posterior

SIZES = ((64, 5), (256, 10), (256, 30), (2000, 50))
N_NUMPY_ROWS = 20


def draw_problem(rng, n_features, n_components, n_rows):
    """Return rows and parameters of a model with communalities from 0.3 to 0.9."""
    directions = rng.normal(size=(n_features, n_components))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    communality = rng.uniform(0.3, 0.9, n_features)
    noise = np.sqrt(1 - communality)
    weights = directions * (np.sqrt(communality) / noise)[:, None]
    offsets = -rng.normal(0, 0.7, n_features) / noise
    y = rng.normal(size=(n_rows, n_components))
    X = rng.normal(size=(n_rows, n_features)) < y @ weights.T + offsets
    return X.astype(np.uint8), weights, offsets


def numpy_posterior(x, weights, offsets, tol=1e-5):
    """Return the posterior mean and variance of one row, without the skewness correction."""
    sign = 2.0 * x - 1
    w, b = weights * sign[:, None], offsets * sign
    precision, shift = np.zeros((2, len(w)))
    mean, covariance, change = np.zeros(w.shape[1]), np.eye(w.shape[1]), np.inf
    while change >= tol:
        marginal_mean, marginal_variance = w @ mean, (w @ covariance * w).sum(axis=1)
        scale = 1 / (1 - precision * marginal_variance)
        c, m = scale * marginal_variance, scale * (marginal_mean - marginal_variance * shift)
        z = (m + b) / np.sqrt(1 + c)
        slope = np.exp(-0.5 * z * z - log_ndtr(z)) / np.sqrt(2 * np.pi)
        curvature = slope * (slope + z)
        precision = curvature / (1 + c * (1 - curvature))
        shift = (slope * np.sqrt(1 + c) + m * curvature) / (1 + c * (1 - curvature))
        before = mean, np.diag(covariance)
        covariance = np.linalg.inv(np.eye(len(mean)) + w.T * precision @ w)
        mean = covariance @ (w.T @ shift)
        change = (abs(mean - before[0]) + abs(np.diag(covariance) - before[1])).max()
    return mean, np.diag(covariance)


def measure_seconds(function):
    """Return the wall time of the fastest of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    """Print one line per model size."""
    rng = np.random.default_rng(0)
    probit_posterior(*draw_problem(rng, 2, 1, 1))
    print(
        f"{'features':>8} {'components':>10} {'rows/s':>9} {'speed vs NumPy':>14} "
        f"{'mean iterations':>15} {'max iterations':>14}"
    )
    for n_features, n_components in SIZES:
        n_rows = min(5000, 40_000_000 // (n_features * n_components**2))
        X, *parameters = draw_problem(rng, n_features, n_components, n_rows)
        rate = n_rows / measure_seconds(lambda: probit_posterior(X, *parameters))  # noqa: B023
        rows = X[:N_NUMPY_ROWS]
        baseline = len(rows) / measure_seconds(
            lambda: [numpy_posterior(x, *parameters) for x in rows]  # noqa: B023
        )
        rounds = probit_posterior(X, *parameters).rounds
        print(
            f"{n_features:8d} {n_components:10d} {rate:9.0f} {rate / baseline:14.1f} "
            f"{rounds.mean():15.1f} {rounds.max():14}"
        )


if __name__ == "__main__":
    main()
