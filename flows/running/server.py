"""The Prefect server of a flow: a configured one, or one embedded in this process.

The embedded server is a thread on the loopback interface. It shares the imported Prefect modules
with the flow, which is most of the memory that a server needs, and it cannot outlive the run. Other
users of the machine can connect to it, so it answers nothing without a password, which only this
process knows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Thread
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from flows.cli.startup import pause_garbage_collection
from flows.running.environment import is_server_configured
from pipeline.errors import FitError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn import Server


T = TypeVar("T")
_MAX_CLOCK_DIFFERENCE = 60
_DRAIN_SECONDS = 10.0
_STOP_SECONDS = 10.0


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


def hide_passwords_in_logs() -> None:
    """Drop debugging messages about websockets, which contain the password of the server."""
    for name in ("websockets.client", "uvicorn.error"):
        logging.getLogger(name).addFilter(_is_above_debug)


def _is_above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


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
    """Run an embedded server, use it for the flows of this process, and yield its address.

    It asks for `PREFECT_SERVER_API_AUTH_STRING` if the user has set it, else for a random password.
    """
    from prefect.settings import PREFECT_HOME, PREFECT_SERVER_API_AUTH_STRING

    home = PREFECT_HOME.value()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)  # Prefect does not create the parents
    password = PREFECT_SERVER_API_AUTH_STRING.value() or f"latentbits:{secrets.token_urlsafe(32)}"
    ready: Future[Server] = Future()
    had_dot = "." in sys.path
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        use_server(f"http://127.0.0.1:{listener.getsockname()[1]}/api", password) as url,
    ):
        # The thread gets these settings. Settings of its own would be parsed and hashed anew, which
        # takes longer than starting to listen.
        thread = Thread(
            target=copy_context().run,
            args=(_run_server, listener, password, ready),
            name="prefect-server",
            daemon=True,
        )
        thread.start()
        server = _wait_for_server(ready)
        # Prefect's database migrations add "." to the path, which worker processes inherit. Files
        # in the working folder could then hide our packages.
        if not had_dot and "." in sys.path:
            sys.path.remove(".")
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(_STOP_SECONDS)


@contextmanager
def use_server(url: str, password: str) -> Iterator[str]:
    """Let flows use this server, without heartbeats: their thread would end up to 1 s late.

    `password` is both what an embedded server asks for and what its clients send.
    """
    from prefect import settings

    changes = {
        settings.PREFECT_API_URL: url,
        settings.PREFECT_API_AUTH_STRING: password,
        settings.PREFECT_SERVER_API_AUTH_STRING: password,
        settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with settings.temporary_settings(changes):
        yield url


def _wait_for_server(ready: Future[Server]) -> Server:
    """Wait for as long as the server's thread lives: a busy machine may take minutes."""
    try:
        return ready.result()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FitError(
            f"PREFECT_SERVER_EPHEMERAL_ENABLED: the embedded Prefect server did not start "
            f"({reason}). Set PREFECT_LOGGING_LEVEL and PREFECT_SERVER_LOGGING_LEVEL to DEBUG to "
            "see its log, or PREFECT_HOME to another folder for its database."
        ) from error


def _run_server(listener: socket.socket, password: str, ready: Future[Server]) -> None:
    """Run the server; `ready` gets it once it listens, or the error that ended it before."""
    try:
        asyncio.run(_serve(listener, password, ready))
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve(listener: socket.socket, password: str, ready: Future[Server]) -> None:
    """Serve until `should_exit` is set."""
    with pause_garbage_collection():
        import uvicorn
        from prefect.server.api.server import create_app

        app = create_app(ephemeral=True)
    async with app.router.lifespan_context(app):
        server = uvicorn.Server(
            uvicorn.Config(
                _require_password(app, password), lifespan="off", log_config=None, access_log=False
            )
        )
        ready.set_result(server)
        await server.serve([listener])


def _require_password(app: ASGIApp, password: str) -> ASGIApp:
    """Answer all requests without the password with status 401.

    Prefect itself leaves its health, its version and the description of its routes to everybody. It
    does check the password of websockets, which is in their first message.
    """
    expected = b"Basic " + b64encode(password.encode())

    async def check_password(scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import JSONResponse

        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or secrets.compare_digest(given, expected):
            await app(scope, receive, send)
        else:
            refusal = JSONResponse({"exception_message": "Unauthorized"}, 401)
            await refusal(scope, receive, send)

    return check_password
