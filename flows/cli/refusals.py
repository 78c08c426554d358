"""Errors that are the user's to mend: one line says what, and where in the code is no help."""

from __future__ import annotations

import errno
import logging

from pipeline.errors import FitError
from storage.errors import DataError

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_bad_input(error: BaseException | None) -> bool:
    """Tell whether the data, the options or the disk are at fault, rather than this program."""
    if isinstance(error, OSError):  # a broken connection is one too, but names no file
        return error.filename is not None or error.errno in _DISK_FULL_ERRORS
    return isinstance(error, DataError | FitError)


def is_interruption(error: BaseException | None) -> bool:
    """Tell whether an interrupt came first: Prefect stumbles over one between two stages."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def hide_expected_tracebacks() -> None:
    """Let Prefect log that a stage refused its input or was interrupted, but not where."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_drop_expected_traceback)


def _drop_expected_traceback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if is_bad_input(error) or is_interruption(error):
        record.exc_info = None
    return True
