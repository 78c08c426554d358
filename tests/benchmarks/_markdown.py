"""Write the output of a benchmark as Markdown tables."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_WIDE_GAP = re.compile(r" {2,}")


def describe_machine() -> str:
    """Name the processor, its cores and the version of Python."""
    found = re.search(r"^model name\s*: (.+)$", _read_cpu_info(), re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _read_cpu_info() -> str:
    return _CPU_INFO.read_text() if _CPU_INFO.exists() else ""


def format_tables(output: str) -> str:
    """Turn aligned columns into tables of their own, and other lines into tables of one column."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    tables, plain, place = [], list[str](), 0
    while place < len(lines):
        end = place + 1
        while end < len(lines) and len(_split_cells(lines[end])) > 1:
            end += 1
        if end > place + 1 and len(_split_cells(lines[place])) > 1:
            tables += [_format_table(["measurement"], [[line] for line in plain])] * bool(plain)
            header, *rows = map(_split_cells, lines[place:end])
            tables.append(_format_table(header, rows))
            plain, place = [], end
        else:
            plain.append(lines[place].strip())
            place += 1
    tables += [_format_table(["measurement"], [[line] for line in plain])] * bool(plain)
    return "\n\n".join(tables)


def _split_cells(line: str) -> list[str]:
    return _WIDE_GAP.split(line.strip())


def _format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
