"""Leases: one writer per folder, on disk and in object stores, whatever is killed or suspended.

A lease is a small file or object next to the folder. Its holder renews it every `RENEW_SECONDS`.
Another process takes it over if the holder was a process of this machine that has ended, or if
nothing was renewed for `LEASE_SECONDS`. The clocks of machines may differ, so the silence of
another machine is measured by watching the lease. A lease is only replaced if it is still the one
that was read, so that one of many processes succeeds. A holder that has lost its lease finds out
before it completes anything that others would read.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from storage.errors import DataError, FolderInUseError, LeaseLostError
from storage.stores.locations import LOCK_SUFFIX, AnyPath, write_text
from storage.stores.object_path import ObjectPath, ObjectVersion, StoredObject

LEASE_SECONDS = 60.0
RENEW_SECONDS = LEASE_SECONDS / 4
_BUSY_FACTOR = 10
"""A process of this machine that is not stopped may be silent for so many leases.

Some functions of SciPy hold the interpreter lock for minutes, so that no thread can renew.
"""
_GUARD_SECONDS = 10.0
_STOPPED_STATES = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
log = logging.getLogger("latentbits")
run_name: ContextVar[str] = ContextVar("run_name", default="")
"""Name of the current run, which other runs that find its leases show."""


class LockedError(OSError):
    """Another process holds the lock."""


class Lock:
    """A lock of the file system whose file exists only while it is held.

    A process that is killed leaves the file, but not the lock: the next process takes both.

    Parameters
    ----------
    path
        The lock file, in a folder that exists.
    timeout
        Seconds to wait for the lock.

    Raises
    ------
    LockedError
        If another process, or another part of this one, holds the lock.
    OSError
        If the file system has no locks, or the file cannot be created.
    """

    def __init__(self, path: Path, timeout: float = 0) -> None:
        self._path = path
        self._lock = FileLock(path, timeout=timeout, thread_local=False)
        try:
            self._lock.acquire(poll_interval=0.01)
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


@contextmanager
def lock_folder(folder: AnyPath) -> Iterator[Lease]:
    """Lock a folder for writing; the lease of a process that dies or is suspended expires.

    A local folder is created if necessary. It stays unlocked if the user may write neither there
    nor next to it.

    Raises
    ------
    FolderInUseError
        If another process is writing there.
    LeaseLostError
        If another process took over while this one was suspended.
    """
    lease = Lease(folder)
    lease.acquire()
    context = _current_leases.set((*_current_leases.get(), lease))
    try:
        yield lease
    except (OSError, DataError) as error:
        if lease.is_lost():
            raise lease.make_lost_error() from error  # it found files of the other process
        raise
    finally:
        _current_leases.reset(context)
        was_held = lease.release()
    if not was_held:
        raise lease.make_lost_error()


@contextmanager
def lock_work_folder(folder: AnyPath) -> Iterator[Lease]:
    """Lock a folder; afterwards delete it and its parents if they are new and still empty."""
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with lock_folder(folder) as lease:
            yield lease
    finally:
        for place in new_folders:
            with suppress(OSError):  # not empty: it holds work to resume
                place.rmdir()


@contextmanager
def keep_leases() -> Iterator[None]:
    """Keep the leases of the current context while something is made complete.

    On disk nobody can take them over meanwhile. In an object store, they are renewed first.

    Raises `LeaseLostError` if another process has taken one over.
    """
    with ExitStack() as stack:
        for lease in _current_leases.get():
            stack.enter_context(lease.keep())
        yield


def check_leases() -> None:
    """Raise `LeaseLostError` if another process took over a lease of the current context."""
    for lease in _current_leases.get():
        if lease.is_lost():
            raise lease.make_lost_error()


class Lease:
    """A claim to a folder that is renewed while its process lives.

    Attributes
    ----------
    took_over
        Whether the previous holder died or fell silent, so that it may have left unfinished work.
    """

    def __init__(self, folder: AnyPath) -> None:
        self.took_over = False
        self._folder = folder
        self._holder = _describe_this_process(folder)
        self._slot: _LeaseFile | ObjectPath | None = None
        self._version: ObjectVersion = {}
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self) -> None:
        """Take the lease and start to renew it; see `lock_folder`."""
        name = f".{self._folder.name}{LOCK_SUFFIX}"
        slots: list[_LeaseFile | ObjectPath]
        if isinstance(self._folder, ObjectPath):
            slots = [self._folder.with_name(name)]
        else:  # next to the folder, which may be replaced while it is locked
            self._folder.mkdir(parents=True, exist_ok=True)
            slots = [
                _LeaseFile(self._folder.with_name(name)),
                _LeaseFile(self._folder / LOCK_SUFFIX),
            ]
        for slot in slots:
            with suppress(PermissionError):
                self._take(slot)
                self._slot = slot
                self._renewing.start()
                break
        self._folder.mkdir(exist_ok=True)  # the previous holder may have deleted it

    def is_lost(self) -> bool:
        """Return whether another process has taken over; False if the store does not answer."""
        try:
            return not self._is_held()
        except (OSError, DataError):
            return False

    def make_lost_error(self) -> LeaseLostError:
        """Return the error for a holder whose lease was taken over."""
        return LeaseLostError(
            f"{self._folder}: this process was suspended or cut off for more than "
            f"{LEASE_SECONDS:.0f} s, and another process has taken over writing here. Wait for it."
        )

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Keep the lease until the end of the `with` block; see `keep_leases`."""
        if self._slot is None:
            yield
        elif isinstance(self._slot, ObjectPath):
            if not self._write(self._slot, self._version):
                raise self.make_lost_error()
            yield
        else:
            with self._slot.exclude_others():
                if not self._is_held():
                    raise self.make_lost_error()
                yield

    def release(self) -> bool:
        """Delete the lease; return whether it was held to the end."""
        self._ended.set()
        if self._slot is None:
            return True
        self._renewing.join()
        try:
            with self.keep():
                self._slot.unlink(missing_ok=True)
        except LeaseLostError:
            return False
        except (OSError, DataError):
            pass  # a lease that is not deleted expires
        return True

    def _take(self, slot: _LeaseFile | ObjectPath) -> None:
        """Write the lease once the slot is free or its holder is found to be dead."""
        watched: StoredObject | None = None
        start = 0.0
        while not self._write(slot, None):
            found = slot.read_object()
            if found is None:
                continue
            if is_new := watched is None:
                watched, start = found, time.monotonic()
            holder = _parse_holder(found.content)
            silence, limit = time.monotonic() - start, LEASE_SECONDS
            is_alive = found.version != watched.version
            if holder is not None and holder.machine == self._holder.machine:
                silence, limit = holder.measure_silence(), holder.find_silence_limit(self._folder)
                is_alive = silence < limit
            if is_alive:
                raise FolderInUseError(
                    f"{self._folder}: another process is writing here. Wait for it: "
                    f"{holder or 'an unknown one'}, last sign of life {silence:.0f} s ago."
                )
            if silence >= limit:
                if self._write(slot, found.version):
                    self.took_over = True
                    ending = "no longer writes here" if limit == 0 else "is silent"
                    log.info("%s: %s %s, so its work is continued.", self._folder, holder, ending)
                    return
                continue
            if is_new:
                text = "%s: waiting up to %.0f s for a sign of life from %s."
                log.info(text, self._folder, limit, holder or "an unknown process")
            self._ended.wait(min(1.0, limit / 10))

    def _renew(self) -> None:
        """Write the lease again and again, until it ends or is lost."""
        while not self._ended.wait(RENEW_SECONDS):
            with suppress(DataError, OSError):  # the store may recover before the lease expires
                if self._slot is None or not self._write(self._slot, self._version):
                    return

    def _write(self, slot: _LeaseFile | ObjectPath, replaces: ObjectVersion | None) -> bool:
        """Write the lease if the slot still has a version, or is empty; return whether it had."""
        # The time makes every version different.
        holder = replace(self._holder, renewed=time.monotonic())
        content = json.dumps(asdict(holder)).encode()
        try:
            if replaces is None:
                self._version = slot.create(content)
            else:
                self._version = slot.write_bytes(content, replaces)
        except FileExistsError:
            # A request whose answer was lost is repeated, and finds its own lease.
            found = slot.read_object()
            if found is None or not self._is_ours(found):
                return False
            self._version = found.version
        return True

    def _is_held(self) -> bool:
        if self._slot is None:
            return True
        found = self._slot.read_object()
        if found is None:  # deleted, perhaps together with the folder that contains it
            return isinstance(self._slot, _LeaseFile) and not self._slot.path.parent.exists()
        return self._is_ours(found)

    def _is_ours(self, found: StoredObject) -> bool:
        return self._holder.token.encode() in found.content


_current_leases: ContextVar[tuple[Lease, ...]] = ContextVar("current_leases", default=())


@dataclass(frozen=True)
class _LeaseFile:
    """A file with the conditional writes of an object in a store."""

    path: Path

    @contextmanager
    def exclude_others(self) -> Iterator[None]:
        """Keep other processes from writing or deleting the file.

        Raises `FolderInUseError` if one was suspended while it did so.
        """
        if not self.path.parent.exists():  # `FileLock` would create it
            yield
            return
        try:
            guard = Lock(self.path.with_name(f"{self.path.name}.guard"), _GUARD_SECONDS)
        except LockedError:
            raise FolderInUseError(
                f"{self.path}: a process was suspended while it wrote this file. End it."
            ) from None
        except PermissionError:
            raise
        except OSError:  # a full disk, or a file system without locks
            yield
            return
        try:
            yield
        finally:
            guard.release()

    def read_object(self) -> StoredObject | None:
        """Read the file; its content is its version."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        return StoredObject(content, {"e_tag": content.hex()})

    def create(self, content: bytes) -> ObjectVersion:
        """Write the file; raise `FileExistsError` if it exists."""
        return self._write(content, None)

    def write_bytes(self, content: bytes, replaces: ObjectVersion) -> ObjectVersion:
        """Write the file; raise `FileExistsError` if it has another version."""
        return self._write(content, replaces)

    def _write(self, content: bytes, replaces: ObjectVersion | None) -> ObjectVersion:
        with self.exclude_others():
            found = self.read_object()
            if (None if found is None else found.version) != replaces:
                raise FileExistsError(str(self.path))
            write_text(self.path, content.decode())
        return {"e_tag": content.hex()}

    def unlink(self, missing_ok: bool) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=missing_ok)


@dataclass(frozen=True)
class _Holder:
    """The process that holds a lease.

    Attributes
    ----------
    token
        Identifies the lease.
    machine, pid, born
        Identify the process; `born` is its start time.
    host, run, since
        Describe it to people.
    folder
        Path of the folder that it holds.
    renewed
        Time of the last renewal, on the monotonic clock of the machine.
    """

    token: str
    machine: str
    pid: int
    born: float
    host: str
    run: str
    since: str
    folder: str
    renewed: float

    def __str__(self) -> str:
        return f"{self.run}, process {self.pid} on {self.host}, since {self.since}"

    def measure_silence(self) -> float:
        """Return the seconds since the last renewal, for a process of this machine."""
        return max(0.0, time.monotonic() - self.renewed)

    def find_silence_limit(self, folder: AnyPath) -> float:
        """Return after how many seconds to take over a folder from a process of this machine.

        At once if the lease was copied from another folder, together with this one.
        """
        with suppress(OSError):  # other paths may lead to the same folder
            if isinstance(folder, Path) and not folder.samefile(self.folder):
                return 0.0
        try:
            process = psutil.Process(self.pid)
            status = process.status()
            if _read_start_time(self.pid) != self.born or status == psutil.STATUS_ZOMBIE:
                return 0.0
            is_stopped = status in _STOPPED_STATES
        except psutil.AccessDenied:
            is_stopped = False
        except psutil.Error:
            return 0.0
        return LEASE_SECONDS if is_stopped else _BUSY_FACTOR * LEASE_SECONDS


def _describe_this_process(folder: AnyPath) -> _Holder:
    now, pid = datetime.now(UTC), os.getpid()
    return _Holder(
        token=uuid.uuid4().hex,
        machine=_identify_machine(),
        pid=pid,
        born=_read_start_time(pid),
        host=socket.gethostname(),
        run=run_name.get() or Path(sys.argv[0]).name or "python",
        since=f"{now:%Y-%m-%d %H:%M:%S} UTC",
        folder=str(folder.resolve()),
        renewed=time.monotonic(),
    )


def _read_start_time(pid: int) -> float:
    """Return when a process started, on Linux in ticks since boot, as psutil's time may change."""
    with suppress(OSError):
        return float(Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()[19])
    return float(psutil.Process(pid).create_time())


def _parse_holder(content: bytes) -> _Holder | None:
    """Return the holder; None if the lease is damaged or was written by another version."""
    try:
        holder = _Holder(**json.loads(content))
        holder.measure_silence()
        return holder
    except (ValueError, TypeError):
        return None


def _identify_machine() -> str:
    """Identify what process numbers belong to; containers may share a host's name, not these."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
