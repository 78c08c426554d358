"""Locks: one holder at a time, released by death, and without litter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import FolderInUseError
from storage.stores.locations import Lock, LockedError, list_children, lock_folder, lock_work_folder

HOLD = """
import sys
from pathlib import Path
from storage.stores.locations import Lock

lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_has_one_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".d.lock"
    process = hold(path)
    with pytest.raises(LockedError):
        Lock(path)
    process.kill()
    process.communicate()
    assert path.exists()
    lock = Lock(path)
    with pytest.raises(LockedError):
        Lock(path)
    lock.release()
    assert not path.exists()


def test_a_locked_folder_is_refused_and_left_without_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "d.zarr"
    with lock_folder(folder) as holds:
        assert holds()
        with pytest.raises(FolderInUseError, match=r"d\.zarr: another process is writing here"):
            lock_folder(folder).__enter__()
        folder.rmdir()  # a writer may replace the folder that it has locked
        folder.mkdir()
    assert [*tmp_path.iterdir()] == [folder]
    with lock_work_folder(tmp_path / "new" / "work"):
        assert (tmp_path / "new" / "work").is_dir()
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_lock_is_inside_if_the_user_may_not_write_beside(tmp_path: Path) -> None:
    folder = tmp_path / "d.zarr"
    folder.mkdir()
    tmp_path.chmod(0o500)
    try:
        check_lock_is_inside(folder)
    finally:
        tmp_path.chmod(0o700)


def test_a_lock_inside_is_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d.zarr"
    folder.mkdir()
    monkeypatch.setattr("storage.stores.locations.Lock", refuse_beside)
    check_lock_is_inside(folder)


def refuse_beside(path: Path) -> Lock:
    """Lock as for a user who may write only in the folder itself."""
    if path.name != ".lock":
        raise PermissionError(str(path))
    return Lock(path)


def check_lock_is_inside(folder: Path) -> None:
    with lock_folder(folder):
        assert [path.name for path in folder.iterdir()] == [".lock"]
        assert list_children(folder) == []
        with pytest.raises(FolderInUseError):
            lock_folder(folder).__enter__()
    assert [*folder.iterdir()] == []
