"""Posterior rows a second on one core, and against the same rounds in NumPy and BLAS.

The rounds in NumPy leave out the skewness correction, which at 50 components is most of the work.

python -m tests.benchmarks.expectation_propagation
"""

import time

import numpy as np
from scipy.special import log_ndtr

from pipeline.numerics.probit.expectation_propagation import probit_posterior

SIZES = ((64, 5), (256, 10), (256, 30), (2000, 50))
ROWS_OF_NUMPY = 20


def data(rng, n_features, n_components, n_rows):
    """Rows and parameters of a model with communalities from 0.3 to 0.9."""
    directions = rng.normal(size=(n_features, n_components))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    communality = rng.uniform(0.3, 0.9, n_features)
    noise = np.sqrt(1 - communality)
    weights = directions * (np.sqrt(communality) / noise)[:, None]
    offsets = -rng.normal(0, 0.7, n_features) / noise
    y = rng.normal(size=(n_rows, n_components))
    X = rng.normal(size=(n_rows, n_features)) < y @ weights.T + offsets
    return X.astype(np.uint8), weights, offsets, np.zeros(n_components), np.ones(n_components)


def numpy_rounds(x, weights, offsets, tol=1e-5):
    """Mean and variance of one row with a standard prior, without the skewness correction."""
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


def seconds(function):
    """The best of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    rng = np.random.default_rng(0)
    probit_posterior(*data(rng, 2, 1, 1))
    for n_features, n_components in SIZES:
        n_rows = min(5000, 40_000_000 // (n_features * n_components**2))
        X, *parameters = data(rng, n_features, n_components, n_rows)
        rate = n_rows / seconds(lambda: probit_posterior(X, *parameters))  # noqa: B023
        rows = X[:ROWS_OF_NUMPY]
        baseline = len(rows) / seconds(
            lambda: [numpy_rounds(x, *parameters[:2]) for x in rows]  # noqa: B023
        )
        rounds = probit_posterior(X, *parameters).rounds
        print(
            f"{n_features:5d} features {n_components:3d} components  {rate:9.0f} rows/s  "
            f"{rate / baseline:5.1f} x NumPy  {rounds.mean():.1f} rounds, at most {rounds.max()}"
        )


if __name__ == "__main__":
    main()
