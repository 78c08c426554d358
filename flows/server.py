"""The embedded Prefect server: on loopback, for the length of a run, gone when its parent is.

Prefect's own temporary server outlives a killed parent and keeps its output open; this one reads
its standard input, which ends with the parent, and writes to a log file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from flows.environment import server_configured

T = TypeVar("T")

_START_SECONDS, _STOP_SECONDS = 120.0, 10.0
_SERVER = {"PREFECT_UI_ENABLED": "false", "PREFECT_API_BLOCKS_REGISTER_ON_START": "false"}


@contextmanager
def embedded_server() -> Iterator[EmbeddedServer]:
    """Start a server in the background; `wait` before use."""
    home = Path(os.environ["PREFECT_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server", str(port)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C is for the run, which still has to tell the server
            env={**os.environ, **_SERVER},
        )
    try:
        yield EmbeddedServer(f"http://127.0.0.1:{port}/api", process, home / "server.log")
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class EmbeddedServer:
    """A server process and its address."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url = url
        self._process = process
        self._log = log

    def wait(self) -> None:
        """Wait until the server answers.

        Raises
        ------
        RuntimeError
            If it ends or does not answer in time; the message names its log.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._healthy():
                return
            time.sleep(0.1)
        raise RuntimeError(
            f"Expected the embedded Prefect server to start, got none; see {self._log}."
        )

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


def with_server(run_flow: Callable[[], T]) -> T:
    """Run a flow against the configured Prefect server, or an embedded one for its length."""
    if server_configured():
        return run_flow()
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with embedded_server() as server:
        server.wait()
        with temporary_settings({PREFECT_API_URL: server.url}):
            return run_flow()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve on the port given, until standard input ends."""
    import uvicorn
    from prefect.server.api.server import create_app

    threading.Thread(target=_end_with_parent, daemon=True).start()
    uvicorn.run(
        create_app(ephemeral=True),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    main()
