"""What the columns of the sources are for, and which segment each row is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.sources import Batch, Duplicates, ReadOptions, parse_map
from storage.stores.locations import MANIFEST

SOURCES = "sources"
"""Key of the tags of the files that a dataset was made from, beside the roles it remembers."""


@dataclass(frozen=True)
class Roles:
    """What the columns of the sources are for.

    Attributes
    ----------
    segments
        Number of equal time bins.
    segment_by, split_by
        Per-row columns that give the segment and the split.
    keep
        Per-row columns to store.
    missing, threshold, maps
        How values become bits; see `storage.sources.ReadOptions`. Maps are as options spell them.
    features, drop
        Columns that alone are features, and that are none: names and patterns.
    drop_constant
        Whether features of one value are dropped: their names are among `drop` then.
    long, duplicates
        What the columns of long tables are for, as the option spells it, and which of several lines
        of one row and feature counts.
    """

    segments: int | None = None
    segment_by: str | None = None
    split_by: str | None = None
    keep: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    threshold: float | None = None
    maps: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    drop_constant: bool = False
    long: str | None = None
    duplicates: Duplicates | None = None

    def __post_init__(self) -> None:
        if self.segments is not None and self.segments < 1:
            raise DataError(f"--segments: Expected at least 1, got {self.segments}.")
        if self.segments is not None and self.segment_by is not None:
            raise DataError("--segments: Expected no --segment-by beside it, got both.")
        if "split" in self.keep and self.split_by not in (None, "split"):
            raise DataError("--keep split: Expected no --split-by beside it, which is stored so.")
        if self.duplicates and not self.long:
            raise DataError("--duplicates: Expected --long beside it, got none.")
        _ = self.options  # refuses values that cannot be

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Roles:
        """Take them as JSON gives them, whose lists are no tuples."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    @property
    def options(self) -> ReadOptions:
        """What the readers need to know."""
        named = (self.segment_by, self.split_by, *self.keep)
        columns = tuple(dict.fromkeys(name for name in named if name is not None))
        maps = tuple(parse_map(text) for text in self.maps)
        return ReadOptions(self.missing, self.threshold, columns, maps, self.features, self.drop)

    def completed(self, source: Any) -> Roles:
        """Add what the format itself says of its columns."""
        segment = None if self.segments else self.segment_by or source.default_segment
        split = self.split_by or source.default_split
        given = (name for name in source.column_names if name not in (segment, split))
        keep = tuple(dict.fromkeys([*self.keep, *given]))
        return replace(self, segment_by=segment, split_by=split, keep=keep)

    @property
    def stored(self) -> dict[str, str]:
        """Stored name of each per-row column, and its name in the sources."""
        split = {"split": self.split_by} if self.split_by else {}
        return {**{name: name for name in self.keep}, **split}


def remembered(roles: Roles, base: BinaryDataset) -> Roles:
    """Read new rows as the rows before them were read, where the options say nothing else."""
    before = _told(base.manifest["ingest"])
    before.pop(SOURCES, None)
    _check(before, base)
    given = _told(asdict(roles))
    if "segments" in given or "segment_by" in given:
        before = {k: v for k, v in before.items() if k not in ("segments", "segment_by")}
    return Roles.of({**before, **given})


def _check(before: Mapping[str, Any], base: BinaryDataset) -> None:
    """Refuse what another program may have put there."""
    from storage.format.manifest_schemas import (
        check_parts,  # pydantic takes its time to be imported
    )

    remedy = "Ingest all rows anew with --overwrite."
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in before.items()}
    if odd := sorted({*values} - {f.name for f in fields(Roles)}):
        raise DataError(
            f"{base.path / MANIFEST}: ingest: Expected options of flows.ingest, got {odd[0]!r:.60}."
            f" {remedy}"
        )
    hints = get_type_hints(Roles)
    for name, value in values.items():
        check_parts(f"{base.path / MANIFEST}: ingest.{name}", hints[name], value, remedy)


def known_sources(base: BinaryDataset | None) -> dict[str, str]:
    """Give the tags of the files that a dataset was made from, by path."""
    if base is None:
        return {}
    from storage.format.manifest_schemas import check_parts

    found: dict[str, str] = base.manifest["ingest"].get(SOURCES, {})
    place = f"{base.path / MANIFEST}: ingest.{SOURCES}"
    check_parts(place, dict[str, str], found, "Ingest all rows anew with --overwrite.")
    return found


def _told(roles: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in roles.items() if v is not False and v not in (None, (), [])}


def check_stored(roles: Roles, base: BinaryDataset) -> None:
    """Refuse to append columns that the dataset does not store."""
    new = sorted(set(roles.stored) - set(base.column_names))
    if new:
        raise DataError(
            f"--append: Expected per-row columns that {base.path} has, got {', '.join(new)}. "
            "Ingest all rows anew with --overwrite to add a column."
        )


Segmenter = Callable[[Batch, int], NDArray[Any] | None]


def segmenter(roles: Roles, n_rows: int | None, base: BinaryDataset | None) -> Segmenter:
    """Give the function that names the segment of every row of a batch."""
    if roles.segment_by:
        return partial(_named_segments, roles.segment_by)
    if not roles.segments:
        return lambda batch, first: None
    before, n_bins = base.n_segments if base else 0, roles.segments
    total = n_rows or 0
    if 2 * n_bins > total:
        raise DataError(
            f"--segments: Expected at most {total // 2}, two rows a segment, got {n_bins}."
        )

    def time_bin(batch: Batch, first: int) -> NDArray[Any]:
        """Name the bin of each row; `first` is the batch's first row."""
        bins = (first + np.arange(len(batch.X))) * n_bins // total
        seen, place = np.unique(bins, return_inverse=True)
        return np.array([f"bin {before + k + 1}" for k in seen])[place]

    return time_bin


def _named_segments(column: str, batch: Batch, first: int) -> NDArray[Any]:
    names = batch.columns[column].astype(str)
    if (names == "").any():
        row = first + int(np.argmax(names == "")) + 1
        raise DataError(
            f"--segment-by {column}: Expected a value in every row, got none in row {row} of all "
            "rows read. Leave the row out or name its segment."
        )
    return names
