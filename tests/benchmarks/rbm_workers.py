"""A pass of the restricted Boltzmann machine over stored rows: on workers, and against reading.

python -m tests.benchmarks.rbm_workers [ROWS]

Reading is that of all chunks, each unpacked to a byte a value, on the same two worker processes.
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
from pipeline.fitting.loop import collect_first_statistics, collect_pass_statistics, initialize_fit
from pipeline.models.rbm import RestrictedBoltzmannMachine
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from tests.benchmarks.flow_pass import median_seconds
from tests.support.data import ArrayBatch, make_test_row_source
from tests.support.worker_processes import worker_processes

N_FEATURES, N_CHUNKS = 256, 16
MODEL = RestrictedBoltzmannMachine(64)


def write_dataset(path: Path, n_rows: int) -> BinaryDataset:
    """Rows that depend on ten factors."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((10, N_FEATURES), np.float32)
    words = -(-n_rows // (64 * N_CHUNKS))
    names = [f"f{i}" for i in range(N_FEATURES)]
    with create_dataset(path, names, words_per_chunk=words) as writer:
        for first in range(0, n_rows, 50_000):
            n = min(50_000, n_rows - first)
            inputs = 0.5 * rng.standard_normal((n, 10), np.float32) @ mixing
            rows = inputs + rng.standard_normal((n, N_FEATURES), np.float32) > 0.7
            writer.add(ArrayBatch(rows.view(np.uint8)))
    return open_dataset(path)


def ones_of_chunk(dataset: BinaryDataset, key: int) -> int:
    """Read a chunk and unpack it."""
    return int(dataset.dense(key)[0].sum())


def read_all(dataset: BinaryDataset, executor: DaskExecutor) -> None:
    """Read all chunks."""
    for _ in executor.map(partial(ones_of_chunk, dataset), range(dataset.n_chunks)):
        pass


def main() -> None:
    """Print seconds and ratios, and the memory of the workers after a pass."""
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "data.zarr", n_rows)
        rows = make_test_row_source(dataset)
        state = initialize_fit(MODEL, collect_first_statistics(MODEL, rows, SerialExecutor(), 0), 0)
        taken = {n: pass_seconds(rows, state, n) for n in (1, 2)}
        with worker_processes(2) as executor:
            reading = median_seconds(partial(read_all, dataset, executor))
    for n, (seconds, megabytes) in taken.items():
        print(f"{n} worker processes: {seconds:.2f} s a pass, at most {megabytes:.0f} MB each")
    print(f"two against one: {taken[1][0] / taken[2][0]:.2f} times as fast")
    print(
        f"reading and unpacking on two: {reading:.2f} s; a pass {taken[2][0] / reading:.2f} times"
    )


def pass_seconds(rows: RowSource, state: FitState, n_workers: int) -> tuple[float, float]:
    """Time passes, and give the largest resident memory of the workers then."""
    with worker_processes(n_workers) as executor:
        seconds = median_seconds(partial(collect_pass_statistics, MODEL, state, rows, executor, 0))
        workers = psutil.Process().children(recursive=True)
        return seconds, max(worker.memory_info().rss for worker in workers) / 1e6


if __name__ == "__main__":
    main()
