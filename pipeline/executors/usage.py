"""Resources that a process has used since it started."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

import psutil

_PROC_STATUS = Path("/proc/self/status")


class ProcessUsage(NamedTuple):
    """Resources that a process has used since it started."""

    process: str  # identifies the process: machine, process id and start time
    cpu_seconds: float  # CPU time of all threads
    # Bytes in system calls, with or without disk access; None if the system does not count them.
    bytes_read: int | None
    bytes_written: int | None
    peak_memory: int  # largest resident memory in bytes, libraries included


def measure_usage() -> ProcessUsage:
    """Measure the resources that this process has used."""
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
    if not _PROC_STATUS.exists():
        return _ask_for_peak_memory()
    # Not `getrusage`, whose peak includes the process that a worker was forked from.
    match = re.search(r"^VmHWM:\s+(\d+)", _PROC_STATUS.read_text(), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def _ask_for_peak_memory() -> int:
    """Return the peak in bytes on systems without `/proc`."""
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS, which counts bytes
