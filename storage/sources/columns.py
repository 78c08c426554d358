"""Columns that names of folders give, as in `clicks/year=2026/part-0.parquet`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import numpy as np

from storage.errors import DataError
from storage.sources.base import Source, SourceBatch


@dataclass(frozen=True, kw_only=True)
class SelectedSource(Source):
    """Some features of another source."""

    source: Source

    @property
    def tags(self) -> Mapping[str, str]:
        """Those of the whole source."""
        return self.source.tags

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read all features and leave out the others."""
        at = np.flatnonzero(self.source.feature_mask)
        for batch in self.source.iter_batches():
            observed = None if batch.observed is None else batch.observed[:, at]
            yield SourceBatch(np.ascontiguousarray(batch.X[:, at]), observed, batch.columns)

    def check_first_rows(self) -> None:
        """Read the first rows as the whole source does."""
        self.source.check_first_rows()


def select_features(source: Source) -> Source:
    """Leave features out of a source that reads all of them."""
    if source.feature_mask.all():
        return source
    names = tuple(np.array(source.feature_names)[source.feature_mask].tolist())
    return SelectedSource(
        path=source.path,
        options=source.options,
        feature_names=names,
        n_rows=source.n_rows,
        column_names=source.column_names,
        default_segment=source.default_segment,
        default_split=source.default_split,
        source=source,
    )


_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class PartitionedSource(Source):
    """Another source, with per-row columns of one value each.

    Attributes
    ----------
    source
        The other one.
    values
        Values by names of columns.
    """

    can_select_columns = True  # as the other does

    source: Source
    values: Mapping[str, str]

    @property
    def tags(self) -> Mapping[str, str]:
        """Those of the other."""
        return self.source.tags

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Add the columns to every batch."""
        for batch in self.source.iter_batches():
            more = {name: np.full(len(batch.X), text) for name, text in self.values.items()}
            yield replace(batch, columns={**batch.columns, **more})

    def check_first_rows(self) -> None:
        """Read the first rows as the other does."""
        self.source.check_first_rows()


def parse_folder_columns(path: str) -> dict[str, str]:
    """Read the `name=value` parts of a path; what Hive writes for no value is empty."""
    pairs = (part.partition("=") for part in PurePosixPath(path).parts[:-1])
    found = {name: unquote(value) for name, equals, value in pairs if equals and name}
    return {name: "" if value == _HIVE_NULL else value for name, value in found.items()}


def is_partitioned(folder: Path) -> bool:
    """Tell whether a folder holds folders called `name=value`."""
    return any("=" in entry.name and entry.is_dir() for entry in folder.iterdir())


def check_column_in_one_place(path: str, told: Iterable[str], names: Container[str]) -> None:
    """Refuse a file that has a column which its folder tells too."""
    if twice := next((name for name in told if name in names), None):
        raise DataError(
            f"{path}: Expected a column {twice!r} in the file or in the folder's name, got both. "
            "Rename one of them."
        )


def add_folder_columns(source: Source, values: Mapping[str, str]) -> Source:
    """Add columns to a source that was opened without them.

    Raises
    ------
    DataError
        If the file has a column of that name too.
    """
    check_column_in_one_place(source.path, values, (*source.column_names, *source.feature_names))
    if not values:
        return source
    return PartitionedSource(
        path=source.path,
        options=replace(source.options, row_columns=(*source.options.row_columns, *values)),
        feature_names=source.feature_names,
        n_rows=source.n_rows,
        column_names=(*source.column_names, *values),
        default_segment=source.default_segment,
        default_split=source.default_split,
        source=source,
        values=values,
    )
