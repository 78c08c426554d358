"""Tetrachoric correlations of feature pairs against a root finder from SciPy.

python -m tests.benchmarks tetrachoric

Prints millions of pairs per second on one core, and the speed relative to SciPy solving one pair.
"""

import time

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import multivariate_normal

from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.pair_tables import tetrachoric

N_ROWS = 100_000
TILE = (256, 4000)


def draw_counts(rng, mean, spread):
    """Draw the counts of pairs whose features have thresholds around `mean`."""
    h = rng.normal(mean, 0.7, (TILE[0], 1))
    k = rng.normal(mean, 0.7, TILE[1])
    rho = np.tanh(rng.normal(0, spread, TILE))
    joint = rng.binomial(N_ROWS, bivariate_normal_cdf_array(-h, -k, rho))
    ones_i = np.maximum(rng.binomial(N_ROWS, ndtr(-h)), joint.max(axis=1, keepdims=True))
    ones_j = np.maximum(rng.binomial(N_ROWS, ndtr(-k)), joint.max(axis=0))
    return N_ROWS, ones_i, ones_j, np.maximum(joint, ones_i + ones_j - N_ROWS)


def solve_with_scipy(n, ones_i, ones_j, joint):
    """Return the correlation by SciPy's distribution function and Brent's method."""
    limits = ndtri([ones_i / n, ones_j / n])

    def difference(rho):
        return multivariate_normal.cdf(limits, cov=[[1, rho], [rho, 1]]) - joint / n

    return brentq(difference, -0.99, 0.99)


def measure_seconds(function, *arguments):
    """Return the wall time of the fastest of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    """Print one line per kind of data."""
    rng = np.random.default_rng(0)
    tetrachoric(10, 5, 5, 2)
    example = (N_ROWS, 40_000, 30_000, 15_000)
    baseline = measure_seconds(solve_with_scipy, *example)
    print(f"{'data':30s} {'M pairs/s':>9} {'speed vs SciPy':>14}")
    for name, mean, spread in (
        ("balanced, weakly correlated", 0.0, 0.2),
        ("balanced, strongly correlated", 0.0, 1.0),
        ("rare ones", 1.8, 0.2),
    ):
        counts = draw_counts(rng, mean, spread)
        pair = measure_seconds(tetrachoric, *counts) / (TILE[0] * TILE[1])
        print(f"{name:30s} {1e-6 / pair:9.2f} {baseline / pair:14.0f}")


if __name__ == "__main__":
    main()
