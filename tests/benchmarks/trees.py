"""Trees of features against the same sums by NumPy.

python -m tests.benchmarks trees [ROWS [FEATURES]]

Prints CPU seconds on one core. A Chow–Liu tree is fitted to complete binary rows in memory, and
compared with the counts of all pairs and the spanning tree alone by NumPy and SciPy. A pass of a
mixture of eight trees that counts all pairs is compared with BLAS's sums of the same products; rows
belong to all components, or nearly always to one. Defaults: 100,000 rows of 200 features.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

import latentbits as lb
from pipeline.data.blocks import pack_block
from pipeline.models.trees.tree_mixture import TreeMixture, TreeMixtureParams, compute_posterior
from pipeline.numerics.trees.dependence import sum_information
from pipeline.numerics.trees.spanning_tree import ROOT
from pipeline.random import RowRandom
from tests.benchmarks._measure import Table, measure_best

N_TREES = 8


def draw_trees(n_features: int, spread: float, rng: np.random.Generator) -> TreeMixtureParams:
    """Draw chains, whose tables differ by `spread`."""
    parents = np.full((N_TREES, n_features), ROOT)
    for own, order in zip(parents, map(rng.permutation, [n_features] * N_TREES), strict=True):
        own[order[1:]] = order[:-1]
    ones = rng.uniform(0.1, 0.6, (n_features, 1))
    ones = np.clip(ones + spread * rng.uniform(-0.3, 0.3, (N_TREES, n_features, 2)), 0.05, 0.95)
    tables = np.stack([1 - ones, ones], axis=3)
    weights, margins = np.full(N_TREES, 1 / N_TREES), np.full(2 * n_features, 0.5)
    return TreeMixtureParams(weights, parents, tables, margins)


def find_tree_with_numpy(X: np.ndarray) -> object:
    """Return the Chow–Liu tree of 0 and 1."""
    levels = np.repeat(X, 2, axis=1).astype(np.float32)
    levels[:, ::2] = 1 - levels[:, ::2]
    sizes = np.full(X.shape[1], 2)
    information = sum_information((levels.T @ levels).astype(np.float64), sizes, sizes)
    return minimum_spanning_tree(-information)


def multiply_with_numpy(X: np.ndarray, posterior: np.ndarray) -> None:
    """Sum the products of all pairs for each tree, over the rows that are likely in it."""
    for own in np.sqrt(posterior.T):
        weighted = X[own > 1e-6] * own[own > 1e-6, None]
        weighted.T @ weighted


def main(n_rows: int = 100_000, n_features: int = 200) -> None:
    """Print the seconds of fits and passes, and of NumPy."""
    rng, model = np.random.default_rng(0), TreeMixture(N_TREES)
    table = Table("work:<32", "CPU s:7.3f", "NumPy s:7.3f", "ratio:5.2f")
    for spread in (1.0, 0.01):
        params = draw_trees(n_features, spread, rng)
        X = model.sample(params, n_rows, rng)
        if spread == 1:
            fit = measure_best(partial(lb.fit, X, "chow-liu"), 4, time.process_time)
            alone = measure_best(partial(find_tree_with_numpy, X), 3, time.process_time)
            table.add("Chow-Liu fit", fit, alone, fit / alone)
        block = pack_block(X)
        working = {"held_out": np.array(0.0), "finds_trees": np.array(True)}
        posterior = compute_posterior(params, block)[0]
        run_pass = partial(model.summarize, params, working, block, RowRandom(0))
        multiply = partial(multiply_with_numpy, X, posterior)
        seconds, alone = (measure_best(f, 3, time.process_time) for f in (run_pass, multiply))
        per_row = (posterior > 1e-10).sum(axis=1).mean()
        table.add(f"{N_TREES} trees, {per_row:.1f} likely per row", seconds, alone, seconds / alone)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
