"""What the command lines share: options, their validation, exit codes and error lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

from cyclopts import App, Group, Parameter, Token
from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnusedCliTokensError
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from flows.cli.errors import format_error, is_bad_input, is_interruption
from flows.cli.imports import end_imports
from flows.cli.interrupts import can_continue, install_interrupt_handler
from flows.cli.logs import configure_logging, is_logging_json, log
from flows.cli.program import format_command, rewrite_commands
from pipeline.errors import ClusterLost
from pipeline.executors.cancellation import run_cancellable
from storage.errors import DataError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class Option(Parameter):
    """Says of an option what a command line needs to know, and Prefect's form what it means."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe a flow's parameter by the help text of the option."""
        described = {"description": self.help} if self.help else {}
        return {**handler(core), **described}


_GROUP_NAMES = ("Data", "Rows", "Values", "Features", "Model", "Run", "Cluster", "Output")
DATA, ROWS, VALUES, FEATURES, MODEL, RUN, CLUSTER, OUTPUT = map(Group.create_ordered, _GROUP_NAMES)
"""What options are about: the parts of a help text, in their order."""
Switch = Option(negative="")


def _parse_whole_number(kind: object, tokens: Sequence[Token]) -> int:
    """Read a whole number; the library's own reading rounds 2.7 to 3."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"Expected a whole number, got {tokens[0].value!r}.") from None


WholeNumber = Annotated[int, Option(converter=_parse_whole_number)]
Split = Annotated[
    str | None, Option(group=DATA, help="Use only the rows whose `split` column has this value.")
]
Seed = Annotated[WholeNumber, Option(group=RUN, help="Seed of every random draw.")]
ExecutorName = Literal["serial", "threads", "dask"]
Resume = Annotated[bool, Switch, Option(group=RUN, help="Go on with an interrupted run.")]
Overwrite = Annotated[
    bool, Switch, Option(group=OUTPUT, help="Replace what is there once the new is whole.")
]
DatasetName = Annotated[
    str, Option(group=DATA, help="Dataset folder, or an example such as example:digits.")
]
ArtifactPath = Annotated[
    str, Option(group=MODEL, help="Artifact of a fit, or a folder of runs for the latest.")
]
Json = Annotated[
    bool,
    Option(
        negative="",
        group=OUTPUT,
        help="Print one JSON object on standard output, all else on standard error.",
    ),
]


@Option(name="*")
class ExecutorOptions(TypedDict, total=False):
    """Where work runs: the options that were given, and the parameter that Prefect records."""

    name: Annotated[
        ExecutorName, Option(name="--executor", group=RUN, help="Where work runs. [default: dask]")
    ]
    workers: Annotated[
        WholeNumber,
        Option(
            group=RUN,
            help="Worker processes or threads; of a cluster elsewhere, how many to wait for. "
            "[default: one process, all cores]",
        ),
    ]
    worker_memory: Annotated[
        str,
        Option(group=CLUSTER, help="Memory that each worker process has at least, such as 4GiB."),
    ]
    cluster: Annotated[
        str,
        Option(
            group=CLUSTER,
            help="A Dask scheduler such as tls://host:8786, the name of a Prefect block that "
            "describes one, or local for worker processes on this machine.",
        ),
    ]
    tls_ca: Annotated[str, Option(group=CLUSTER, help="File of the CA of a cluster at tls://.")]
    tls_cert: Annotated[str, Option(group=CLUSTER, help="File of the certificate to show there.")]
    tls_key: Annotated[str, Option(group=CLUSTER, help="File of that certificate's key.")]
    insecure: Annotated[
        bool,
        Switch,
        Option(group=CLUSTER, help="Take tcp:// to another machine: open to all between."),
    ]
    performance_report: Annotated[
        str,
        Option(
            group=CLUSTER,
            help="HTML file to write Dask's account of the run to; it loads scripts from the web.",
        ),
    ]


class SourcedValue(NamedTuple):
    """A setting, and what a message calls the place that it comes from."""

    value: Any
    source: str


def parse_local_path(text: str) -> Path:
    """Take a path, and refuse a URL, which would make a folder of that name here.

    Raises
    ------
    DataError
        If it is a URL.
    """
    if "://" in text:
        raise DataError(f"{text}: Expected a path of this machine, got a URL.")
    return Path(text)


def _format_default(value: Any) -> str | None:
    """Leave out of a help text what an option is where nobody gives it: nothing, or off."""
    return None if value is None or value is False or value == () else str(value)


def make_app(name: str, help_text: str, more_help: str) -> App:
    """Make the application of one flow's command line; `more_help` stands below the options."""
    app = App(
        name=format_command(name),
        help=rewrite_commands(help_text),
        help_epilogue=rewrite_commands(more_help),
        default_parameter=Parameter(show_default=_format_default),
        help_format="markdown",
        version_flags=[],
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )

    app.meta.suppress_keyboard_interrupt = False

    @app.meta.default
    def launch(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        log_json: Annotated[
            bool,
            Switch,
            Parameter(group=OUTPUT, help="Write messages as JSON objects, one a line."),
        ] = False,
    ) -> None:
        configure_logging(log_json)
        app(words, exit_on_error=False, print_error=False)

    return app


def run_app(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted."""
    end_imports()
    install_interrupt_handler()
    configure_logging()
    try:
        run_cancellable(
            can_continue, partial(app.meta, exit_on_error=False, print_error=False), arguments
        )
    except CycloptsError as error:
        _exit_with_message(BAD_INPUT, f"{_describe_misuse(error)} See --help.")
    except KeyboardInterrupt:
        _exit_with_message(INTERRUPTED, "interrupted")
    except Exception as error:
        if is_bad_input(error):
            _exit_with_message(BAD_INPUT, format_error(error))
        if isinstance(error, ClusterLost):
            _exit_with_message(FAILED, format_error(error))
        if is_interruption(error):
            _exit_with_message(INTERRUPTED, "interrupted")
        log.exception("failure")
        sys.exit(FAILED)
    sys.exit(DONE)


def _describe_misuse(error: CycloptsError) -> str:
    """Say what is wrong with the words of a command: a word alone is what an option lacks."""
    words = list(error.unused_tokens or ())
    if isinstance(error, UnusedCliTokensError):
        return f"Expected no further words, got {' '.join(words)!r}."
    lone = words and not any(word.startswith("-") for word in words)
    if lone and isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        return f"{name}: Expected a value, got none. Did you mean {name} {words[0]}?"
    return str(error)


def _exit_with_message(code: int, message: str) -> NoReturn:
    """Print one line: a message never spreads over several, nor does it command a terminal."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    if is_logging_json():
        log.error(line, extra={"fields": {"exit_code": code}})
    else:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
