"""Locks on folders, held by the system until they are released or their process dies."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_SUFFIX = ".lock"
"""Ending of the names of lock files."""


class LockedError(OSError):
    """Another process holds the lock."""


class Lock:
    """A lock whose file exists only while it is held.

    A process that is killed leaves the file, but not the lock: the next process takes both.

    Parameters
    ----------
    path
        The lock file, in a folder that exists.

    Raises
    ------
    LockedError
        If another process, or another part of this one, holds the lock.
    OSError
        If the file system has no locks, or the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path, timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise LockedError(str(path)) from None

    def release(self) -> None:
        """Delete the lock file and release the lock.

        The file goes first, so that a process which takes the lock afterwards has a new file. On
        Windows a file that is locked cannot be deleted, and `filelock` deletes it.
        """
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._lock.release()
