"""What the command lines share: options, their validation, exit codes and error lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, get_type_hints

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import FitError
from pipeline.models.base import Model, hyperparameters, model_class, suggestion
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


def build_model(name: str, components: str | None, settings: Sequence[str]) -> Model:
    """Make a model's hyperparameters from the options.

    Parameters
    ----------
    name
        The model's name.
    components
        A number, `auto`, or None for the model's default.
    settings
        `NAME=VALUE` each.

    Raises
    ------
    FitError
        If a name or a value cannot be used.
    """
    model = model_class(name)
    hints = get_type_hints(model)
    values: dict[str, Any] = {}
    if components is not None:
        values["n_components"] = _number_of_components(components)
    for setting in settings:
        key, value = _named(setting, hyperparameters(model))
        values[key] = _converted(key, value, hints[key])
    return model(**values)


def _number_of_components(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.lstrip("-").isdigit():
        raise FitError(f"--components: Expected a whole number or auto, got {text!r}.")
    return int(text)


def _named(setting: str, known: Sequence[str]) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise FitError(f"--set: Expected NAME=VALUE, got {setting!r}.")
    if key not in known:
        raise FitError(
            f"--set: Expected one of {', '.join(known)}, got {key!r}.{suggestion(key, known)}"
        )
    return key, value


def _converted(key: str, value: str, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise FitError(f"--set {key}: Expected {reason}, got {value!r}.") from None
