"""Likelihood-ratio tests of item bias for all items.

python -m tests.benchmarks item_bias

Seconds and CPU seconds of the tests of 40 items with 100,000 rows on two threads, for two and four
groups, with and without missing values.
"""

import time

import numpy as np
from scipy.special import expit

from pipeline.data.features import Feature
from pipeline.evaluation.item_bias import GroupFits, run_group_tests
from pipeline.executors.base import ThreadsExecutor
from pipeline.executors.progress import ignore_progress
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.counts import FeatureCounts
from tests.benchmarks._measure import Table
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS, N_ITEMS, CHUNK_ROWS, N_THREADS = 100_000, 40, 20_000, 2


def draw_rows(n_rows: int, n_groups: int, missing: float) -> DenseData:
    """Draw rows of groups with different traits; the first item favours the first group."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, n_groups, n_rows)
    x = 0.3 * group + (1 + 0.1 * group) * rng.standard_normal(n_rows)
    eta = x[:, None] * rng.uniform(0.6, 2, N_ITEMS) + rng.standard_normal(N_ITEMS)
    eta[:, 0] -= 0.3 * (group == 1)
    X = (rng.random(eta.shape) < expit(eta)).astype(np.uint8)
    observed = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
    return DenseData(X, observed, group)


def run_tests(data: DenseData, n_groups: int) -> None:
    """Test all items."""
    n_rows = len(data.X)
    rows = make_memory_rows(data, [min(CHUNK_ROWS, n_rows)] * max(n_rows // CHUNK_ROWS, 1))
    executor = ThreadsExecutor(N_THREADS)
    first = collect_statistics(FeatureCounts.from_block, rows, executor, "counts")
    names = tuple(map(str, range(n_groups)))
    features = tuple(Feature(f"item{k}") for k in range(N_ITEMS))
    run_group_tests(GroupFits(rows, names, features, first, executor, 0, ignore_progress))


def main() -> None:
    """Print the table."""
    table = Table("groups:d", "missing:.0%", "seconds:.1f", "CPU s:.1f")
    for n_groups, missing in ((2, 0.0), (4, 0.0), (2, 0.1)):
        run_tests(draw_rows(500, n_groups, missing), n_groups)  # compiles kernels
        data = draw_rows(N_ROWS, n_groups, missing)
        start, cpu_start = time.perf_counter(), time.process_time()
        run_tests(data, n_groups)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        table.add(n_groups, missing, seconds, cpu)


if __name__ == "__main__":
    main()
