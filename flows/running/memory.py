"""Whether a run fits into memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import psutil

from pipeline.errors import FitError


def give_back() -> None:
    """Give free memory back to the system: glibc keeps what lies between arrays still in use."""
    with suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


def check_memory(need: int, n_features: int) -> None:
    """Refuse a run that needs more bytes than are free.

    Raises
    ------
    FitError
        With both numbers.
    """
    from distributed.system import MEMORY_LIMIT  # takes its time to be imported

    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    if need > free:
        raise FitError(
            f"Expected {need / 1e9:.1f} GB of free memory for {n_features} features, "
            f"got {free / 1e9:.1f} GB. Use a larger machine or fewer features."
        )
