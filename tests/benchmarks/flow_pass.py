"""The flow's pass over a stored dataset against reading its chunks plus the bare kernel.

python -m tests.benchmarks.flow_pass
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from pipeline.data.blocks import RowSource
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.executors.dask import DaskExecutor
from pipeline.fitting.loop import collect_pass_statistics
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from pipeline.numerics.bits.kernels import symmetric_joint_counts
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from tests.support.data import ArrayBatch, make_test_row_source
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, REPEATS = 2_000_000, 512, 5


def write_dataset(path: Path) -> BinaryDataset:
    """Independent bits of different margins: they compress as badly as any."""
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.05, 0.95, N_FEATURES)
    names = [f"f{i}" for i in range(N_FEATURES)]
    with create_dataset(path, names, expected_rows=N_ROWS) as writer:
        for _ in range(0, N_ROWS, 50_000):
            rows = rng.random((50_000, N_FEATURES), np.float32) < shares
            writer.add(ArrayBatch(rows.view(np.uint8)))
    return open_dataset(path)


def read_and_count(dataset: BinaryDataset) -> None:
    """What no pass can do without: read every chunk, count its pairs, one after the other."""
    for key in range(dataset.n_chunks):
        symmetric_joint_counts(dataset.read_chunk(key).words)


def median_seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def pass_seconds(rows: RowSource, executor: Executor) -> float:
    return median_seconds(
        lambda: collect_pass_statistics(ClippedPCA(), FitState(None), rows, executor, seed=0)
    )


def main() -> None:
    """Print a line for each executor; the bare run is on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "d.zarr")
        rows = make_test_row_source(dataset)
        bare = median_seconds(lambda: read_and_count(dataset))
        print(f"{N_ROWS:,} rows x {N_FEATURES} features, {dataset.n_chunks} chunks")
        print(f"read and bare kernel, one thread       {bare:.3f} s")

        def show(name: str, executor: Executor) -> float:
            own = pass_seconds(rows, executor)
            print(f"pass, {name:32s} {own:.3f} s, ratio {own / bare:.2f}")
            return own

        show("serial", SerialExecutor())
        show("threads, 1", ThreadsExecutor(1))
        show(f"threads, {CPU_COUNT}", ThreadsExecutor(CPU_COUNT))
        cluster = LocalCluster(processes=False, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster) as client:
            show("dask in process, 1 thread", DaskExecutor(client))
        with worker_processes(1) as one, worker_processes(2) as two:
            alone = show("dask, 1 worker process", one)
            both = show("dask, 2 worker processes", two)
        print(f"2 worker processes against 1: {alone / both:.2f} times as fast")


if __name__ == "__main__":
    main()
