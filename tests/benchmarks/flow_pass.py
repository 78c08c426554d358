"""A pass over a stored dataset against reading it and running the kernel.

python -m tests.benchmarks flow_pass

Prints median wall seconds of a pass with each executor, and the ratio to a loop on one thread that
reads every chunk and counts its pairs.
"""

import tempfile
from pathlib import Path

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from pipeline.data.blocks import RowSource
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.executors.dask import DaskExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from pipeline.numerics.bits.kernels import symmetric_joint_counts
from storage.dataset.dataset import BinaryDataset
from tests.benchmarks._measure import Table, measure_median, write_rows
from tests.support.data import make_test_row_source
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES = 2_000_000, 512


def write_dataset(path: Path) -> BinaryDataset:
    """Write independent bits with different margins, which hardly compress."""
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.05, 0.95, N_FEATURES)
    batches = (
        (rng.random((50_000, N_FEATURES), np.float32) < shares).view(np.uint8)
        for _ in range(0, N_ROWS, 50_000)
    )
    return write_rows(path, N_FEATURES, batches, expected_rows=N_ROWS)


def read_and_count(dataset: BinaryDataset) -> None:
    """Read every chunk and count its pairs on one thread, without an executor."""
    for key in range(dataset.n_chunks):
        symmetric_joint_counts(dataset.read_chunk(key).words)


def pass_seconds(rows: RowSource, executor: Executor) -> float:
    return measure_median(
        lambda: collect_pass_statistics(ClippedPCA(), FitState(None), rows, executor, seed=0)
    )


def main() -> None:
    """Print one line per executor."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "d.zarr")
        rows = make_test_row_source(dataset)
        baseline = measure_median(lambda: read_and_count(dataset))
        print(f"{N_ROWS:,} rows x {N_FEATURES} features, {dataset.n_chunks} chunks")
        table = Table("method:<32", "seconds:8.3f", "ratio:6.2f")
        table.add("read and count, one thread", baseline, 1)

        def measure_executor(name: str, executor: Executor) -> float:
            seconds = pass_seconds(rows, executor)
            table.add(name, seconds, seconds / baseline)
            return seconds

        measure_executor("pass, serial", SerialExecutor())
        measure_executor("pass, 1 thread", ThreadsExecutor(1))
        measure_executor(f"pass, {CPU_COUNT} threads", ThreadsExecutor(CPU_COUNT))
        cluster = LocalCluster(processes=False, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster) as client:
            measure_executor("pass, Dask, 1 thread in process", DaskExecutor(client))
        with worker_processes(1) as one, worker_processes(2) as two:
            one_worker = measure_executor("pass, Dask, 1 worker process", one)
            two_workers = measure_executor("pass, Dask, 2 worker processes", two)
        print(f"speed-up of 2 worker processes over 1: {one_worker / two_workers:.2f}")


if __name__ == "__main__":
    main()
