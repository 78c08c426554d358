"""The roles of source columns, how values become bits, and which segment each row belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, NotRequired, get_type_hints

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic rejects typing.TypedDict before Python 3.12

from flows.cli.options import (
    FEATURES,
    ROWS,
    VALUES,
    ExampleValue,
    Number,
    Option,
    Repeatable,
    Switch,
    WholeNumber,
)
from flows.data.collapse import FREQUENCY
from storage.dataset.batches import RowBatch
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.manifest_schemas import check_schema
from storage.format.schema import MISSING_INTEGER
from storage.quoting import quote
from storage.sources import (
    AbsentChunks,
    DuplicateRule,
    ReadOptions,
    format_map,
    parse_continuous,
    parse_levels,
    parse_map,
    parse_nominal,
    parse_ordinal,
)
from storage.stores.locations import MANIFEST_NAME

SOURCES_KEY = "sources"
"""Key, among the recorded roles, of the tags of the files that a dataset was made from."""
WARNINGS_KEY = "warnings"
"""Key, among the recorded roles, of the warnings of the readers of these files."""
Genotypes = Literal["dominant", "recessive", "additive"]
_GENOTYPE_THRESHOLDS: dict[Genotypes, float] = {"dominant": 0.5, "recessive": 1.5}
_GENOTYPE_LEVELS = "0<1<2"


class LongRoles(TypedDict):
    """The columns of a long table."""

    row: Annotated[
        str | Sequence[str],
        Option(help="Column, or columns, that name the row."),
        ExampleValue("user"),
    ]
    feature: Annotated[str, Option(help="Column that names the feature."), ExampleValue("item")]
    value: NotRequired[
        Annotated[
            str, Option(help="Column of the value. Without it, it is 1."), ExampleValue("answer")
        ]
    ]


@Option(name="*")
class RoleOptions(TypedDict, total=False):
    """The options that describe the columns and values of sources."""

    long: Annotated[
        str | LongRoles,
        Option(
            accepts_keys=False,  # on the command line it is a text
            metavar="STR",
            group=ROWS,
            help="Columns of a long table (one line per value): row=COLUMN,feature=COLUMN,"
            "value=COLUMN. Without value, every line means 1 and absent cells are 0. If several "
            "columns together identify a row: row=COLUMN,row=COLUMN,….",
        ),
        ExampleValue({"row": "user", "feature": "item", "value": "answer"}),
    ]
    duplicates: Annotated[
        DuplicateRule,
        Option(
            group=ROWS,
            help="If several lines have the same row and feature, use the last line, or the "
            "highest value of any: 1 if any line is 1. [default: refuse them]",
        ),
    ]
    segments: Annotated[
        WholeNumber,
        Option(group=ROWS, help="Divide the rows into N equal time bins."),
        ExampleValue(24),
    ]
    segment_by: Annotated[
        str, Option(group=ROWS, help="Column with the segment of each row."), ExampleValue("year")
    ]
    split_by: Annotated[
        str,
        Option(group=ROWS, help="Column with the split of each row, such as train or test."),
        ExampleValue("split"),
    ]
    keep: Annotated[
        Repeatable,
        Option(
            group=ROWS,
            help="Column to store with the bits, such as a label or row names. Repeatable.",
        ),
        ExampleValue(["party"]),
    ]
    collapse: Annotated[
        bool,
        Switch,
        Option(
            group=ROWS,
            help="Store equal rows once, and their number in the column `frequency`, for "
            "`fit --weight frequency`.",
        ),
    ]
    missing: Annotated[
        Repeatable,
        Option(
            group=VALUES,
            help="Another text that means missing, besides empty, ?, NA, N/A, NaN, none, null. "
            "Repeatable.",
        ),
        ExampleValue(["9"]),
    ]
    threshold: Annotated[
        Number,
        Option(group=VALUES, help="Binarise numbers: 1 if the value is greater than T."),
        ExampleValue(0.5),
    ]
    genotypes: Annotated[
        Genotypes,
        Option(
            group=VALUES,
            help="Allele counts: 1 if at least one copy (dominant) or two (recessive), or the "
            "levels 0, 1 and 2 (additive).",
        ),
    ]
    map: Annotated[
        Repeatable,
        Option(
            group=VALUES,
            help="Meaning of values: 'VALUE=1,VALUE=0', or 'FEATURES:VALUE=1,VALUE=0' for some "
            "features. Repeatable; the most specific one applies. Put double quotes around names "
            "and values with , : = or <, here and in other options.",
        ),
        ExampleValue(["1=1,6=0"]),
    ]
    yes: Annotated[
        Repeatable,
        Option(group=VALUES, help="Values that mean 1, separated by commas."),
        ExampleValue(["yea,paired"]),
    ]
    no: Annotated[
        Repeatable,
        Option(group=VALUES, name="--no", help="Values that mean 0, separated by commas."),
        ExampleValue(["nay"]),
    ]
    levels: Annotated[
        Repeatable,
        Option(
            group=VALUES,
            help="Ordered levels, up to 16: 'LOW<MIDDLE<HIGH', or 'FEATURES:LOW<MIDDLE<HIGH' for "
            "some features. Repeatable.",
        ),
        ExampleValue(["no<perhaps<yes"]),
    ]
    ordinal: Annotated[
        Repeatable,
        Option(
            group=VALUES,
            help="Features whose levels are integers, with their range: 'FEATURES:0-4'. With "
            "FEATURES alone, levels are those that occur, and files are read twice. "
            "'FEATURES:auto' finds up to 16 levels that are any numbers; features with more are "
            "continuous. Repeatable.",
        ),
        ExampleValue(["mood*:0-4"]),
    ]
    nominal: Annotated[
        Repeatable,
        Option(
            group=VALUES,
            help="Categories without an order, up to 16: 'FEATURES:tv,radio,web'; of integers also "
            "'FEATURES:1-4' or FEATURES alone, as for --ordinal. Repeatable.",
        ),
        ExampleValue(["media:tv,radio,web"]),
    ]
    continuous: Annotated[
        Repeatable,
        Option(
            group=VALUES,
            help="Features whose values are measurements, not levels: 'NAME,NAME', also patterns. "
            "Repeatable.",
        ),
        ExampleValue(["age,income"]),
    ]
    encoding: Annotated[
        str,
        Option(
            group=VALUES,
            help="Encoding of text files, such as latin-1. [default: that of the byte-order mark, "
            "or else utf-8]",
        ),
        ExampleValue("latin-1"),
    ]
    absent_chunks: Annotated[
        AbsentChunks,
        Option(
            group=VALUES,
            help="Chunks that a Zarr array does not store: refuse them, read the fill value, or "
            "take their cells as missing. [default: the fill value, with a warning]",
        ),
    ]
    features: Annotated[
        Repeatable,
        Option(
            group=FEATURES,
            help="Use only these columns as features: names, or quoted patterns. Repeatable.",
        ),
        ExampleValue(["vote_*"]),
    ]
    drop: Annotated[
        Repeatable,
        Option(
            group=FEATURES,
            help="Leave out these columns: names, or quoted patterns. Repeatable.",
        ),
        ExampleValue(["comment"]),
    ]
    drop_constant: Annotated[
        bool, Switch, Option(group=FEATURES, help="Leave out features with a single value.")
    ]


VALUE_KINDS = ("levels", "ordinal", "nominal", "continuous")
"""Options about values that are not plain 0 and 1."""


@dataclass(frozen=True)
class ColumnRoles:
    """The roles of the columns of sources.

    Attributes
    ----------
    segments
        Number of equal time bins.
    segment_by, split_by
        Per-row columns with the segment and the split.
    keep
        Per-row columns to store.
    collapse
        Whether equal rows are stored once, with their number.
    missing, threshold, maps
        How values become bits; see `storage.sources.ReadOptions`. Maps are spelt as in `--map`.
    levels, ordinal, nominal
        Features with levels, spelt as in `--levels`, `--ordinal` and `--nominal`.
    continuous
        Continuous features, spelt as in `--continuous`.
    encoding
        The encoding of text files without a byte-order mark.
    absent_chunks
        The meaning of chunks that a Zarr array does not store.
    features, drop
        Columns to use as the only features, and columns to leave out: names and patterns.
    drop_constant
        Whether constant features are dropped; their names are then added to `drop`.
    long, duplicates
        Columns of long tables, spelt as in `--long`, and the rule for duplicate lines.
    """

    segments: int | None = None
    segment_by: str | None = None
    split_by: str | None = None
    keep: tuple[str, ...] = ()
    collapse: bool = False
    missing: tuple[str, ...] = ()
    threshold: float | None = None
    maps: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    drop_constant: bool = False
    long: str | None = None
    duplicates: DuplicateRule | None = None
    levels: tuple[str, ...] = ()
    ordinal: tuple[str, ...] = ()
    nominal: tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    encoding: str | None = None
    absent_chunks: AbsentChunks | None = None

    def __post_init__(self) -> None:
        if self.segments is not None and self.segments < 1:
            raise DataError(f"{{segments}} is {self.segments}. Choose at least 1.")
        if self.segments is not None and self.segment_by is not None:
            raise DataError("{segments} and {segment_by} cannot be combined.")
        if "split" in self.keep and self.split_by not in (None, "split"):
            raise DataError(
                "{keep=split} and {split_by} cannot be combined: both would be stored as `split`."
            )
        if self.collapse and self.long:
            raise DataError(
                "{collapse} and {long} cannot be combined: the rows of a long table have names, so "
                "that none are equal."
            )
        if self.collapse and self.continuous:
            raise DataError(
                "{collapse} and {continuous} cannot be combined: few rows with measurements are "
                "equal. Leave out one of them."
            )
        for name in VALUE_KINDS:
            if getattr(self, name) and self.threshold is not None:
                raise DataError(
                    f"{{{name}}} and {{threshold}} cannot be combined. Leave out one of them."
                )
        _ = self.read_options  # raises an error for invalid values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ColumnRoles:
        """Create roles from JSON values, in which lists stand for tuples."""
        return cls(**_lists_to_tuples(values))

    @property
    def read_options(self) -> ReadOptions:
        """The options that source readers need."""
        names = (self.segment_by, self.split_by, *self.keep)
        columns = tuple(dict.fromkeys(name for name in names if name is not None))
        maps = (
            *map(parse_map, self.maps),
            *map(parse_levels, self.levels),
            *map(parse_ordinal, self.ordinal),
            *map(parse_nominal, self.nominal),
            *chain.from_iterable(map(parse_continuous, self.continuous)),
        )
        return ReadOptions(
            self.missing,
            self.threshold,
            columns,
            maps,
            self.features,
            self.drop,
            encoding=self.encoding,
            absent_chunks=self.absent_chunks,
        )

    def with_source_columns(self, source: Any) -> ColumnRoles:
        """Add the roles that the source's format defines itself."""
        segment = None if self.segments else self.segment_by or source.default_segment
        split = self.split_by or source.default_split
        others = (name for name in source.column_names if name not in (segment, split))
        keep = tuple(dict.fromkeys([*self.keep, *others, *source.name_columns]))
        if self.collapse and FREQUENCY in keep:
            raise DataError(
                f"{{collapse}}: {source.path} has a per-row column {FREQUENCY}, the name of the "
                "column that {collapse} adds. Rename it."
            )
        return replace(self, segment_by=segment, split_by=split, keep=keep)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values to store, without empty ones that older versions do not know."""
        optional = (*VALUE_KINDS, "encoding", "absent_chunks")
        return {n: v for n, v in asdict(self).items() if v or n not in optional}

    @property
    def per_row_columns(self) -> dict[str, str]:
        """Maps the stored name of each per-row column to its name in the sources."""
        split = {"split": self.split_by} if self.split_by else {}
        return {**{name: name for name in self.keep}, **split}

    @property
    def stored_columns(self) -> list[str]:
        """Names of all per-row columns of the dataset."""
        return [*self.per_row_columns, *([FREQUENCY] if self.collapse else [])]


def parse_roles(options: RoleOptions) -> ColumnRoles:
    """Convert the options to roles."""
    if unknown := [name for name in options if name not in RoleOptions.__annotations__]:
        names = ", ".join(RoleOptions.__annotations__)
        raise DataError(f"roles: {unknown[0]!r} is not a role. Choose among {names}.")
    roles: dict[str, Any] = {**options}
    if long := roles.pop("long", None):
        roles["long"] = _format_long_roles(long)
    if genotypes := roles.pop("genotypes", None):
        if roles.get("threshold") is not None:
            raise DataError("{genotypes} and {threshold} cannot be combined.")
        if genotypes == "additive":
            roles["levels"] = (*roles.get("levels", ()), _GENOTYPE_LEVELS)
        else:
            if other := next((name for name in VALUE_KINDS if roles.get(name)), None):
                raise DataError(f"{{genotypes={genotypes}}} and {{{other}}} cannot be combined.")
            roles["threshold"] = _GENOTYPE_THRESHOLDS[genotypes]
    yes, no, maps = (tuple(roles.pop(name, ())) for name in ("yes", "no", "map"))
    return ColumnRoles.from_json({**roles, "maps": (*maps, *format_map(yes, no))})


def _format_long_roles(long: str | LongRoles) -> str:
    """Write the columns of a long table as in `--long`, which a dataset records."""
    if not isinstance(long, Mapping):
        return str(long)
    columns = [
        (role, str(name))
        for role, names in long.items()
        for name in (names if isinstance(names, list | tuple) else [names])
        if name is not None
    ]
    return ",".join(f"{role}={quote(name)}" for role, name in columns)


def merge_with_stored_roles(roles: ColumnRoles, base: BinaryDataset) -> ColumnRoles:
    """Complete the roles of appended rows with those recorded in the dataset."""
    stored = _drop_unset(base.manifest["ingest"])
    for name in (SOURCES_KEY, WARNINGS_KEY):
        stored.pop(name, None)
    _check_stored_roles(stored, base)
    changed = _drop_unset(asdict(roles))
    if roles.long and "long" in stored:
        _check_same_long_roles(roles.long, stored["long"])
    if "segments" in changed or "segment_by" in changed:
        stored = {k: v for k, v in stored.items() if k not in ("segments", "segment_by")}
    return ColumnRoles.from_json({**stored, **changed})


def list_name_columns(dataset: BinaryDataset) -> tuple[str, ...]:
    """Return the columns that identify the rows of a dataset made from long tables."""
    if not (long := dataset.manifest["ingest"].get("long")):
        return ()
    from storage.sources.long_tables import parse_long_columns  # imports Arrow

    return parse_long_columns(long).row


def _check_same_long_roles(long: str, stored: str) -> None:
    """Check that appended lines have the same row columns as the dataset, and values if it has."""
    from storage.sources.long_tables import parse_long_columns  # imports Arrow

    columns, before = parse_long_columns(long), parse_long_columns(stored)
    if columns.row != before.row or (columns.value is None) != (before.value is None):
        raise DataError(
            f"{{long={long}}}: the dataset was made with {{long={stored}}}. Appended rows need the "
            "same columns row, and a value if there was one."
        )


def _check_stored_roles(stored: Mapping[str, Any], base: BinaryDataset) -> None:
    """Check the recorded roles, which another program may have written."""
    place, remedy = f"{base.path / MANIFEST_NAME}: ingest", _REINGEST_REMEDY
    if unknown := sorted({*stored} - {f.name for f in fields(ColumnRoles)}):
        raise DataError(f"{place}: {unknown[0]!r:.60} is not an option of flows.ingest. {remedy}")
    hints = get_type_hints(ColumnRoles)
    for name, value in _lists_to_tuples(stored).items():
        check_schema(f"{place}.{name}", hints[name], value, remedy)


def read_known_sources(base: BinaryDataset | None) -> dict[str, str]:
    """Return the tags of the files that a dataset was made from, by path."""
    if base is None:
        return {}
    tags: dict[str, str] = base.manifest["ingest"].get(SOURCES_KEY, {})
    place = f"{base.path / MANIFEST_NAME}: ingest.{SOURCES_KEY}"
    check_schema(place, dict[str, str], tags, _REINGEST_REMEDY)
    return tags


_REINGEST_REMEDY = "Ingest all rows again with {overwrite}."


def _drop_unset(roles: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in roles.items() if v is not False and v not in (None, (), [])}


def _lists_to_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def check_stored_columns(roles: ColumnRoles, base: BinaryDataset) -> None:
    """Check that appended rows have no per-row columns that the dataset does not store."""
    new = sorted({*roles.stored_columns} - {*base.column_names})
    if roles.collapse and FREQUENCY in new:
        raise DataError(
            f"{{collapse}}: {base.path} was made without it. Leave it out, or ingest all rows "
            "again with {overwrite}."
        )
    if new:
        raise DataError(
            f"{{append}}: {base.path} does not store the columns {', '.join(new)}. To add a "
            "column, ingest all rows again with {overwrite}."
        )


Segmenter = Callable[[RowBatch, int], NDArray[Any] | None]
"""Returns the segment names of a batch's rows; takes the batch and the index of its first row."""


def make_segmenter(roles: ColumnRoles, n_rows: int | None, base: BinaryDataset | None) -> Segmenter:
    """Make the function that names the segment of each row of a batch."""
    if roles.segment_by:
        names = partial(read_row_names, "segment_by", roles.segment_by)
        return lambda batch, first: names(batch, first).astype(str)
    if not roles.segments:
        return lambda batch, first: None
    n_before, n_bins = base.n_segments if base else 0, roles.segments
    total = n_rows or 0
    if 2 * n_bins > total:
        raise DataError(
            f"{{segments}} is {n_bins}, but each segment needs two rows and there are only "
            f"{total}. Choose at most {total // 2}."
        )

    def name_time_bins(batch: RowBatch, first: int) -> NDArray[Any]:
        bins = (first + np.arange(len(batch))) * n_bins // total
        distinct, index = np.unique(bins, return_inverse=True)
        return np.array([f"bin {n_before + k + 1}" for k in distinct])[index]

    return name_time_bins


def read_row_names(parameter: str, column: str, batch: RowBatch, first: int) -> NDArray[Any]:
    """Return the values of a column that names the segment or the split of each row.

    `first` is the index of the batch's first row. Raises `DataError` if a value is missing.
    """
    values = batch.columns[column]
    if values.dtype.kind in "biuf":
        missing = np.isnan(values) | (values == MISSING_INTEGER)
    else:
        missing = values.astype(str) == ""
    if missing.any():
        row = first + int(np.argmax(missing)) + 1
        raise DataError(
            f"{{{parameter}={column}}}: row {row} of all rows read has no value. "
            "Leave the row out, or give it a value."
        )
    return values
