"""What the columns and values of the sources mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from flows.cli.options import FEATURES, ROWS, VALUES, Option, Switch, WholeNumber
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.sources import DuplicateRule, ReadOptions, SourceBatch, format_map, parse_map
from storage.stores.locations import MANIFEST_NAME

SOURCES_KEY = "sources"
"""Key of the tags of the files that a dataset was made from, beside the roles it remembers."""


@dataclass(frozen=True)
class ColumnRoles:
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
    duplicates: DuplicateRule | None = None

    def __post_init__(self) -> None:
        if self.segments is not None and self.segments < 1:
            raise DataError(f"--segments: Expected at least 1, got {self.segments}.")
        if self.segments is not None and self.segment_by is not None:
            raise DataError("--segments: Expected no --segment-by beside it, got both.")
        if "split" in self.keep and self.split_by not in (None, "split"):
            raise DataError("--keep split: Expected no --split-by beside it, which is stored so.")
        if self.duplicates and not self.long:
            raise DataError("--duplicates: Expected --long beside it, got none.")
        _ = self.read_options  # refuses values that cannot be

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ColumnRoles:
        """Take them as JSON gives them, whose lists are no tuples."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    @property
    def read_options(self) -> ReadOptions:
        """What the readers need to know."""
        named = (self.segment_by, self.split_by, *self.keep)
        columns = tuple(dict.fromkeys(name for name in named if name is not None))
        maps = tuple(parse_map(text) for text in self.maps)
        return ReadOptions(self.missing, self.threshold, columns, maps, self.features, self.drop)

    def with_source_columns(self, source: Any) -> ColumnRoles:
        """Add what the format itself says of its columns."""
        segment = None if self.segments else self.segment_by or source.default_segment
        split = self.split_by or source.default_split
        given = (name for name in source.column_names if name not in (segment, split))
        keep = tuple(dict.fromkeys([*self.keep, *given]))
        return replace(self, segment_by=segment, split_by=split, keep=keep)

    @property
    def per_row_columns(self) -> dict[str, str]:
        """Stored name of each per-row column, and its name in the sources."""
        split = {"split": self.split_by} if self.split_by else {}
        return {**{name: name for name in self.keep}, **split}


def merge_with_stored_roles(roles: ColumnRoles, base: BinaryDataset) -> ColumnRoles:
    """Read new rows as the rows before them were read, where the options say nothing else."""
    before = _drop_unset(base.manifest["ingest"])
    before.pop(SOURCES_KEY, None)
    _check_stored_roles(before, base)
    given = _drop_unset(asdict(roles))
    if "segments" in given or "segment_by" in given:
        before = {k: v for k, v in before.items() if k not in ("segments", "segment_by")}
    return ColumnRoles.from_json({**before, **given})


def _check_stored_roles(before: Mapping[str, Any], base: BinaryDataset) -> None:
    """Refuse what another program may have put there."""
    from storage.format.manifest_schemas import (
        check_schema,  # pydantic takes its time to be imported
    )

    remedy = "Ingest all rows anew with --overwrite."
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in before.items()}
    if odd := sorted({*values} - {f.name for f in fields(ColumnRoles)}):
        raise DataError(
            f"{base.path / MANIFEST_NAME}: ingest: Expected options of flows.ingest, got {odd[0]!r:.60}."
            f" {remedy}"
        )
    hints = get_type_hints(ColumnRoles)
    for name, value in values.items():
        check_schema(f"{base.path / MANIFEST_NAME}: ingest.{name}", hints[name], value, remedy)


def read_known_sources(base: BinaryDataset | None) -> dict[str, str]:
    """Give the tags of the files that a dataset was made from, by path."""
    if base is None:
        return {}
    from storage.format.manifest_schemas import check_schema

    found: dict[str, str] = base.manifest["ingest"].get(SOURCES_KEY, {})
    place = f"{base.path / MANIFEST_NAME}: ingest.{SOURCES_KEY}"
    check_schema(place, dict[str, str], found, "Ingest all rows anew with --overwrite.")
    return found


def _drop_unset(roles: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in roles.items() if v is not False and v not in (None, (), [])}


def check_stored_columns(roles: ColumnRoles, base: BinaryDataset) -> None:
    """Refuse to append columns that the dataset does not store."""
    new = sorted(set(roles.per_row_columns) - set(base.column_names))
    if new:
        raise DataError(
            f"--append: Expected per-row columns that {base.path} has, got {', '.join(new)}. "
            "Ingest all rows anew with --overwrite to add a column."
        )


Segmenter = Callable[[SourceBatch, int], NDArray[Any] | None]


def make_segmenter(roles: ColumnRoles, n_rows: int | None, base: BinaryDataset | None) -> Segmenter:
    """Give the function that names the segment of every row of a batch."""
    if roles.segment_by:
        return partial(_read_segment_names, roles.segment_by)
    if not roles.segments:
        return lambda batch, first: None
    before, n_bins = base.n_segments if base else 0, roles.segments
    total = n_rows or 0
    if 2 * n_bins > total:
        raise DataError(
            f"--segments: Expected at most {total // 2}, two rows a segment, got {n_bins}."
        )

    def time_bin(batch: SourceBatch, first: int) -> NDArray[Any]:
        """Name the bin of each row; `first` is the batch's first row."""
        bins = (first + np.arange(len(batch.X))) * n_bins // total
        seen, place = np.unique(bins, return_inverse=True)
        return np.array([f"bin {before + k + 1}" for k in seen])[place]

    return time_bin


def _read_segment_names(column: str, batch: SourceBatch, first: int) -> NDArray[Any]:
    names = batch.columns[column].astype(str)
    if (names == "").any():
        row = first + int(np.argmax(names == "")) + 1
        raise DataError(
            f"--segment-by {column}: Expected a value in every row, got none in row {row} of all "
            "rows read. Leave the row out or name its segment."
        )
    return names


Genotypes = Literal["dominant", "recessive"]
_GENOTYPE_THRESHOLDS: dict[Genotypes, float] = {"dominant": 0.5, "recessive": 1.5}


@Option(name="*")
class RoleOptions(TypedDict, total=False):
    """What columns and values are: the options that were given, and what Prefect records."""

    long: Annotated[
        str,
        Option(
            group=ROWS,
            help="Columns of long tables, a line a value: row=COLUMN,feature=COLUMN,value=COLUMN; "
            "without a value a line is a 1, and what no line names is 0.",
        ),
    ]
    duplicates: Annotated[
        DuplicateRule,
        Option(
            group=ROWS,
            help="Which of several lines of one row and feature counts: the last, or any 1. "
            "[default: refuse them]",
        ),
    ]
    segments: Annotated[
        WholeNumber, Option(group=ROWS, help="Cut the rows into N equal time bins.")
    ]
    segment_by: Annotated[str, Option(group=ROWS, help="Column whose value is the row's segment.")]
    split_by: Annotated[
        str,
        Option(group=ROWS, help="Column whose value is the row's split, such as train or test."),
    ]
    keep: Annotated[
        tuple[str, ...],
        Option(
            group=ROWS, negative="", help="Column to store, such as a label or the rows' names."
        ),
    ]
    missing: Annotated[
        tuple[str, ...],
        Option(
            group=VALUES,
            negative="",
            help="Further token that means missing, beside empty, NA, NaN, null.",
        ),
    ]
    threshold: Annotated[
        float, Option(group=VALUES, help="Binarise: 1 where the value is greater than T.")
    ]
    genotypes: Annotated[
        Genotypes,
        Option(
            group=VALUES,
            help="Of counts of an allele: 1 where it is there at all, or there twice.",
        ),
    ]
    map: Annotated[
        tuple[str, ...],
        Option(
            group=VALUES,
            negative="",
            help="What values mean: 'VALUE=1,VALUE=0', or 'FEATURES:VALUE=1,VALUE=0' for some.",
        ),
    ]
    yes: Annotated[
        tuple[str, ...],
        Option(group=VALUES, negative="", help="Values that are 1, between commas."),
    ]
    no: Annotated[
        tuple[str, ...],
        Option(group=VALUES, name="--no", negative="", help="Values that are 0, likewise."),
    ]
    features: Annotated[
        tuple[str, ...],
        Option(
            group=FEATURES,
            negative="",
            help="Columns that alone are features: a name or quoted pattern.",
        ),
    ]
    drop: Annotated[
        tuple[str, ...],
        Option(group=FEATURES, negative="", help="Columns to leave out, likewise."),
    ]
    drop_constant: Annotated[
        bool, Switch, Option(group=FEATURES, help="Leave out the features that never vary.")
    ]


def parse_roles(given: RoleOptions) -> ColumnRoles:
    """Say what the options mean.

    Raises
    ------
    DataError
        If two of them contradict each other, or one cannot be.
    """
    if odd := [name for name in given if name not in RoleOptions.__annotations__]:
        known = ", ".join(RoleOptions.__annotations__)
        raise DataError(f"roles: Expected names among {known}, got {odd[0]!r}.")
    roles: dict[str, Any] = {**given}
    if genotypes := roles.pop("genotypes", None):
        if roles.get("threshold") is not None:
            raise DataError("--genotypes: Expected no --threshold beside it, got both.")
        roles["threshold"] = _GENOTYPE_THRESHOLDS[genotypes]
    yes, no, maps = (tuple(roles.pop(name, ())) for name in ("yes", "no", "map"))
    return ColumnRoles.from_json({**roles, "maps": (*maps, *format_map(yes, no))})
