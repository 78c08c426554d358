"""Options that several commands share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Group, Parameter, Token
from typing_extensions import TypedDict  # pydantic rejects typing.TypedDict before Python 3.12

from storage.errors import DataError
from storage.extras import check_installed
from storage.quoting import parse_float
from storage.stores.local_path import check_local_path
from storage.stores.locations import AnyPath, check_target_file

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

TABLE_SUFFIXES = (".csv", ".parquet", ".xlsx")
_MAX_EXCEL_SHAPE = (1_048_575, 16_384)
"""Maximum rows below the header, and columns, of a sheet."""


class Option(Parameter):
    """An option whose help text also describes the parameter in Prefect's form."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the help text, and an example of a switch or a choice, to the parameter's schema."""
        schema = handler(core)
        kinds = (schema, *schema.get("anyOf", ()))
        choices = [choice for kind in kinds for choice in kind.get("enum", ())]
        if schema.get("type") == "boolean":
            choices = [True]
        examples = {"examples": choices[:1]} if choices else {}
        description = {"description": self.help} if self.help else {}
        return {**schema, **examples, **description}


class ExampleValue(NamedTuple):
    """An example of a parameter, which Prefect's form shows below the help text."""

    value: Any

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the example to the JSON schema of the parameter, and to its description."""
        schema = handler(core)
        help_text = handler.resolve_ref_schema(schema).get("description", "")
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        description = f"{help_text} Example: `{text}`"
        return {**schema, "description": description, "examples": [self.value]}


_GROUP_NAMES = ("Data", "Rows", "Values", "Features", "Model", "Run", "Cluster", "Output")
DATA, ROWS, VALUES, FEATURES, MODEL, RUN, CLUSTER, OUTPUT = map(Group.create_ordered, _GROUP_NAMES)
"""The sections of a help page, in their order."""
Switch = Option(negative="")
Repeatable = Annotated[tuple[str, ...], Option(negative="")]
"""A text option that may be given several times."""


def _parse_whole_number(kind: object, tokens: Sequence[Token]) -> int:
    """Parse a whole number strictly; Cyclopts itself would round 2.7 to 3."""
    text = tokens[0].value
    with suppress(ValueError):
        if parse_float(text) is not None:  # Python also reads 1_000
            return int(text)
    raise ValueError(f"{text!r} is not a whole number.")


def _parse_number(kind: object, tokens: Sequence[Token]) -> float:
    if (number := parse_float(tokens[0].value)) is None:
        raise ValueError(f"{tokens[0].value!r} is not a number.")
    return number


WholeNumber = Annotated[int, Option(converter=_parse_whole_number)]
Number = Annotated[float, Option(converter=_parse_number)]
Split = Annotated[
    str | None,
    Option(group=DATA, help="Use only rows whose `split` column has this value."),
    ExampleValue("train"),
]
Seed = Annotated[WholeNumber, Option(group=RUN, help="Seed of all random draws."), ExampleValue(1)]
ExecutorName = Literal["serial", "threads", "dask"]
Resume = Annotated[bool, Switch, Option(group=RUN, help="Continue an interrupted run.")]
Overwrite = Annotated[bool, Switch, Option(group=OUTPUT, help="Replace an existing result.")]
Standardize = Annotated[
    bool,
    Switch,
    Option(
        group=OUTPUT,
        help="Scale the codes of a table to mean 0 and standard deviation 1 over its rows.",
    ),
]
DatasetName = Annotated[
    str,
    Option(group=DATA, help="Dataset folder, or an example such as example:digits."),
    ExampleValue("data/votes.zarr"),
]
ArtifactPath = Annotated[
    str,
    Option(group=MODEL, help="Folder of a fitted model, or of runs (the latest is used)."),
    ExampleValue("runs/votes"),
]
Json = Annotated[
    bool, Option(negative="", group=OUTPUT, help="Print the summary as JSON on standard output.")
]


@Option(name="*")
class ExecutorOptions(TypedDict, total=False):
    """Where the work runs."""

    name: Annotated[
        ExecutorName,
        Option(
            name="--executor",
            group=RUN,
            help="[default: threads, or dask]",
        ),
    ]
    workers: Annotated[
        WholeNumber,
        Option(
            group=RUN,
            help="Workers to start, or to wait for. [default: threads]",
        ),
        ExampleValue(4),
    ]
    worker_memory: Annotated[
        str,
        Option(group=CLUSTER, help="Minimum memory per worker process, such as 4GiB."),
        ExampleValue("4GiB"),
    ]
    worker_timeout: Annotated[
        WholeNumber,
        Option(
            group=CLUSTER,
            help="Seconds to wait for lost workers. [default: 60]",
        ),
        ExampleValue(60),
    ]
    task_timeout: Annotated[
        WholeNumber,
        Option(
            group=CLUSTER,
            help="Seconds until another worker gets a stuck task.",
        ),
        ExampleValue(600),
    ]
    cluster: Annotated[
        str,
        Option(
            group=CLUSTER,
            help="Address, scheduler file, Prefect block, or local.",
        ),
        ExampleValue("tls://scheduler:8786"),
    ]
    tls_ca: Annotated[
        str,
        Option(group=CLUSTER, help="CA certificate file for tls:// clusters."),
        ExampleValue("certificates/ca.pem"),
    ]
    tls_cert: Annotated[
        str,
        Option(group=CLUSTER, help="Client certificate file."),
        ExampleValue("certificates/node.pem"),
    ]
    tls_key: Annotated[
        str,
        Option(group=CLUSTER, help="Private key file of that certificate."),
        ExampleValue("certificates/node-key.pem"),
    ]
    insecure: Annotated[
        bool,
        Switch,
        Option(group=CLUSTER, help="Allow unencrypted tcp:// connections to other hosts."),
    ]
    performance_report: Annotated[
        str,
        Option(
            group=CLUSTER, metavar="", help="Write Dask's performance report to this HTML file."
        ),
        ExampleValue("dask.html"),
    ]


Where = Annotated[ExecutorOptions, ExampleValue({"workers": 4})]


class SourcedValue(NamedTuple):
    """A setting and its source, for messages: an option such as `{workers}`, or a variable."""

    value: Any
    source: str


def parse_local_path(text: str) -> Path:
    """Parse a local path; refuse a URL, which would create a folder of that name."""
    if "://" in text:
        url = re.sub("//[^/]*@", "//", text.partition("?")[0])  # without credentials
        raise DataError(f"{url} is a URL, but only a local path works here.")
    return check_local_path(Path(text))


def has_table_suffix(output: str) -> bool:
    """Return whether a name ends like a table file."""
    return output.lower().endswith(TABLE_SUFFIXES)


def check_table_file(output: str, overwrite: bool) -> Path:
    """Check that a table can be written to a file, and return its path."""
    file = parse_local_path(output)
    if not has_table_suffix(output):
        raise DataError(
            f"{{output}} is {output!r}, but must end in {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}."
        )
    check_target_file(file, overwrite)
    if file.suffix.lower() == ".xlsx":
        check_installed(str(file), "xlsxwriter")
    return file


def check_table_size(file: AnyPath, n_rows: int, n_columns: int = 0) -> None:
    """Check that a table is not too large for an Excel sheet, if it is written to one."""
    (max_rows, max_columns), is_excel = _MAX_EXCEL_SHAPE, file.name.lower().endswith(".xlsx")
    if is_excel and (n_rows > max_rows or n_columns > max_columns):
        raise DataError(
            f"{file}: Excel takes at most {max_rows:,} rows and {max_columns:,} columns, but there "
            f"are {n_rows:,} and {n_columns:,}. Write .parquet or .csv."
        )
