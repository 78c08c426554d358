"""The folder of runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from storage.artifacts.artifacts import NamedArray, RunFolder, load_artifact, write_artifact
from storage.errors import DataError
from tests.storage.conftest import files_of


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs", "clipped_pca", "1" * 64)


def test_work_of_another_fit_lies_elsewhere(run: RunFolder) -> None:
    other = RunFolder(run.output, run.model, "2" * 64)
    same = RunFolder(run.output, run.model, "1" * 64)
    assert run.work_folder == same.work_folder != other.work_folder
    assert run.work_folder.is_relative_to(run.output)


@pytest.mark.parametrize("resume", [True, False])
def test_work_is_kept_for_who_resumes(resume: bool, run: RunFolder) -> None:
    with run.claim_work(resume):
        (run.work_folder / "state").write_text("pass 3")
    with run.claim_work(resume):
        assert (run.work_folder / "state").exists() == resume


def test_the_same_fit_does_not_run_twice_at_once(run: RunFolder) -> None:
    with run.claim_work(resume=False):
        (run.work_folder / "state").write_text("pass 3")
        with (
            pytest.raises(DataError, match="another process is writing"),
            run.claim_work(resume=False),
        ):
            pass
        assert (run.work_folder / "state").exists()
    with run.claim_work(resume=False):
        assert not (run.work_folder / "state").exists()


def test_a_fit_that_never_began_leaves_nothing(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.claim_work(resume=False):
        raise ZeroDivisionError
    assert not run.output.exists()


def test_a_finished_fit_leaves_no_work(run: RunFolder) -> None:
    other = RunFolder(run.output, "bmm", run.fingerprint)
    with run.claim_work(resume=False), other.claim_work(resume=False):
        (other.work_folder / "state").write_text("pass 3")
        run.delete_work()
    assert not run.work_folder.exists()
    assert other.work_folder.is_dir()
    other.delete_work()
    assert list(run.output.iterdir()) == []
    other.delete_work()


def test_artifacts_are_named_after_model_and_time(run: RunFolder) -> None:
    assert re.fullmatch(r"clipped_pca-\d{8}T\d{12}", run.make_artifact_path().name)
    assert run.make_artifact_path().parent == run.output


def test_the_latest_is_the_one_pointed_to(run: RunFolder) -> None:
    for value in (1.0, 2.0):
        path = run.output / f"clipped_pca-{value:.0f}"
        write_artifact(path, {"mean": NamedArray((), np.array(value))}, {})
        run.set_latest(path)
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
    run.set_latest(path)
    moved = run.output.rename(run.output.with_name("elsewhere"))
    assert load_artifact(moved)["mean"] == 3.0


def test_the_latest_stays_when_the_next_cannot_be_named(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.output.mkdir()
    run.set_latest(run.output / "clipped_pca-1")

    def refuse(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        run.set_latest(run.output / "clipped_pca-2")
    assert files_of(run.output) == {"latest": b"clipped_pca-1\n"}


SETTINGS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4)
