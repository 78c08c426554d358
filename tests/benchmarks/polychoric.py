"""Polychoric correlations of features with several levels, with and without counting the rows.

python -m tests.benchmarks polychoric

Prints CPU seconds for all pairs of 200 features × 100,000 rows, the mean error against the
correlations that the rows were drawn with, and how many times faster this is than a search of the
maximum with SciPy for each pair.
"""

import time
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

from pipeline.data.blocks import pack_block
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.polychoric import polychoric
from pipeline.statistics.counts import PairCounts
from tests.benchmarks._measure import Table, measure_best

N_ROWS, N_FEATURES = 100_000, 200


def draw_planes(n_levels, rng):
    """Return planes of features with three factors, and the correlations of their latents."""
    loadings = rng.uniform(-0.55, 0.55, (N_FEATURES, 3))
    x = rng.standard_normal((N_ROWS, 3)) @ loadings.T
    x += np.sqrt(1 - (loadings**2).sum(axis=1)) * rng.standard_normal(x.shape)
    cuts = np.sort(rng.uniform(-1.8, 1.8, (N_FEATURES, n_levels - 1)), axis=1)
    planes = np.hstack([x[:, [i]] > cuts[i] for i in range(N_FEATURES)]).astype(np.uint8)
    return planes, loadings @ loadings.T


def search_maximum(table):
    """Return the correlation of greatest likelihood by Brent's method."""
    n = table.sum()
    h, k = (ndtri(np.append(0, table.sum(axis=a).cumsum() / n).clip(0, 1)) for a in (1, 0))

    def loss(rho):
        corners = bivariate_normal_cdf_array(h[:, None], k, rho)
        cells = np.diff(np.diff(corners, axis=0), axis=1)
        return -(table * np.log(np.maximum(cells, 1e-300))).sum()

    return minimize_scalar(loss, bounds=(-0.999, 0.999), method="bounded").x


def make_table(joint, ones, i, j, n_levels):
    """Return the counts of the cells of one pair."""
    rows, columns = (slice(f * (n_levels - 1), (f + 1) * (n_levels - 1)) for f in (i, j))
    corners = np.zeros((n_levels + 1, n_levels + 1))
    corners[0, 0] = N_ROWS
    corners[1:-1, 0], corners[0, 1:-1] = ones[rows], ones[columns]
    corners[1:-1, 1:-1] = joint[rows, columns]
    return np.diff(np.diff(corners, axis=0), axis=1)


def measure_cpu_seconds(function, *arguments):
    """Return the CPU seconds of the fastest of three runs, and the result."""
    results = []
    seconds = measure_best(lambda: results.append(function(*arguments)), clock=time.process_time)
    return seconds, results[-1]


def main():
    """Print one line per number of levels."""
    rng = np.random.default_rng(0)
    upper = np.triu_indices(N_FEATURES, 1)
    table = Table(
        *("levels:d", "counts s:.2f", "correlations s:.2f", "mean error:.5f", "vs SciPy:.0f"),
    )
    for n_levels in (2, 3, 5, 7):
        planes, truth = draw_planes(n_levels, rng)
        block = pack_block(planes)
        counting, counts = measure_cpu_seconds(partial(PairCounts.from_block, block, pooled=True))
        pooled, first = counts.table(0), np.arange(N_FEATURES + 1) * (n_levels - 1)
        polychoric(*pooled, first[:2], first[:3])  # compiles
        solving, result = measure_cpu_seconds(polychoric, *pooled, first, first)
        error = np.abs(result.correlation - truth)[upper].mean()
        joint, ones = counts.joint[0], counts.full_ones[0]
        tables = [make_table(joint, ones, i, i + 1, n_levels) for i in range(50)]
        seconds, values = measure_cpu_seconds(lambda t=tables: list(map(search_maximum, t)))
        pairs = np.arange(50), np.arange(50) + 1
        assert np.abs(result.correlation[pairs] - values).max() < 1e-4
        ratio = seconds / len(tables) / (solving / len(upper[0]))
        table.add(n_levels, counting, solving, error, ratio)


if __name__ == "__main__":
    main()
