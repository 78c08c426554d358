"""The scale of traits under priors of slopes, and intervals of new rows on 30 known items.

python -m tests.benchmarks population_scale [SEEDS]

Prints, for each precision of the prior, the largest distance of the standard deviation of the
fitted population (the mean of EAP² + variance) from 1, and the share of 2,000 new rows whose trait
is within its 95 % interval, given answers to 30 of the fitted items. Data: 400 rows of 1,500 binary
items and of 5,000 items with three levels, of which 60 % are missing. Default: 3 seeds.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import numpy as np

import latentbits as lb
from tests.benchmarks._measure import Table

N_ROWS, N_NEW, N_KNOWN, MISSING = 400, 2000, 30, 0.6
DATA = ((2, 1500), (3, 5000))
PRECISIONS = (0.0, 0.1, 1.0, 10.0)


class Scale(NamedTuple):
    """Standard deviation of the fitted population, and the coverage of intervals of new rows."""

    deviation: float
    coverage: float


def measure(
    n_levels: int, n_items: int, precision: float, seed: int, n_rows: int = N_ROWS
) -> Scale:
    """Draw rows, fit them, and score new rows."""
    rng = np.random.default_rng([seed, n_levels])
    slopes, offsets = rng.uniform(0.8, 2, n_items), rng.standard_normal(n_items)
    traits = rng.standard_normal(n_rows + N_NEW)
    latent = traits[:, None] * slopes + offsets + rng.logistic(size=(len(traits), n_items))
    X = (latent[:, :, None] > np.arange(n_levels - 1)).sum(axis=2).astype(float)
    X[:n_rows][rng.random((n_rows, n_items)) < MISSING] = np.nan
    is_known = np.isin(np.arange(n_items), rng.choice(n_items, N_KNOWN, replace=False))
    X[n_rows:, ~is_known] = np.nan
    levels = None if n_levels == 2 else [str(level) for level in range(n_levels)]
    old, new = (lb.from_numpy(own, levels=levels) for own in (X[:n_rows], X[n_rows:]))
    fitted = lb.fit(old, "latent-trait", components=1, prior_precision=precision, errors="none")
    codes = lb.transform(fitted, old)
    mean, variance = codes["mean"][:, 0], codes["variance"][:, 0]
    deviation = np.sqrt((mean**2 + variance).mean() - mean.mean() ** 2)
    codes = lb.transform(fitted, new)
    distance = np.abs(codes["mean"][:, 0] - traits[n_rows:])
    coverage = (distance < 1.96 * np.sqrt(codes["variance"][:, 0])).mean()
    return Scale(float(deviation), float(coverage))


def main(n_seeds: int = 3) -> None:
    """Print a row for each kind of data and each precision."""
    table = Table(
        *("levels:d", "items:7,d", "prior precision:", "least SD:.4f", "largest SD:.4f"),
        *("coverage:.3f", "seconds:.1f"),
    )
    for n_levels, n_items in DATA:
        for precision in PRECISIONS:
            start = time.perf_counter()
            found = [measure(n_levels, n_items, precision, seed) for seed in range(n_seeds)]
            deviations = [scale.deviation for scale in found]
            coverage = np.mean([scale.coverage for scale in found])
            seconds = time.perf_counter() - start
            least, largest = min(deviations), max(deviations)
            table.add(n_levels, n_items, precision, least, largest, coverage, seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
