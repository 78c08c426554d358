"""What the command lines share: options, their validation, exit codes and error lines."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import App, Parameter, Token
from cyclopts.exceptions import CycloptsError

from flows.runtime import ExecutorName
from pipeline.errors import ClusterLost, FitError
from storage.errors import DataError

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

Switch = Parameter(negative="")


def _whole(kind: object, tokens: Sequence[Token]) -> int:
    """Read a whole number; the library's own reading rounds 2.7 to 3."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"Expected a whole number, got {tokens[0].value!r}.") from None


Whole = Annotated[int, Parameter(converter=_whole)]
Split = Annotated[
    str | None, Parameter(help="Use only the rows whose `split` column has this value.")
]
Seed = Annotated[Whole, Parameter(help="Seed of every random draw.")]
Where = Annotated[ExecutorName, Parameter(help="Where work runs.")]
Workers = Annotated[
    Whole | None,
    Parameter(help="Dask worker processes, or threads. [default: one process, all cores]"),
]
Cluster = Annotated[
    str | None, Parameter(help="Address of a Dask scheduler, such as tcp://host:8786.")
]
Resume = Annotated[bool, Switch, Parameter(help="Go on with an interrupted run.")]
Overwrite = Annotated[bool, Switch, Parameter(help="Replace what is there once the new is whole.")]
DatasetName = Annotated[
    str, Parameter(help="Dataset folder, or an example such as example:digits.")
]
FittedArtifact = Annotated[
    str, Parameter(help="Artifact of a fit, or a folder of runs for the latest.")
]
Json = Annotated[
    bool,
    Parameter(
        negative="", help="Print one JSON object on standard output, all else on standard error."
    ),
]


def local_path(text: str) -> Path:
    """Take a path, and refuse a URL, which would make a folder of that name here.

    Raises
    ------
    DataError
        If it is a URL.
    """
    if "://" in text:
        raise DataError(f"{text}: Expected a path of this machine, got a URL.")
    return Path(text)


def command(name: str, help_text: str, more_help: str) -> App:
    """Make the application of one flow's command line; `more_help` stands below the options."""
    return App(
        name=f"python -m flows.{name}",
        help=help_text,
        help_epilogue=more_help,
        help_format="markdown",
        version_flags=[],
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )


def run(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted."""
    log = logging.getLogger("latentbits")
    log.handlers, log.propagate = [logging.StreamHandler(sys.stderr)], False
    log.setLevel(logging.INFO)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_traceback)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _leave(BAD_INPUT, f"{error} See --help.")
    except KeyboardInterrupt:
        _leave(INTERRUPTED, "interrupted")
    except Exception as error:
        if is_bad_input(error):
            _leave(BAD_INPUT, _message(error))
        if isinstance(error, ClusterLost):
            _leave(FAILED, str(error))
        log.exception("failure")
        sys.exit(FAILED)
    sys.exit(DONE)


def is_bad_input(error: BaseException | None) -> bool:
    """Tell whether the data, the options or the disk are at fault, rather than this program."""
    if isinstance(error, OSError):  # a broken connection is one too, but names no file
        return error.filename is not None or error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        )
    return isinstance(error, DataError | FitError)


def _message(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return str(error)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Let Prefect log that a stage refused its input, but not where in the code that was."""
    if record.exc_info and is_bad_input(record.exc_info[1]):
        record.exc_info = None
    return True


def _leave(code: int, message: str) -> NoReturn:
    """Print one line: a message never spreads over several."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
