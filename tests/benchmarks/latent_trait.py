"""Latent-trait passes over a stored dataset against the E-step in memory.

python -m tests.benchmarks latent_trait

Prints the shortest wall seconds of a pass over 2 million rows of 128 features with two components,
with a fixed number of three rounds and with rounds until each row converges. Then, for 20 items and
two factors, CPU seconds and errors of the slopes for each estimator.
"""

import os
import tempfile
import time
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
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import LatentTraitParams, make_params
from pipeline.numerics.logistic.logistic_bound import variational_e_step
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.sums import Sums
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import BinaryDataset, ChunkReader
from tests.benchmarks._measure import Table, Work, measure, write_rows
from tests.support.data import make_test_row_source
from tests.support.strategies import DenseData, make_memory_rows
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, REPEATS, STEP = 2_000_000, 128, 3, 50_000
THREE_ROUNDS, UNTIL_CONVERGED = {"tol": 0.0, "max_rounds": 3}, {"tol": 1e-4, "max_rounds": 20}


def draw_params(n_features: int, rng: np.random.Generator) -> LatentTraitParams:
    """Draw parameters of two components that explain about half of the logits' variance."""
    weights = 1.5 / np.sqrt(2) * rng.standard_normal((n_features, 2))
    return make_params(weights, rng.standard_normal(n_features))


def draw_rows(params: LatentTraitParams, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((n_rows, 2))
    probabilities = expit(x @ params.weights.T + params.offsets)
    return (rng.random(probabilities.shape) < probabilities).astype(np.uint8)


def write_dataset(path: Path, params: LatentTraitParams, n_rows: int) -> BinaryDataset:
    rng = np.random.default_rng(1)
    batches = (draw_rows(params, STEP, rng) for _ in range(0, n_rows, STEP))
    return write_rows(path, len(params.weights), batches, expected_rows=n_rows)


def e_step(params: LatentTraitParams, rounds: dict[str, float], block: BinaryBlock) -> Sums:
    """Run the E-step of the model with given limits on its rounds."""
    step = variational_e_step(
        block.words, None, block.n_samples, params.weights, params.offsets, **rounds
    )
    values = {"curvature": step.curvature, "target": step.target}
    return Sums(block.n_samples, step.bound, values)


def measure_shortest(work: Work, repeats: int = REPEATS) -> float:
    """Return the wall seconds of the fastest run after one that is not counted."""
    return min(measure(work, 1 + repeats)[1:])


def time_passes(folder: Path) -> None:
    """Print the seconds of passes, and their ratios."""
    params = draw_params(N_FEATURES, np.random.default_rng(0))
    half = write_dataset(folder / "half.zarr", params, N_ROWS // 2)
    whole = write_dataset(folder / "whole.zarr", params, N_ROWS)
    chunks = [whole.read_chunk(key) for key in range(whole.n_chunks)]

    def run_kernel(rounds: dict[str, float]) -> None:
        for chunk in chunks:
            args = (chunk.words, None, len(chunk.rows), params.weights, params.offsets)
            variational_e_step(*args, **rounds)

    def run_pass(dataset: BinaryDataset, executor: Executor, rounds: dict[str, float]) -> Sums:
        read = ChunkReader(str(dataset.path), dataset.digest, memory=1 << 30)
        rows = replace(make_test_row_source(dataset), read=read)
        return collect_statistics(partial(e_step, params, rounds), rows, executor, "pass")

    kernel = {
        name: measure_shortest(partial(run_kernel, r))
        for name, r in (("three rounds", THREE_ROUNDS), ("until converged", UNTIL_CONVERGED))
    }
    print(
        f"kernel in memory, one thread: three rounds {kernel['three rounds']:.2f} s, "
        f"until converged {kernel['until converged']:.2f} s"
    )
    threads = ThreadsExecutor(CPU_COUNT)
    for name, rounds in (("three rounds", THREE_ROUNDS), ("until converged", UNTIL_CONVERGED)):
        short, long = (
            measure_shortest(partial(run_pass, d, threads, rounds)) for d in (half, whole)
        )
        serial = measure_shortest(partial(run_pass, whole, SerialExecutor(), rounds))
        print(
            f"{name}: pass on {CPU_COUNT} threads {long:.2f} s, ratio to half the rows "
            f"{long / short:.2f}; serial pass {serial:.2f} s, ratio to kernel "
            f"{serial / kernel[name]:.2f}"
        )
    with worker_processes(1) as one, worker_processes(2) as two:
        # Alternate, so that both share the same machine load.
        runs = [
            [
                measure_shortest(partial(run_pass, whole, executor, UNTIL_CONVERGED), 1)
                for executor in (one, two)
            ]
            for _ in range(2 * REPEATS)
        ]
    times = np.min(runs, axis=0)
    print(
        f"until converged: 1 worker process {times[0]:.2f} s, 2 worker processes {times[1]:.2f} s, "
        f"speed-up {times[0] / times[1]:.2f}"
    )
    clear_chunk_cache()


def measure_recovery() -> None:
    """Print CPU seconds and errors of fits to 20 items in 100,000 rows, per estimator."""
    rng = np.random.default_rng(0)
    params = draw_params(20, rng)
    rows = make_memory_rows(DenseData(draw_rows(params, 100_000, rng)), [5000] * 20)
    table = Table(
        *("estimator:<11", "CPU s:8.2f", "passes:8d", "RMSE of slopes:.4f"),
        "norm relative to truth:.3f",
    )
    for estimator in ("quadrature", "variational", "ep", "auto"):
        settings: dict[str, Any] = {"estimator": estimator}
        model = LatentTrait(**settings)
        fit_model(LatentTrait(**{**settings, "max_iter": 2}), rows, SerialExecutor())
        start = time.process_time()
        state = fit_model(model, rows, SerialExecutor())
        cpu_seconds = time.process_time() - start
        left, _, right = np.linalg.svd(state.params.weights.T @ params.weights)
        errors = state.params.weights @ left @ right - params.weights
        relative_size = np.linalg.norm(state.params.weights) / np.linalg.norm(params.weights)
        error = np.sqrt((errors**2).mean())
        table.add(estimator, cpu_seconds, state.iteration, error, relative_size)


def main() -> None:
    """Print pass times, then the recovery of known parameters."""
    print(f"{N_ROWS:,} rows x {N_FEATURES} features on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        time_passes(Path(folder))
    measure_recovery()


if __name__ == "__main__":
    main()
