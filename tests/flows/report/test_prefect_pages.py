"""A fit as the pages of a Prefect server show it, in a real browser."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.data import draw_probit_rows, write_arrays

PRESS = """
const named = [...document.querySelectorAll("*")].filter(e => e.innerText?.trim() == arguments[0]);
named.at(-1)?.click();
return named.length;
"""
STAGES = ("open", "feature counts", "pair counts", "fit", "write artifact", "report")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with its pages."""
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {
        "PREFECT_HOME": str(home),
        "PREFECT_UI_API_URL": f"{url}/api",
        "PREFECT_UI_STATIC_DIRECTORY": str(home / "pages"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=log,
            stderr=log,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    try:
        until(lambda: healthy(url), 120)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def until(holds: Callable[[], Any], seconds: float = 600) -> Any:
    """Wait for something to hold, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def asked(url: str, path: str) -> Any:
    request = urllib.request.Request(f"{url}/api/{path}", data=b"{}", method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def text_of(browser: Any, *words: str) -> str:
    """Text of the page, once it has all these words."""

    def complete() -> str:
        text = str(browser.find_element("tag name", "body").text)
        return text if all(word in text for word in words) else ""

    return str(until(complete))


def press(browser: Any, name: str) -> None:
    """Press the tab of this name."""
    until(lambda: browser.execute_script(PRESS, name))


def has_much_to_see(browser: Any) -> bool:
    """Return whether a screenshot is more than a page of one colour."""
    image = Image.open(BytesIO(browser.get_screenshot_as_png())).convert("L")
    values, counts = np.unique(np.asarray(image), return_counts=True)
    return len(values) > 20 and counts.max() < 0.99 * counts.sum()


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_pages_show_stages_parameters_and_artifacts(
    server: str, browser: Any, tmp_path: Path
) -> None:
    X, _ = draw_probit_rows(2000, 12, 2, seed=3)
    write_arrays(tmp_path / "votes.zarr", X)
    fit = [sys.executable, "-m", "flows.fit", "--dataset", "votes.zarr", "--components", "2"]
    environment = {**os.environ, "PREFECT_API_URL": f"{server}/api"}
    done = subprocess.run(fit, cwd=tmp_path, env=environment, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (run,) = asked(server, "flow_runs/filter")
    browser.set_window_size(1280, 1200)
    browser.get(f"{server}/runs/flow-run/{run['id']}")
    text_of(browser, "Completed", "Task Runs")
    press(browser, "Task Runs")
    text_of(browser, *STAGES)
    assert has_much_to_see(browser)
    press(browser, "Parameters")
    text_of(browser, "votes.zarr")
    browser.get(f"{server}/artifacts")
    text_of(browser, "votes-clipped-pca", "votes-clipped-pca-spectrum")
    assert has_much_to_see(browser)
    left = {one["key"]: one["id"] for one in asked(server, "artifacts/filter")}
    browser.get(f"{server}/artifacts/artifact/{left['votes-clipped-pca-spectrum']}")
    shown = "return [...document.querySelectorAll('img')].some(i => i.naturalWidth > 500)"
    until(lambda: browser.execute_script(shown))
