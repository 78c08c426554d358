"""What tests share: a Prefect server, an object store, and a way to call a command line."""

from __future__ import annotations

import tests.support.prefect_home  # isort: skip  # noqa: F401  (before Prefect is imported)

import importlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pytest

from flows.running.embedded import embedded_server
from pipeline.models import registry
from storage.stores import object_store
from tests.support.object_proxy import Proxy, proxied
from tests.support.object_servers import SERVERS, Server

_NOWHERE = {
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    "AZURE_MSI_ENDPOINT": "http://127.0.0.1:9",
    "GCE_METADATA_HOST": "127.0.0.1:9",
    "GCE_METADATA_IP": "127.0.0.1:9",
}


@pytest.fixture(scope="session", autouse=True)
def no_machine_credentials() -> Iterator[None]:
    """Without credentials a store would ask the machine for its own: here nothing answers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, address in _NOWHERE.items():
            patch.setenv(name, address)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Ask a store again after milliseconds at first, as many times as ever."""
    with pytest.MonkeyPatch.context() as patch:
        for retries, base in ((object_store._PATIENT, 4), (object_store._CURIOUS, 2)):
            first, longest = timedelta(milliseconds=5), timedelta(seconds=15)
            pauses = {"init_backoff": first, "max_backoff": longest, "base": base}
            patch.setitem(retries, "backoff", pauses)
        yield


@pytest.fixture(scope="module", autouse=True)
def only_models_here() -> Iterator[None]:
    """Forget the models of `tests.models` after the file that named them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_foreign", {})
        yield


@pytest.fixture(scope="session")
def object_server() -> Iterator[Callable[[str], Server]]:
    """Give the server of a scheme, which runs from then on for the session."""
    pytest.importorskip("obstore")
    with ExitStack() as stack:
        yield lru_cache(lambda scheme: stack.enter_context(SERVERS[scheme]()))


@pytest.fixture(
    params=[
        "s3",
        *(pytest.param(kind, marks=pytest.mark.matrix) for kind in sorted({*SERVERS} - {"s3"})),
    ]
)
def store(request: pytest.FixtureRequest, object_server: Callable[[str], Server]) -> Server:
    """A store of every kind."""
    return object_server(request.param)


@pytest.fixture
def bucket(store: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of its own, in a store of every kind."""
    yield from _bucket(store, store.address, monkeypatch)


@pytest.fixture
def proxied_store(store: Server) -> Iterator[tuple[Proxy, str]]:
    with proxied(store.address) as found:
        yield found


@pytest.fixture
def faulty(proxied_store: tuple[Proxy, str]) -> Proxy:
    """The proxy before the store of `faulty_bucket`: give it a fault."""
    return proxied_store[0]


@pytest.fixture
def faulty_bucket(
    store: Server, proxied_store: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a bucket behind the proxy."""
    yield from _bucket(store, proxied_store[1], monkeypatch)


@pytest.fixture(scope="session")
def s3_store(object_server: Callable[[str], Server]) -> Server:
    """An S3 store, for what does not depend on the kind."""
    return object_server("s3")


@pytest.fixture
def s3(s3_store: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an S3 bucket of its own."""
    yield from _bucket(s3_store, s3_store.address, monkeypatch)


def _bucket(store: Server, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in store.environment(address).items():
        monkeypatch.setenv(name, value)
    object_store.bucket.cache_clear()
    name = f"b-{uuid.uuid4().hex[:12]}"
    store.create(name)
    yield f"{store.scheme}://{name}"
    object_store.bucket.cache_clear()


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """The server that `flows` starts by itself, kept for the session."""
    with embedded_server() as url:
        os.environ["PREFECT_API_URL"] = url
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

    def refusal(self) -> str:
        """Give the error line of a command that must have been refused, and print nothing."""
        assert (self.code, self.out) == (2, ""), (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        assert self.message.startswith("error: ")
        return self.message


@pytest.fixture
def plain_cli(
    prefect_server: None, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch
) -> Callable[..., Result]:
    """As `cli`, with the defaults of the commands."""
    from flows.cli.options import run

    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            run(_app(name), [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(leaving.value.code or 0), captured.out, captured.err)

    return call


def _app(name: str) -> Any:
    """Give the command line of `python -m flows.NAME`."""
    module = f"flows.{name}"
    if importlib.import_module(module).__spec__.submodule_search_locations:
        module += ".__main__"
    return importlib.import_module(module).app


WHERE = {"--executor", "--workers", "--cluster"}


@pytest.fixture
def cli(plain_cli: Callable[..., Result]) -> Callable[..., Result]:
    """Call `cli("fit", "--dataset", path)` in this process, in a folder of its own.

    Work runs serially and fits draw no report, which is quicker, unless an option asks for them.
    """

    def call(name: str, *arguments: object) -> Result:
        given, more = {*map(str, arguments)}, []
        if name in ("evaluate", "fit", "neighbours", "sample", "transform") and not given & WHERE:
            more += ["--executor", "serial"]
        if name == "fit" and not given & {"--report", "--no-report"}:
            more += ["--no-report"]
        return plain_cli(name, *arguments, *more)

    return call
