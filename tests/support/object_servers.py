"""Object stores on loopback: moto for S3, Azurite for Azure, and an imitation of Google's store."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import urlsplit

import pytest

from tests.support.google_store import TOKEN, serve_google_front
from tests.support.object_proxy import forward_request

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
    "AWS_REGION": "us-east-1",
}
# The account that every Azurite has, and its key, which is public.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class StoreServer:
    """A running store.

    Attributes
    ----------
    scheme
        Scheme of its URLs.
    address
        Address at which it listens.
    create
        Creates a bucket.
    environment
        Returns the environment variables with which a process finds the store, or its proxy, at an
        address.
    """

    scheme: str
    address: str
    create: Callable[[str], None]
    environment: Callable[[str], Mapping[str, str]]


@contextmanager
def run_s3_server() -> Iterator[StoreServer]:
    """Run moto in a separate process; it checks no signatures."""
    pytest.importorskip("moto")
    with _run_server(
        lambda port: [sys.executable, "-m", "moto.server", *_make_moto_options(port)]
    ) as address:
        yield StoreServer(
            "s3",
            address,
            lambda name: _send_put(address, f"/{name}", {}, 200),
            lambda address: {**CREDENTIALS, "AWS_ENDPOINT_URL": address},
        )


def _make_moto_options(port: int) -> list[str]:
    return ["-H", "127.0.0.1", "-p", str(port)]


@contextmanager
def run_azure_server() -> Iterator[StoreServer]:
    """Run Azurite."""
    azurite = shutil.which("azurite-blob")
    if azurite is None:
        pytest.skip("Azurite is not here: npm install -g azurite")
    with _run_server(lambda port: [azurite, *_make_azurite_options(port)]) as address:
        yield StoreServer(
            "az",
            address,
            lambda name: _create_container(address, name),
            lambda address: {
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
                "AZURE_STORAGE_ENDPOINT": f"{address}/{_ACCOUNT}",
            },
        )


def _make_azurite_options(port: int) -> list[str]:
    quiet = ["--silent", "--disableTelemetry", "--inMemoryPersistence", "--skipApiVersionCheck"]
    return [*quiet, "--blobHost", "127.0.0.1", "--blobPort", str(port)]


def _create_container(address: str, name: str) -> None:
    """Create a container with a request that is signed with the key of the account."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = "".join(f"{header}:{value}\n" for header, value in sorted(headers.items()))
    # The account stands in the path too, and so twice in what is signed.
    signed = f"PUT{12 * chr(10)}{lines}/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    mac = hmac.digest(base64.b64decode(_ACCOUNT_KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
    _send_put(address, f"/{_ACCOUNT}/{name}?restype=container", headers, 201)


@contextmanager
def run_google_server() -> Iterator[StoreServer]:
    """Run the imitation of Google's store."""
    with run_s3_server() as s3, serve_google_front(s3.address) as address:
        yield StoreServer(
            "gs",
            address,
            s3.create,
            lambda address: {"GOOGLE_BASE_URL": address, "GOOGLE_BEARER_TOKEN": TOKEN},
        )


SERVERS: Mapping[str, Callable[[], AbstractContextManager[StoreServer]]] = {
    "s3": run_s3_server,
    "az": run_azure_server,
    "gs": run_google_server,
}


@contextmanager
def _run_server(command: Callable[[int], Sequence[str]]) -> Iterator[str]:
    """Run a server on a free port and wait until it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(port), **silent, process_group=0)
    try:
        _wait_for_port(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 600
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _send_put(address: str, path: str, headers: Mapping[str, str], status: int) -> None:
    assert forward_request(urlsplit(address).netloc, "PUT", path, headers)[0] == status
