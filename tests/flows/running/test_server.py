"""The embedded server: what it answers without its password, and that only its client has that."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import Future
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from flows.running import server
from pipeline.errors import FitError
from tests.conftest import PREFECT_PASSWORD

SOCKETS = (
    "events/in",
    "events/out",
    "logs/out",
    "task_runs/subscriptions/scheduled",
    "work_pools/a/workers/connect",
)
OPEN_IN_PREFECT = ("/", "/docs", "/openapi.json", "/ui-settings", "/api/health", "/api/ready")
REQUESTS = [
    *(("GET", path) for path in OPEN_IN_PREFECT),
    ("HEAD", "/api/openapi.json"),
    ("OPTIONS", "/api/flow_runs/filter"),
    ("GET", "/api/version"),
    ("GET", "/api/admin/settings"),
    ("GET", "/api/static/prefect-logo-mark-gradient.png"),
    ("GET", "/api/block_types/slug/secret/block_documents/name/a?include_secrets=true"),
    ("POST", "/api/block_documents/filter"),
    ("POST", "/api/flow_runs/filter"),
    ("DELETE", "/api/admin/storage"),
    ("GET", "/api//health"),
    ("GET", "/nothing"),
]
CREDENTIALS = {"Authorization": f"Basic {base64.b64encode(PREFECT_PASSWORD.encode()).decode()}"}
REFUSAL = b'{"exception_message":"Unauthorized"}'
TWO_RUNS = """
import os
from prefect.settings import PREFECT_API_AUTH_STRING
from flows.fitting.options import FitOptions
from flows.running.flow import _build_flow, run_flow, run_task

def work():
    passwords.append(PREFECT_API_AUTH_STRING.value())
    return run_task("stage", dict)

passwords = []
run_flow("fit", FitOptions("d.zarr"), work)
_build_flow("fit", FitOptions, lambda options: work())("d.zarr")  # Prefect would start its own
assert not any(password in str(os.environ) for password in passwords)
print(*passwords)
"""


def test_every_route_needs_the_password(prefect_url):
    """Prefect itself leaves its health, its pages and the list of its routes to everybody."""
    foreign = {"Host": "evil.example", "Origin": "http://evil.example"}
    wrong = {"Authorization": "Basic " + base64.b64encode(b"tests:guess").decode()}
    with closing(HTTPConnection(urlsplit(prefect_url).netloc, timeout=60)) as connection:

        def read_status(method: str, path: str, headers: dict[str, str]) -> int:
            connection.request(method, path, headers=headers)
            with connection.getresponse() as answer:
                content = answer.read()
                assert answer.status == 200 or "access-control-allow-origin" not in answer.headers
                assert answer.status == 200 or content in (b"", REFUSAL)
                return answer.status

        for headers in ({}, foreign, wrong):
            statuses = {request: read_status(*request, headers) for request in REQUESTS}
            assert statuses == dict.fromkeys(REQUESTS, 401)
        assert {read_status("GET", path, CREDENTIALS) for path in OPEN_IN_PREFECT[3:]} == {200}


def test_websockets_need_the_password(prefect_url):
    address = prefect_url.replace("http", "ws", 1)
    for path in SOCKETS:
        for token in (None, "tests:guess"):
            with connect(f"{address}/{path}", subprotocols=["prefect"]) as socket:
                socket.send(json.dumps({"type": "auth", "token": token}))
                with pytest.raises(ConnectionClosed):
                    socket.recv(60)
    with connect(f"{address}/events/in", subprotocols=["prefect"]) as socket:
        socket.send(json.dumps({"type": "auth", "token": PREFECT_PASSWORD}))
        assert json.loads(socket.recv(60)) == {"type": "auth_success"}


def test_a_server_that_does_not_start_names_its_reason_and_log():
    ready = Future()
    ready.set_exception(OSError("file is not a database\nmore"))
    with pytest.raises(FitError) as refused:
        server._wait_for_server(ready)
    (line,) = str(refused.value).splitlines()
    assert "did not start (OSError: file is not a database). " in line
    assert "PREFECT_SERVER_LOGGING_LEVEL" in line


@pytest.mark.matrix
def test_each_run_has_a_password_of_its_own_that_no_log_contains(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    verbose = {f"PREFECT_{part}LOGGING_LEVEL": "DEBUG" for part in ("", "SERVER_")}
    verbose |= {"PREFECT_LOGGING_ROOT_LEVEL": "DEBUG"}
    own = {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_SERVER_EPHEMERAL_ENABLED": "true"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_RUNS],
        cwd=tmp_path,
        env={**kept, **verbose, **own},
        capture_output=True,
        check=True,
    )
    passwords = done.stdout.splitlines()[-1].split()
    assert len(set(passwords)) == 2
    texts = [done.stderr, *(path.read_bytes() for path in (tmp_path / "home").rglob("*.*"))]
    assert b"DEBUG" in done.stderr
    for password in passwords:
        for secret in (password[:24], base64.b64encode(password), password.partition(b":")[2]):
            assert not any(secret in text for text in texts)
    with closing(sqlite3.connect(tmp_path / "home" / "prefect.db")) as database:
        for table in ("flow_run", "task_run"):
            states = database.execute(f"select state_type from {table}").fetchall()
            assert states == [("COMPLETED",)] * 2
