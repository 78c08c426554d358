"""What a stage takes: time, processor time, bytes and memory, of this process and of workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.executors.base import Executor
from pipeline.executors.usage import ProcessUsage, measure_usage

_THIS_PROCESS = "this process"


class UsageReading(NamedTuple):
    """The clock, and what every process has used by then, by its name."""

    clock: float
    processes: Mapping[str, ProcessUsage]


def read_usage(executor: Executor) -> UsageReading:
    """Read what this process and all workers have used so far."""
    here = measure_usage()
    run_on_workers = getattr(executor, "run_on_workers", None)
    workers: dict[str, ProcessUsage] = run_on_workers(measure_usage) if run_on_workers else {}
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
