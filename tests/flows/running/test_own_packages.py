"""Folders with files that are named like our packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.data import draw_probit_rows, write_arrays

IN_THE_WAY = {"storage": "storage/__init__.py", "pipeline": "pipeline.py"}


def called(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def made(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")


@pytest.mark.parametrize("package", IN_THE_WAY)
def test_a_file_in_the_way_is_named(tmp_path, package):
    made(tmp_path, IN_THE_WAY[package])
    done = called(tmp_path, "-m", "flows.fit", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / IN_THE_WAY[package]} hides the package")
    assert "python -P -m" in line
    imported = called(tmp_path, "-c", "import flows")
    assert f"ImportError: {tmp_path / IN_THE_WAY[package]} hides" in imported.stderr


def test_a_folder_without_code_is_not_in_the_way(tmp_path):
    (tmp_path / "storage").mkdir()
    (tmp_path / "pipeline").mkdir()
    assert called(tmp_path, "-m", "flows.fit", "--help").returncode == 0


@pytest.mark.matrix
def test_worker_processes_leave_the_folder_out_too(prefect_server, tmp_path, monkeypatch):
    """Also with a server within the command, which puts the folder in the path.

    Its database is that of the tests' own server, which is there already.
    """
    for name in ("PREFECT_API_URL", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_ENABLED", "true")
    X, _ = draw_probit_rows(200, 4, 1, seed=0)
    write_arrays(tmp_path / "d.zarr", X)
    made(tmp_path, "flows/__init__.py", *IN_THE_WAY.values())
    run = ("--dataset", "d.zarr", "--workers", "1", "--no-report", "--components", "1")
    done = called(tmp_path, "-P", "-m", "flows.fit", *run)
    assert done.returncode == 0, done.stderr
    assert "artifact: " in done.stdout
