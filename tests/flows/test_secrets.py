"""Secrets stay where they are: not in artifacts, output, Prefect's database or its parameters."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.running.server import check_server
from pipeline.errors import FitError
from tests.support.cluster_processes import (
    make_tls_options,
    run_command,
    start_scheduler,
    start_worker,
    write_certificates,
)
from tests.support.data import draw_probit_rows, write_arrays

AUTH, WRONG = "operator:auth-8c1f5e27", "operator:wrong-51d0a9b3"
STORAGE_KEY = "storage-3f9a6d42b7"
BROKEN = """
import flows.fit, flows.fitting.stages, sys
from flows.cli.app import run_app

def broken(*_):
    raise RuntimeError("broken on purpose")

flows.fitting.stages._make_manifest = broken
run_app(flows.fit.app, sys.argv[1:])
"""


@dataclass
class Place:
    """A Prefect server with credentials, a cluster over TLS, and a folder for all files."""

    folder: Path
    url: str
    key: str
    options: list[str]

    def fit(self, *program: str, auth: str = AUTH) -> subprocess.Popen[str]:
        """Start a fit with every secret at hand."""
        secrets = {"AWS_SECRET_ACCESS_KEY": STORAGE_KEY, "PREFECT_API_AUTH_STRING": auth}
        home = {"PREFECT_API_URL": self.url, "PREFECT_HOME": str(self.folder / "client")}
        return subprocess.Popen(
            [sys.executable, *program, *self.options],
            cwd=self.folder,
            env={**os.environ, **home, **secrets},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def asked(self, path: str, auth: str) -> bytes:
        """Ask the server."""
        encoded = base64.b64encode(auth.encode()).decode()
        request = urllib.request.Request(f"{self.url}{path}", data=b"{}", method="POST")
        request.add_header("Authorization", f"Basic {encoded}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.read()

    @property
    def secrets(self) -> list[bytes]:
        passwords = [auth.partition(":")[2].encode() for auth in (AUTH, WRONG)]
        encoded = [base64.b64encode(auth.encode()) for auth in (AUTH, WRONG)]
        key_lines = self.key.splitlines()[1:-1]
        return [STORAGE_KEY.encode(), *passwords, *encoded, *(line.encode() for line in key_lines)]

    def found(self, text: bytes) -> list[bytes]:
        return [secret for secret in self.secrets if secret in text]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, tls = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("tls") / "files"
    write_certificates(tls)
    X, _ = draw_probit_rows(1000, 12, 2, seed=2)
    write_arrays(folder / "d.zarr", X, words_per_chunk=4)
    settings = {
        "PREFECT_HOME": str(folder / "server"),
        "PREFECT_SERVER_API_AUTH_STRING": AUTH,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    with ExitStack() as stack:
        url = _served(stack, settings)
        address = stack.enter_context(start_scheduler(tls.parent, tls))
        stack.enter_context(start_worker(address, tls))
        options = ["--dataset", "d.zarr", "--cluster", address, *make_tls_options(tls)]
        yield Place(folder, url, (tls / "node-key.pem").read_text(), options)


def test_a_prefect_server_that_is_not_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://operator:hidden@127.0.0.1:{free.getsockname()[1]}/api"
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(FitError) as refused:
        check_server()
    assert str(refused.value).startswith("PREFECT_API_URL: ")
    assert "hidden" not in str(refused.value)


def _served(stack: ExitStack, settings: dict[str, str]) -> str:
    """Start a server; a free port may be taken before the server binds it, and it ends then."""
    command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port"]
    for _ in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = stack.enter_context(run_command(*command, str(port), **settings))
        if _answers(url := f"http://127.0.0.1:{port}/api", server):
            return url
    raise AssertionError("the server ended three times")


def _answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Wait until a server is healthy; false where it ends instead."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    assert server.poll() is not None, f"no answer from {url}"
    return False


@pytest.mark.matrix
def test_secrets_stay_where_they_are(place):
    fits = {
        0: place.fit("-m", "flows.fit"),
        1: place.fit("-c", BROKEN, "--output", "broken"),
        2: place.fit("-m", "flows.fit", "--output", "refused", auth=WRONG),
    }
    told = {}
    for code, process in fits.items():
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, err
        told[code] = out + err
    assert "artifact: " in told[0]
    assert "broken on purpose" in told[1]
    refusal = told[2].strip().splitlines()
    assert len(refusal) == 1
    assert refusal[0].startswith("error: PREFECT_API_AUTH_STRING: ")
    assert not (place.folder / "refused").exists()
    for text in told.values():
        assert place.found(text.encode()) == []

    runs = place.asked("/flow_runs/filter", AUTH)
    assert len(json.loads(runs)) == 2
    assert json.loads(runs)[0]["parameters"]["where"]["tls_key"].endswith("node-key.pem")
    logs = place.asked("/logs/filter", AUTH)
    assert place.found(runs + logs) == []
    with pytest.raises(urllib.error.HTTPError):
        place.asked("/flow_runs/filter", WRONG)

    files = [path for path in place.folder.rglob("*") if path.is_file()]
    assert {"report.html", "prefect.db"} <= {path.name for path in files}
    assert any(b"node-key.pem" in path.read_bytes() for path in files)  # parameters can be seen
    assert {path: place.found(path.read_bytes()) for path in files if _holds(place, path)} == {}


def _holds(place: Place, path: Path) -> bool:
    return bool(place.found(path.read_bytes()))
