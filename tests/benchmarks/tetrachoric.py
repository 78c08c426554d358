"""Tetrachoric correlations of feature pairs against a root finder from SciPy.

python -m tests.benchmarks tetrachoric

Prints millions of pairs per second on one core, and the speed relative to SciPy solving one pair.
"""

from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import multivariate_normal

from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.pair_tables import tetrachoric
from tests.benchmarks._measure import Table, measure_best

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


def main():
    """Print one line per kind of data."""
    rng = np.random.default_rng(0)
    tetrachoric(10, 5, 5, 2)
    example = (N_ROWS, 40_000, 30_000, 15_000)
    baseline = measure_best(partial(solve_with_scipy, *example))
    table = Table("data:<30", "M pairs/s:.2f", "speed vs SciPy:.0f")
    for name, mean, spread in (
        ("balanced, weakly correlated", 0.0, 0.2),
        ("balanced, strongly correlated", 0.0, 1.0),
        ("rare ones", 1.8, 0.2),
    ):
        counts = draw_counts(rng, mean, spread)
        pair = measure_best(partial(tetrachoric, *counts)) / (TILE[0] * TILE[1])
        table.add(name, 1e-6 / pair, baseline / pair)


if __name__ == "__main__":
    main()
