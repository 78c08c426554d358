"""One embedded Prefect server for all flow tests, and a way to call a command line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flows.server import embedded_server

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.chrome.service.Service(driver)
    started = webdriver.Chrome(options=options, service=service)
    try:
        yield started
    finally:
        started.quit()
