"""Posteriors by expectation propagation against the same rounds in NumPy.

python -m tests.benchmarks expectation_propagation

Prints rows per second on one core, the speed relative to NumPy with BLAS, and the iterations per
row. The NumPy version omits the skewness correction, which is most of the work at 50 components.
"""

import numpy as np
from scipy.special import log_ndtr

from pipeline.numerics.probit.expectation_propagation import probit_posterior
from tests.benchmarks._measure import Table, measure_best

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


def main():
    """Print one line per model size."""
    rng = np.random.default_rng(0)
    probit_posterior(*draw_problem(rng, 2, 1, 1))
    table = Table(
        *("features:d", "components:d", "rows/s:9.0f", "speed vs NumPy:.1f"),
        *("mean iterations:.1f", "max iterations:d"),
    )
    for n_features, n_components in SIZES:
        n_rows = min(5000, 40_000_000 // (n_features * n_components**2))
        X, *parameters = draw_problem(rng, n_features, n_components, n_rows)
        rate = n_rows / measure_best(lambda: probit_posterior(X, *parameters))  # noqa: B023
        rows = X[:N_NUMPY_ROWS]
        baseline = len(rows) / measure_best(
            lambda: [numpy_posterior(x, *parameters) for x in rows]  # noqa: B023
        )
        rounds = probit_posterior(X, *parameters).rounds
        table.add(n_features, n_components, rate, rate / baseline, rounds.mean(), rounds.max())


if __name__ == "__main__":
    main()
