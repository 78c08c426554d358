"""What a batch costs beside its gradient: steps of tasks, and rounds that every update waits for.

python -m tests.benchmarks.batches
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.executors.base import Executor, SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import collect_first_statistics, collect_pass_statistics, initialize_fit
from pipeline.statistics.sums import Sums
from tests.models.coder import Coder, gradient
from tests.support.data import write_arrays
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, N_HIDDEN, BATCH = 1 << 14, 256, 64, 128
N_BATCHES = N_ROWS // BATCH
_ROUNDS = 7


def plain(X: np.ndarray, layer: Any, rate: float) -> None:
    """A loop as one would write it for rows in memory."""
    order = np.random.default_rng(0).permutation(len(X))
    for first in range(0, len(X), BATCH):
        rows = X[order[first : first + BATCH]].astype(np.float64)
        _, slope = gradient(layer, rows, rows)
        layer = tuple(a + rate / BATCH * g for a, g in zip(layer, slope, strict=True))


def _slope(layer: Any, rows: RowSource, key: int) -> Sums:
    """One round's work: the gradient of the rows of one range."""
    (block,) = iter_blocks(rows.read(key))
    dense = block.unpack_values().astype(np.float64)
    gained, slope = gradient(layer, dense, dense)
    return Sums(len(dense), gained, {str(k): g for k, g in enumerate(slope)})


def rounds(rows: RowSource, layer: Any, rate: float, executor: Executor) -> None:
    """One map over the executor for every update."""
    for key in range(rows.n_chunks):
        (found,) = executor.map(partial(_slope, layer, rows), [key])
        slope = [found.values[str(k)] for k in range(3)]
        layer = tuple(a + rate / BATCH * g for a, g in zip(layer, slope, strict=True))


def rows_in(folder: Path, X: np.ndarray, words_per_chunk: int) -> RowSource:
    """Rows on disk that every process keeps once it has read them."""
    dataset = write_arrays(folder / f"{words_per_chunk}.zarr", X, words_per_chunk=words_per_chunk)
    return RowSource(dataset.make_reader(memory=1 << 30), dataset.rows_per_chunk, N_FEATURES, 1)


def main() -> None:
    """Print milliseconds a batch, and their ratios to the plain loop."""
    X = (np.random.default_rng(1).random((N_ROWS, N_FEATURES)) < 0.3).astype(np.uint8)
    model = Coder(n_components=N_HIDDEN, batch=BATCH)
    print(f"{N_ROWS:,} rows x {N_FEATURES}, {N_HIDDEN} units, batches of {BATCH}, one chunk")
    with (
        tempfile.TemporaryDirectory() as folder,
        limit_blas_threads(),
        worker_processes(1) as dask,
    ):
        whole, ranges = (rows_in(Path(folder), X, n // 64) for n in (N_ROWS, BATCH))
        state = initialize_fit(
            model, collect_first_statistics(model, whole, SerialExecutor(), 0), 0
        )
        layer, rate = state.params.layer(0), model.rate
        ways: dict[str, Callable[[], object]] = {
            "plain loop": lambda: plain(X, layer, rate),
            "steps of a task": lambda: collect_pass_statistics(
                model, state, whole, SerialExecutor(), 0
            ),
            "rounds, serial": lambda: rounds(ranges, layer, rate, SerialExecutor()),
            "rounds, one Dask worker": lambda: rounds(ranges, layer, rate, dask),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for name in [*ways] * _ROUNDS:
            begun = time.perf_counter()
            ways[name]()
            taken[name].append(time.perf_counter() - begun)
    base = statistics.median(taken["plain loop"])
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"{name:26s} {1e3 * median / N_BATCHES:.2f} ms a batch, {median / base:.2f} times")


if __name__ == "__main__":
    main()
