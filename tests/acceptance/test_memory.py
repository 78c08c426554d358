"""Fits of 64 million rows and transforms of 10 million keep every process below 1 GB.

So do fits of binary ICA to 1,000 features in 40 segments below 3 GB.

Run it with `pytest -m slow tests/acceptance/test_memory.py`; it needs 3 GB of disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from tests.benchmarks.transform import save_clipped_pca, save_latent_trait, write_repeated_rows
from tests.support.data import ArrayBatch

N_ROWS, N_FEATURES = 64_000_000, 256


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    """Two factors behind each half of the features; 2 GB that do not compress."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("large") / "d.zarr"
    with create_dataset(path, [f"f{i}" for i in range(N_FEATURES)], expected_rows=N_ROWS) as writer:
        for _ in range(0, N_ROWS, 200_000):
            noise = rng.integers(0, 256, (200_000, N_FEATURES // 8), dtype=np.uint8)
            common = rng.integers(0, 2, (200_000, 2), dtype=np.uint8) * 255
            mixed = noise & rng.integers(0, 256, noise.shape, dtype=np.uint8)
            half = N_FEATURES // 16
            mixed[:, :half] ^= common[:, :1]
            mixed[:, half:] ^= common[:, 1:]
            writer.add(ArrayBatch(np.unpackbits(mixed, axis=1)))
    return open_dataset(path)


def peak_sizes(process: psutil.Process) -> dict[int, int]:
    """Watch a process and its children until it ends; largest resident size of each."""
    peaks: dict[int, int] = {}
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        try:
            for one in [process, *process.children(recursive=True)]:
                peaks[one.pid] = max(peaks.get(one.pid, 0), one.memory_info().rss)
        except psutil.Error:
            continue
        time.sleep(0.02)
    return peaks


def watched(name: str, *options: str) -> tuple[dict[str, Any], dict[int, int]]:
    """Run a flow; return its summary, and the largest resident size of each of its processes."""
    command = [sys.executable, "-m", f"flows.{name}", *options, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks: dict[int, int] = {}
    watch = threading.Thread(target=lambda: peaks.update(peak_sizes(psutil.Process(process.pid))))
    watch.start()
    out, _ = process.communicate()
    watch.join()
    assert process.returncode == 0
    summary = json.loads(out)
    print(f"peaks {sorted(peaks.values())}, stages {summary['stages']}")
    return summary, peaks


ways = pytest.mark.parametrize("workers", [[], ["--workers", "2"]], ids=["in process", "2 workers"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@ways
def test_64_million_rows_fit_into_1_gb_a_process(large, tmp_path: Path, workers):
    output = ["--output", str(tmp_path / "runs")]
    summary, peaks = watched("fit", "--dataset", str(large.path), *workers, *output)
    assert summary["n_samples"] == N_ROWS
    assert summary["n_components"] == 2
    assert max(peaks.values()) < 1_000_000_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@ways
@pytest.mark.parametrize("save_model", [save_latent_trait, save_clipped_pca])
def test_10_million_rows_are_transformed_within_1_gb_a_process(tmp_path: Path, workers, save_model):
    fitted = save_model(tmp_path / "fitted", np.random.default_rng(0))
    write_repeated_rows(fitted, 10_000_000, tmp_path / "d.zarr")
    options = ("--dataset", "d.zarr", "--artifact", "fitted", "--output", "codes.zarr")
    places = [str(tmp_path / option) if "-" not in option else option for option in options]
    summary, peaks = watched("transform", *places, *workers)
    assert summary["n_rows"] == 10_000_000
    assert max(peaks.values()) < 1_000_000_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_40_segments_of_1000_features_fit_into_3_gb(tmp_path: Path):
    example = "example:nonstationary:features=1000,components=10,segments=40,rows_per_segment=1000"
    data, runs = str(tmp_path / "d.zarr"), str(tmp_path / "runs")
    subprocess.run([sys.executable, "-m", "flows.ingest", example, "--dataset", data], check=True)
    options = ("--model", "blica", "--components", "10", "--truth", "--output", runs)
    summary, peaks = watched("fit", "--dataset", data, *options)
    assert summary["mcs"] > 0.98
    assert sum(peaks.values()) < 3_000_000_000
