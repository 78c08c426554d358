"""Dask clusters of real processes, and the certificates that they are started with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from flows.running.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, issue_certificates

ROOT = Path(__file__).parents[2]


def write_certificates(folder: Path, age: timedelta = timedelta(hours=1)) -> Path:
    """Leave certificates of a CA of their own in a new folder."""
    folder.mkdir()
    for name, content in issue_certificates([], datetime.now(UTC) - age).items():
        (folder / name).write_bytes(content)
    return folder


def make_tls_options(folder: Path) -> list[str]:
    """Return the options that name certificates."""
    files = {"--tls-ca": CA_FILE, "--tls-cert": CERTIFICATE_FILE, "--tls-key": KEY_FILE}
    return [word for option, name in files.items() for word in (option, str(folder / name))]


def _make_dask_options(folder: Path) -> list[str]:
    """What `dask scheduler` and `dask worker` are told of the same."""
    return ["--tls-ca-file" if word == "--tls-ca" else word for word in make_tls_options(folder)]


@contextmanager
def run_command(
    *command: str, log: IO[bytes] | int = subprocess.DEVNULL, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for a while; what it prints goes to the log, if any."""
    process = subprocess.Popen(
        [sys.executable, "-P", *command],  # what is installed, not what lies in this folder
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=log,
        process_group=0,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=600)


@contextmanager
def start_scheduler(
    folder: Path, tls: Path | None = None, log: IO[bytes] | int = subprocess.DEVNULL
) -> Iterator[str]:
    """Start `dask scheduler` on loopback and return its address."""
    file = folder / "scheduler.json"
    loopback = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    options = [*loopback, "--scheduler-file", str(file), *(_make_dask_options(tls) if tls else [])]
    if tls:
        options += ["--protocol", "tls"]
    with run_command("-m", "dask", "scheduler", *options, log=log) as process:
        deadline = time.monotonic() + 600
        while not file.exists() or not file.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"]


@contextmanager
def start_worker(
    address: str,
    tls: Path | None = None,
    log: IO[bytes] | int = subprocess.DEVNULL,
    **environment: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `dask worker` with one thread, without waiting for it."""
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
    files = _make_dask_options(tls) if tls else []
    # A worker's own folder, first on its path, has a folder `storage`; that must not come before
    # what an editable installation finds in its own way.
    environment = {"PYTHONPATH": str(ROOT), **environment}
    command = ["-m", "dask", "worker", address, *options, *files]
    with run_command(*command, log=log, **environment) as process:
        yield process
