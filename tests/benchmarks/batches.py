"""Mini-batch updates in one task and over an executor against a plain loop.

python -m tests.benchmarks batches

Prints the median milliseconds per batch of an autoencoder, and the ratio to a NumPy loop over rows
in memory. "one task" makes all updates inside a single task; "one map per batch" sends every batch
through the executor.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.special import expit

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.executors.base import Executor, SerialExecutor, limit_blas_threads
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
from pipeline.models.autoencoder import Autoencoder
from pipeline.statistics.sums import Sums
from tests.benchmarks._measure import Table, alternate
from tests.support.data import write_arrays
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, N_HIDDEN, BATCH = 1 << 14, 256, 64, 128
N_BATCHES = N_ROWS // BATCH
REPEATS = 7


def gradient(layer: Any, given: np.ndarray, wanted: np.ndarray) -> tuple[float, Any]:
    """Log-likelihood of what is wanted, summed over rows, and its gradient."""
    w, b, c = layer
    h = expit(given @ w.T + b)
    guessed = np.clip(expit(h @ w + c), 1e-12, 1 - 1e-12)
    gained = float((wanted * np.log(guessed) + (1 - wanted) * np.log1p(-guessed)).sum())
    error = wanted - guessed
    through = (error @ w.T) * h * (1 - h)
    return gained, (through.T @ given + h.T @ error, through.sum(axis=0), error.sum(axis=0))


def train_plain(X: np.ndarray, layer: Any, rate: float) -> None:
    """Train for one epoch with a plain NumPy loop over rows in memory."""
    order = np.random.default_rng(0).permutation(len(X))
    for first in range(0, len(X), BATCH):
        rows = X[order[first : first + BATCH]].astype(np.float64)
        _, slope = gradient(layer, rows, rows)
        layer = tuple(a + rate / BATCH * g for a, g in zip(layer, slope, strict=True))


def _batch_gradient(layer: Any, rows: RowSource, key: int) -> Sums:
    """Return the gradient for the rows of one range."""
    (block,) = iter_blocks(rows.read(key))
    dense = block.unpack_values().astype(np.float64)
    log_likelihood, slope = gradient(layer, dense, dense)
    return Sums(len(dense), log_likelihood, {str(k): g for k, g in enumerate(slope)})


def train_by_maps(rows: RowSource, layer: Any, rate: float, executor: Executor) -> None:
    """Train for one epoch with one `executor.map` call per update."""
    for key in range(rows.n_chunks):
        (result,) = executor.map(partial(_batch_gradient, layer, rows), [key])
        slope = [result.values[str(k)] for k in range(3)]
        layer = tuple(a + rate / BATCH * g for a, g in zip(layer, slope, strict=True))


def write_rows(folder: Path, X: np.ndarray, words_per_chunk: int) -> RowSource:
    """Write rows to disk and return a source that caches chunks in every process."""
    dataset = write_arrays(folder / f"{words_per_chunk}.zarr", X, words_per_chunk=words_per_chunk)
    return RowSource(dataset.make_reader(memory=1 << 30), dataset.rows_per_chunk, N_FEATURES, 1)


def main() -> None:
    """Print milliseconds per batch, and their ratios to the plain loop."""
    X = (np.random.default_rng(1).random((N_ROWS, N_FEATURES)) < 0.3).astype(np.uint8)
    model = Autoencoder(n_components=N_HIDDEN, batch=BATCH, optimizer="momentum")
    print(f"{N_ROWS:,} rows x {N_FEATURES} features, {N_HIDDEN} hidden units, batch size {BATCH}")
    table = Table("method:<26", "ms per batch:.2f", "ratio to plain loop:.2f")
    with (
        tempfile.TemporaryDirectory() as folder,
        limit_blas_threads(),
        worker_processes(1) as dask,
    ):
        whole, ranges = (write_rows(Path(folder), X, n // 64) for n in (N_ROWS, BATCH))
        state = initialize_fit(
            model, collect_first_statistics(model, whole, SerialExecutor(), 0), 0
        )
        weights = 0.5 * np.random.default_rng(2).standard_normal((N_HIDDEN, N_FEATURES))
        layer, rate = (weights, np.zeros(N_HIDDEN), np.zeros(N_FEATURES)), 0.5
        methods: dict[str, Callable[[], object]] = {
            "plain loop": lambda: train_plain(X, layer, rate),
            "one task": lambda: collect_pass_statistics(model, state, whole, SerialExecutor(), 0),
            "one map per batch, serial": lambda: train_by_maps(
                ranges, layer, rate, SerialExecutor()
            ),
            "one map per batch, Dask": lambda: train_by_maps(ranges, layer, rate, dask),
        }
        times = {name: median(runs) for name, runs in alternate(methods, REPEATS).items()}
    for name, seconds in times.items():
        table.add(name, 1e3 * seconds / N_BATCHES, seconds / times["plain loop"])


if __name__ == "__main__":
    main()
