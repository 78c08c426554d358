"""The statistics of a refit after appending 1 % against those of the fit before.

python -m tests.benchmarks.incremental [MILLIONS OF ROWS]
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
from tests.support.data import ArrayBatch

MILLIONS, N_FEATURES, N_SEGMENTS, BATCH = 8.0, 256, 4, 100_000
NAMES = [f"f{i}" for i in range(N_FEATURES)]
STAGES = (FeatureCounts.label, PairCounts.label)
MODELS = {
    "clipped-pca": ("--components", "5"),
    "blica": ("--components", "2", "--set", "regularization=20", "--set", "starts=1"),
}


def add(writer: DatasetWriter, n_rows: int, seed: int) -> None:
    """Independent bits of different margins: they compress as badly as any."""
    rng = np.random.default_rng(seed)
    shares = rng.uniform(0.1, 0.9, N_FEATURES)
    for first in range(0, n_rows, BATCH):
        size = min(BATCH, n_rows - first)
        drawn = np.frombuffer(rng.bytes(size * N_FEATURES), np.uint8).reshape(size, N_FEATURES)
        segments = np.array([f"s{k}" for k in range(N_SEGMENTS)])
        labels = segments[np.arange(size) * N_SEGMENTS // size]
        writer.add(ArrayBatch((drawn < 256 * shares).view(np.uint8)), labels)


def fitted(folder: Path, model: str) -> dict[str, float]:
    """Fit by the command, in a process of its own; give the seconds of its stages."""
    arguments = ["--dataset", str(folder / "d.zarr"), "--output", str(folder / model)]
    command = [sys.executable, "-m", "flows.fit", *arguments, "--model", model, *MODELS[model]]
    options = ["--no-report", "--json"]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(done.stdout)
    usage = load_artifact(summary["artifact"]).manifest["usage_by_stage"]
    seconds: dict[str, float] = {name: used["seconds"] for name, used in usage.items()}
    return seconds


def each_fitted(folder: Path) -> dict[str, dict[str, float]]:
    return {model: fitted(folder, model) for model in MODELS}


def write(folder: Path, open_writer: Callable[..., Any], n_rows: int, seed: int) -> None:
    with open_writer(folder / "d.zarr", NAMES, expected_rows=n_rows) as writer:
        add(writer, n_rows, seed)


def counting(run: dict[str, dict[str, float]], model: str) -> float:
    return sum(run[model][stage] for stage in STAGES)


def main() -> None:
    """Print the seconds of both fits of each model, and their ratio.

    A process needs some time before its first compiled function runs, however few the rows: the
    statistics of a small dataset show it, and the last ratio is without it.
    """
    n_rows = int(float(sys.argv[1] if len(sys.argv) > 1 else MILLIONS) * 1e6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small").mkdir()
        write(folder / "small", create_dataset, BATCH, 0)
        each_fitted(folder / "small")  # compiles what is to be compiled
        small = each_fitted(folder / "small")
        write(folder, create_dataset, n_rows, 1)
        full = each_fitted(folder)
        with append_dataset(folder / "d.zarr", NAMES) as writer:
            add(writer, n_rows // 100, 2)
        again = each_fitted(folder)
    print(f"{n_rows:,} rows x {N_FEATURES} features, then 1 % more")
    for model in MODELS:
        first, second, start = (counting(run, model) for run in (full, again, small))
        net = (second - start) / (first - start)
        print(
            f"{model:12s} statistics {first:.2f} s, then {second:.2f} s, ratio "
            f"{second / first:.3f}; small data {start:.2f} s, ratio beyond {net:.3f}; "
            f"drift {again[model]['drift']:.2f} s"
        )


if __name__ == "__main__":
    main()
