"""Kernels are compiled by processes that do not run tests: most once before them, others by forks.

A process that compiles keeps hundreds of megabytes for good, and processes that run tests side by
side would compile the same kernels.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import Cache
from numba.core.dispatcher import Dispatcher

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


def compile_in_forks() -> None:
    """Let a fork of this process compile and store each kernel that is not stored yet."""
    if not hasattr(os, "fork"):
        return
    compile_here, load_stored = Dispatcher.compile, Cache.load_overload
    current = threading.local()

    def compile_kernel(kernel: Any, signature: Any) -> Any:
        before, current.kernel = getattr(current, "kernel", None), kernel
        try:
            return compile_here(kernel, signature)
        finally:
            current.kernel = before

    def load_or_compile(store: Any, signature: Any, context: Any) -> Any:
        found = load_stored(store, signature, context)
        if found is not None or Cache.load_overload is not load_or_compile:
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the fork uses no other thread
            pid = os.fork()
        if not pid:
            code = 1
            try:
                Cache.load_overload = load_stored
                compile_here(current.kernel, signature)
                code = 0
            finally:
                os._exit(code)
        _wait_for_process(pid)
        return load_stored(store, signature, context)  # None if it failed: compile here

    Dispatcher.compile, Cache.load_overload = compile_kernel, load_or_compile


def _wait_for_process(pid: int, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
