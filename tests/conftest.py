"""What tests share: a Prefect server, an object store, and a way to call a command line."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flows.server import embedded_server
from storage import object_store
from tests.object_store import CREDENTIALS, Proxy, create_bucket, proxied, s3_server


@pytest.fixture(scope="session", autouse=True)
def no_machine_credentials() -> Iterator[None]:
    """Without credentials a store would ask the machine for its own: here nothing answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
        yield


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A store for the session."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of its own."""
    yield from _bucket(s3_endpoint, s3_endpoint, monkeypatch)


@pytest.fixture
def s3_proxy(s3_endpoint: str) -> Iterator[tuple[Proxy, str]]:
    with proxied(s3_endpoint) as found:
        yield found


@pytest.fixture
def faulty(s3_proxy: tuple[Proxy, str]) -> Proxy:
    """The proxy before the store of `faulty_s3`: give it a fault."""
    return s3_proxy[0]


@pytest.fixture
def faulty_s3(
    s3_endpoint: str, s3_proxy: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a bucket behind the proxy."""
    yield from _bucket(s3_endpoint, s3_proxy[1], monkeypatch)


def _bucket(store: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    object_store.bucket.cache_clear()
    name = f"b-{uuid.uuid4().hex[:12]}"
    create_bucket(store, name)
    yield f"s3://{name}"
    object_store.bucket.cache_clear()


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The server that `flows` starts by itself, kept for the session."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    os.environ["PREFECT_HOME"] = str(tmp_path_factory.mktemp("prefect"))
    with embedded_server() as server:
        server.wait()
        os.environ["PREFECT_API_URL"] = server.url
        with temporary_settings({PREFECT_API_URL: server.url}):
            yield
        del os.environ["PREFECT_API_URL"]


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def message(self) -> str:
        """The error line, the last on standard error."""
        return self.err.strip().splitlines()[-1]


@pytest.fixture
def cli(
    prefect_server: None, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch
) -> Callable[..., Result]:
    """Call `cli("fit", "--dataset", path)` in this process, in a folder of its own."""
    from flows import evaluate, fit, ingest, sample, transform
    from flows.options import run
    from flows.report import __main__ as report

    monkeypatch.chdir(tmp_path)
    modules = (evaluate, fit, ingest, report, sample, transform)
    apps = {flow.__name__.split(".")[1]: flow.app for flow in modules}

    def call(name: str, *arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            run(apps[name], [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(leaving.value.code or 0), captured.out, captured.err)

    return call
