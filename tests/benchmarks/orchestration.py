"""What a chunk costs beside its work: a pass over 10,000 tiny chunks, in every executor.

python -m tests.benchmarks.orchestration [N_CHUNKS]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from pipeline.executors.base import Executor, SerialExecutor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.loop import collect_pass_statistics
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset
from tests.support.data import draw_probit_rows, make_test_row_source, write_arrays
from tests.support.worker_processes import worker_processes

N_CHUNKS, N_FEATURES = 10_000, 16


def sweep(dataset: BinaryDataset, executor: Executor, progress: Progress = ignore_progress) -> None:
    collect_pass_statistics(
        ClippedPCA(),
        FitState(None),
        make_test_row_source(dataset),
        executor,
        seed=0,
        progress=progress,
    )


def read(dataset: BinaryDataset) -> None:
    for key in range(dataset.n_chunks):
        dataset.read_chunk(key)


def seconds(work: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


class Memory:
    """Notes the memory of this process at 10 % and 100 % of a pass."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.at: dict[int, float] = {}

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        for percent in (10, 100):
            if percent not in self.at and 100 * done >= percent * total:
                self.at[percent] = self._process.memory_info().rss / 1e6


def main() -> None:
    """Print milliseconds a chunk, and the client's memory."""
    n_chunks = int(sys.argv[1]) if len(sys.argv) > 1 else N_CHUNKS
    with tempfile.TemporaryDirectory() as folder:
        X, _ = draw_probit_rows(n_chunks * 64, N_FEATURES, 2, seed=1)
        dataset = write_arrays(Path(folder) / "d.zarr", X, words_per_chunk=1)
        print(f"{dataset.n_chunks:,} chunks of 64 rows x {N_FEATURES} features")

        def show(name: str, taken: float, more: str = "") -> None:
            print(f"{name:28s} {1e3 * taken / dataset.n_chunks:.2f} ms a chunk{more}")

        sweep(dataset, SerialExecutor())  # compiles
        show("reading alone", seconds(read, dataset))
        show("serial", seconds(sweep, dataset, SerialExecutor()))
        for n_workers in (1, 2):
            with worker_processes(n_workers) as executor:
                sweep(dataset, executor)
                memory = Memory()
                taken = seconds(sweep, dataset, executor, memory)
            grown = f", client {memory.at[10]:.0f} MB at 10 %, {memory.at[100]:.0f} MB at 100 %"
            show(f"dask, worker processes: {n_workers}", taken, grown)


if __name__ == "__main__":
    main()
