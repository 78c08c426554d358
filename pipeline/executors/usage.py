"""What a process has used since its start."""

from __future__ import annotations

import re
import resource
import socket
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

_PROC_STATUS = Path("/proc/self/status")


class ProcessUsage(NamedTuple):
    """What a process has used since its start; bytes None where the system does not count them.

    Attributes
    ----------
    process
        Names it: machine, number and time of birth.
    cpu_seconds
        Of all its threads.
    bytes_read, bytes_written
        By calls to the system, whether or not a disk was involved.
    peak_memory
        Largest resident memory, bytes, libraries included.
    """

    process: str
    cpu_seconds: float
    bytes_read: int | None
    bytes_written: int | None
    peak_memory: int


def measure_usage() -> ProcessUsage:
    """Give what this process has used."""
    process = psutil.Process()
    times = process.cpu_times()
    counters = process.io_counters() if hasattr(process, "io_counters") else None
    return ProcessUsage(
        f"{socket.gethostname()} {process.pid} {process.create_time()}",
        times.user + times.system,
        getattr(counters, "read_chars", None),
        getattr(counters, "write_chars", None),
        _read_peak_memory(),
    )


def _read_peak_memory() -> int:
    if not _PROC_STATUS.exists():  # macOS counts in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # `getrusage` would count what a process was before it became another program: workers began
    # as copies of this one.
    found = re.search(r"^VmHWM:\s+(\d+)", _PROC_STATUS.read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
