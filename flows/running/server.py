"""Which Prefect server a flow talks to, and whether it can."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urlsplit

from flows.cli.imports import pause_garbage_collection
from flows.running.embedded import run_embedded_server
from flows.running.environment import is_server_configured
from pipeline.errors import FitError

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
