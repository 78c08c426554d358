"""The logistic bound: core nanoseconds per row, feature and round, against the same in NumPy.

`python -m tests.benchmarks.logistic_bound`. The last lines are the size that the kernels were made
for: rounds until the bound rests, and three rounds, each with the sums for the M-step.
"""

import time

import numpy as np
from scipy.special import expit

from pipeline.numerics.bits.kernels import pack_rows, unpack_rows
from pipeline.numerics.logistic.logistic_bound import variational_e_step, variational_row_posterior

REPEATS = 5
VALUES = 2_000_000  # bits of a measurement at one or two components


def problem(rng, n_samples, n_features, q):
    """Rows of a model whose components explain about half of the logits, and its parameters."""
    weights = 1.5 / np.sqrt(q) * rng.normal(size=(n_features, q))
    offsets = rng.normal(size=n_features)
    x = rng.normal(size=(n_samples, q))
    T = rng.random((n_samples, n_features)) < expit(x @ weights.T + offsets)
    return pack_rows(T.astype(np.uint8)), None, n_samples, weights, offsets


def numpy_rounds(words, observed_words, n_samples, weights, offsets, n_rounds):
    """Means, covariances and bounds, all rows at once."""
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


def core_seconds(function, repeats=REPEATS):
    """The least of some runs; neighbours on the same cores do not count."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def compare(rng, n_features, q):
    """Print one line of nanoseconds and ratios."""
    n_samples = 64 * max(1, int(VALUES / n_features / 64 * 6 / max(6, (q + 1) * (q + 2))))
    rows = problem(rng, n_samples, n_features, q)
    one, three, nine = (
        core_seconds(lambda: variational_row_posterior(*rows, tol=0, max_rounds=n))  # noqa: B023
        for n in (1, 3, 9)
    )
    sums = core_seconds(lambda: variational_e_step(*rows, tol=0, max_rounds=3))
    naive = core_seconds(lambda: numpy_rounds(*rows, 3), 2)
    mean, _, bound = numpy_rounds(*rows, 3)
    posterior = variational_row_posterior(*rows, tol=0, max_rounds=3)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-10)
    np.testing.assert_allclose(posterior.bound, bound, atol=1e-9)
    unit = 1e9 / (n_samples * n_features)
    print(
        f"{q:3d} components {n_features:4d} features: {(nine - one) / 8 * unit:6.2f} ns a round, "
        f"{three * unit:6.2f} for three, {sums * unit:6.2f} with sums; "
        f"NumPy {naive * unit:6.1f} for three, {naive / three:.1f} x",
        flush=True,
    )


def extrapolate(rng, n_features=128, q=2, n_samples=2**16):
    """Print core seconds for two million rows."""
    rows = problem(rng, n_samples, n_features, q)
    scale = 2e6 / n_samples
    forced = core_seconds(lambda: variational_e_step(*rows, tol=0, max_rounds=3), 3)
    rested = core_seconds(lambda: variational_e_step(*rows), 3)
    rounds = variational_row_posterior(*rows).rounds
    print(
        f"2 million rows of {n_features} features, {q} components: "
        f"{forced * scale:.1f} core seconds for three rounds and sums, {rested * scale:.1f} until "
        f"the bound rests ({rounds.mean():.1f} rounds, at most {rounds.max()})"
    )


def main():
    rng = np.random.default_rng(0)
    variational_e_step(*problem(rng, 64, 4, 1))
    for q in (1, 2, 3, 5, 10):
        for n_features in (16, 128, 256):
            compare(rng, n_features, q)
    extrapolate(rng)


if __name__ == "__main__":
    main()
