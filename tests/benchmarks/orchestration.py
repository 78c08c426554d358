"""Overhead per chunk: a pass over many tiny chunks against reading them.

python -m tests.benchmarks orchestration [N_CHUNKS]

Prints wall milliseconds per chunk for each executor, and the memory of the client process in MB at
10 % and at 100 % of a pass. Default: 10,000 chunks.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import psutil

from pipeline.executors.base import Executor, SerialExecutor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset
from tests.benchmarks._measure import measure_best
from tests.support.data import draw_probit_rows, make_test_row_source, write_arrays
from tests.support.worker_processes import worker_processes

N_CHUNKS, N_FEATURES = 10_000, 16


def run_pass(
    dataset: BinaryDataset, executor: Executor, progress: Progress = ignore_progress
) -> None:
    collect_pass_statistics(
        ClippedPCA(),
        FitState(None),
        make_test_row_source(dataset),
        executor,
        seed=0,
        progress=progress,
    )


def read_chunks(dataset: BinaryDataset) -> None:
    for key in range(dataset.n_chunks):
        dataset.read_chunk(key)


class MemoryRecorder:
    """Progress callback that records the memory of this process at 10 % and 100 %, in MB."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.megabytes: dict[int, float] = {}

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        for percent in (10, 100):
            if percent not in self.megabytes and 100 * done >= percent * total:
                self.megabytes[percent] = self._process.memory_info().rss / 1e6


def main() -> None:
    """Print milliseconds per chunk, and the memory of the client."""
    n_chunks = int(sys.argv[1]) if len(sys.argv) > 1 else N_CHUNKS
    with tempfile.TemporaryDirectory() as folder:
        X, _ = draw_probit_rows(n_chunks * 64, N_FEATURES, 2, seed=1)
        dataset = write_arrays(Path(folder) / "d.zarr", X, words_per_chunk=1)
        print(f"{dataset.n_chunks:,} chunks of 64 rows x {N_FEATURES} features")

        def print_line(name: str, seconds: float, memory_text: str = "") -> None:
            print(f"{name:30s} {1e3 * seconds / dataset.n_chunks:.2f} ms per chunk{memory_text}")

        run_pass(dataset, SerialExecutor())  # compile the kernels
        print_line("reading only", measure_best(partial(read_chunks, dataset), 1))
        print_line("serial", measure_best(partial(run_pass, dataset, SerialExecutor()), 1))
        for n_workers in (1, 2):
            with worker_processes(n_workers) as executor:
                run_pass(dataset, executor)
                memory = MemoryRecorder()
                seconds = measure_best(partial(run_pass, dataset, executor, memory), 1)
            first, last = memory.megabytes[10], memory.megabytes[100]
            memory_text = f", client {first:.0f} MB at 10 %, {last:.0f} MB at 100 %"
            print_line(f"Dask, {n_workers} worker process(es)", seconds, memory_text)


if __name__ == "__main__":
    main()
