"""Sources in object stores: downloaded to a temporary file, read there, and deleted again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import takewhile
from pathlib import Path, PurePosixPath

from storage.errors import DataError
from storage.sources.base import Source, SourceBatch, copy_fields
from storage.stores.object_path import ObjectPath, is_url, parse_object_url


@dataclass(frozen=True, kw_only=True)
class RemoteSource(Source):
    """A file of an object store; it is downloaded once for its names and once for its rows.

    Attributes
    ----------
    tag
        Tag of the file when its names were read.
    opener
        Opens the local copy.
    """

    can_select_columns = True  # the copy selects them

    tag: str
    opener: Callable[[str], Source]

    @property
    def tags(self) -> Mapping[str, str]:
        """The store's tag."""
        return {self.path: self.tag}

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Download the file and read its rows."""
        with open_local_copy(self.path, self.tag) as (copy, _):
            yield from self.opener(copy).iter_batches()


def open_remote(url: str, opener: Callable[[str], Source]) -> Source:
    """Open a file of an object store by its URL."""
    with open_local_copy(url) as (copy, tag):
        source = opener(copy)
        return RemoteSource(**{**copy_fields(source), "path": url}, tag=tag, opener=opener)


@contextmanager
def open_local_copy(path: str, expected: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the path of a local copy of a URL, and its tag; a local path is yielded as it is.

    Parameters
    ----------
    path
        The URL or path.
    expected
        The tag that the object must have.

    Raises
    ------
    DataError
        If the object is missing or has changed; messages about the copy name the URL.
    """
    if not is_url(path):
        yield path, ""
        return
    with tempfile.TemporaryDirectory(prefix="latentbits-") as folder:
        copy = str(Path(folder) / ("source" + "".join(PurePosixPath(path).suffixes[-2:]).lower()))
        try:
            with open(copy, "wb") as file:
                tag = parse_object_url(path).download(file)
            if expected not in (None, tag):
                raise DataError(f"{path}: the file has changed since it was first read. Run again.")
            yield copy, tag
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file.") from None
        except DataError as error:
            raise DataError(error.text.replace(copy, path), parameter=error.parameter) from error


def find_matching_urls(pattern: str) -> list[str]:
    """List the URLs that match a pattern, sorted; as in a shell, `*` does not match `/`."""
    url = parse_object_url(pattern)
    parts = PurePosixPath(url.key).parts
    fixed = tuple(takewhile(lambda part: not has_magic(part), parts))
    keys = ObjectPath(url.root, "/".join(fixed)).list_keys()
    return sorted(f"{url.root}/{key}" for key in keys if _is_key_match(key, parts))


def _is_key_match(key: str, patterns: tuple[str, ...]) -> bool:
    parts = PurePosixPath(key).parts
    return len(parts) == len(patterns) and all(map(_is_part_match, parts, patterns))


def _is_part_match(name: str, pattern: str) -> bool:
    """Match one part of a path; a leading dot must be matched literally."""
    return fnmatchcase(name, pattern) and (not name.startswith(".") or pattern.startswith("."))
