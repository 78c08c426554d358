"""Clipped PCA of wide data from the command line: strips on disk, resumed, damaged, exported."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

from pipeline.fitting import pair_work as pairs
from pipeline.models.clipped_pca import ClippedPCA, model
from storage.artifacts.artifacts import load_artifact
from storage.dataset.dataset import open_dataset
from storage.errors import DataError
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.faults import flip_middle_bit

N_FEATURES, HEIGHT = 150, 40

IN_STRIPS = f"""
from pipeline.fitting import pair_work as pairs
from pipeline.models.clipped_pca import model
model.MAX_SQUARE_FEATURES = 100
pairs.choose_strip_height = lambda *of: {HEIGHT}
"""
KILLED = f"""
import os, signal, sys
from flows import fit
from flows.cli.app import run_app
from flows.fitting import stages
from storage.codes.codes import ResumableResults
{IN_STRIPS}

def kill(*given):
    os.kill(os.getpid(), signal.SIGKILL)

note = ResumableResults.record_finished
def deadly(self, checksums):
    note(self, checksums)
    if len(self.read_finished()) == 2:
        kill()

replaced = stages.replace_folder
def deadly_move(new, target):
    if new.name == "artifact":
        kill()
    replaced(new, target)

if __name__ == "__main__":
    if sys.argv[1] == "strip":
        ResumableResults.record_finished = deadly
    else:
        stages.replace_folder = deadly_move
    run_app(fit.app, sys.argv[2:])
"""


@pytest.fixture(autouse=True)
def in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 100)
    monkeypatch.setattr(pairs, "choose_strip_height", lambda *of: HEIGHT)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    X, _ = draw_probit_rows(900, N_FEATURES, 2, seed=1)
    observed = (np.random.default_rng(1).random(X.shape) < 0.98).astype(np.uint8)
    return write_arrays(tmp_path / "d.zarr", X * observed, observed, words_per_chunk=4).path


@pytest.fixture
def fitted(cli: Any, data: Path) -> Callable[..., dict[str, bytes]]:
    def call(*more: Any) -> dict[str, bytes]:
        done = cli("fit", "--dataset", data, "--components", 2, "--json", *more)
        assert done.code == 0, done.err
        artifact = load_artifact(done.json["artifact"])
        assert artifact.pairs is not None
        assert not Path("runs/d/.unfinished").exists()
        arrays = {name: a.tobytes() for name, a in artifact.items()}
        return arrays | {name: a.tobytes() for name, a in artifact.pairs.items()}

    return call


@pytest.fixture
def tabulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first feature of every strip that was counted."""
    found, tabulate = [], ClippedPCA.tabulate

    def noting(self: Any, params: Any, working: Any, features: slice, chunks: Any) -> Any:
        if features.start < features.stop:
            found.append(features.start)
        return tabulate(self, params, working, features, chunks)

    monkeypatch.setattr(ClippedPCA, "tabulate", noting)
    return found


@pytest.mark.matrix
def test_strips_in_the_artifact_are_the_squares_of_a_narrow_fit(
    cli: Any, data: Path, fitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted("--output", "strips")
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", N_FEATURES)
    assert cli("fit", "--dataset", data, "--components", 2, "--output", "square").code == 0
    wide, narrow = load_artifact("strips"), load_artifact("square")
    assert narrow.pairs is None
    assert "correlation" not in wide
    for name in ("correlation", "status"):
        square = np.triu(wide.pairs[name])
        np.testing.assert_allclose(square, np.triu(narrow[name]), atol=1e-7)
    np.testing.assert_allclose(wide["loadings"], narrow["loadings"], atol=1e-5)
    for path in ("strips", "square"):
        given = ("--artifact", path, "--what", "correlations", "--output", f"{path}.csv")
        assert cli("export", *given).code == 0
    one, other = (pyarrow.csv.read_csv(f"{path}.csv").to_pydict() for path in ("strips", "square"))
    assert len(one["feature_1"]) == N_FEATURES * (N_FEATURES - 1) // 2
    for name in ("feature_1", "feature_2", "status"):
        assert one[name] == other[name]
    np.testing.assert_allclose(one["correlation"], other["correlation"], atol=1e-7)


@pytest.mark.matrix
def test_the_same_bytes_everywhere(fitted: Any, cluster: str) -> None:
    expected = fitted()
    for where in (("--executor", "threads"), ("--cluster", cluster)):
        assert fitted(*where) == expected


@pytest.mark.matrix
def test_an_object_store_holds_what_a_disk_holds(fitted: Any, s3: str) -> None:
    expected = fitted()
    assert fitted("--output", f"{s3}/runs", "--executor", "threads") == expected


def killed_at(where: str, data: Path) -> Path:
    given = ("--dataset", data, "--components", 2, "--executor", "serial", "--no-report")
    program = [sys.executable, "-c", KILLED, where, *map(str, given)]
    assert subprocess.run(program, timeout=120).returncode == -signal.SIGKILL
    (work,) = Path("runs/d/.unfinished").glob("clipped-pca-*")
    return work


@pytest.mark.matrix
def test_strips_that_a_killed_fit_counted_are_not_counted_again(
    fitted: Any, data: Path, tabulated: list[int]
) -> None:
    expected = fitted()
    tabulated.clear()
    flip_middle_bit(killed_at("strip", data) / "pairs/codes/correlation/c/0/0")  # by the disk
    assert fitted("--resume") == expected
    assert tabulated == [0, 80, 120]


@pytest.mark.matrix
def test_a_fit_killed_before_its_artifact_was_in_place_loses_no_strip(
    fitted: Any, data: Path, tabulated: list[int]
) -> None:
    expected = fitted()
    work = killed_at("artifact", data)
    assert (work / "artifact/pairs").is_dir()
    tabulated.clear()
    assert fitted("--resume") == expected
    assert tabulated == []


def test_a_strip_damaged_or_lost_mid_way_is_told(
    cli: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = ClippedPCA.update_from_pairs

    def harm(how: Callable[[Path], Any]) -> None:
        def harmed(self: Any, *given: Any) -> Any:
            (work,) = Path("runs/d/.unfinished").glob("clipped-pca-*")
            how(work / "pairs/codes/correlation/c/1/0")
            return compared(self, *given)

        monkeypatch.setattr(ClippedPCA, "update_from_pairs", harmed)

    for how in (flip_middle_bit, Path.unlink):
        harm(how)
        done = cli("fit", "--dataset", data, "--components", 2)
        assert done.code == 2
        assert "correlation: chunk 1 is damaged" in done.message
        assert done.message.endswith("Fit again.")
        assert not Path("runs/d/latest").exists()


def test_strips_of_another_fit_are_refused(fitted: Any) -> None:
    fitted()
    artifact = load_artifact("runs/d")
    manifest = artifact.path / "pairs/manifest.json"
    flip_middle_bit(artifact.path / "pairs/correlation/c/2/0")
    with pytest.raises(DataError, match="correlation: chunk 2 is damaged"):
        artifact.pairs.verify()
    manifest.unlink()
    with pytest.raises(DataError, match="interrupted"):
        _ = load_artifact("runs/d").pairs


@pytest.mark.matrix
def test_damaged_chunks_are_left_out_of_strips(fitted: Any, data: Path) -> None:
    whole = fitted()
    flip_middle_bit(data / "bits/c/0/1")
    found = fitted("--skip-corrupt")
    left_out = int(open_dataset(data).chunks[1, 1])
    assert 0 < left_out < 900
    rows = np.frombuffer(found["pair_rows"], np.uint16).max()
    assert rows <= 900 - left_out < np.frombuffer(whole["pair_rows"], np.uint16).max()


def test_no_room_for_strips_is_told(cli: Any, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.codes.codes.open_array", full)
    done = cli("fit", "--dataset", data, "--components", 2)
    assert done.code == 2
    assert "No space left" in done.message
    assert not Path("runs/d/latest").exists()


def test_memory_that_no_strips_fit_into_is_refused_with_the_least(cli: Any, data: Path) -> None:
    message = cli("fit", "--dataset", data, "--memory", "1kB").check_refused()
    assert "but --memory allows 0.0 GB. Allow more" in message
    message = cli("fit", "--dataset", data, "--memory", "much").check_refused()
    assert message == "error: --memory is 'much', which is not a size such as 4GB."
    assert not Path("runs").exists()


def test_a_report_of_wide_data_is_drawn(cli: Any, data: Path) -> None:
    assert cli("fit", "--dataset", data, "--components", 2, "--report").code == 0
    page = (load_artifact("runs/d").path / "report.html").read_text(encoding="utf-8")
    assert "150" in page
