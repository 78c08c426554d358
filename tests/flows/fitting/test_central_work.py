"""Central work of a fit: kept if the fit is killed, not done twice, and the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flows.fitting.checkpoints import open_kept_results
from pipeline.executors import central_work
from pipeline.executors.central_work import KeptResult
from storage.artifacts.artifacts import load_artifact
from storage.examples import draw_nonstationary_truth
from tests.pipeline.models.binary_ica import draw_nonstationary_data
from tests.support.data import write_arrays
from tests.support.faults import flip_middle_bit

FIT = ("--dataset", "d.zarr", "--model", "blica", "--components", "1", "--no-report")
STAGE, N_DONE = "stage 2 of 3: comparing halves", 4

KILLED_IN_A_STAGE = f"""
import os, signal, sys
from flows import fit
from flows.cli.app import run_app
from pipeline.executors import central_work

keep, labels = central_work._CentralWork.keep, []
def keep_until_killed(self, result):
    keep(self, result)
    labels.append(result.label)
    if labels.count("{STAGE}") == {N_DONE}:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    central_work._SECONDS_BETWEEN_SAVES = 0.0
    central_work._CentralWork.keep = keep_until_killed
    run_app(fit.app, sys.argv[1:])
"""


@pytest.fixture
def fit(cli, monkeypatch) -> Callable[..., tuple[dict[str, bytes], list[str]]]:
    """Fit, and return the arrays and the labels of the results that were computed."""
    keep = central_work._CentralWork.keep

    def call(*more: str) -> tuple[dict[str, bytes], list[str]]:
        computed: list[str] = []
        monkeypatch.setattr(
            central_work._CentralWork,
            "keep",
            lambda self, result: (computed.append(result.label), keep(self, result)),
        )
        done = cli("fit", *FIT, "--json", *more)
        assert done.code == 0, done.err
        assert not Path("runs/d/.unfinished").exists()
        arrays = load_artifact(done.json["artifact"])
        return {name: values.tobytes() for name, values in arrays.items()}, computed

    return call


@pytest.mark.matrix
def test_a_killed_fit_continues_within_the_stage(fit):
    data = draw_nonstationary_data(draw_nonstationary_truth(4, 1, 4, 0), 500)
    write_arrays(Path("d.zarr"), data.X, None, np.array([*"abcd"])[data.segments])
    program = [sys.executable, "-c", KILLED_IN_A_STAGE, *FIT, "--executor", "serial"]
    assert subprocess.run(program, timeout=600).returncode == -signal.SIGKILL
    (work,) = Path("runs/d/.unfinished").glob("blica-*")
    n_parts = len([*(work / "central").glob("*/*")])
    resumed, computed = fit("--resume")
    expected, labels = fit()
    assert resumed == expected
    n_kept = labels.index(STAGE) + N_DONE
    assert computed == labels[n_kept:]
    assert n_parts == n_kept > N_DONE


def test_a_damaged_part_and_those_after_it_are_not_used(tmp_path):
    kept = open_kept_results(tmp_path)
    parts = [[KeptResult("a", [["<f8", [2]]], bytes(16))] * 2, [KeptResult("b", [], b"")]]
    for number, part in enumerate([*parts, *parts]):
        kept.save("pairs", number, part)
    assert kept.load("pairs") == [*parts, *parts]
    flip_middle_bit(tmp_path / "pairs/000002/packed/c/0")
    assert kept.load("pairs") == parts
    assert kept.load("pass-000000") == []
