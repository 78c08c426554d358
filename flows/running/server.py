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
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from flows.running.environment import server_configured
from pipeline.errors import FitError
from pipeline.numerics.kernels import load_kernels

T = TypeVar("T")

_CLOCKS_SECONDS = 60
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
            [sys.executable, "-m", "flows.running.server", str(port)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C is for the run, which still has to tell the server
            env=_environment(),
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


def _environment() -> dict[str, str]:
    """Ask for no credentials: a run has them for the user's own server, if at all."""
    kept = {k: v for k, v in os.environ.items() if k != "PREFECT_SERVER_API_AUTH_STRING"}
    return {**kept, **_SERVER}


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
    """Run a flow against the configured Prefect server, or an embedded one for its length.

    Raises
    ------
    FitError
        If a configured server does not answer, or refuses the credentials.
    """
    if server_configured():
        check_server()
        return run_flow()
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with embedded_server() as server:
        load_kernels()  # while the server starts
        server.wait()
        with temporary_settings({PREFECT_API_URL: server.url}):
            return run_flow()


def check_schedule() -> None:
    """Check the server of a scheduled run: where clocks differ, nights come at other times.

    Raises
    ------
    FitError
        As `check_server` does; nothing is checked in a run that was started by hand.
    """
    from prefect.runtime import deployment

    if deployment.id is not None:
        check_server()


def check_server() -> None:
    """Greet the configured Prefect server, which answers only to whom it knows.

    Raises
    ------
    FitError
        If it does not answer, refuses the credentials, or has another time.
    """
    from httpx import HTTPError, HTTPStatusError, InvalidURL
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        url = _without_credentials(str(client.api_url))
        try:
            answer = client.hello()
        except HTTPStatusError as error:
            if error.response.status_code not in (401, 403):
                raise FitError(
                    f"PREFECT_API_URL: Expected a Prefect server at {url}, got the answer "
                    f"{error.response.status_code}. Check the address."
                ) from error
            raise FitError(
                f"PREFECT_API_AUTH_STRING: Expected credentials that the Prefect server at {url} "
                "takes, got a refusal. Set it to the USER:PASSWORD of the server."
            ) from None  # the request within holds what was refused
        except (HTTPError, InvalidURL, ValueError) as error:
            raise FitError(
                f"PREFECT_API_URL: Expected a Prefect server at {url}, got no answer "
                f"({type(error).__name__}). Start it, or check the address."
            ) from error
    _check_clock(url, answer.headers.get("date"))


def _check_clock(url: str, date: str | None) -> None:
    if date is None:
        return
    ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    if abs(ahead) > _CLOCKS_SECONDS:
        raise FitError(
            f"PREFECT_API_URL: Expected a clock within {_CLOCKS_SECONDS} s of that of the Prefect "
            f"server at {url}, got one {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}. "
            "Schedules would come at other times: set the time."
        )


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


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
