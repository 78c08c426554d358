"""Commands in processes of their own, and what befalls them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

_SECONDS = 600


class CommandProcess:
    """A command of ours that runs in a process group of its own."""

    def __init__(self, *words: object, **environment: str) -> None:
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as this object)
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, words)],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=self._err,
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> tuple[int, str]:
        """Wait for it; return its exit code and its last line on standard error."""
        try:
            code = self.process.wait(_SECONDS)
        finally:
            self.kill()
        self._err.seek(0)
        text = self._err.read()
        assert "Traceback" not in text, text
        return code, (text.strip().splitlines() or [""])[-1]

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(_SECONDS)


@contextmanager
def start_command(*words: object, **environment: str) -> Iterator[CommandProcess]:
    """Start a command; nothing of it is left behind."""
    started = CommandProcess(*words, **environment)
    try:
        yield started
    finally:
        started.kill()


@contextmanager
def throttle_process(pid: int, share: float = 0.05) -> Iterator[None]:
    """Let a process run for a share of the time only."""
    ended = threading.Event()

    def throttle() -> None:
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            ended.wait(0.2 * (1 - share))
            os.kill(pid, signal.SIGCONT)
            ended.wait(0.2 * share)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for_file(process: subprocess.Popen[bytes], folder: Path, pattern: str) -> None:
    """Wait until a process has left a file."""
    deadline = time.monotonic() + _SECONDS
    while not list(folder.glob(pattern)):
        assert process.poll() is None, f"it ended before {pattern} was seen"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def run_fit_until(
    stage: str, arguments: Sequence[str], then: Callable[[subprocess.Popen[bytes]], object]
) -> int:
    """Start a fit in this folder, act once it has left this stage's file; return its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "flows.fit", *arguments])
    wait_for_file(process, Path("runs"), f"*/.unfinished/*/{stage}")
    then(process)
    return process.wait(timeout=_SECONDS)


def kill_fit_at(stage: str, arguments: Sequence[str]) -> None:
    """Start a fit and kill it once it has left this stage's file."""
    assert run_fit_until(stage, arguments, subprocess.Popen.kill) == -signal.SIGKILL


def kill_busiest_worker(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker process that has worked most."""
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in children if any("spawn_main" in word for word in child.cmdline())]
    max(workers, key=lambda worker: worker.cpu_times().user).kill()
