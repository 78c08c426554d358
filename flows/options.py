"""What the command lines share: options, their validation, exit codes and error lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError

from pipeline.errors import FitError
from storage.errors import DataError

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

Switch = Parameter(negative="")
Many = Parameter(negative="", consume_multiple=False)
Split = Annotated[
    str | None, Parameter(help="Use only the rows whose `split` column has this value.")
]
Json = Annotated[
    bool,
    Parameter(
        negative="", help="Print one JSON object on standard output, all else on standard error."
    ),
]


def command(name: str, help_text: str) -> App:
    """Make the application of one flow's command line."""
    return App(
        name=f"python -m flows.{name}",
        help=help_text,
        help_format="markdown",
        version_flags=[],
        result_action="return_value",
    )


def run(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("latentbits").setLevel(logging.INFO)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _leave(BAD_INPUT, f"{error} See --help.")
    except (DataError, FitError) as error:
        _leave(BAD_INPUT, str(error))
    except OSError as error:
        _leave(BAD_INPUT, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
    except KeyboardInterrupt:
        _leave(INTERRUPTED, "interrupted")
    except Exception:
        logging.getLogger("latentbits").exception("failure")
        sys.exit(FAILED)
    sys.exit(DONE)


def _leave(code: int, message: str) -> NoReturn:
    """Print one line: a message never spreads over several."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
