"""Exact nearest neighbours: against scikit-learn and faiss on one core, and on workers.

python -m tests.benchmarks.neighbours [ROWS]

ROWS is the number of rows of the search on two cores. faiss takes part if it is installed (`pip
install faiss-cpu`). On one core, the table shows the median CPU time; on workers, the least elapsed
time. On one core, rows are compared with themselves, each pair once, unless the line names another
block.
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
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from tests.support.data import ArrayBatch, make_test_row_source, write_arrays
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, K, REPEATS = 20_000, 256, 10, 5
MANY_ROWS, MANY_FEATURES = 100_000, 1024


def drawn(n_rows: int, n_features: int = N_FEATURES) -> NDArray[np.uint8]:
    """Rows that depend on ten factors."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((10, n_features), np.float32)
    inputs = 0.5 * rng.standard_normal((n_rows, 10), np.float32) @ mixing
    return (inputs + rng.standard_normal((n_rows, n_features), np.float32) > 0.7).view(np.uint8)


def by_bits(
    block: BinaryBlock, metric: Metric = "hamming", others: BinaryBlock | None = None
) -> Any:
    """Compare rows with themselves, or with equal rows of another block: each pair twice."""
    return NearestRowSearch(metric, K, include_self=False)(block, others or block, None)


def by_scikit_learn(X: NDArray[np.float32]) -> Any:
    searched = NearestNeighbors(n_neighbors=K, metric="sqeuclidean", algorithm="brute", n_jobs=1)
    return searched.fit(X).kneighbors()


def by_faiss(packed: NDArray[np.uint8]) -> Any:
    """Find one more, as a row is nearest to itself here."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.add(packed)
    return index.search(packed, K + 1)


def alternate(
    calls: dict[str, Callable[[], Any]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Give the seconds of each call; taking turns, they meet the same neighbours."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            begun = clock()
            call()
            seconds[name].append(clock() - begun)
    return seconds


def has_faiss() -> bool:
    """Return whether faiss is installed, and run it once."""
    try:
        by_faiss(np.zeros((99, 32), np.uint8))
    except ImportError:
        print("faiss is not installed")
        return False
    return True


def compare_on_one_core() -> None:
    """Print how much longer others take."""
    X = drawn(N_ROWS)
    block, packed, floats = pack_block(X), np.packbits(X, axis=1), X.astype(np.float32)
    others = pack_block(X)
    observed = np.random.default_rng(1).random(X.shape) < 0.9
    missing = pack_block(X, observed.view(np.uint8))
    calls: dict[str, Callable[[], Any]] = {
        "packed bits": lambda: by_bits(block),
        "packed bits, other block": lambda: by_bits(block, others=others),
        "packed bits, jaccard": lambda: by_bits(block, "jaccard"),
        "packed bits, 10% missing": lambda: by_bits(missing),
        "scikit-learn": lambda: by_scikit_learn(floats),
    }
    if has_faiss():
        calls["faiss"] = lambda: by_faiss(packed)
    by_bits(block.take_rows(np.arange(99)))
    with threadpool_limits(1):
        np.testing.assert_array_equal(by_bits(block)["distances"], by_scikit_learn(floats)[0])
        seconds = {name: median(own) for name, own in alternate(calls, time.thread_time).items()}
    print(f"{N_ROWS:,} rows x {N_FEATURES} features, {K} neighbours, one core")
    for name, own in seconds.items():
        print(f"  {name:24} {own:6.2f} s, {own / seconds['packed bits']:5.1f} times packed bits")


def compare_many_rows() -> None:
    """Print seconds of one search of many rows, and how much longer faiss takes."""
    X = drawn(MANY_ROWS, MANY_FEATURES)
    block, packed = pack_block(X), np.packbits(X, axis=1)
    if not has_faiss():
        return
    seconds = []
    for call in (lambda: by_bits(block), lambda: by_faiss(packed)):
        begun = time.thread_time()
        call()
        seconds.append(time.thread_time() - begun)
    print(
        f"{MANY_ROWS:,} rows x {MANY_FEATURES} features, {K} neighbours, one core: packed bits "
        f"{seconds[0]:.1f} s, faiss {seconds[1] / seconds[0]:.1f} times as long"
    )


def write_dataset(path: Path, n_rows: int) -> BinaryDataset:
    names = [f"f{i}" for i in range(N_FEATURES)]
    with create_dataset(path, names, expected_rows=n_rows) as writer:
        writer.add(ArrayBatch(drawn(n_rows)))
    return open_dataset(path)


def search(executor: Executor, dataset: BinaryDataset) -> None:
    """Find the neighbours of all rows of a stored dataset."""
    rows = make_test_row_source(dataset)
    run_in_memory(
        RowPairJob(NearestRowSearch("hamming", K, include_self=False), rows, rows), executor
    )


def compare_workers(n_rows: int) -> None:
    """Print the least seconds of threads and worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "d.zarr", n_rows)
        with worker_processes(1) as one, worker_processes(2) as two:
            executors = {
                "2 threads": ThreadsExecutor(2),
                "1 worker process": one,
                "2 worker processes": two,
            }
            calls = {name: partial(search, own, dataset) for name, own in executors.items()}
            seconds = {name: min(own) for name, own in alternate(calls).items()}
    print(f"{n_rows:,} stored rows, {dataset.n_chunks} chunks")
    for name, own in seconds.items():
        print(f"  {name:24} {own:6.2f} s")
    times = seconds["1 worker process"] / seconds["2 worker processes"]
    print(f"  two are {times:.2f} times as fast as one")


def compare_segments() -> None:
    """Print seconds of rows in one segment and in many."""
    X = drawn(N_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        calls = {}
        for n in (1, 500):
            segments = [str(row % n) for row in range(N_ROWS)]
            dataset = write_arrays(Path(folder) / f"{n}.zarr", X, segments=segments)
            calls[f"{n} segments"] = partial(search, ThreadsExecutor(1), dataset)
        seconds = {name: median(own) for name, own in alternate(calls).items()}
    print(f"{N_ROWS:,} stored rows: " + ", ".join(f"{n} {s:.2f} s" for n, s in seconds.items()))


def main() -> None:
    """Print seconds and ratios."""
    compare_on_one_core()
    compare_many_rows()
    compare_segments()
    compare_workers(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)


if __name__ == "__main__":
    main()
