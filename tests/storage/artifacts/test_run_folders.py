"""The folder of runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from storage.artifacts.artifacts import NamedArray, load_artifact, write_artifact
from storage.artifacts.run_folders import RunFolder
from storage.errors import DataError
from tests.storage.conftest import files_of


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs", "clipped_pca", "1" * 64)


def test_work_of_another_fit_lies_elsewhere(run: RunFolder) -> None:
    other = RunFolder(run.output, run.model, "2" * 64)
    same = RunFolder(run.output, run.model, "1" * 64)
    assert run.work == same.work != other.work
    assert run.work.is_relative_to(run.output)


@pytest.mark.parametrize("resume", [True, False])
def test_work_is_kept_for_who_resumes(resume: bool, run: RunFolder) -> None:
    with run.working(resume):
        (run.work / "state").write_text("pass 3")
    with run.working(resume):
        assert (run.work / "state").exists() == resume


def test_the_same_fit_does_not_run_twice_at_once(run: RunFolder) -> None:
    with run.working(resume=False):
        (run.work / "state").write_text("pass 3")
        with pytest.raises(DataError, match="no other writer"), run.working(resume=False):
            pass
        assert (run.work / "state").exists()
    with run.working(resume=False):
        assert not (run.work / "state").exists()


def test_a_fit_that_never_began_leaves_nothing(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.working(resume=False):
        raise ZeroDivisionError
    assert not run.output.exists()


def test_a_finished_fit_leaves_no_work(run: RunFolder) -> None:
    other = RunFolder(run.output, "bmm", run.fingerprint)
    with run.working(resume=False), other.working(resume=False):
        (other.work / "state").write_text("pass 3")
        run.close_work()
    assert not run.work.exists()
    assert other.work.is_dir()
    other.close_work()
    assert list(run.output.iterdir()) == []
    other.close_work()


def test_artifacts_are_named_after_model_and_time(run: RunFolder) -> None:
    assert re.fullmatch(r"clipped_pca-\d{8}T\d{12}", run.new_artifact().name)
    assert run.new_artifact().parent == run.output


def test_the_latest_is_the_one_pointed_to(run: RunFolder) -> None:
    for value in (1.0, 2.0):
        path = run.output / f"clipped_pca-{value:.0f}"
        write_artifact(path, {"mean": NamedArray((), np.array(value))}, {})
        run.point_to(path)
        assert load_artifact(run.output)["mean"] == value
    assert (run.output / "latest").read_text() == "clipped_pca-2\n"
    assert sorted(path.name for path in run.output.iterdir()) == [
        "clipped_pca-1",
        "clipped_pca-2",
        "latest",
    ]


def test_runs_can_be_moved(run: RunFolder) -> None:
    path = run.output / "clipped_pca-1"
    write_artifact(path, {"mean": NamedArray((), np.array(3.0))}, {})
    run.point_to(path)
    moved = run.output.rename(run.output.with_name("elsewhere"))
    assert load_artifact(moved)["mean"] == 3.0


def test_the_latest_stays_when_the_next_cannot_be_named(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.output.mkdir()
    run.point_to(run.output / "clipped_pca-1")

    def refuse(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        run.point_to(run.output / "clipped_pca-2")
    assert files_of(run.output) == {"latest": b"clipped_pca-1\n"}


SETTINGS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4)
