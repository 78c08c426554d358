"""Refit of wide clipped PCA after 1 % more rows against a fit from scratch.

python -m tests.benchmarks wide_refit [FEATURES [ROWS]]

Prints CPU seconds of both commands, run in their own processes on the same rows, and checks that
their results are byte-identical. Only the stage `pair tables` gets faster when few rows are new.
Defaults: 4,000 features, 100,000 rows.
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
    arguments = ("-m", "flows.fit", "--dataset", str(dataset), "--output", str(runs), "--no-report")
    seconds_before = count_child_seconds()
    subprocess.run(
        [sys.executable, *arguments, "--components", str(N_COMPONENTS), "--executor", "serial"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return load_artifact(runs), count_child_seconds() - seconds_before


def count_child_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_same_arrays(left: Artifact, right: Artifact) -> None:
    """Raise an error unless the arrays of two artifacts are byte-identical."""
    assert left.pairs is not None
    assert right.pairs is not None
    for one, other in ((left, right), (left.pairs, right.pairs)):
        assert [*one] == [*other]
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def format_seconds(artifact: Artifact, total: float) -> str:
    """Format the CPU seconds of the command and of its stages."""
    usage = artifact.manifest["usage_by_stage"]
    stages = {name: usage[name]["cpu_seconds"] for name in STAGES if name in usage}
    return f"{total:7.2f} s ({', '.join(f'{name} {s:.2f}' for name, s in stages.items())})"


def main(n_features: int = 4000, n_rows: int = 100_000) -> None:
    """Print the CPU seconds of both commands and of their stages, and their ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = folder / "d.zarr"
        with create_dataset(dataset, [f"f{i}" for i in range(n_features)]) as writer:
            add_rows(writer, n_rows, n_features, 0)
        run_fit(dataset, folder / "runs")
        with append_dataset(dataset, open_dataset(dataset).feature_names) as writer:
            add_rows(writer, n_rows // 100, n_features, 1)
        shutil.copytree(folder / "runs", folder / "compiled")
        run_fit(dataset, folder / "compiled")  # compile all kernels
        full_fit, fit_seconds = run_fit(dataset, folder / "whole")
        refit, refit_seconds = run_fit(dataset, folder / "runs")
        check_same_arrays(full_fit, refit)
    print(f"{n_features:,} features x {n_rows:,} rows, 1 % appended, CPU seconds on one core")
    print(f"  fit    {format_seconds(full_fit, fit_seconds)}")
    print(f"  refit  {format_seconds(refit, refit_seconds)}")
    refit_pairs, fit_pairs = [
        a.manifest["usage_by_stage"]["pair tables"]["cpu_seconds"] for a in (refit, full_fit)
    ]
    print(
        f"  ratio refit / fit: {refit_seconds / fit_seconds:.2f}, "
        f"pair tables only {refit_pairs / fit_pairs:.2f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
