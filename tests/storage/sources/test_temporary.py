"""Temporary folders: nothing is left of a killed process, nothing is taken from a living one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from storage.sources import spool
from storage.sources.spool import TemporaryFolder

HOLD = """
import sys
from storage.sources.spool import TemporaryFolder

with TemporaryFolder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_the_folder_of_a_killed_process_is_deleted(tmp_path):
    (tmp_path / "latentbits-elsewhere-1").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    held = Path(process.stdout.readline().strip())
    (held / "entries").touch()
    with TemporaryFolder() as own, TemporaryFolder() as second:
        assert (held / "entries").exists()
        process.kill()
        process.communicate()
        assert held.exists()
        with TemporaryFolder():
            assert not held.exists()
            assert Path(own).exists()
            assert Path(second).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["latentbits-elsewhere-1"]


def test_a_link_to_another_folder_is_left_alone(tmp_path):
    with TemporaryFolder() as folder:
        prefix = folder[:-8]
    (tmp_path / "other").mkdir()
    Path(f"{prefix}link").symlink_to(tmp_path / "other")
    with TemporaryFolder():
        assert (tmp_path / "other").exists()


def test_a_folder_that_another_process_deletes_at_once_is_made_again(monkeypatch):
    lock_folder, deleted = spool._lock_folder, []

    def lock(folder):
        if not deleted:
            deleted.append(folder)
            folder.rmdir()
        return lock_folder(folder)

    monkeypatch.setattr(spool, "_lock_folder", lock)
    with TemporaryFolder() as folder:
        assert Path(folder).is_dir()
        assert Path(folder) not in deleted
