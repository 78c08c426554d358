"""Memory limits, and the time and memory that a stage used."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.usage import ProcessUsage, measure_usage

_CONTAINER_LIMITS = (
    *(f"/sys/fs/cgroup/memory/memory.{name}_in_bytes" for name in ("limit", "soft_limit")),
    *(f"/sys/fs/cgroup/memory.{name}" for name in ("max", "high", "low")),
)
"""Files of the kernel's control groups, versions 1 and 2."""


def release_free_memory() -> None:
    """Return free memory to the system; glibc would keep the gaps between arrays in use."""
    with suppress(OSError, AttributeError):  # other C libraries lack this call
        ctypes.CDLL(None).malloc_trim(0)


def read_memory_size() -> int:
    """Return the bytes of memory of this machine, or those that a container may use.

    This is `distributed.system.MEMORY_LIMIT`, but importing that takes longer than many fits.
    """
    limits = [int(psutil.virtual_memory().total)]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # absent, or "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    with suppress(ImportError):  # not on Windows
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])
    return min(limit for limit in limits if limit > 0)


def find_memory_limit(size: str | None = None) -> int:
    """Return the bytes that a run may use: the value of `--memory`, or the free memory."""
    if size is None:
        return min(int(psutil.virtual_memory().available), read_memory_size())
    from dask.utils import parse_bytes

    try:
        n_bytes = int(parse_bytes(size))
    except ValueError:
        n_bytes = 0
    if n_bytes <= 0:
        raise FitError(f"{{memory}} is {size!r}, which is not a size such as 4GB.")
    return n_bytes


def check_memory(need: int, n_features: int, limit: int, is_option: bool = False) -> None:
    """Check that a run does not need more bytes than it may use; `n_features` is for the message.

    `is_option` states that `--memory` sets the limit, rather than the free memory.
    """
    if need <= limit:
        return
    allowance = f"{{memory}} allows {_format_size(limit)}"
    remedy = "Allow more, or use a larger machine"
    if not is_option:
        allowance, remedy = f"{_format_size(limit)} of memory are free", "Use a larger machine"
    raise FitError(
        f"{n_features} features need {_format_size(need)}, but {allowance}. "
        f"{remedy}, fewer features or a smaller model."
    )


def _format_size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.3g} MB"


_THIS_PROCESS = "this process"


class UsageReading(NamedTuple):
    """The time, and the resources that each process has used by then, by its name."""

    clock: float
    processes: Mapping[str, ProcessUsage]


def read_usage(executor: Executor) -> UsageReading:
    """Read the resources that this process and all workers have used since they started."""
    own_usage = measure_usage()
    run_on_workers = getattr(executor, "run_on_workers", None)
    workers: dict[str, ProcessUsage] = run_on_workers(measure_usage) if run_on_workers else {}
    others = {name: usage for name, usage in workers.items() if usage.process != own_usage.process}
    return UsageReading(time.perf_counter(), {_THIS_PROCESS: own_usage, **others})


def compute_usage(before: UsageReading, after: UsageReading) -> dict[str, Any]:
    """Describe the resources used between two readings.

    Memory peaks count from the start of each process; all usage of a worker that started in between
    counts.
    """
    workers = [u.peak_memory for name, u in after.processes.items() if name != _THIS_PROCESS]
    return {
        "seconds": round(after.clock - before.clock, 3),
        "cpu_seconds": round(sum(_compute_growth(before, after, "cpu_seconds")), 3),
        "bytes_read": sum(_compute_growth(before, after, "bytes_read")),
        "bytes_written": sum(_compute_growth(before, after, "bytes_written")),
        "peak_memory": after.processes[_THIS_PROCESS].peak_memory,
        "peak_memory_of_largest_worker": max(workers, default=None),
    }


def _compute_growth(before: UsageReading, after: UsageReading, name: str) -> list[Any]:
    growth = []
    for process, last in after.processes.items():
        first = before.processes.get(process)
        is_same = first is not None and first.process == last.process
        growth.append((getattr(last, name) or 0) - ((getattr(first, name) or 0) if is_same else 0))
    return growth
