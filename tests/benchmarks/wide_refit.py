"""Refit of clipped PCA to wide data after 1 % of rows were appended, against a fit to all rows.

python -m tests.benchmarks.wide_refit [FEATURES [ROWS]]

Both commands run with the same number of rows, in processes of their own, and must give the same
bytes. Stages other than pair tables do not depend on how many rows are new.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from storage.artifacts.artifacts import Artifact, load_artifact
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import DatasetWriter, append_dataset, create_dataset
from tests.benchmarks.wide import N_COMPONENTS, ROWS_AT_ONCE, draw_rows
from tests.support.data import ArrayBatch

STAGES = ("open", "feature counts", "pair tables", "drift", "write artifact")


def add_rows(writer: DatasetWriter, n_rows: int, n_features: int, seed: int) -> None:
    """Add rows that depend on the same factors for every seed."""
    mixing = np.random.default_rng(0).standard_normal((N_COMPONENTS, n_features), np.float32) / 5
    rng = np.random.default_rng([1, seed])
    for first in range(0, n_rows, ROWS_AT_ONCE):
        writer.add(ArrayBatch(draw_rows(min(ROWS_AT_ONCE, n_rows - first), mixing, rng)))


def run_fit(dataset: Path, runs: Path) -> tuple[Artifact, float]:
    """Fit in a new process; return the artifact and the CPU seconds of the command."""
    words = ("-m", "flows.fit", "--dataset", str(dataset), "--output", str(runs), "--no-report")
    begun = count_child_seconds()
    subprocess.run(
        [sys.executable, *words, "--components", str(N_COMPONENTS), "--executor", "serial"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return load_artifact(runs), count_child_seconds() - begun


def count_child_seconds() -> float:
    """Return the CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_same_arrays(left: Artifact, right: Artifact) -> None:
    """Raise an error if two artifacts differ in a byte of their arrays."""
    assert left.pairs is not None
    assert right.pairs is not None
    for one, other in ((left, right), (left.pairs, right.pairs)):
        assert [*one] == [*other]
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def format_seconds(artifact: Artifact, total: float) -> str:
    """List the CPU seconds of the stages, and of the whole command."""
    usage = artifact.manifest["usage_by_stage"]
    stages = {name: usage[name]["cpu_seconds"] for name in STAGES if name in usage}
    return f"{total:7.2f} s ({', '.join(f'{name} {s:.2f}' for name, s in stages.items())})"


def main(n_features: int = 4000, n_rows: int = 100_000) -> None:
    """Print CPU seconds of the commands and of their stages, and ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = folder / "d.zarr"
        with create_dataset(dataset, [f"f{i}" for i in range(n_features)]) as writer:
            add_rows(writer, n_rows, n_features, 0)
        run_fit(dataset, folder / "runs")
        with append_dataset(dataset, open_dataset(dataset).feature_names) as writer:
            add_rows(writer, n_rows // 100, n_features, 1)
        shutil.copytree(folder / "runs", folder / "compiled")
        run_fit(dataset, folder / "compiled")  # compiles all kernels
        whole, whole_seconds = run_fit(dataset, folder / "whole")
        refit, refit_seconds = run_fit(dataset, folder / "runs")
        check_same_arrays(whole, refit)
    print(f"{n_features:,} features x {n_rows:,} rows, 1 % appended, CPU seconds on one core")
    print(f"  fit    {format_seconds(whole, whole_seconds)}")
    print(f"  refit  {format_seconds(refit, refit_seconds)}")
    pairs = [a.manifest["usage_by_stage"]["pair tables"]["cpu_seconds"] for a in (refit, whole)]
    print(
        f"  refit / fit: {refit_seconds / whole_seconds:.2f}, pair tables {pairs[0] / pairs[1]:.2f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
