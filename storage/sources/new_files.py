"""Files that arrive below a folder or prefix: which are new, and which are still being written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from storage.errors import DataError
from storage.sources.base import Source, compute_file_tag
from storage.stores.object_path import is_url, parse_object_url

SETTLE_SECONDS = 60.0
"""A local file counts as complete this long after the last write; objects appear complete."""


class SourceFile(NamedTuple):
    """A file by its absolute path or URL, and a tag that changes with its content.

    `written` is the time of the last write, in seconds since 1970; 0 for an object.
    """

    path: str
    tag: str
    written: float = 0.0


class NewFiles(NamedTuple):
    """New files below some folders, sorted by name; files in `waiting` may still be written to.

    `n_known` is the number of files read before.
    """

    new: list[str]
    waiting: list[str]
    n_known: int


def list_new_files(
    folders: Sequence[str], known_tags: Mapping[str, str], suffixes: Iterable[str]
) -> NewFiles:
    """Find the files below folders, or prefixes such as `s3://bucket/in`, that are new.

    `known_tags` are the tags of the files read before, by path. Other suffixes, and paths with a
    part that starts with `.` or `_`, are ignored. Raises `DataError` if a folder does not exist, or
    a file that was read before has changed.
    """
    files = [file for folder in folders for file in _list_data_files(folder, tuple(suffixes))]
    for file in files:
        if known_tags.get(file.path, file.tag) != file.tag:
            raise DataError(
                f"{file.path}: the file has changed since it was ingested. Write new rows to "
                "another file, or ingest all files again with {overwrite}."
            )
    new = [file for file in files if file.path not in known_tags]
    settled = time.time() - SETTLE_SECONDS
    return NewFiles(
        [file.path for file in new if file.written <= settled],
        [file.path for file in new if file.written > settled],
        len(files) - len(new),
    )


def collect_tags(sources: Iterable[Source]) -> dict[str, str]:
    """Return the tags of the files of opened sources, by absolute path or URL."""
    tags = (getattr(source, "tags", {}) for source in sources)  # examples have none
    return {path: tag for by_path in tags for path, tag in by_path.items()}


def _list_data_files(folder: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """List the data files below a folder, sorted by name."""
    files = _list_objects(folder) if is_url(folder) else _list_local_files(Path(folder))
    by_name = {name: file for name, file in files if name.lower().endswith(suffixes)}
    hidden = {name for name in by_name if any(part[:1] in "._" for part in name.split("/"))}
    return [by_name[name] for name in sorted(by_name.keys() - hidden)]


def _list_objects(url: str) -> list[tuple[str, SourceFile]]:
    folder = parse_object_url(url)
    start = len(folder.key) + 1
    files = [
        (key[start:], SourceFile(f"{folder.root}/{key}", tag))
        for key, tag in folder.list_tags().items()
    ]
    if not files and folder.is_file():
        raise _make_no_folder_error(url)
    return files


def _list_local_files(folder: Path) -> list[tuple[str, SourceFile]]:
    if not folder.is_dir():
        raise _make_no_folder_error(str(folder))
    files = (path for path in folder.rglob("*") if path.is_file())
    return [
        (
            path.relative_to(folder).as_posix(),
            SourceFile(str(path.resolve()), compute_file_tag(path), path.stat().st_mtime),
        )
        for path in files
    ]


def _make_no_folder_error(path: str) -> DataError:
    return DataError(
        f"{path}: this is not a folder. Check the path, or leave out {{new}} to read one file."
    )
