"""The variational bound of logistic models against the same rounds in NumPy.

python -m tests.benchmarks logistic_bound

Prints CPU nanoseconds per row and feature, and the speed relative to NumPy. `three rounds + sums`
adds the sums for the M-step. The last line shows CPU seconds for 2 million rows of 128 features.
"""

import time

import numpy as np
from scipy.special import expit

from pipeline.numerics.bits.kernels import pack_rows, unpack_rows
from pipeline.numerics.logistic.logistic_bound import variational_e_step, variational_row_posterior
from tests.benchmarks._measure import Table, measure_best

VALUES = 2_000_000  # values per measurement with one or two components


def draw_problem(rng, n_samples, n_features, q):
    """Draw rows and parameters of components that explain about half of the logits' variance."""
    weights = 1.5 / np.sqrt(q) * rng.normal(size=(n_features, q))
    offsets = rng.normal(size=n_features)
    x = rng.normal(size=(n_samples, q))
    T = rng.random((n_samples, n_features)) < expit(x @ weights.T + offsets)
    return pack_rows(T.astype(np.uint8)), None, n_samples, weights, offsets


def run_numpy_rounds(words, observed_words, n_samples, weights, offsets, n_rounds):
    """Return means, covariances and bounds, computed for all rows at once."""
    signs = unpack_rows(words, n_samples) - 0.5
    q = weights.shape[1]
    mean, covariance = np.zeros((n_samples, q)), np.tile(np.eye(q), (n_samples, 1, 1))
    products = np.einsum("ik,il->ikl", weights, weights).reshape(-1, q * q)
    for _ in range(n_rounds):
        spread = covariance.reshape(-1, q * q) @ products.T
        xi = np.sqrt(spread + (mean @ weights.T + offsets) ** 2)
        lam = -np.tanh(xi / 2) / (4 * xi)
        precision = np.eye(q) - 2 * (lam @ products).reshape(-1, q, q)
        covariance = np.linalg.inv(precision)
        linear = (signs + 2 * lam * offsets) @ weights
        mean = np.einsum("nkl,nl->nk", covariance, linear)
        factors = -np.logaddexp(0, -xi) - xi / 2 - lam * xi**2
        bound = (factors + signs * offsets + lam * offsets**2).sum(axis=1)
        bound += 0.5 * (linear * mean).sum(axis=1) - 0.5 * np.linalg.slogdet(precision)[1]
    return mean, covariance, bound


def measure_cpu(function, repeats=5):
    """Return the CPU time of the fastest of several runs."""
    return measure_best(function, repeats, time.process_time)


def compare(table, rng, n_features, q):
    """Print one line of the table."""
    n_samples = 64 * max(1, int(VALUES / n_features / 64 * 6 / max(6, (q + 1) * (q + 2))))
    rows = draw_problem(rng, n_samples, n_features, q)
    one, three, nine = (
        measure_cpu(lambda: variational_row_posterior(*rows, tol=0, max_rounds=n))  # noqa: B023
        for n in (1, 3, 9)
    )
    sums = measure_cpu(lambda: variational_e_step(*rows, tol=0, max_rounds=3))
    numpy_seconds = measure_cpu(lambda: run_numpy_rounds(*rows, 3), 2)
    mean, _, bound = run_numpy_rounds(*rows, 3)
    posterior = variational_row_posterior(*rows, tol=0, max_rounds=3)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-10)
    np.testing.assert_allclose(posterior.bound, bound, atol=1e-9)
    unit = 1e9 / (n_samples * n_features)
    times = ((nine - one) / 8 * unit, three * unit, sums * unit, numpy_seconds * unit)
    table.add(q, n_features, *times, numpy_seconds / three)


def extrapolate(rng, n_features=128, q=2, n_samples=2**16):
    """Print CPU seconds for two million rows, extrapolated from a sample."""
    rows = draw_problem(rng, n_samples, n_features, q)
    scale = 2e6 / n_samples
    three_rounds = measure_cpu(lambda: variational_e_step(*rows, tol=0, max_rounds=3), 3)
    until_converged = measure_cpu(lambda: variational_e_step(*rows), 3)
    rounds = variational_row_posterior(*rows).rounds
    print(
        f"2 million rows of {n_features} features, {q} components: "
        f"three rounds + sums {three_rounds * scale:.1f} CPU s, until convergence "
        f"{until_converged * scale:.1f} CPU s ({rounds.mean():.1f} rounds, at most {rounds.max()})"
    )


def main():
    """Print the table and the extrapolation."""
    rng = np.random.default_rng(0)
    variational_e_step(*draw_problem(rng, 64, 4, 1))
    print("CPU nanoseconds per row and feature")
    table = Table(
        *("components:d", "features:d", "per round:.2f", "three rounds:.2f"),
        *("three rounds + sums:.2f", "NumPy three rounds:.1f", "speed vs NumPy:.1f"),
    )
    for q in (1, 2, 3, 5, 10):
        for n_features in (16, 128, 256):
            compare(table, rng, n_features, q)
    extrapolate(rng)


if __name__ == "__main__":
    main()
