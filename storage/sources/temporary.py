"""Temporary folders of sources, which can be as large as the data."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

_PREFIX = f"latentbits-{socket.gethostname()}-"
"""Machines may share the parent folder, but perhaps not their locks."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder; if its process is killed, a later one on this machine deletes it."""

    def __init__(self) -> None:
        _delete_abandoned_folders()
        while True:
            super().__init__(prefix=_PREFIX)
            try:
                handle = _lock_folder(self.name)
            except (BlockingIOError, FileNotFoundError):
                continue  # another process found it without a lock, and deletes it
            except OSError:
                return  # a file system without locks, where folders are never found abandoned
            # The system releases the lock when the process dies, however that happens.
            weakref.finalize(self, os.close, handle)
            if Path(self.name).exists():
                return


def _lock_folder(folder: str) -> int:
    """Lock a folder of this user until the returned handle is closed.

    Raises `OSError` if another process has locked it, or that is impossible.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(folder)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _delete_abandoned_folders() -> None:
    """Delete the folders of processes that were killed: they exist, but nobody holds the lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            handle = _lock_folder(str(folder))
            try:
                shutil.rmtree(folder)
            finally:
                os.close(handle)
