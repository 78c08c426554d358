"""RBM passes on two workers against one, and against reading the dataset.

python -m tests.benchmarks rbm_workers [ROWS]

Prints median wall seconds of a pass and the largest memory of a worker after it. `read and unpack`
reads all chunks and unpacks them to one byte per value on two worker processes. Default: 1,000,000
rows.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from pipeline.data.blocks import RowSource
from pipeline.executors.base import SerialExecutor
from pipeline.executors.dask import DaskExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
from pipeline.models.rbm import RestrictedBoltzmannMachine
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset
from tests.benchmarks._measure import draw_factor_rows, measure_median, write_rows
from tests.support.data import make_test_row_source
from tests.support.worker_processes import worker_processes

N_FEATURES, N_CHUNKS = 256, 16
MODEL = RestrictedBoltzmannMachine(64)


def count_ones(dataset: BinaryDataset, key: int) -> int:
    """Read a chunk, unpack it and count its ones."""
    return int(dataset.dense(key)[0].sum())


def read_all(dataset: BinaryDataset, executor: DaskExecutor) -> None:
    """Read and unpack all chunks."""
    for _ in executor.map(partial(count_ones, dataset), range(dataset.n_chunks)):
        pass


def main() -> None:
    """Print seconds, ratios and the memory of the workers after a pass."""
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        rng, size = np.random.default_rng(0), 50_000
        sizes = (min(size, n_rows - first) for first in range(0, n_rows, size))
        batches = (draw_factor_rows(n, N_FEATURES, rng) for n in sizes)
        words = -(-n_rows // (64 * N_CHUNKS))
        path = Path(folder) / "data.zarr"
        dataset = write_rows(path, N_FEATURES, batches, words_per_chunk=words)
        rows = make_test_row_source(dataset)
        state = initialize_fit(MODEL, collect_first_statistics(MODEL, rows, SerialExecutor(), 0), 0)
        passes = {n: pass_seconds(rows, state, n) for n in (1, 2)}
        with worker_processes(2) as executor:
            read_seconds = measure_median(partial(read_all, dataset, executor))
    for n, (seconds, megabytes) in passes.items():
        print(f"worker processes: {n}, pass {seconds:.2f} s, largest worker {megabytes:.0f} MB")
    print(f"speed-up of 2 over 1: {passes[1][0] / passes[2][0]:.2f}")
    ratio = passes[2][0] / read_seconds
    print(f"read and unpack on 2: {read_seconds:.2f} s, ratio of a pass to it: {ratio:.2f}")


def pass_seconds(rows: RowSource, state: FitState, n_workers: int) -> tuple[float, float]:
    """Return the median seconds of a pass, and the largest memory of a worker after it in MB."""
    with worker_processes(n_workers) as executor:
        seconds = measure_median(partial(collect_pass_statistics, MODEL, state, rows, executor, 0))
        workers = psutil.Process().children(recursive=True)
        return seconds, max(worker.memory_info().rss for worker in workers) / 1e6


if __name__ == "__main__":
    main()
