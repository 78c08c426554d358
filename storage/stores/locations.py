"""Paths of datasets, artifacts and codes, local or in a store: open, lock, replace, delete."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import psutil
import zarr
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from storage.errors import DataError, FolderInUseError, StoreUnreachableError
from storage.stores.local_path import check_local_path
from storage.stores.object_path import (
    FORMAT_MARK,
    ObjectPath,
    ObjectVersion,
    StoredObject,
    is_url,
    parse_object_url,
)
from storage.stores.object_store import STORE_KINDS, translate_store_errors

LOCK_SUFFIX = ".lock"
"""Ending of the names of lock files."""

DATASET_FORMAT = "latentbits-dataset"
MANIFEST_NAME = "manifest.json"
LATEST_NAME = "latest"
RENEW_SECONDS, STALE_SECONDS = 20.0, 120.0
"""A claim expires STALE_SECONDS after its last renewal; clocks must differ by less than that."""
_CHECKSUM_BYTES = 1 << 20
_FILE_SUFFIXES = (
    *(".csv", ".tsv", ".txt", ".dat", ".json", ".parquet", ".feather", ".npy", ".npz", ".mtx"),
    *(".h5", ".hdf5", ".mat", ".pkl", ".xlsx", ".html", ".gz", ".zip"),
)
AnyPath = Path | ObjectPath
"""A path on this machine or in an object store."""


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


def parse_path(text: str | AnyPath) -> AnyPath:
    """Parse a path, or the URL of an object store such as `s3://bucket/votes.zarr`.

    Raises `DataError` if it is a path or URL that cannot be used.
    """
    if isinstance(text, str) and is_url(text):
        return parse_object_url(text)
    if isinstance(text, Path) and text.parts[:1] in [(f"{scheme}:",) for scheme in STORE_KINDS]:
        raise DataError(
            f"{text}: a URL must be given as text, not as a Path. Use {text.parts[0]}//…."
        )
    if isinstance(text, str | Path):
        return check_local_path(Path(text))
    if not isinstance(text, ObjectPath):
        raise DataError(f"A path must be a text or a Path, not a {type(text).__name__}.")
    return text


def to_zarr_store(folder: AnyPath) -> Any:
    """Return what Zarr accepts as the store of a folder."""
    return folder.open_zarr_store() if isinstance(folder, ObjectPath) else folder


def open_group(folder: AnyPath, mode: Literal["r", "r+"] = "r") -> zarr.Group:
    """Open a group without searching for metadata of older formats."""
    return zarr.open_group(to_zarr_store(folder), mode=mode, zarr_format=3, use_consolidated=False)


def open_array(folder: AnyPath, name: str, mode: Literal["r", "r+"] = "r") -> Any:
    """Open one array of a group without opening the group."""
    return zarr.open_array(to_zarr_store(folder), path=name, mode=mode, zarr_format=3)


def list_children(folder: AnyPath) -> list[Any]:
    """List a folder's entries by name, without its lock; empty if the folder does not exist."""
    entries: list[Any] = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in entries if entry.name != LOCK_SUFFIX]


def delete_tree(folder: AnyPath) -> None:
    """Delete a folder and its contents, its format mark last."""
    if isinstance(folder, ObjectPath):
        folder.delete_tree()
        return
    with suppress(OSError):
        clear_folder(folder, keep_mark=True)
    shutil.rmtree(folder, ignore_errors=True)


def write_text(path: AnyPath, text: str) -> None:
    """Replace a file's text atomically: a reader sees the old text or the new one."""
    if isinstance(path, ObjectPath):
        path.write_bytes(text.encode("utf-8"))
    else:
        _replace_text(path, text)


def _replace_text(path: Path, text: str) -> None:
    side = path.with_name(path.name + ".partial")
    try:
        with translate_store_errors(path), side.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        side.replace(path)
    except BaseException:
        side.unlink(missing_ok=True)
        raise


def format_kind(kind: str, adjective: str = "") -> str:
    """Return the noun for a format, such as `an artifact` or `complete codes`."""
    noun = f"{adjective} {kind.removeprefix('latentbits-')}".strip()
    if noun.endswith("s"):
        return noun
    return f"an {noun}" if noun.startswith("a") else f"a {noun}"


def check_target_folder(target: AnyPath, kind: str, overwrite: bool) -> None:
    """Refuse a path that is taken, unless it holds the same kind of content and may be overwritten.

    The remains of an interrupted writer of the same kind do not count. Raises `DataError` if the
    path is taken or inside a dataset, or its name has the suffix of a file.
    """
    check_folder_name(target)
    is_free = is_free_target(target, kind)
    check_outside_datasets(target)  # after a request that reports an unreachable store
    if is_free:
        return
    if not overwrite:
        raise DataError(f"{target} already exists. Use {{overwrite}} to replace it.")
    if not has_format(target, kind):
        raise DataError(
            f"{target} is not {format_kind(kind)}, so it is not replaced. Choose another path."
        )


def check_folder_name(target: AnyPath) -> None:
    """Raise `DataError` if a folder's name has the suffix of a file format."""
    if target.name.lower().endswith(_FILE_SUFFIXES):
        raise DataError(
            f"{target}: Zarr arrays are written to a folder, but this is the name of a file. "
            f"Name it {target.name.partition('.')[0]}.zarr."
        )


def check_outside_datasets(target: AnyPath) -> None:
    """Raise `DataError` if a path lies in the folder of a dataset, which only ingest changes."""
    folder = target.resolve()
    while (folder := folder.parent) != folder.parent:
        with suppress(StoreUnreachableError):  # perhaps only this part of the bucket may be read
            if has_format(folder, DATASET_FORMAT):
                raise DataError(f"{target} is inside the dataset {folder}. Choose another path.")


def check_target_file(target: AnyPath, overwrite: bool) -> None:
    """Raise `DataError` for a folder, a file that may not be overwritten, or one in a dataset."""
    if target.is_dir():
        raise DataError(f"{target} is a folder, not a file.")
    check_outside_datasets(target)
    if target.exists() and not overwrite:
        raise DataError(f"{target} already exists. Use {{overwrite}} to replace it.")


@contextmanager
def lock_folder(folder: AnyPath) -> Iterator[Callable[[], bool]]:
    """Lock a folder for writing; the lock of a process that dies is released.

    Yields a function that returns whether the lock still holds; in an object store it may be lost.
    Raises `FolderInUseError` if another process is writing there.
    """
    if isinstance(folder, ObjectPath):
        with claim_lease(folder) as holds:
            yield holds
        return
    lock = _lock_local_folder(folder)
    try:
        yield lambda: True
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def lock_work_folder(folder: AnyPath) -> Iterator[None]:
    """Lock a folder; afterwards delete it and its parents if they are new and still empty."""
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with lock_folder(folder):
            yield
    finally:
        for place in new_folders:
            with suppress(OSError):  # not empty: it holds work to resume
                place.rmdir()


def _lock_local_folder(folder: Path) -> Lock | None:
    """Create a folder if necessary and lock it; None if the file system cannot.

    The lock file is next to the folder, which may be replaced while it is locked. It is inside if
    the user may not write there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder.with_name(f".{folder.name}{LOCK_SUFFIX}"), folder / LOCK_SUFFIX):
        try:
            lock = Lock(path)
            folder.mkdir(exist_ok=True)  # the previous writer may have deleted it
            return lock
        except LockedError:
            raise FolderInUseError(
                f"{folder}: another process is writing here. Wait for it."
            ) from None
        except PermissionError:
            continue
        except OSError:
            return None
    return None


def clear_folder(folder: AnyPath, keep_mark: bool = False) -> None:
    """Delete a folder's contents, the format mark last, but not the folder, which may be locked.

    With `keep_mark` the mark stays, so that a later writer may replace the folder.
    """
    if isinstance(folder, ObjectPath):
        folder.delete_tree(keep_mark)
        return
    entries = [entry for entry in list_children(folder) if entry.name != FORMAT_MARK]
    for entry in sorted(entries, key=lambda entry: entry.name != MANIFEST_NAME):
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    if not keep_mark:
        (folder / FORMAT_MARK).unlink(missing_ok=True)


def is_free_target(target: AnyPath, kind: str) -> bool:
    """Return whether a path is free, or holds the remains of an interrupted writer of this kind."""
    if not target.is_dir():
        return not target.exists()
    # Zarr writes the format mark under another name first.
    names = (entry.name for entry in list_children(target))
    is_partial = (name.startswith("zarr.") and name.endswith(".partial") for name in names)
    return all(is_partial) or is_unfinished(target, kind)


def is_unfinished(folder: AnyPath, kind: str) -> bool:
    """Return whether the folder has this format but no manifest yet."""
    return has_format(folder, kind) and not (folder / MANIFEST_NAME).exists()


def has_format(folder: AnyPath, kind: str) -> bool:
    """Return whether the folder was created for this format, complete or not."""
    try:
        group = json.loads((folder / FORMAT_MARK).read_text(encoding="utf-8"))
        is_same: bool = group.get("attributes", {}).get("format") == kind
    except StoreUnreachableError:
        raise
    except (OSError, ValueError, AttributeError):
        return False
    return is_same


def checksum(values: NDArray[Any]) -> int:
    """Compute the CRC32C of an array's values in C order."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, len(flat), _CHECKSUM_BYTES):  # in parts: the library needs copies
        crc = google_crc32c.extend(crc, flat[start : start + _CHECKSUM_BYTES].tobytes())
    return int(crc)


def replace_folder(new: AnyPath, target: AnyPath) -> None:
    """Move a finished folder to the place of another.

    Object stores cannot rename. There the old folder is deleted and the new one copied, manifest
    last, so that for a moment the path holds nothing complete.
    """
    if isinstance(new, ObjectPath) and isinstance(target, ObjectPath):
        target.delete_tree()
        new.copy_tree(target)
        new.delete_tree()
    elif isinstance(new, Path) and isinstance(target, Path):
        _rename(new, target)


def _rename(new: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def claim_lease(folder: ObjectPath) -> Iterator[Callable[[], bool]]:
    """Lock a folder for writing; the claim of a writer that died expires soon.

    Yields a function that returns whether the lock still holds. Call it before declaring the
    written data complete. Raises `FolderInUseError` if another process is writing there, or has
    taken over the claim.
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
        raise FolderInUseError(f"{folder}: another process has taken over writing here. Run again.")


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
                    f"died, its claim expires in {wait} s."
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
        pid = os.getpid()
        writer = _identify_machine(), pid, psutil.Process(pid).create_time()
        # The time makes every version different.
        content = json.dumps([*writer, self._token, time.time()]).encode()
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
