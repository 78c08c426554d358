"""Paths of datasets, artifacts and codes, local or in a store: open, replace, delete."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Literal, NamedTuple

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray

from storage.errors import DataError, StoreUnreachableError
from storage.stores.local_path import check_local_path
from storage.stores.object_path import (
    FORMAT_MARK,
    ObjectPath,
    is_url,
    parse_object_url,
)
from storage.stores.object_store import STORE_KINDS, translate_store_errors

LOCK_SUFFIX = ".lock"
"""Ending of the names of leases and lock files, and the beginning of those inside a folder."""

DATASET_FORMAT = "latentbits-dataset"
MANIFEST_NAME = "manifest.json"
LATEST_NAME = "latest"
UNFINISHED_NAME = ".unfinished"
"""Folder for unfinished fits, and ending of the names of hidden folders for unfinished codes."""
_CHECKSUM_BYTES = 1 << 20
_FILE_SUFFIXES = (
    *(".csv", ".tsv", ".txt", ".dat", ".json", ".parquet", ".feather", ".npy", ".npz", ".mtx"),
    *(".h5", ".hdf5", ".mat", ".pkl", ".xlsx", ".html", ".gz", ".zip"),
)
AnyPath = Path | ObjectPath
"""A path on this machine or in an object store."""


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
    """List a folder's entries by name, without its lease; empty if the folder does not exist."""
    entries: list[Any] = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in entries if not entry.name.startswith(LOCK_SUFFIX)]


class TreeSize(NamedTuple):
    """Bytes of all files in a folder, and when the newest was written, in seconds since 1970."""

    n_bytes: int
    modified: float


def measure_tree(folder: AnyPath) -> TreeSize:
    """Measure all files below a folder; files that vanish meanwhile do not count.

    An empty folder was written when it was made, or when its last file was deleted. A path that is
    a file is measured itself; one that does not exist was written in 1970.
    """
    if isinstance(folder, ObjectPath):
        return TreeSize(*folder.measure_tree())
    files, own_time = [], 0.0
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if not S_ISDIR(status.st_mode):
                files.append(status)
            elif path == folder:
                own_time = status.st_mtime
    modified = max((status.st_mtime for status in files), default=own_time)
    return TreeSize(sum(status.st_size for status in files), modified)


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
