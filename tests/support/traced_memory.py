"""Peak memory of Python and NumPy, traced in a process of its own.

Where tracing stops beside running threads, Python 3.11 may die; here it never stops.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def start_tracing_process() -> ProcessPoolExecutor:
    """Start a process that traces its memory from the first call on."""
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=tracemalloc.start)


def measure_peak_memory(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """Return a function's result and the bytes it needed at most; call it in a tracing process."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    result = function(*arguments)
    return result, tracemalloc.get_traced_memory()[1] - before
