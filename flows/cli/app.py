"""The application of a command line: parsing, error lines, exit codes and interrupts."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnusedCliTokensError
from cyclopts.help.formatters import PlainFormatter

from flows.cli.errors import format_error, is_bad_input, is_interruption
from flows.cli.options import OUTPUT, Switch
from flows.cli.progress import configure_logging, is_logging_json, log
from flows.cli.startup import format_command, resume_garbage_collection, rewrite_commands
from pipeline.errors import ClusterLost
from pipeline.executors.cancellation import run_cancellable

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_MAX_LINE = 1600
_HELP_WIDTH, _NAMES_WIDTH, _MAX_CHOICES = 79, 24, 6
DONE, FAILED, BAD_INPUT, ALERT, INTERRUPTED = 0, 1, 2, 3, 130
_EXIT_CODES = "Exit codes: 0 done, 1 failure, 2 bad input, {}130 interrupted.\n"
EXIT_CODES = _EXIT_CODES.format("")
"""Exit codes in the help of most commands."""
FIT_EXIT_CODES = _EXIT_CODES.format("3 drift, ")
"""Exit codes in the help of `fit`."""

_interrupt_received = threading.Event()


def make_app(name: str, help_text: str, epilogue: str) -> App:
    """Create a command's application; its help page shows `epilogue` below the options."""
    app = App(
        name=format_command(name),
        help=format_help(help_text),
        help_epilogue=format_help(epilogue),
        default_parameter=Parameter(show_default=_format_default),
        help_format="plaintext",
        help_formatter=HelpFormatter(),
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
            Parameter(group=OUTPUT, help="Write log messages as JSON objects, one per line."),
        ] = False,
    ) -> None:
        configure_logging(log_json)
        app(words, exit_on_error=False, print_error=False)

    return app


def format_help(text: str) -> str:
    """Write commands as the user types them, wrap paragraphs, keep lists, and drop backticks."""
    paragraphs = rewrite_commands(text).strip().replace("`", "").split("\n\n")
    return "\n\n".join(
        paragraph if re.search("^( |- )", paragraph, re.M) else fill(paragraph, _HELP_WIDTH)
        for paragraph in paragraphs
    )


class HelpFormatter(PlainFormatter):
    """Formats the options of a help page in two columns, without boxes."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group of options."""
        entries = [entry for entry in panel.entries if "--help" not in entry.names]
        if not entries:
            return
        self._print_plain(console, f"\n{panel.title}:")
        for entry in entries:
            names = f"  {', '.join(entry.display_labels_with_metavar)}"
            text = _describe_option(entry)
            lines = wrap(text, _HELP_WIDTH - _NAMES_WIDTH) or [""]
            if len(names) + 1 > _NAMES_WIDTH:
                self._print_plain(console, names)
                names = ""
            for line in lines:
                self._print_plain(console, f"{names:<{_NAMES_WIDTH}}{line}".rstrip())
                names = ""

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:
        """Print the text above the options."""
        with console.capture() as capture:
            console.print(text)
        self._print_plain(console, capture.get().rstrip())


def _describe_option(entry: HelpEntry) -> str:
    text = entry.description.primary_renderable.plain if entry.description else ""
    parts = [text.replace("`", "")]
    if entry.choices and len(entry.choices) <= _MAX_CHOICES:
        parts.append(f"[{'|'.join(entry.choices)}]")
    if entry.default is not None:
        parts.append(f"[default: {entry.default}]")
    return " ".join(parts)


def _format_default(value: Any) -> str | None:
    """Format a default for the help page; None hides it if the option is simply off."""
    return None if value is None or value is False or value == () else str(value)


def run_app(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with one of `EXIT_CODES`."""
    resume_garbage_collection()
    _install_interrupt_handler()
    configure_logging()
    try:
        run_cancellable(
            _check_interrupt, partial(app.meta, exit_on_error=False, print_error=False), arguments
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
    """Describe a mistake on the command line, such as an option without its value."""
    words = list(error.unused_tokens or ())
    if isinstance(error, UnusedCliTokensError):
        return f"Unexpected arguments: {' '.join(words)!r}."
    are_values = words and not any(word.startswith("-") for word in words)
    if are_values and isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        return f"{name} has no value. Did you mean {name} {words[0]}?"
    return str(error)


def _exit_with_message(code: int, message: str) -> NoReturn:
    """Print one line without control characters, and exit."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    if len(line) > _MAX_LINE:  # of a very long value; the remedy is at the end
        line = f"{line[: _MAX_LINE // 2]} … {line[-_MAX_LINE // 2 :]}"
    if is_logging_json():
        log.error(line, extra={"fields": {"exit_code": code}})
    else:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)


def _install_interrupt_handler() -> None:
    """Raise and remember Ctrl-C and SIGTERM, unless this process ignores them.

    Python drops a KeyboardInterrupt that arrives while an object is being deleted, so the handler
    also sets a flag. An object whose creation is interrupted may fail when it is deleted (a Dask
    future does); Python would print that error after the message, so the handler silences it.
    """
    _interrupt_received.clear()
    in_main_thread = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM):
        if in_main_thread and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle_interrupt)


def _handle_interrupt(*_: object) -> None:
    _interrupt_received.set()
    sys.unraisablehook = lambda _: None
    raise KeyboardInterrupt


def _check_interrupt() -> bool:
    """Return True, or raise the KeyboardInterrupt that Python dropped."""
    if _interrupt_received.is_set():
        raise KeyboardInterrupt
    return True
