"""Pair work in a fit: kept when it is interrupted, not done twice, the same bytes everywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentbits import functions as api
from pipeline.executors.base import SerialExecutor
from pipeline.params import get_named_arrays
from storage.artifacts.artifacts import load_artifact
from storage.dataset.dataset import open_dataset
from tests.models.neighbours import Neighbours
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.faults import flip_middle_bit

NAME, RUN = "tests.models.neighbours:Neighbours", 50

KILLED_AFTER_THREE_RUNS = f"""
import os, signal, sys
import pipeline.passes.row_ranges
from flows import fit
from flows.cli.app import run_app
from storage.codes.codes import ResumableResults

note = ResumableResults.record_finished
def deadly(self, checksums):
    note(self, checksums)
    if len(self.read_finished()) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    pipeline.passes.row_ranges._MIN_ROWS = {RUN}
    ResumableResults.record_finished = deadly
    run_app(fit.app, sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("pipeline.passes.row_ranges._MIN_ROWS", RUN)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    X = draw_probit_rows(600, 12, 2, seed=1)[0]
    split = np.where(np.arange(600) % 3, "train", "test")  # 400 rows, which are 8 runs
    segments = np.array(["a", "b"])[np.random.default_rng(0).integers(0, 2, 600)]
    columns = {"split": split}
    return write_arrays(
        tmp_path / "d.zarr", X, None, segments, words_per_chunk=2, columns=columns
    ).path


@pytest.fixture
def compared(monkeypatch) -> list[int]:
    """The first row of what was compared with the first block."""
    rows, compare = [], Neighbours.compare

    def counting(self, params, working, left, right, before):
        if before is None and left.n_samples:
            rows.append(int(left.rows.min()))
        return compare(self, params, working, left, right, before)

    monkeypatch.setattr(Neighbours, "compare", counting)
    return rows


@pytest.fixture
def fitted(cli, data) -> Callable[..., dict[str, bytes]]:
    def call(*more: Any) -> dict[str, bytes]:
        done = cli("fit", "--dataset", data, "--model", NAME, "--json", *more)
        assert done.code == 0, done.err
        assert not Path("runs/d/.unfinished").exists()
        return {name: a.tobytes() for name, a in load_artifact(done.json["artifact"]).items()}

    return call


def runs_begun(rows: list[int]) -> set[int]:
    """Of the 8 runs of the split's 400 rows."""
    train = np.flatnonzero(np.arange(600) % 3)
    return {int(np.searchsorted(train, row)) // RUN for row in rows}


@pytest.mark.matrix
def test_runs_that_a_killed_fit_finished_are_not_done_again(fitted, data, compared):
    given = ("--dataset", data, "--model", NAME, "--executor", "serial", "--no-report")
    program = [sys.executable, "-c", KILLED_AFTER_THREE_RUNS, *map(str, given)]
    assert subprocess.run(program, timeout=600).returncode == -signal.SIGKILL
    (work,) = Path("runs/d/.unfinished").glob("neighbours-*")
    flip_middle_bit(work / "pairs/codes/nearest/c/1/0")  # damaged by the disk, though noted
    resumed = fitted("--resume")
    assert runs_begun(compared) == {1, 3, 4, 5, 6, 7}
    compared.clear()
    assert fitted() == resumed
    assert runs_begun(compared) == {*range(8)}


def test_what_is_done_is_not_done_again_when_the_central_step_fails(fitted, cli, data, compared):
    def failing(self, *given):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Neighbours, "update_from_pairs", failing)
        assert cli("fit", "--dataset", data, "--model", NAME).code == 130
    assert runs_begun(compared) == {*range(8)}
    compared.clear()
    fitted("--resume")
    assert compared == []


def test_damage_after_the_work_is_told(cli, data, monkeypatch):
    compared = Neighbours.update_from_pairs

    def damaged(self, *given):
        (work,) = Path("runs/d/.unfinished").glob("neighbours-*")
        flip_middle_bit(work / "pairs/codes/nearest/c/1/0")
        return compared(self, *given)

    monkeypatch.setattr(Neighbours, "update_from_pairs", damaged)
    done = cli("fit", "--dataset", data, "--model", NAME)
    assert done.code == 2
    assert "nearest: chunk 1 is damaged" in done.message
    assert done.message.endswith("Fit again.")


@pytest.mark.matrix
def test_the_same_bytes_everywhere(fitted, data, cluster):
    expected = fitted()
    for where in (("--executor", "threads"), ("--cluster", cluster)):
        assert fitted(*where) == expected
    dataset = open_dataset(data)
    alone = api.fit(dataset, NAME, split="train", executor=SerialExecutor())
    assert {n: a.tobytes() for n, (_, a) in get_named_arrays(alone.params).items()} == expected


def test_damaged_chunks_are_left_out_of_the_pairs(fitted, data):
    left_out = int(open_dataset(data).chunks[1, 1])
    flip_middle_bit(data / "bits/c/0/1")
    found = fitted("--skip-corrupt", "--split", "all")
    assert 0 < left_out < 600
    assert len(found["smoothed"]) == 8 * 2 * (600 - left_out)


@pytest.mark.matrix
def test_results_in_an_object_store_are_those_on_disk(fitted, s3):
    expected = fitted()
    assert fitted("--output", f"{s3}/runs", "--executor", "threads") == expected
