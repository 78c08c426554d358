"""What tests share: a Prefect server, an object store, and a way to call a command line."""

from __future__ import annotations

import tests.support.environment  # isort: skip  # noqa: F401  (before NumPy and Prefect)

import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from xdist.scheduler import LoadFileScheduling

from flows.cli import progress
from flows.cli.startup import find_module
from flows.running.server import use_server
from pipeline.models import registry
from storage.errors import DataError
from storage.stores import object_store
from tests.support.kernels import compile_kernels
from tests.support.object_proxy import FaultyProxy, start_proxy
from tests.support.object_servers import SERVERS, StoreServer

_DEAD_ENDPOINTS = {
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    "AZURE_MSI_ENDPOINT": "http://127.0.0.1:9",
    "GCE_METADATA_HOST": "127.0.0.1:9",
    "GCE_METADATA_IP": "127.0.0.1:9",
}


# Laws of models: the first parameter is the model, then follows the kind of features.
_LAW = re.compile(r"tests/conformance/.*\[([\w-]+):")


class FileOrModelScheduling(LoadFileScheduling):
    """Keeps files whole, as their tests share fixtures, and laws of a model, which share fits."""

    def _split_scope(self, nodeid: str) -> str:
        law = _LAW.match(nodeid)
        return law[1] if law else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileOrModelScheduling:
    """Distribute tests to processes."""
    return FileOrModelScheduling(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile kernels before `pytest -n 3` starts its processes, if it runs all tests."""
    config = session.config
    n_processes = getattr(config.option, "numprocesses", None)
    runs_all_tests = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if n_processes and runs_all_tests and not config.option.collectonly:
        compile_kernels(n_processes)


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis try few examples by default, and many in the matrix.

    No test has a deadline, nor a check that examples are made quickly: a busy machine would fail.
    """
    settings.register_profile(
        "latentbits",
        max_examples=10 if _is_matrix_run(config) else 5,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("latentbits")


def _is_matrix_run(config: pytest.Config) -> bool:
    return config.option.markexpr.startswith("matrix")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select what the matrix runs: further parameters of tests marked `few(n)`, and more examples.

    Tests with examples of Hypothesis run in the matrix once more, except laws of models.
    """
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        law = _LAW.match(item.nodeid)
        name = law[0] if law else item.nodeid.partition("[")[0]
        seen[name] += 1
        few = item.get_closest_marker("few")
        is_further_parameter = few is not None and seen[name] > few.args[0]
        has_more_examples = (
            _is_matrix_run(config)
            and law is None
            and is_hypothesis_test(getattr(item, "function", None))
        )
        if is_further_parameter or has_more_examples:
            item.add_marker(pytest.mark.matrix)


@pytest.fixture(scope="session", autouse=True)
def no_machine_credentials() -> Iterator[None]:
    """Without credentials a store would ask the machine for its own: here nothing answers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, address in _DEAD_ENDPOINTS.items():
            patch.setenv(name, address)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Ask a store again after milliseconds at first, as many times as ever."""
    with pytest.MonkeyPatch.context() as patch:
        for retries, base in (
            (object_store._RETRY_CONFIG, 4),
            (object_store._PROBE_RETRY_CONFIG, 2),
        ):
            first, longest = timedelta(milliseconds=5), timedelta(seconds=15)
            pauses = {"init_backoff": first, "max_backoff": longest, "base": base}
            patch.setitem(retries, "backoff", pauses)
        yield


@pytest.fixture(scope="session", autouse=True)
def fail_after_fits() -> Iterator[None]:
    """Raise errors after a fit, such as that its report cannot be drawn; commands only warn.

    A missing or damaged file is still warned about: tests remove some.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_ERRORS_TO_WARN_OF", (DataError,))
        yield


@pytest.fixture
def warn_after_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warn about errors after a fit, as commands do."""
    monkeypatch.setattr(progress, "_ERRORS_TO_WARN_OF", (Exception,))


@pytest.fixture(scope="module", autouse=True)
def forget_test_models() -> Iterator[None]:
    """Forget the models of `tests.models` after the file that named them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_imported_models", {})
        yield


@pytest.fixture(scope="module", autouse=True)
def return_memory() -> Iterator[None]:
    """Return freed memory to the system after each file; the C library would keep 0.3 GB."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session")
def object_server() -> Iterator[Callable[[str], StoreServer]]:
    """Return the server of a scheme, which runs from then on for the session."""
    pytest.importorskip("obstore")
    with ExitStack() as stack:
        yield lru_cache(lambda scheme: stack.enter_context(SERVERS[scheme]()))


@pytest.fixture(
    params=[
        "s3",
        *(pytest.param(kind, marks=pytest.mark.matrix) for kind in sorted({*SERVERS} - {"s3"})),
    ]
)
def store(
    request: pytest.FixtureRequest, object_server: Callable[[str], StoreServer]
) -> StoreServer:
    """A store of every kind."""
    return object_server(request.param)


@pytest.fixture
def bucket(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of its own, in a store of every kind."""
    yield from _open_test_bucket(store, store.address, monkeypatch)


@pytest.fixture
def store_proxy(store: StoreServer) -> Iterator[tuple[FaultyProxy, str]]:
    with start_proxy(store.address) as found:
        yield found


@pytest.fixture
def faulty(store_proxy: tuple[FaultyProxy, str]) -> FaultyProxy:
    """The proxy before the store of `faulty_bucket`: give it a fault."""
    return store_proxy[0]


@pytest.fixture
def faulty_bucket(
    store: StoreServer, store_proxy: tuple[FaultyProxy, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a bucket behind the proxy."""
    yield from _open_test_bucket(store, store_proxy[1], monkeypatch)


@pytest.fixture(scope="session")
def s3_store(object_server: Callable[[str], StoreServer]) -> StoreServer:
    """An S3 store, for what does not depend on the kind."""
    return object_server("s3")


@pytest.fixture
def s3(s3_store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an S3 bucket of its own."""
    yield from _open_test_bucket(s3_store, s3_store.address, monkeypatch)


def _open_test_bucket(
    store: StoreServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    for name, value in store.environment(address).items():
        monkeypatch.setenv(name, value)
    object_store.open_bucket.cache_clear()
    name = f"b-{uuid.uuid4().hex[:12]}"
    store.create(name)
    yield f"{store.scheme}://{name}"
    object_store.open_bucket.cache_clear()


PREFECT_PASSWORD = "tests:3d1f0c55"


@pytest.fixture(scope="session")
def prefect_url() -> Iterator[str]:
    """The address of the server that `flows` embeds, in a process of its own for the session.

    A server keeps 150 MB for good.
    """
    script = (
        "import sys\n"
        "from flows.running.server import run_embedded_server\n"
        "with run_embedded_server() as url:\n"
        "    print(url, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "PREFECT_SERVER_API_AUTH_STRING": PREFECT_PASSWORD}
    with subprocess.Popen(
        [sys.executable, "-c", script], text=True, env=environment, **pipes
    ) as server:
        assert server.stdout is not None
        with use_server(server.stdout.readline().strip(), PREFECT_PASSWORD) as url:
            yield url
        server.communicate()


@pytest.fixture(scope="module")
def prefect_server(prefect_url: str) -> Iterator[None]:
    """Let this file's flows, and the processes that it starts, use a Prefect server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_url)
        patch.setenv("PREFECT_API_AUTH_STRING", PREFECT_PASSWORD)
        yield


@dataclass
class CommandResult:
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

    def check_refused(self) -> str:
        """Return the error line of a command that must have been refused without any output."""
        assert (self.code, self.out) == (2, ""), (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        assert self.message.startswith("error: ")
        return self.message


@pytest.fixture
def plain_cli(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., CommandResult]:
    """As `cli`, with the defaults of the commands."""
    from flows.cli.app import run_app

    if "prefect_server" not in request.fixturenames:
        monkeypatch.delenv("PREFECT_API_URL", raising=False)  # other tests of the file may set it
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: object) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            run_app(_load_app(name), [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return CommandResult(int(leaving.value.code or 0), captured.out, captured.err)

    return call


def _load_app(name: str) -> Any:
    """Return the command line of `python -m flows.NAME`."""
    module = find_module(name)
    if importlib.import_module(module).__spec__.submodule_search_locations:
        module += ".__main__"
    return importlib.import_module(module).app


EXECUTOR_OPTIONS = {"--executor", "--workers", "--cluster"}


@pytest.fixture
def cli(plain_cli: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """Call `cli("fit", "--dataset", path)` in this process, in a folder of its own.

    Commands are not recorded by Prefect, which is quicker, unless the test asks for
    `prefect_server`.
    Work runs serially and fits draw no report, which is quicker, unless an option asks for them.
    """

    def call(name: str, *arguments: object) -> CommandResult:
        given, more = {*map(str, arguments)}, []
        if (
            name in ("evaluate", "fit", "neighbours", "sample", "transform")
            and not given & EXECUTOR_OPTIONS
        ):
            more += ["--executor", "serial"]
        if name == "fit" and not given & {"--report", "--no-report"}:
            more += ["--no-report"]
        return plain_cli(name, *arguments, *more)

    return call
