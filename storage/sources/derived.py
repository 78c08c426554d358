"""Sources derived from others: selected features, columns from folder names, remote files.

Folders name columns as in `clicks/year=2026/part-0.parquet`. Files in object stores are downloaded
to a temporary file, read there, and deleted again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import takewhile
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch, make_full_mask
from storage.errors import DataError
from storage.sources.base import Source, copy_fields
from storage.sources.spool import TemporaryFolder
from storage.stores.object_path import ObjectPath, is_url, parse_object_url

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class _DerivedSource(Source):
    source: Source

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the other source."""
        return self.source.tags

    def list_warnings(self) -> list[str]:
        """List the warnings of the other source."""
        return self.source.list_warnings()

    def check_first_rows(self) -> None:
        """Read the first rows of the other source."""
        self.source.check_first_rows()


@dataclass(frozen=True, kw_only=True)
class SelectedSource(_DerivedSource):
    """Features of another source in another order; those that it lacks are missing."""

    can_select_columns = True  # all features that are left are selected
    can_be_continuous = True

    def _read_batches(self) -> Generator[RowBatch]:
        """Read all features of the other source, and arrange them."""
        places = find_places(self.source.feature_names, self.feature_names)
        is_absent = places < 0
        for batch in self.source.iter_batches():
            levels, mask = batch.levels[:, places], batch.mask
            levels[:, is_absent] = 0
            if mask is not None or is_absent.any():
                full = make_full_mask((len(places),), len(batch))
                mask = full if mask is None else mask[places]
                mask[is_absent] = 0
            numbers = self._arrange_numbers(batch)
            yield replace(batch, levels=levels, mask=mask, numbers=numbers)

    def _arrange_numbers(self, batch: RowBatch) -> NDArray[np.float32] | None:
        own, other = (
            [source.feature_names[k] for k in source.continuous_features]
            for source in (self, self.source)
        )
        if own == other:
            return batch.numbers
        places = find_places(other, own)
        numbers = np.full((len(batch), len(own)), np.nan, np.float32)
        if batch.numbers is not None:
            numbers[:, places >= 0] = batch.numbers[:, places[places >= 0]]
        return numbers

    def list_warnings(self) -> list[str]:
        """Warn about features that the other source lacks."""
        absent = sorted({*self.feature_names} - {*self.source.feature_names})
        more = f" and {len(absent) - _MAX_NAMED:,} more" if len(absent) > _MAX_NAMED else ""
        names = ", ".join(map(repr, absent[:_MAX_NAMED])) + more
        own = [f"{self.path} has no columns for the features {names}; they are missing in its rows"]
        return [*super().list_warnings(), *own * bool(absent)]


def find_places(names: Sequence[str], wanted: Sequence[str]) -> NDArray[np.int64]:
    """Return the position among `names` of each wanted name, -1 if it is absent."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([places.get(name, -1) for name in wanted], np.int64)


def arrange_features(source: Source, names: Sequence[str]) -> Source:
    """Return a source with the features of these names, in this order."""
    if source.feature_names == tuple(names):
        return source
    return SelectedSource(**{**copy_fields(source), "feature_names": tuple(names)}, source=source)


def select_features(source: Source) -> Source:
    """Drop the unselected features of a source that reads all of them."""
    return arrange_features(source, np.array(source.feature_names)[source.feature_mask].tolist())


@dataclass(frozen=True, kw_only=True)
class PartitionedSource(_DerivedSource):
    """Another source with additional per-row columns; `values` are their constants by name."""

    can_select_columns = True  # the other source selects them
    can_be_continuous = True

    values: Mapping[str, str]

    def _read_batches(self) -> Generator[RowBatch]:
        """Add the columns to every batch."""
        for batch in self.source.iter_batches():
            added = {name: np.full(len(batch), text) for name, text in self.values.items()}
            yield replace(batch, columns={**batch.columns, **added})


def parse_folder_columns(path: str) -> dict[str, str]:
    """Parse the `name=value` folders of a path; Hive's mark for no value becomes an empty text."""
    pairs = (folder.partition("=") for folder in PurePosixPath(path).parts[:-1])
    columns = {name: unquote(value) for name, equals, value in pairs if equals and name}
    return {name: "" if value == _HIVE_NULL else value for name, value in columns.items()}


def is_partitioned(folder: Path) -> bool:
    """Return whether a folder contains folders named `name=value`."""
    return any("=" in entry.name and entry.is_dir() for entry in folder.iterdir())


def check_column_in_one_place(
    path: str, folder_columns: Iterable[str], names: Container[str]
) -> None:
    """Raise `DataError` if a file contains a column that its folder's name defines too."""
    if twice := next((name for name in folder_columns if name in names), None):
        raise DataError(
            f"{path}: column {twice!r} is both in the file and in the folder's name. "
            "Rename one of them."
        )


def add_folder_columns(source: Source, values: Mapping[str, str]) -> Source:
    """Add the columns from folder names; raise `DataError` if the file contains one of them too."""
    check_column_in_one_place(source.path, values, (*source.column_names, *source.feature_names))
    if not values:
        return source
    changed = {
        "options": replace(source.options, row_columns=(*source.options.row_columns, *values)),
        "column_names": (*source.column_names, *values),
    }
    return PartitionedSource(**{**copy_fields(source), **changed}, source=source, values=values)


@dataclass(frozen=True, kw_only=True)
class RemoteSource(Source):
    """A file of an object store; it is downloaded once for its names and once for its rows.

    `tag` is the tag of the file when its names were read; `opener` opens a local copy.
    """

    can_select_columns = True  # the copy selects them
    can_be_continuous = True

    tag: str
    opener: Callable[[str], Source]

    @property
    def tags(self) -> Mapping[str, str]:
        """The store's tag."""
        return {self.path: self.tag}

    def _read_batches(self) -> Generator[RowBatch]:
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

    `expected` is the tag that the object must have. Raises `DataError` if the object is missing or
    has changed; messages about the copy name the URL.
    """
    if not is_url(path):
        yield path, ""
        return
    with TemporaryFolder() as folder:
        copy = str(Path(folder) / ("source" + "".join(PurePosixPath(path).suffixes[-2:]).lower()))
        with open(copy, "wb") as file:
            try:
                tag = parse_object_url(path).download(file)
            except FileNotFoundError:
                raise DataError(f"{path}: there is no such file.") from None
        if expected not in (None, tag):
            raise DataError(f"{path}: the file has changed since it was first read. Run again.")
        try:
            yield copy, tag
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
