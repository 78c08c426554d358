"""Counting in a refit after 1 % more rows against counting in the first fit.

python -m tests.benchmarks incremental [MILLIONS_OF_ROWS]

Prints the wall seconds that the counting stages take in the first fit and in the refit. `start-up`
is their time for a small dataset, which is mostly spent before the first compiled function runs;
`net ratio` excludes it. Default: 8 million rows.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.statistics.counts import FeatureCounts, PairCounts
from storage.artifacts.artifacts import load_artifact
from storage.dataset.writer import DatasetWriter, append_dataset, create_dataset
from tests.benchmarks._measure import Table
from tests.support.data import ArrayBatch

MILLIONS, N_FEATURES, N_SEGMENTS, BATCH = 8.0, 256, 4, 100_000
NAMES = [f"f{i}" for i in range(N_FEATURES)]
STAGES = (FeatureCounts.label, PairCounts.label)
MODELS = {
    "clipped-pca": ("--components", "5"),
    "blica": ("--components", "2", "--set", "regularization=20", "--set", "starts=1"),
}


def add_rows(writer: DatasetWriter, n_rows: int, seed: int) -> None:
    """Add independent bits with different margins, which hardly compress."""
    rng = np.random.default_rng(seed)
    shares = rng.uniform(0.1, 0.9, N_FEATURES)
    for first in range(0, n_rows, BATCH):
        size = min(BATCH, n_rows - first)
        levels = np.frombuffer(rng.bytes(size * N_FEATURES), np.uint8).reshape(size, N_FEATURES)
        segments = np.array([f"s{k}" for k in range(N_SEGMENTS)])
        labels = segments[np.arange(size) * N_SEGMENTS // size]
        writer.add(ArrayBatch((levels < 256 * shares).view(np.uint8)), labels)


def fit(folder: Path, model: str) -> dict[str, float]:
    """Run the fit command in a new process; return the wall seconds of its stages."""
    arguments = ["--dataset", str(folder / "d.zarr"), "--output", str(folder / model)]
    command = [sys.executable, "-m", "flows.fit", *arguments, "--model", model, *MODELS[model]]
    options = ["--no-report", "--json"]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(done.stdout)
    usage = load_artifact(summary["artifact"]).manifest["usage_by_stage"]
    seconds: dict[str, float] = {name: used["seconds"] for name, used in usage.items()}
    return seconds


def fit_all(folder: Path) -> dict[str, dict[str, float]]:
    return {model: fit(folder, model) for model in MODELS}


def write(folder: Path, open_writer: Callable[..., Any], n_rows: int, seed: int) -> None:
    with open_writer(folder / "d.zarr", NAMES, expected_rows=n_rows) as writer:
        add_rows(writer, n_rows, seed)


def counting_seconds(run: dict[str, dict[str, float]], model: str) -> float:
    return sum(run[model][stage] for stage in STAGES)


def main() -> None:
    """Print one line per model."""
    n_rows = int(float(sys.argv[1] if len(sys.argv) > 1 else MILLIONS) * 1e6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small").mkdir()
        write(folder / "small", create_dataset, BATCH, 0)
        fit_all(folder / "small")  # compile the kernels
        small_fit = fit_all(folder / "small")
        write(folder, create_dataset, n_rows, 1)
        first_fit = fit_all(folder)
        with append_dataset(folder / "d.zarr", NAMES) as writer:
            add_rows(writer, n_rows // 100, 2)
        refit = fit_all(folder)
    print(f"{n_rows:,} rows x {N_FEATURES} features, then 1 % more; wall seconds of counting")
    table = Table(
        *("model:<12", "first fit s:.2f", "refit s:8.2f", "ratio:6.3f", "start-up s:.2f"),
        *("net ratio:.3f", "drift s:8.2f"),
    )
    for model in MODELS:
        first, second, startup = (
            counting_seconds(run, model) for run in (first_fit, refit, small_fit)
        )
        net = (second - startup) / (first - startup)
        table.add(model, first, second, second / first, startup, net, refit[model]["drift"])


if __name__ == "__main__":
    main()
