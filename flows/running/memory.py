"""Whether a run fits into memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import psutil

from pipeline.errors import FitError


def release_free_memory() -> None:
    """Give free memory back to the system: glibc keeps what lies between arrays still in use."""
    with suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


def find_memory_limit(given: str | None = None) -> int:
    """Bytes that a run may take: what is given, or what is free.

    Raises
    ------
    FitError
        If what is given is no size.
    """
    if given is None:
        from distributed.system import MEMORY_LIMIT  # takes its time to be imported

        return min(psutil.virtual_memory().available, MEMORY_LIMIT)
    from dask.utils import parse_bytes

    try:
        size = int(parse_bytes(given))
    except ValueError:
        size = 0
    if size <= 0:
        raise FitError(f"--memory: Expected a size such as 4GB, got {given!r}.")
    return size


def check_memory(need: int, n_features: int, limit: int, given: str | None = None) -> None:
    """Refuse a run that needs more bytes than it may take, at the least.

    Raises
    ------
    FitError
        With both numbers.
    """
    if need <= limit:
        return
    free, remedy = "free memory", "Use a larger machine"
    if given is not None:
        free, remedy = "--memory", "Give more, use a larger machine"
    raise FitError(
        f"Expected {need / 1e9:.1f} GB of {free} for {n_features} features, "
        f"got {limit / 1e9:.1f} GB. {remedy} or fewer features."
    )
