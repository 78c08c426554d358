"""The embedded Prefect server: a thread that serves on loopback for the length of a run.

Within the process it shares what Prefect imports, which is most of what a server takes, and it
cannot outlive the run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from flows.cli.imports import pause_garbage_collection

if TYPE_CHECKING:
    from uvicorn import Server

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
