"""The transform command against the kernel in memory, and on two workers.

python -m tests.benchmarks transform [ROWS [LARGE]]
python -m tests.benchmarks transform wide

Prints rows per second of wall time. ROWS (default 20,000) is the number of rows transformed in
memory. LARGE (default 32 times ROWS) is the number of rows transformed by threads and worker
processes.

`wide` compares the codes of wide rows with expectation propagation run to convergence: CPU seconds
per 1,000 rows, and the differences of posterior means and variances.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flows.cli.options import ExecutorOptions
from flows.data.datasets import LoadedModel, load_fitted_model
from flows.running.server import run_with_server
from flows.transform import transform
from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.executors.base import limit_blas_threads
from pipeline.models.clipped_pca import ClippedPCA, ClippedPCAParams
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import make_params
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.writer import create_dataset
from tests.benchmarks._measure import Table, alternate, measure_best
from tests.support.data import ArrayBatch

N_ROWS, N_FEATURES, N_COMPONENTS = 20_000, 128, 2


def save_latent_trait(folder: Path, rng: np.random.Generator) -> LoadedModel:
    weights = 1.5 / np.sqrt(2) * rng.standard_normal((N_FEATURES, N_COMPONENTS))
    return save_model(folder, LatentTrait(), make_params(weights, rng.standard_normal(N_FEATURES)))


def save_clipped_pca(folder: Path, rng: np.random.Generator) -> LoadedModel:
    loadings = rng.standard_normal((N_FEATURES, N_COMPONENTS))
    loadings *= np.sqrt(0.6) / np.linalg.norm(loadings, axis=1, keepdims=True)
    none = np.zeros(0)
    params = ClippedPCAParams(loadings, none, rng.uniform(-1, 1, N_FEATURES), none)
    return save_model(folder, ClippedPCA(), params)


def save_model(folder: Path, model: Any, params: Any) -> LoadedModel:
    """Save parameters as an artifact, as if they had been fitted, and load it."""
    manifest = {
        "model": model.name,
        "hyperparameters": {},
        "seed": 0,
        "split": None,
        "versions": {},
        "code": "",
        "dataset": {"path": "", "digest": "", "n_rows": 0, "n_chunks": 0},
        "feature_names": [f"f{i}" for i in range(N_FEATURES)],
        "segment_names": ["all"],
        "n_components": N_COMPONENTS,
        "iterations": 0,
        "converged": True,
        "history": [],
        "objective": None,
        "diagnostics": {},
        "warnings": [],
    }
    arrays = {name: NamedArray(*a) for name, a in get_named_arrays(params).items()}
    return load_fitted_model(write_artifact(folder, arrays, manifest))


def write_rows(fitted: LoadedModel, n_rows: int, path: Path) -> BinaryBlock:
    """Draw rows of a model; write them as a dataset and return them as a block."""
    X = fitted.model.sample(fitted.params, n_rows, np.random.default_rng(1))
    with create_dataset(path, fitted.feature_names, expected_rows=n_rows) as writer:
        writer.add(ArrayBatch(X))
    return pack_block(X)


def measure_kernel(fitted: LoadedModel, block: BinaryBlock) -> float:
    """Return the wall seconds of one call on one thread."""
    with limit_blas_threads():
        return measure_best(lambda: fitted.model.transform(fitted.params, block, RowRandom(0)), 1)


def measure_command(
    folder: Path, n_rows: int, name: str, where: ExecutorOptions
) -> tuple[float, float]:
    """Return the wall seconds of the command, without the Prefect server, and of its main stage."""
    paths = map(str, (folder / f"{name}-{n_rows}.zarr", folder / "codes.zarr", folder / name))
    summary = transform(*paths, overwrite=True, where=where)
    return summary["seconds"], summary["stages"]["transform"]


def compare(folder: Path, fitted: LoadedModel, n_rows: int) -> float:
    """Print the speed of the command and of the kernel; return that of the kernel in rows/s."""
    name = fitted.artifact.path.name
    block = write_rows(fitted, n_rows, folder / f"{name}-{n_rows}.zarr")
    measure_kernel(fitted, block.take_rows(np.arange(64)))
    kernel = measure_kernel(fitted, block)
    command, stage = measure_command(folder, n_rows, name, {"name": "serial"})
    print(f"{name}, {n_rows:,} rows x {N_FEATURES} features, {N_COMPONENTS} components")
    table = Table("method:<27", "rows/s:10,.0f", "share of kernel:.0%")
    lines = {
        "kernel in memory, 1 thread": kernel,
        "command, serial": command,
        "transform stage, serial": stage,
    }
    for label, seconds in lines.items():
        table.add(label, n_rows / seconds, kernel / seconds)
    return n_rows / kernel


def write_repeated_rows(fitted: LoadedModel, n_rows: int, path: Path) -> None:
    """Write many rows: up to a million drawn rows, repeated as needed."""
    X = fitted.model.sample(fitted.params, min(n_rows, 1_000_000), np.random.default_rng(1))
    with create_dataset(path, fitted.feature_names, expected_rows=n_rows) as writer:
        for first in range(0, n_rows, len(X)):
            writer.add(ArrayBatch(X[: n_rows - first]))


def compare_workers(folder: Path, fitted: LoadedModel, n_rows: int, kernel: float) -> None:
    """Print the speed of the transform stage on threads and on worker processes."""
    name = fitted.artifact.path.name
    write_repeated_rows(fitted, n_rows, folder / f"{name}-{n_rows}.zarr")
    print(f"{name}, {n_rows:,} rows, transform stage")
    table = Table("executor:<27", "rows/s:10,.0f", "share of kernel per core:.0%")
    speeds = {}
    executors: dict[str, ExecutorOptions] = {
        "2 threads": {"name": "threads", "workers": 2},
        "1 worker process": {"workers": 1},
        "2 worker processes": {"workers": 2},
    }
    for label, where in executors.items():
        speeds[label] = n_rows / measure_command(folder, n_rows, name, where)[1]
        cores = 2 if label.startswith("2") else 1
        table.add(label, speeds[label], speeds[label] / cores / kernel)
    ratio = speeds["2 worker processes"] / speeds["1 worker process"]
    print(f"  speed-up of 2 worker processes over 1: {ratio:.2f}")


def compare_wide(
    table: Table, n_features: int, n_components: int, share: float, n_rows: int = 512
) -> None:
    """Print CPU seconds per 1,000 rows of both methods, and the differences of their codes."""
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((n_features, n_components))
    communality = rng.uniform(0.05, 0.6, n_features)
    loadings *= np.sqrt(communality / (loadings**2).sum(axis=1))[:, None]
    noise = np.sqrt(1 - communality)
    weights, offsets = loadings / noise[:, None], -rng.normal(0.5, 0.6, n_features) / noise
    inputs = rng.standard_normal((n_rows, n_components)) @ weights.T + offsets
    X = (inputs + rng.standard_normal(inputs.shape) > 0).astype(np.uint8)
    arguments = X, weights, offsets, rng.random(X.shape) < share
    codes, exact = probit_codes(*arguments), probit_posterior(*arguments)  # compiles
    calls = {f.__name__: partial(f, *arguments) for f in (probit_codes, probit_posterior)}
    seconds = alternate(calls, 3, time.process_time)
    fast, slow = (1000 * float(np.median(runs)) / n_rows for runs in seconds.values())
    shift = np.abs(codes["mean"] - exact.mean)
    ratio = np.abs(codes["variance"] / exact.variance - 1)
    differences = shift.mean(), shift.max(), ratio.mean(), ratio.max()
    table.add(n_features, n_components, share, fast, slow, slow / fast, *differences)


def main() -> None:
    """Print speeds, or the comparison of wide rows."""
    if sys.argv[1:] == ["wide"]:
        with limit_blas_threads():
            print(
                "CPU s per 1,000 rows; mean and largest difference of posterior means and variances"
            )
            table = Table(
                *("features:,d", "components:d", "observed:.0%", "transform s:.2f", "EP s:8.2f"),
                *("ratio:6.1f", "means avg.:.5f", "means max:.4f", "variances avg.:.2%"),
                "variances max:.1%",
            )
            for wide in ((4000, 10, 1.0), (4000, 10, 0.5), (10_000, 10, 1.0), (4000, 20, 1.0)):
                compare_wide(table, *wide)
        return
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    n_large = int(sys.argv[2]) if len(sys.argv) > 2 else 32 * n_rows
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        trait = save_latent_trait(folder / "latent-trait", rng)
        probit = save_clipped_pca(folder / "clipped-pca", rng)
        speeds = [compare(folder, trait, n_rows)]
        speeds += [compare(folder, probit, factor * n_rows) for factor in (1, 2, 4)]
        compare_workers(folder, trait, n_large, speeds[0])
        compare_workers(folder, probit, n_large, speeds[1])


if __name__ == "__main__":
    run_with_server(main)
