"""A browser for tests of pages; for commands, worker processes and one kind of object store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import LocalCluster

from tests.support.object_servers import StoreServer

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


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


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Address of a cluster of 2 worker processes, for tests whose data lie on disk."""
    one_thread: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=2, host="127.0.0.1", **one_thread) as found:
        yield found.scheduler_address


@pytest.fixture
def store(
    request: pytest.FixtureRequest, object_server: Callable[[str], StoreServer]
) -> StoreServer:
    """An S3 store, unless a test asks for another kind: differences are tested below commands."""
    return object_server(getattr(request, "param", "s3"))
