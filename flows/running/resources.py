"""Memory limits, and the time and memory that a stage used."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.usage import ProcessUsage, measure_usage

_PROCESS = Path("/proc/self")
_GROUP_LIMITS = {
    "cgroup": ("memory.limit_in_bytes",),
    "cgroup2": ("memory.max", "memory.high"),
}
"""Files with limits of the kernel's control groups, versions 1 and 2.

Not `memory.low` and, in version 1, `memory.soft_limit_in_bytes`: these protect a group's memory.
"""
_GROUP_USES = {"cgroup": "memory.usage_in_bytes", "cgroup2": "memory.current"}
_MAX_SIZE = 1 << 60
_ADDRESSES_OF_LIBRARIES, _DATA_OF_LIBRARIES = 512 << 20, 128 << 20
"""Bytes that compiled code and threads still take after a run was planned.

BLAS and others end the process where they get no memory, so a run must not come so far.
"""
_MALLOC_PARAMETERS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 30),
    "MALLOC_TRIM_THRESHOLD_": (-1, 1 << 30),
    "MALLOC_ARENA_MAX": (-8, 1),
}
"""Parameters of glibc's `mallopt` and their values, by the name of their variable.

Without the first two, glibc returns every large array to the kernel, which clears the same pages
again for the next chunk: as much time as the counting itself. Dask sets the second to 64 kB in its
workers, which makes it worse. Only the main arena can keep arrays of more than 64 MB.
"""
MALLOC_VARIABLES = {name: str(value) for name, (_, value) in _MALLOC_PARAMETERS.items()}
"""The environment of worker processes, which glibc reads when they start."""
_SIZE = re.compile(r"\d+(\.\d*)?(e\d+)? ?[a-z]*", re.ASCII | re.IGNORECASE)


class _MemoryLimit(NamedTuple):
    """A limit of memory, how much of it is in use, in bytes, and where it is, for messages."""

    size: int
    used: int
    place: str = ""

    @property
    def free(self) -> int:
        return max(0, self.size - self.used)


def keep_freed_memory() -> None:
    """Let this process reuse the memory of freed arrays; variables of the user take precedence."""
    with suppress(OSError, AttributeError, TypeError):  # other C libraries lack this call
        mallopt = ctypes.CDLL(None).mallopt
        for name, (parameter, value) in _MALLOC_PARAMETERS.items():
            if name not in os.environ:
                mallopt(parameter, value)


def release_free_memory() -> None:
    """Return free memory to the system; glibc would keep the gaps between arrays in use."""
    with suppress(OSError, AttributeError):  # other C libraries lack this call
        ctypes.CDLL(None).malloc_trim(0)


def read_memory_size(n_processes: int = 1) -> int:
    """Return the bytes of memory that each of some processes may use, if no other used any.

    That is the memory of the machine, or less if a container, a batch system or `ulimit` sets a
    limit.
    """
    shared = [limit.size // n_processes for limit in _list_shared_limits()]
    return min([*shared, *(limit.size for limit in _list_process_limits())])


def _find_tightest_limit() -> _MemoryLimit:
    limits = [*_list_shared_limits(), *_list_process_limits()]
    return min(limits, key=lambda limit: limit.free)


def _list_shared_limits() -> list[_MemoryLimit]:
    """Return the limits of this process and its workers together."""
    machine = psutil.virtual_memory()
    own = _MemoryLimit(int(machine.total), int(machine.total - machine.available))
    return [own, *_list_group_limits(_PROCESS)]


def _list_group_limits(process: Path) -> list[_MemoryLimit]:
    """Return the limits of a process's control group and of the groups around it.

    `process` is its folder in `/proc`, which is absent on systems without control groups.
    """
    try:
        mounts = (process / "mountinfo").read_text(encoding="utf-8").splitlines()
        groups = (process / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {}  # by version, of the group that limits memory
    for _, controllers, path in (group.split(":", 2) for group in groups):
        if not controllers or "memory" in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    limits = []
    for mount in mounts:
        place, _, source = mount.partition(" - ")
        root, top = place.split()[3:5]
        kind, _, options = source.split()[:3]
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        # A container may see its own group as the root, at which `root` is mounted.
        below = paths[kind].removeprefix(root.rstrip("/")).strip("/")
        folder = Path(top, *(name for name in below.split("/") if name != ".."))
        for group in (folder, *folder.parents):
            if group.is_relative_to(top):
                limits += _read_group(group, kind)
    return limits


def _read_group(folder: Path, kind: str) -> list[_MemoryLimit]:
    limits = []
    for name in _GROUP_LIMITS[kind]:
        with suppress(OSError, ValueError):  # absent, or "max"
            size = int((folder / name).read_text(encoding="ascii"))
            if 0 < size < _MAX_SIZE:
                used = _read_group_use(folder, kind)
                limits.append(_MemoryLimit(size, used, " in this container or batch job"))
    return limits


def _read_group_use(folder: Path, kind: str) -> int:
    """Return the bytes in use by a group, without files that the kernel keeps in free memory."""
    total = "total_" if kind == "cgroup" else ""  # the other counts leave out groups below
    with suppress(OSError, ValueError):
        used = int((folder / _GROUP_USES[kind]).read_text(encoding="ascii"))
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        counts = dict(line.split() for line in lines)
        files = (f"{total}{name}_file" for name in ("active", "inactive"))
        return used - sum(int(counts.get(name, 0)) for name in files)
    return 0


def _list_process_limits() -> list[_MemoryLimit]:
    """Return the limits that `ulimit` and batch systems set for every process."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    usage = psutil.Process().memory_info()
    used = {
        "v": (resource.RLIMIT_AS, usage.vms + _ADDRESSES_OF_LIBRARIES),
        "d": (resource.RLIMIT_DATA, getattr(usage, "data", usage.rss) + _DATA_OF_LIBRARIES),
        "m": (resource.RLIMIT_RSS, usage.rss),
    }
    limits = [
        _MemoryLimit(resource.getrlimit(kind)[0], n_bytes, f" within `ulimit -{option}`")
        for option, (kind, n_bytes) in used.items()
    ]
    return [limit for limit in limits if 0 < limit.size < _MAX_SIZE]


def find_memory_limit(size: str | None = None) -> int:
    """Return the bytes that a run may use: the value of `--memory`, or the free memory."""
    if size is None:
        return _find_tightest_limit().free
    n_bytes = parse_memory_size(size)
    if not n_bytes:
        raise FitError(f"{{memory}} is {size!r}, which is not a size such as 4GB.")
    return n_bytes


def parse_memory_size(text: str) -> int:
    """Return the bytes of a size such as 4GB or 500 MiB; 0 if the text is none."""
    from dask.utils import parse_bytes

    try:
        n_bytes = int(parse_bytes(text)) if _SIZE.fullmatch(text) else 0
    except (ValueError, OverflowError):  # an unknown unit, or infinite
        n_bytes = 0
    return n_bytes if n_bytes < _MAX_SIZE else 0


def check_memory(need: int, n_features: int, limit: int, is_option: bool = False) -> None:
    """Check that a run does not need more bytes than it may use; `n_features` is for the message.

    `is_option` states that `--memory` sets the limit, rather than the free memory.
    """
    if need <= limit:
        return
    place = _find_tightest_limit().place
    allowance = f"{_format_size(limit)} of memory are free{place}"
    remedy = "Allow more, or use" if place else "Use a larger machine,"
    if is_option:
        allowance = f"{{memory}} allows {_format_size(limit)}"
        remedy = "Allow more, or use a larger machine,"
    raise FitError(
        f"{n_features} features need {_format_size(need)}, but {allowance}. "
        f"{remedy} fewer features or a smaller model."
    )


def _format_size(n_bytes: int) -> str:
    if n_bytes > _MAX_SIZE:
        return "more than a billion GB"
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
