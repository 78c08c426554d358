"""The Prefect server of a flow: a configured one, or one embedded in this process.

The embedded server is a thread on the loopback interface. It shares the imported Prefect modules
with the flow, which is most of the memory that a server needs, and it cannot outlive the run.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Thread
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from flows.cli.startup import pause_garbage_collection
from flows.running.environment import is_server_configured
from pipeline.errors import FitError

if TYPE_CHECKING:
    from uvicorn import Server


T = TypeVar("T")
_MAX_CLOCK_DIFFERENCE = 60
_DRAIN_SECONDS = 10.0
_START_SECONDS, _STOP_SECONDS = 120.0, 10.0


def run_with_server(run_flow: Callable[[], T]) -> T:
    """Run a flow with the configured Prefect server, or else with an embedded one."""
    if is_server_configured():
        check_server()
        return run_flow()
    with pause_garbage_collection():
        from prefect.events.worker import EventsWorker

    with run_embedded_server():
        try:
            return run_flow()
        finally:
            # Task runs are recorded from events, which a thread of Prefect sends until the process
            # ends. They must arrive while the server is there, and the thread must end, as the
            # next run has another server. Prefect documents no function for this; its own
            # `prefect_test_harness` calls this one too.
            EventsWorker.drain_all(_DRAIN_SECONDS, at_exit=False)


def check_scheduled_run() -> None:
    """Check the server if this run was scheduled; with different clocks, schedules shift."""
    from prefect.runtime import deployment

    if deployment.id is not None:
        check_server()


def check_server() -> None:
    """Check that the configured Prefect server answers.

    Raises `FitError` if it does not answer, refuses the credentials, or its clock differs.
    """
    from httpx import HTTPError, HTTPStatusError, InvalidURL
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        url = _strip_credentials(str(client.api_url))
        try:
            answer = client.hello()
        except HTTPStatusError as error:
            if error.response.status_code not in (401, 403):
                raise FitError(
                    f"PREFECT_API_URL: {url} is not a Prefect server: it answered with status "
                    f"{error.response.status_code}. Check the address."
                ) from error
            raise FitError(
                f"PREFECT_API_AUTH_STRING: the Prefect server at {url} refused the credentials. "
                "Set the variable to the server's USER:PASSWORD."
            ) from None  # the request contains the credentials
        except (HTTPError, InvalidURL, ValueError) as error:
            raise FitError(
                f"PREFECT_API_URL: no Prefect server answered at {url} ({type(error).__name__}). "
                "Start it, or check the address."
            ) from error
    _check_clock(url, answer.headers.get("date"))


def _check_clock(url: str, date: str | None) -> None:
    if date is None:
        return
    ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    if abs(ahead) > _MAX_CLOCK_DIFFERENCE:
        raise FitError(
            f"PREFECT_API_URL: the clock of this machine is {abs(ahead):.0f} s "
            f"{'ahead of' if ahead > 0 else 'behind'} the Prefect server at {url}, which would "
            "shift schedules. Set the time."
        )


def _strip_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@contextmanager
def run_embedded_server() -> Iterator[str]:
    """Run an embedded server, use it for the flows of this process, and yield its address."""
    from prefect.settings import PREFECT_HOME

    PREFECT_HOME.value().mkdir(parents=True, exist_ok=True)  # Prefect does not create the parents
    ready: Future[Server] = Future()
    had_dot = "." in sys.path
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(
            target=_run_server, args=(listener, ready), name="prefect-server", daemon=True
        )
        thread.start()
        server = _wait_for_server(ready)
        # Prefect's database migrations add "." to the path, which worker processes inherit. Files
        # in the working folder could then hide our packages.
        if not had_dot and "." in sys.path:
            sys.path.remove(".")
        try:
            with use_server(f"http://127.0.0.1:{listener.getsockname()[1]}/api") as url:
                yield url
        finally:
            server.should_exit = True
            thread.join(_STOP_SECONDS)


@contextmanager
def use_server(url: str) -> Iterator[str]:
    """Let flows use this server, without heartbeats: their thread would end up to 1 s late."""
    from prefect import settings

    changes = {settings.PREFECT_API_URL: url, settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with settings.temporary_settings(changes):
        yield url


def _wait_for_server(ready: Future[Server]) -> Server:
    try:
        return ready.result(_START_SECONDS)
    except Exception as error:
        raise RuntimeError("The embedded Prefect server did not start.") from error


def _run_server(listener: socket.socket, ready: Future[Server]) -> None:
    """Run the server without the credentials of the user's own server."""
    try:
        with pause_garbage_collection():
            from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings
        # Changed settings are parsed and hashed anew, which takes longer than starting to listen.
        is_changed = PREFECT_SERVER_API_AUTH_STRING.value() is not None
        changes = {PREFECT_SERVER_API_AUTH_STRING: None}
        with temporary_settings(changes) if is_changed else nullcontext():
            asyncio.run(_serve(listener, ready))
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve(listener: socket.socket, ready: Future[Server]) -> None:
    """Serve until `should_exit` is set."""
    with pause_garbage_collection():
        import uvicorn
        from prefect.server.api.server import create_app

        app = create_app(ephemeral=True)
    async with app.router.lifespan_context(app):
        server = uvicorn.Server(
            uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
        )
        ready.set_result(server)
        await server.serve([listener])
