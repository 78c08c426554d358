"""Passes of the latent-trait model over a stored dataset, against the bare E-step in memory.

`python -m tests.benchmarks.latent_trait`: 2 million rows of 128 features, two components. Then the
recovery of two factors behind 20 items by quadrature and by the bound: CPU seconds and errors.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.special import expit

from pipeline.data.blocks import BinaryBlock
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.em import LatentTraitParams, make_params
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.numerics.logistic.logistic_bound import variational_e_step
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.sums import Sums
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import BinaryDataset, ChunkReader, open_dataset
from storage.dataset.writer import create_dataset
from tests.support.data import ArrayBatch, make_test_row_source
from tests.support.strategies import DenseData, make_memory_rows
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, REPEATS, STEP = 2_000_000, 128, 3, 50_000
FORCED, RESTED = {"tol": 0.0, "max_rounds": 3}, {"tol": 1e-4, "max_rounds": 20}


def truth(n_features: int, rng: np.random.Generator) -> LatentTraitParams:
    """Two components that explain about half of the logits."""
    weights = 1.5 / np.sqrt(2) * rng.standard_normal((n_features, 2))
    return make_params(weights, rng.standard_normal(n_features))


def drawn(params: LatentTraitParams, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((n_rows, 2))
    chances = expit(x @ params.weights.T + params.offsets)
    return (rng.random(chances.shape) < chances).astype(np.uint8)


def write_dataset(path: Path, params: LatentTraitParams, n_rows: int) -> BinaryDataset:
    rng = np.random.default_rng(1)
    names = [f"f{i}" for i in range(len(params.weights))]
    with create_dataset(path, names, expected_rows=n_rows) as writer:
        for _ in range(0, n_rows, STEP):
            writer.add(ArrayBatch(drawn(params, STEP, rng)))
    return open_dataset(path)


def e_step(params: LatentTraitParams, rounds: dict[str, float], block: BinaryBlock) -> Sums:
    """The model's own E-step with rounds of our choice."""
    found = variational_e_step(
        block.words, None, block.n_samples, params.weights, params.offsets, **rounds
    )
    values = {"curvature": found.curvature, "target": found.target}
    return Sums(block.n_samples, found.bound, values)


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least of some runs, the first left out."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def time_passes(folder: Path) -> None:
    """Print seconds of passes, and their ratios."""
    params = truth(N_FEATURES, np.random.default_rng(0))
    half = write_dataset(folder / "half.zarr", params, N_ROWS // 2)
    whole = write_dataset(folder / "whole.zarr", params, N_ROWS)
    chunks = [whole.read_chunk(key) for key in range(whole.n_chunks)]

    def bare(rounds: dict[str, float]) -> None:
        for chunk in chunks:
            args = (chunk.words, None, len(chunk.rows), params.weights, params.offsets)
            variational_e_step(*args, **rounds)

    def one_pass(dataset: BinaryDataset, executor: Executor, rounds: dict[str, float]) -> Sums:
        read = ChunkReader(str(dataset.path), dataset.digest, memory=1 << 30)
        rows = replace(make_test_row_source(dataset), read=read)
        return collect_statistics(partial(e_step, params, rounds), rows, executor, "pass")

    kernel = {
        name: seconds(partial(bare, r)) for name, r in (("forced", FORCED), ("rested", RESTED))
    }
    print(
        f"bare kernel, one thread: three rounds {kernel['forced']:.2f} s, "
        f"until rows rest {kernel['rested']:.2f} s"
    )
    threads = ThreadsExecutor(CPU_COUNT)
    for name, rounds in (("forced", FORCED), ("rested", RESTED)):
        short, long = (seconds(partial(one_pass, d, threads, rounds)) for d in (half, whole))
        serial = seconds(partial(one_pass, whole, SerialExecutor(), rounds))
        print(
            f"{name}: pass on {CPU_COUNT} threads {long:.2f} s, {long / short:.2f} times that of "
            f"half the rows; on one {serial:.2f} s, {serial / kernel[name]:.2f} times the kernel"
        )
    with worker_processes(1) as one, worker_processes(2) as two:
        # By turns, so that a neighbour's work does not fall on one of them alone.
        turns = [
            [seconds(partial(one_pass, whole, executor, RESTED), 1) for executor in (one, two)]
            for _ in range(2 * REPEATS)
        ]
    times = np.min(turns, axis=0)
    print(
        f"worker processes, until rows rest: {times[0]:.2f} s on one, {times[1]:.2f} s on two, "
        f"{times[0] / times[1]:.2f} times as fast"
    )
    clear_chunk_cache()


def recover() -> None:
    """Print what it costs to find two factors behind 20 items in 10^5 rows, and the errors."""
    rng = np.random.default_rng(0)
    params = truth(20, rng)
    rows = make_memory_rows(DenseData(drawn(params, 100_000, rng)), [5000] * 20)
    for estimator in ("quadrature", "variational", "ep", "auto"):
        settings: dict[str, Any] = {"estimator": estimator}
        model = LatentTrait(**settings)
        fit_model(LatentTrait(**{**settings, "max_iter": 2}), rows, SerialExecutor())
        start = time.process_time()
        found = fit_model(model, rows, SerialExecutor())
        spent = time.process_time() - start
        left, _, right = np.linalg.svd(found.params.weights.T @ params.weights)
        gaps = found.params.weights @ left @ right - params.weights
        shrunk = np.linalg.norm(found.params.weights) / np.linalg.norm(params.weights)
        print(
            f"{estimator}: {spent:.2f} CPU seconds, {found.iteration} passes, "
            f"root mean square error of slopes {np.sqrt((gaps**2).mean()):.4f}, "
            f"their size {shrunk:.3f} of the true"
        )


def main() -> None:
    """Print all of it."""
    print(f"{N_ROWS:,} rows x {N_FEATURES} features on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        time_passes(Path(folder))
    recover()


if __name__ == "__main__":
    main()
