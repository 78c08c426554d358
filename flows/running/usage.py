"""What a stage takes: time, processor time, bytes and memory, of this process and of workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.executors.base import Executor
from pipeline.executors.usage import Usage, usage_here

_HERE = "this process"


class Reading(NamedTuple):
    """The clock, and what every process has used by then, by its name."""

    clock: float
    processes: Mapping[str, Usage]


def read_usage(executor: Executor) -> Reading:
    """Read what this process and all workers have used so far."""
    here = usage_here()
    on_workers = getattr(executor, "on_workers", None)
    workers: dict[str, Usage] = on_workers(usage_here) if on_workers else {}
    others = {name: used for name, used in workers.items() if used.process != here.process}
    return Reading(time.perf_counter(), {_HERE: here, **others})


def usage_since(before: Reading, after: Reading) -> dict[str, Any]:
    """Describe what was used between two readings; peaks are those since each process began.

    A worker that was started between them counts from its start.
    """
    workers = [used.peak_memory for name, used in after.processes.items() if name != _HERE]
    return {
        "seconds": round(after.clock - before.clock, 3),
        "cpu_seconds": round(sum(_grown(before, after, "cpu_seconds")), 3),
        "bytes_read": sum(_grown(before, after, "bytes_read")),
        "bytes_written": sum(_grown(before, after, "bytes_written")),
        "peak_memory": after.processes[_HERE].peak_memory,
        "peak_memory_of_largest_worker": max(workers, default=None),
    }


def _grown(before: Reading, after: Reading, name: str) -> list[Any]:
    grown = []
    for process, used in after.processes.items():
        first = before.processes.get(process)
        known = first is not None and first.process == used.process
        grown.append((getattr(used, name) or 0) - ((getattr(first, name) or 0) if known else 0))
    return grown
