"""Nearest neighbours against scikit-learn and faiss, and on two workers.

python -m tests.benchmarks neighbours [ROWS]

Prints median CPU seconds on one core and the shortest wall seconds on threads and worker processes.
ROWS (default 100,000) applies to the latter. faiss is included if it is installed (`pip install
faiss-cpu`). On one core, rows are compared within one block, which computes each pair once, unless
the line says "two blocks".
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.evaluation.neighbourhoods import NearestRowSearch
from pipeline.executors.base import Executor, ThreadsExecutor
from pipeline.fitting.pair_work import RowPairJob, run_in_memory
from pipeline.numerics.graphs.neighbours import Metric
from storage.dataset.dataset import BinaryDataset
from tests.benchmarks._measure import Table, alternate, draw_factor_rows, measure_best, write_rows
from tests.support.data import make_test_row_source, write_arrays
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, K = 20_000, 256, 10
MANY_ROWS, MANY_FEATURES = 100_000, 1024


def search_packed(
    block: BinaryBlock, metric: Metric = "hamming", others: BinaryBlock | None = None
) -> Any:
    """Search within a block, or in another block, which computes each pair twice."""
    return NearestRowSearch(metric, K, include_self=False)(block, others or block, None)


def search_scikit_learn(X: NDArray[np.float32]) -> Any:
    search = NearestNeighbors(n_neighbors=K, metric="sqeuclidean", algorithm="brute", n_jobs=1)
    return search.fit(X).kneighbors()


def search_faiss(packed: NDArray[np.uint8]) -> Any:
    """Find K + 1 neighbours, because faiss includes the row itself."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.add(packed)
    return index.search(packed, K + 1)


def has_faiss() -> bool:
    """Return whether faiss is installed, and run it once."""
    try:
        search_faiss(np.zeros((99, 32), np.uint8))
    except ImportError:
        print("faiss is not installed")
        return False
    return True


def compare_on_one_core() -> None:
    """Print the CPU seconds of every library."""
    X = draw_factor_rows(N_ROWS, N_FEATURES)
    block, packed, floats = pack_block(X), np.packbits(X, axis=1), X.astype(np.float32)
    others = pack_block(X)
    observed = np.random.default_rng(1).random(X.shape) < 0.9
    missing = pack_block(X, observed.view(np.uint8))
    calls: dict[str, Callable[[], Any]] = {
        "packed bits": lambda: search_packed(block),
        "packed bits, two blocks": lambda: search_packed(block, others=others),
        "packed bits, jaccard": lambda: search_packed(block, "jaccard"),
        "packed bits, 10% missing": lambda: search_packed(missing),
        "scikit-learn": lambda: search_scikit_learn(floats),
    }
    if has_faiss():
        calls["faiss"] = lambda: search_faiss(packed)
    search_packed(block.take_rows(np.arange(99)))
    with threadpool_limits(1):
        np.testing.assert_array_equal(
            search_packed(block)["distances"], search_scikit_learn(floats)[0]
        )
        runs = alternate(calls, clock=time.thread_time)
    medians = {name: median(seconds) for name, seconds in runs.items()}
    print(f"{N_ROWS:,} rows x {N_FEATURES} features, {K} neighbours, one core")
    table = Table("method:<24", "CPU s:6.2f", "ratio to packed bits:.1f")
    for name, seconds in medians.items():
        table.add(name, seconds, seconds / medians["packed bits"])


def compare_many_rows() -> None:
    """Print the CPU seconds of one search of many rows, and the ratio to faiss."""
    X = draw_factor_rows(MANY_ROWS, MANY_FEATURES)
    block, packed = pack_block(X), np.packbits(X, axis=1)
    if not has_faiss():
        return
    works = (lambda: search_packed(block), lambda: search_faiss(packed))
    seconds = [measure_best(work, 1, time.thread_time) for work in works]
    print(
        f"{MANY_ROWS:,} rows x {MANY_FEATURES} features, {K} neighbours, one core: packed bits "
        f"{seconds[0]:.1f} CPU s, faiss {seconds[1]:.1f} CPU s, ratio {seconds[1] / seconds[0]:.1f}"
    )


def search(executor: Executor, dataset: BinaryDataset) -> None:
    """Find the neighbours of all rows of a stored dataset."""
    rows = make_test_row_source(dataset)
    run_in_memory(
        RowPairJob(NearestRowSearch("hamming", K, include_self=False), rows, rows), executor
    )


def compare_workers(n_rows: int) -> None:
    """Print the shortest wall seconds on threads and on worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        batches = [draw_factor_rows(n_rows, N_FEATURES)]
        dataset = write_rows(Path(folder) / "d.zarr", N_FEATURES, batches, expected_rows=n_rows)
        with worker_processes(1) as one, worker_processes(2) as two:
            executors = {
                "2 threads": ThreadsExecutor(2),
                "1 worker process": one,
                "2 worker processes": two,
            }
            calls = {
                name: partial(search, executor, dataset) for name, executor in executors.items()
            }
            shortest = {name: min(seconds) for name, seconds in alternate(calls).items()}
    print(f"{n_rows:,} stored rows, {dataset.n_chunks} chunks")
    for name, seconds in shortest.items():
        print(f"  {name:24} {seconds:6.2f} s")
    speedup = shortest["1 worker process"] / shortest["2 worker processes"]
    print(f"  speed-up of 2 worker processes over 1: {speedup:.2f}")


def compare_segments() -> None:
    """Print median wall seconds for rows in one segment and in many."""
    X = draw_factor_rows(N_ROWS, N_FEATURES)
    with tempfile.TemporaryDirectory() as folder:
        calls = {}
        for n in (1, 500):
            segments = [str(row % n) for row in range(N_ROWS)]
            dataset = write_arrays(Path(folder) / f"{n}.zarr", X, segments=segments)
            calls[f"{n} segments"] = partial(search, ThreadsExecutor(1), dataset)
        medians = {name: median(seconds) for name, seconds in alternate(calls).items()}
    text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items())
    print(f"{N_ROWS:,} stored rows: {text}")


def main() -> None:
    """Run all comparisons."""
    compare_on_one_core()
    compare_many_rows()
    compare_segments()
    compare_workers(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)


if __name__ == "__main__":
    main()
