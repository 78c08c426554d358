"""Fits of many rows from the command line, which start on a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from storage import load_artifact
from storage.dataset.writer import append_dataset
from tests.support.data import ArrayBatch, write_arrays
from tests.support.processes import kill_fit_at

N_ROWS, N_NEW, N_ITEMS = 205_000, 3000, 5
FIT = ("--model", "latent-trait", "--components", 1, "--no-report")


def draw_answers() -> Any:
    rng = np.random.default_rng(0)
    slopes, offsets = rng.uniform(0.8, 2.0, N_ITEMS), rng.normal(size=N_ITEMS)
    x = np.sort(rng.standard_normal(N_ROWS + N_NEW))  # each chunk has other rows than the next
    return (rng.random((len(x), N_ITEMS)) < expit(x[:, None] * slopes + offsets)).astype(np.uint8)


def read_bytes(folder: str) -> dict[str, bytes]:
    artifact = load_artifact(Path(folder))
    assert 19_000 < artifact.manifest["diagnostics"]["sample_rows"] < 22_000
    return {name: artifact[name].tobytes() for name in artifact}


def kill_fit(stage: str, command: tuple[object, ...]) -> None:
    kill_fit_at(stage, [str(word) for word in command[1:]])


@pytest.fixture
def command(tmp_path: Path) -> tuple[object, ...]:
    dataset = write_arrays(tmp_path / "d.zarr", draw_answers()[:N_ROWS], words_per_chunk=500)
    return ("fit", "--dataset", dataset.path, *FIT)


def test_killed_cold_and_warm_fits_resume_to_the_same_bytes(
    cli: Any, command: tuple[object, ...], tmp_path: Path
) -> None:
    kill_fit("first/manifest.json", command)  # before or during the passes over the sample
    assert cli(*command, "--resume").code == 0
    assert cli(*command, "--output", "whole").code == 0
    assert read_bytes("runs/d") == read_bytes("whole")
    with append_dataset(tmp_path / "d.zarr", [f"f{i}" for i in range(N_ITEMS)]) as writer:
        writer.add(ArrayBatch(draw_answers()[N_ROWS:]))
    command = (*command, "--warm-start")
    kill_fit("states/000001/manifest.json", command)
    assert cli(*command, "--resume").code == 0
    assert cli(*command, "--output", "whole").code == 0
    assert read_bytes("runs/d") == read_bytes("whole")


@pytest.mark.matrix
def test_every_executor_and_a_resumed_fit_give_the_same_bytes(
    cli: Any, command: tuple[object, ...]
) -> None:
    for name in ("serial", "threads"):
        assert cli(*command, "--executor", name, "--output", name).code == 0
    kill_fit("states/000001/manifest.json", command)
    done = cli(*command, "--resume", "--json")
    assert done.json["iterations"] <= 6
    expected, *others = map(read_bytes, ("serial", "threads", "runs/d"))
    assert others == [expected] * 2
