"""Temporary folders of sources, which can be as large as the data."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from storage.stores.locks import LOCK_SUFFIX, Lock, LockedError

_PREFIX = f"latentbits-{socket.gethostname()}-"
"""Machines may share the parent folder, but perhaps not their locks."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder; if its process is killed, a later one on this machine deletes it."""

    def __init__(self) -> None:
        _delete_abandoned_folders()
        while True:
            super().__init__(prefix=_PREFIX)
            try:
                lock = _lock_folder(Path(self.name))
            except (LockedError, FileNotFoundError):
                continue  # another process found it without a lock, and deletes or deleted it
            except OSError:
                return  # a file system without locks, where folders are never found abandoned
            # The system releases the lock when the process dies, however that happens.
            self._release = weakref.finalize(self, lock.release)
            if Path(self.name).exists():
                return
            self._release()

    def cleanup(self) -> None:
        """Delete the folder, and release its lock."""
        super().cleanup()
        if (release := getattr(self, "_release", None)) is not None:
            release()


def _lock_folder(folder: Path) -> Lock:
    """Lock a folder of this user.

    Raises `OSError` if it is another user's, another process has locked it, or there are no locks.
    """
    if folder.is_symlink() or (hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid()):
        raise PermissionError(str(folder))
    return Lock(folder.with_name(folder.name + LOCK_SUFFIX))


def _delete_abandoned_folders() -> None:
    """Delete the folders of processes that were killed: they exist, but nobody holds the lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.suffix != LOCK_SUFFIX:
                lock = _lock_folder(folder)
                try:
                    shutil.rmtree(folder)
                finally:
                    lock.release()
