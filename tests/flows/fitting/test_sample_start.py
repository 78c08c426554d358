"""Fits of many rows from the command line, which start on a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from storage import load_artifact
from tests.support.data import write_arrays
from tests.support.processes import kill_fit_at

N_ROWS, N_ITEMS = 210_000, 6
FIT = ("--model", "latent-trait", "--components", 1, "--no-report")


@pytest.mark.matrix
def test_every_executor_and_a_resumed_fit_give_the_same_bytes(cli: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slopes, offsets = rng.uniform(0.8, 2.0, N_ITEMS), rng.normal(size=N_ITEMS)
    x = np.sort(rng.standard_normal(N_ROWS))  # each chunk has other rows than the next
    answers = (rng.random((N_ROWS, N_ITEMS)) < expit(x[:, None] * slopes + offsets)).astype(
        np.uint8
    )
    dataset = write_arrays(tmp_path / "d.zarr", answers, words_per_chunk=500).path
    command = ("fit", "--dataset", dataset, *FIT)
    for name in ("serial", "threads"):
        assert cli(*command, "--executor", name, "--output", name).code == 0
    kill_fit_at("states/000001/manifest.json", [str(word) for word in command[1:]])
    done = cli(*command, "--resume", "--json")
    assert done.json["iterations"] <= 6
    artifacts = [load_artifact(Path(folder)) for folder in ("serial", "threads", "runs/d")]
    assert 19_000 < artifacts[0].manifest["diagnostics"]["sample_rows"] < 21_000
    expected, *others = ({name: a[name].tobytes() for name in a} for a in artifacts)
    assert others == [expected] * 2
