"""Memory limits, and the time and memory that a stage used."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.usage import ProcessUsage, measure_usage


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


_THIS_PROCESS = "this process"


class UsageReading(NamedTuple):
    """The clock, and what every process has used by then, by its name."""

    clock: float
    processes: Mapping[str, ProcessUsage]


def read_usage(executor: Executor) -> UsageReading:
    """Read what this process and all workers have used so far."""
    here = measure_usage()
    on_workers = getattr(executor, "on_workers", None)
    workers: dict[str, ProcessUsage] = on_workers(measure_usage) if on_workers else {}
    others = {name: used for name, used in workers.items() if used.process != here.process}
    return UsageReading(time.perf_counter(), {_THIS_PROCESS: here, **others})


def compute_usage(before: UsageReading, after: UsageReading) -> dict[str, Any]:
    """Describe what was used between two readings; peaks are those since each process began.

    A worker that was started between them counts from its start.
    """
    workers = [used.peak_memory for name, used in after.processes.items() if name != _THIS_PROCESS]
    return {
        "seconds": round(after.clock - before.clock, 3),
        "cpu_seconds": round(sum(_compute_growth(before, after, "cpu_seconds")), 3),
        "bytes_read": sum(_compute_growth(before, after, "bytes_read")),
        "bytes_written": sum(_compute_growth(before, after, "bytes_written")),
        "peak_memory": after.processes[_THIS_PROCESS].peak_memory,
        "peak_memory_of_largest_worker": max(workers, default=None),
    }


def _compute_growth(before: UsageReading, after: UsageReading, name: str) -> list[Any]:
    grown = []
    for process, used in after.processes.items():
        first = before.processes.get(process)
        known = first is not None and first.process == used.process
        grown.append((getattr(used, name) or 0) - ((getattr(first, name) or 0) if known else 0))
    return grown
