"""The scoring service of deploy/, as a server on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

import latentbits as lb
from pipeline.models.clipped_pca.model import ClippedPCA
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import write_fit

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "uvicorn", "--app-dir", "deploy", "scoring:app", "--port", "0"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    dataset = write_arrays(folder / "rows.zarr", draw_probit_rows(300, 5, 2, seed=3)[0])
    return write_fit(folder / "fit", ClippedPCA(n_components=2), dataset)


@pytest.fixture(scope="module")
def client(artifact: Path) -> Iterator[httpx.Client]:
    environment = {**os.environ, "LATENTBITS_ARTIFACT": str(artifact)}
    with subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            found = (re.search(r"running on (http://127\.0\.0\.1:\d+)", x) for x in server.stderr)
            with httpx.Client(base_url=next(filter(None, found))[1], timeout=600) as client:
                yield client
        finally:
            server.kill()


def test_threads_get_the_codes_of_the_scorer(client: httpx.Client, artifact: Path) -> None:
    names, scorer = client.get("/features").json(), lb.Scorer(artifact)
    bits = np.random.default_rng(0).integers(0, 2, (40, len(names))).tolist()
    rows = [dict(zip(names, values, strict=True)) for values in bits] + [{"f1": None, "f2": True}]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: client.post("/codes", json=row), rows))
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json() for answer in answers] == [scorer(row) for row in rows]


def test_next_items_need_a_trait(client: httpx.Client) -> None:
    answer = client.post("/next-items", json={"f1": 1}, params={"n": 2})
    assert answer.status_code == 422
    assert "clipped-pca, whose items have no information" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"f0": 2}, "column 'f0': the value is 2, not 0, 1"),
        ({"f9": 1}, "The fit has no feature 'f9'."),
        ({}, "has no observed value"),
        ([1, 0], "valid dictionary"),
    ],
)
def test_a_wrong_row_is_refused_with_the_reason(
    client: httpx.Client, row: object, reason: str
) -> None:
    answer = client.post("/codes", json=row)
    assert answer.status_code == 422
    assert reason in str(answer.json()["detail"])


@pytest.mark.matrix
def test_without_a_fit_there_is_no_server(tmp_path: Path) -> None:
    environment = {**os.environ, "LATENTBITS_ARTIFACT": str(tmp_path)}
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"LATENTBITS_ARTIFACT: {tmp_path}: ")
