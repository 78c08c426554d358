"""Pairs a second on one core, and against one root found by SciPy.

python -m tests.benchmarks.tetrachoric
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


def tile(rng, mean, spread):
    """Counts of a tile of pairs whose features have thresholds around `mean`."""
    h = rng.normal(mean, 0.7, (TILE[0], 1))
    k = rng.normal(mean, 0.7, TILE[1])
    rho = np.tanh(rng.normal(0, spread, TILE))
    joint = rng.binomial(N_ROWS, bivariate_normal_cdf_array(-h, -k, rho))
    ones_i = np.maximum(rng.binomial(N_ROWS, ndtr(-h)), joint.max(axis=1, keepdims=True))
    ones_j = np.maximum(rng.binomial(N_ROWS, ndtr(-k)), joint.max(axis=0))
    return N_ROWS, ones_i, ones_j, np.maximum(joint, ones_i + ones_j - N_ROWS)


def scipy_root(n, ones_i, ones_j, joint):
    """The same root by SciPy's distribution function and Brent's method."""
    limits = ndtri([ones_i / n, ones_j / n])

    def difference(rho):
        return multivariate_normal.cdf(limits, cov=[[1, rho], [rho, 1]]) - joint / n

    return brentq(difference, -0.99, 0.99)


def seconds(function, *arguments):
    """The best of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    """Print one line for each kind of data."""
    rng = np.random.default_rng(0)
    tetrachoric(10, 5, 5, 2)
    example = (N_ROWS, 40_000, 30_000, 15_000)
    baseline = seconds(scipy_root, *example)
    for name, mean, spread in (
        ("balanced, weakly correlated", 0.0, 0.2),
        ("balanced, strongly correlated", 0.0, 1.0),
        ("rare ones", 1.8, 0.2),
    ):
        counts = tile(rng, mean, spread)
        pair = seconds(tetrachoric, *counts) / (TILE[0] * TILE[1])
        print(f"{name:30s} {1e-6 / pair:5.2f} M pairs/s   {baseline / pair:6.0f} x SciPy")


if __name__ == "__main__":
    main()
