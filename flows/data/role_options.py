"""What an ingest is told of the columns and values of its sources: options, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from flows.cli.options import FEATURES, ROWS, VALUES, Option, Switch, WholeNumber
from flows.data.roles import ColumnRoles
from storage.errors import DataError
from storage.sources import DuplicateRule, format_map

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
