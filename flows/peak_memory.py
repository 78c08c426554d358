"""The most memory that a run has taken so far."""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
from pathlib import Path

from pipeline.executors.base import Executor
from pipeline.executors.dask import DaskExecutor

# `getrusage` would count what a process was before it became another program: workers began as
# copies of this one.
_STATUS = Path("/proc/self/status")


def peak_memory(executor: Executor) -> dict[str, int | None]:
    """Give the largest resident memory since the start of this process, and of any worker process.

    Bytes, libraries included; it never falls. `largest_worker` is None where work is done in this
    process, or the system has no /proc.
    """
    if not _STATUS.exists():  # macOS counts in bytes
        return {
            "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "largest_worker": None,
        }
    return {"process": _peak(_STATUS.read_text()), "largest_worker": _largest_worker(executor)}


def _largest_worker(executor: Executor) -> int | None:
    if not isinstance(executor, DaskExecutor):
        return None
    found: dict[str, str] = {}
    with suppress(OSError):  # a cluster that is lost now is missed by the next stage, if at all
        # A function of the standard library, so that workers need not import flows.
        found = executor.client.run(Path.read_text, _STATUS, on_error="ignore")
    others = [text for text in found.values() if _number(text, "Pid") != os.getpid()]
    return max(map(_peak, others), default=None)


def _peak(status: str) -> int:
    return 1024 * _number(status, "VmHWM")


def _number(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else 0
