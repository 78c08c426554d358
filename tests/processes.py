"""Fits in processes of their own, and what befalls them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil


def fit_reaching(
    stage: str, arguments: Sequence[str], then: Callable[[subprocess.Popen[bytes]], object]
) -> int:
    """Start a fit in this folder, act once it has left this stage's file; give its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "flows.fit", *arguments])
    deadline = time.monotonic() + 120
    while not list(Path("runs").glob(f"*/.unfinished/*/{stage}")):
        assert process.poll() is None, f"the fit ended before {stage} was seen"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    then(process)
    return process.wait(timeout=120)


def kill_fit_at(stage: str, arguments: Sequence[str]) -> None:
    """Start a fit and kill it once it has left this stage's file."""
    assert fit_reaching(stage, arguments, subprocess.Popen.kill) == -signal.SIGKILL


def kill_a_worker(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker process that has worked most."""
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in children if any("spawn_main" in word for word in child.cmdline())]
    max(workers, key=lambda worker: worker.cpu_times().user).kill()
