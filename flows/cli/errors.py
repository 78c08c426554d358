"""Errors and warnings on the command line: which are the user's to correct, and how they read.

`pipeline` and `storage` name parameters by placeholders such as `{components=3}`. Here they become
options: `--components 3`, or `--set repair=nearest` for a setting of a model.
"""

from __future__ import annotations

import errno
import logging
import shlex
from collections.abc import Iterable
from dataclasses import fields

from pipeline.errors import ClusterLost, FitError, spell_parameters
from storage.errors import DataError, is_out_of_memory

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OTHER_NAMES = {"segment": "segment_by", "anchors": "anchor"}
"""Python's names of parameters whose option has another name."""
_SEGMENT_OPTIONS = "ingest --segment-by COLUMN or --segments N"


def spell_option(name: str, value: str | None) -> str:
    """Spell a parameter as an option: `--segment-by COLUMN`, `--set repair=nearest`.

    `items` is both an option and a setting: a kind of items, which has a value in messages.
    """
    if name == "segment" and value is None:
        return _SEGMENT_OPTIONS
    name = _OTHER_NAMES.get(name, name)
    if (name == "items" and value is not None) or _is_setting(name):
        return f"--set {name}" if value is None else f"--set {name}={shlex.quote(value)}"
    option = f"--{name.replace('_', '-')}"
    return option if value is None else f"{option} {shlex.quote(value)}"


def _is_setting(name: str) -> bool:
    """Return whether a parameter is a setting of a model and has no option of its own.

    The model that a message is about was imported.
    """
    from pipeline.fitting.prepare import FitRequest  # slow to import
    from pipeline.models.base import Model
    from pipeline.models.settings import list_settings

    if any(name in own.metadata.get("options", [own.name]) for own in fields(FitRequest)):
        return False
    kinds: list[type] = [Model]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    return any(name == own.name for kind in kinds for own in list_settings(kind))


def format_error(error: BaseException) -> str:
    """Return the message of an error, with options in place of parameters."""
    if isinstance(error, FitError):
        return error.message.render(spell=spell_option)
    if isinstance(error, DataError):
        return error.render(spell_option)
    if isinstance(error, ClusterLost):
        return spell_parameters(str(error), spell_option)
    if is_out_of_memory(error):
        reason = f" ({error})" if str(error) else ""
        return (
            f"There is not enough memory{reason}. Use a larger machine, allow more (ulimit -v), or "
            "take fewer features, a smaller model or fewer workers."
        )
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return str(error)


def format_warnings(texts: Iterable[str]) -> list[str]:
    """Return the warnings of a manifest, with options in place of parameters."""
    return [spell_parameters(text, spell_option) for text in texts]


def is_bad_input(error: BaseException | None) -> bool:
    """Return whether data, options, disk or memory are at fault, rather than this program."""
    if isinstance(error, OSError):  # a broken connection is one too, but names no file
        return error.filename is not None or error.errno in _DISK_FULL_ERRORS
    return isinstance(error, DataError | FitError) or is_out_of_memory(error)


def is_interruption(error: BaseException | None) -> bool:
    """Return whether an interrupt caused the error, perhaps through an error of Prefect."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def hide_expected_tracebacks() -> None:
    """Make Prefect log bad input and interruptions without a traceback."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_drop_expected_traceback)


def _drop_expected_traceback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if is_bad_input(error) or is_interruption(error):
        record.exc_info = None
    return True
