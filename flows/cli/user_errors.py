"""Errors that the user can correct: one line describes them, and no traceback is shown."""

from __future__ import annotations

import errno
import logging

from pipeline.errors import FitError
from storage.errors import DataError

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_bad_input(error: BaseException | None) -> bool:
    """Return whether data, options or the disk caused the error, rather than this program."""
    if isinstance(error, OSError):  # a lost connection is an OSError too, but without a file name
        return error.filename is not None or error.errno in _DISK_FULL_ERRORS
    return isinstance(error, DataError | FitError)


def is_interruption(error: BaseException | None) -> bool:
    """Return whether an interrupt caused the error, as in Prefect between two stages."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def hide_expected_tracebacks() -> None:
    """Keep tracebacks of bad input and interrupts out of Prefect's logs."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_drop_expected_traceback)


def _drop_expected_traceback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if is_bad_input(error) or is_interruption(error):
        record.exc_info = None
    return True
