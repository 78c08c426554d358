"""Kernels are compiled once before tests, by processes that do not run tests.

A process that compiles keeps hundreds of megabytes for good, and processes that run tests side by
side would compile the same kernels.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import numba

import pipeline.numerics  # noqa: F401  (sets the folder of compiled kernels)
from pipeline.models.registry import list_model_names

ROOT = Path(__file__).parents[2]


def compile_kernels(n_processes: int) -> None:
    """Compile the kernels of all models, unless that was done for this checkout."""
    # Numba stores kernels by the path of their source file.
    mark = Path(numba.config.CACHE_DIR) / f"compiled-{zlib.crc32(str(ROOT).encode()):08x}"
    if mark.exists():
        return
    names = list_model_names()
    shares = [names[k::n_processes] for k in range(n_processes)]
    commands = [
        [sys.executable, "-m", "flows.warm", *(f"--model={name}" for name in share)]
        for share in shares
    ]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for command in commands
    ]
    exit_codes = [process.wait() for process in processes]
    if not any(exit_codes):  # else tests show what is wrong
        mark.touch()
