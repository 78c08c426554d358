"""Write locks in object stores: an object next to the folder, renewed while its writer lives."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from storage.errors import DataError, FolderInUseError
from storage.stores.object_path import ObjectPath, ObjectVersion, StoredObject

RENEW_SECONDS, STALE_SECONDS = 20.0, 120.0
"""A claim expires STALE_SECONDS after its last renewal; clocks must differ by less than that."""


@contextmanager
def claim_lease(folder: ObjectPath) -> Iterator[Callable[[], bool]]:
    """Lock a folder for writing; the claim of a writer that died expires soon.

    Yields a function that returns whether the lock still holds. Call it before declaring the
    written data complete.

    Raises
    ------
    FolderInUseError
        If another process is writing there, or has taken over the claim.
    """
    lease = _Lease(folder)
    lease.acquire()
    renewing = threading.Thread(target=lease.renew, daemon=True)
    renewing.start()
    try:
        yield lease.is_held
    finally:
        lease.ended.set()
        renewing.join()
        was_held = lease.release()
    if not was_held:
        raise FolderInUseError(
            f"{folder}: another process took over as the only writer. Run again."
        )


class _Lease:
    """A claim to a folder."""

    def __init__(self, folder: ObjectPath) -> None:
        self.ended = threading.Event()
        self._folder = folder
        self._claim = folder.with_name(f".{folder.name}.claim")
        self._token = uuid.uuid4().hex
        self._version: ObjectVersion = {}

    def acquire(self) -> None:
        """Write the claim, unless another writer holds one."""
        while not self._write(None):
            claim = self._claim.read_object()
            if claim is None:
                continue
            if not _is_stale(claim):
                wait = round(max(STALE_SECONDS - _measure_age(claim), 1))
                raise FolderInUseError(
                    f"{self._folder}: another process is writing here. Wait for it; if it has "
                    f"died, its claim ends in {wait} s."
                )
            if self._write(claim.version):
                return

    def renew(self) -> None:
        """Write the claim again and again, until it ends or is lost."""
        while not self.ended.wait(RENEW_SECONDS):
            with suppress(DataError):  # the store may recover before the claim expires
                if not self._write(self._version):
                    return

    def is_held(self) -> bool:
        """Return whether no other writer has taken over."""
        claim = self._claim.read_object()
        return claim is not None and self._is_ours(claim)

    def release(self) -> bool:
        """Delete the claim; return whether it was held to the end."""
        with suppress(DataError):  # a claim that is not deleted expires
            if not self.is_held():
                return False
            self._claim.unlink()
        return True

    def _write(self, replaces: ObjectVersion | None) -> bool:
        """Write the claim unless another writer did so meanwhile; return whether it was written."""
        writer = [
            *_identify_writer(),
            self._token,
            time.time(),
        ]  # the time makes every version different
        content = json.dumps(writer).encode()
        try:
            if replaces is None:
                self._version = self._claim.create(content)
            else:
                self._version = self._claim.write_bytes(content, replaces)
        except FileExistsError:
            # A request whose answer was lost is repeated, and finds its own claim.
            claim = self._claim.read_object()
            if claim is None or not self._is_ours(claim):
                return False
            self._version = claim.version
        return True

    def _is_ours(self, claim: StoredObject) -> bool:
        return self._token.encode() in claim.content


def _identify_writer() -> tuple[str, int, float]:
    """Identify the writer: the machine, and the process by number and start time."""
    pid = os.getpid()
    return _identify_machine(), pid, psutil.Process(pid).create_time()


def _identify_machine() -> str:
    """Identify what process numbers belong to; containers may share a host's name, not these."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _is_stale(claim: StoredObject) -> bool:
    try:
        machine, pid, born, *_ = json.loads(claim.content)
    except (ValueError, TypeError):
        machine = pid = born = None
    if machine != _identify_machine():
        return _measure_age(claim) > STALE_SECONDS
    try:
        return bool(psutil.Process(pid).create_time() != born)
    except psutil.Error:
        return True


def _measure_age(claim: StoredObject) -> float:
    return (datetime.now(UTC) - claim.written).total_seconds()
