"""The Prefect server of a flow: a configured one, or one embedded in this process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
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


def run_with_server(run_flow: Callable[[], T]) -> T:
    """Run a flow against the configured Prefect server, or an embedded one for its length.

    Raises
    ------
    FitError
        If a configured server does not answer, or refuses the credentials.
    """
    if is_server_configured():
        check_server()
        return run_flow()
    with pause_garbage_collection():
        from prefect.events.worker import EventsWorker

    with run_embedded_server():
        try:
            return run_flow()
        finally:
            EventsWorker.drain_all(_DRAIN_SECONDS, at_exit=False)


def check_scheduled_run() -> None:
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
        url = _strip_credentials(str(client.api_url))
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
    if abs(ahead) > _MAX_CLOCK_DIFFERENCE:
        raise FitError(
            f"PREFECT_API_URL: Expected a clock within {_MAX_CLOCK_DIFFERENCE} s of that of the Prefect "
            f"server at {url}, got one {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}. "
            "Schedules would come at other times: set the time."
        )


def _strip_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


_START_SECONDS, _STOP_SECONDS = 120.0, 10.0


@contextmanager
def run_embedded_server() -> Iterator[str]:
    """Serve, and give the address, with which flows of this process run meanwhile.

    Raises
    ------
    RuntimeError
        If the server does not start.
    """
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    ready: Future[Server] = Future()
    had_dot = "." in sys.path
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(
            target=_run_server, args=(listener, ready), name="prefect-server", daemon=True
        )
        thread.start()
        server = _wait_for_server(ready)
        # The migrations of Prefect's database put it first: worker processes, which are given this
        # path, would take files of the user for our packages.
        if not had_dot and "." in sys.path:
            sys.path.remove(".")
        try:
            with _use_server(f"http://127.0.0.1:{listener.getsockname()[1]}/api") as url:
                yield url
        finally:
            server.should_exit = True
            thread.join(_STOP_SECONDS)


@contextmanager
def _use_server(url: str) -> Iterator[str]:
    """Let flows report to this server, without heartbeats, whose thread ends up to 1 s late."""
    from prefect import settings

    here = {settings.PREFECT_API_URL: url, settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with settings.temporary_settings(here):
        yield url


def _wait_for_server(ready: Future[Server]) -> Server:
    try:
        return ready.result(_START_SECONDS)
    except Exception as error:
        raise RuntimeError("Expected the embedded Prefect server to start, got none.") from error


def _run_server(listener: socket.socket, ready: Future[Server]) -> None:
    """Serve as settled for a server that nobody else knows: no pages, no blocks, no credentials."""
    try:
        with pause_garbage_collection():
            from prefect import settings
        alone = {
            settings.PREFECT_UI_ENABLED: False,
            settings.PREFECT_API_BLOCKS_REGISTER_ON_START: False,
            settings.PREFECT_SERVER_API_AUTH_STRING: None,  # those are for the user's own server
        }
        with settings.temporary_settings(alone):
            asyncio.run(_serve(listener, ready))
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve(listener: socket.socket, ready: Future[Server]) -> None:
    """Serve until the server is told to exit."""
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
