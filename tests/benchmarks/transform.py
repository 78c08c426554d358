"""The transform command against the bare kernel in memory, and how it grows with rows and workers.

python -m tests.benchmarks.transform [ROWS [LARGE]]
python -m tests.benchmarks.transform wide

ROWS are those of the bare kernel; LARGE, such as 10000000, those of the runs on two cores. `wide`
compares codes of wide rows with expectation propagation until convergence, in time and results.
"""

import sys
import tempfile
import time
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
from pipeline.models.latent_trait.em import make_params
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.writer import create_dataset
from tests.support.data import ArrayBatch

N_ROWS, N_FEATURES, N_COMPONENTS = 20_000, 128, 2


def latent_trait(folder: Path, rng: np.random.Generator) -> LoadedModel:
    weights = 1.5 / np.sqrt(2) * rng.standard_normal((N_FEATURES, N_COMPONENTS))
    return saved(folder, LatentTrait(), make_params(weights, rng.standard_normal(N_FEATURES)))


def clipped_pca(folder: Path, rng: np.random.Generator) -> LoadedModel:
    loadings = rng.standard_normal((N_FEATURES, N_COMPONENTS))
    loadings *= np.sqrt(0.6) / np.linalg.norm(loadings, axis=1, keepdims=True)
    thresholds, square = rng.uniform(-1, 1, N_FEATURES), np.eye(N_FEATURES)
    none = np.zeros(0)
    params = ClippedPCAParams(loadings, none, thresholds, square, square.astype(np.uint8), none)
    return saved(folder, ClippedPCA(), params)


def saved(folder: Path, model: Any, params: Any) -> LoadedModel:
    """Parameters as if they had been fitted."""
    names = [f"f{i}" for i in range(N_FEATURES)]
    recorded = {"model": model.name, "hyperparameters": {}, "segment_names": ["all"]}
    arrays = {name: NamedArray(*a) for name, a in get_named_arrays(params).items()}
    return load_fitted_model(write_artifact(folder, arrays, {**recorded, "feature_names": names}))


def drawn(fitted: LoadedModel, n_rows: int, path: Path) -> BinaryBlock:
    """Rows of the model: as a dataset, and in memory."""
    X = fitted.model.sample(fitted.params, n_rows, np.random.default_rng(1))
    with create_dataset(path, fitted.feature_names, expected_rows=n_rows) as writer:
        writer.add(ArrayBatch(X))
    return pack_block(X)


def bare_seconds(fitted: LoadedModel, block: BinaryBlock) -> float:
    """One thread, one call."""
    with limit_blas_threads():
        begun = time.perf_counter()
        fitted.model.transform(fitted.params, block, RowRandom(0))
        return time.perf_counter() - begun


def flow_seconds(
    folder: Path, n_rows: int, name: str, where: ExecutorOptions
) -> tuple[float, float]:
    """The command from its start to its end, without the Prefect server, and its main stage."""
    paths = (folder / f"{name}-{n_rows}.zarr", folder / name, folder / "codes.zarr")
    summary = transform(*map(str, paths), overwrite=True, where=where)
    return summary["seconds"], summary["stages"]["transform"]


def compare(folder: Path, fitted: LoadedModel, n_rows: int) -> float:
    """Print how the command fares against the bare kernel, whose rows a second are given."""
    name = fitted.artifact.path.name
    block = drawn(fitted, n_rows, folder / f"{name}-{n_rows}.zarr")
    bare_seconds(fitted, block.take_rows(np.arange(64)))
    bare = bare_seconds(fitted, block)
    whole, stage = flow_seconds(folder, n_rows, name, {"name": "serial"})
    print(f"{name}, {n_rows:,} rows x {N_FEATURES} features, {N_COMPONENTS} components")
    print(f"  bare kernel, one thread     {n_rows / bare:10,.0f} rows/s")
    print(f"  command, serial             {n_rows / whole:10,.0f} rows/s, {bare / whole:.0%} of it")
    print(f"  its transform stage         {n_rows / stage:10,.0f} rows/s, {bare / stage:.0%} of it")
    return n_rows / bare


def tiled(fitted: LoadedModel, n_rows: int, path: Path) -> None:
    """Many rows, of which a million are drawn; the time of a row depends on its values."""
    X = fitted.model.sample(fitted.params, min(n_rows, 1_000_000), np.random.default_rng(1))
    with create_dataset(path, fitted.feature_names, expected_rows=n_rows) as writer:
        for first in range(0, n_rows, len(X)):
            writer.add(ArrayBatch(X[: n_rows - first]))


def compare_workers(folder: Path, fitted: LoadedModel, n_rows: int, bare: float) -> None:
    """Print rows a second of threads and worker processes."""
    name = fitted.artifact.path.name
    tiled(fitted, n_rows, folder / f"{name}-{n_rows}.zarr")
    print(f"{name}, {n_rows:,} rows, the transform stage")
    found = {}
    ways: dict[str, ExecutorOptions] = {
        "2 threads": {"name": "threads", "workers": 2},
        "1 worker process": {"workers": 1},
        "2 worker processes": {"workers": 2},
    }
    for way, where in ways.items():
        found[way] = n_rows / flow_seconds(folder, n_rows, name, where)[1]
        cores = 2 if way.startswith("2") else 1
        print(f"  {way:27} {found[way]:10,.0f} rows/s, {found[way] / cores / bare:.0%} a core")
    ratio = found["2 worker processes"] / found["1 worker process"]
    print(f"  2 worker processes against 1: {ratio:.2f} times as fast")


def compare_wide(n_features: int, n_components: int, share: float, n_rows: int = 512) -> None:
    """Print CPU seconds for 1,000 rows by either way, in turns, and how far their codes differ."""
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((n_features, n_components))
    communality = rng.uniform(0.05, 0.6, n_features)
    loadings *= np.sqrt(communality / (loadings**2).sum(axis=1))[:, None]
    noise = np.sqrt(1 - communality)
    weights, offsets = loadings / noise[:, None], -rng.normal(0.5, 0.6, n_features) / noise
    inputs = rng.standard_normal((n_rows, n_components)) @ weights.T + offsets
    X = (inputs + rng.standard_normal(inputs.shape) > 0).astype(np.uint8)
    prior = np.zeros(n_components), np.ones(n_components)
    arguments = X, weights, offsets, *prior, rng.random(X.shape) < share
    seconds: dict[Any, list[float]] = {probit_codes: [], probit_posterior: []}
    results: dict[Any, Any] = {}
    for function in [*seconds] * 4:
        begun = time.process_time()
        results[function] = function(*arguments)
        seconds[function].append(1000 * (time.process_time() - begun) / n_rows)
    codes, exact = results[probit_codes], results[probit_posterior]
    fast, slow = (float(np.median(taken[1:])) for taken in seconds.values())  # compiled by then
    shift = np.abs(codes["mean"] - exact.mean)
    ratio = np.abs(codes["variance"] / exact.variance - 1)
    print(
        f"{n_features:6,} features, {n_components} components, {share:4.0%} observed: {fast:.2f} s "
        f"per 1,000 rows against {slow:.2f} s, {slow / fast:.1f} x; mean within {shift.mean():.5f} "
        f"(largest {shift.max():.4f}), variance within {ratio.mean():.2%} ({ratio.max():.1%})"
    )


def main() -> None:
    """Print rows a second and ratios."""
    if sys.argv[1:] == ["wide"]:
        with limit_blas_threads():
            for wide in ((4000, 10, 1.0), (4000, 10, 0.5), (10_000, 10, 1.0), (4000, 20, 1.0)):
                compare_wide(*wide)
        return
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    n_large = int(sys.argv[2]) if len(sys.argv) > 2 else 32 * n_rows
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        trait = latent_trait(folder / "latent-trait", rng)
        probit = clipped_pca(folder / "clipped-pca", rng)
        speeds = [compare(folder, trait, n_rows)]
        speeds += [compare(folder, probit, times * n_rows) for times in (1, 2, 4)]
        compare_workers(folder, trait, n_large, speeds[0])
        compare_workers(folder, probit, n_large, speeds[1])


if __name__ == "__main__":
    run_with_server(main)
