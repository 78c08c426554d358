"""How datasets, artifacts and codes display themselves in a terminal and in a notebook."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifacts.artifacts import NamedArray, load_artifact, write_artifact
from storage.codes.codes import CodeArraySpec, create_codes, open_codes, seal_codes
from storage.dataset.dataset import BinaryDataset, open_dataset
from tests.support.data import write_arrays

SCRIPT = "<script>window.harmed = 1</script>"
ESCAPE = "red\x1b[31m\nline"
N_ROWS = 300


def facts(shown: Any) -> dict[str, str]:
    """Return the content of the HTML table, which equals the lines."""
    table = shown._repr_html_()
    assert set(re.findall(r"<(\w+)", table)) == {"table", "caption", "tr", "th", "td"}
    assert "color" not in table
    found = re.findall(r"<th [^>]*>(.*?)</th><td [^>]*>(.*?)</td>", table, re.DOTALL)
    title, *lines = repr(shown).splitlines()
    assert title == type(shown).__name__
    assert [line.split()[0] for line in lines] == [name for name, _ in found]
    assert all(character.isprintable() for line in lines for character in line)
    return {name: html.unescape(value) for name, value in found}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    drawn = np.random.default_rng(0).integers(0, 2, (N_ROWS, 12)).astype(np.uint8)
    drawn[:, 2] = 1
    drawn[:, 3] = np.arange(N_ROWS) < 3
    return drawn


@pytest.fixture
def dataset(tmp_path: Path, X: np.ndarray) -> BinaryDataset:
    observed = np.ones_like(X)
    observed[0, 5] = 0
    segments = np.where(np.arange(N_ROWS) < 40, SCRIPT, "b")
    columns = {"age": np.arange(N_ROWS), "split": np.where(np.arange(N_ROWS) % 2, "train", "test")}
    names = [SCRIPT, ESCAPE, "always", "rare", "x" * 100, *(f"f{i}" for i in range(5, 12))]
    path = tmp_path / "d.zarr"
    return write_arrays(path, X * observed, observed, segments, 2, columns, names)


def test_a_dataset(dataset: BinaryDataset, X: np.ndarray) -> None:
    said = facts(dataset)
    assert said["path"] == str(dataset.path)
    assert said["rows"] == "300"
    names = f"{SCRIPT}, {ESCAPE}, always, rare, {'x' * 39}…, f5, f6, f7"
    assert said["features"] == f"12: {names} and 4 more"
    assert said["segments"] == f"2: {SCRIPT} (40), b (260)"
    assert said["columns"] == "2: age (int), split (category)"
    assert said["splits"] == "2: test, train"
    assert said["missing"] == f"in 1 of {dataset.n_chunks} chunks"
    seen = X.sum() - X[0, 5]
    ends = "rarest rare (1 % of rows), most common always (100 % of rows)"
    assert said["ones"] == f"{seen / N_ROWS:.4g} per row; {ends}"
    assert said["constant"] == "1: always"
    words = sum(dataset.read_chunk(key).words.nbytes for key in range(dataset.n_chunks))
    assert said["bits"] == f"{words:,} bytes before compression, chunks: {dataset.n_chunks}"


def test_a_dataset_without_names_columns_or_gaps(tmp_path: Path) -> None:
    said = facts(write_arrays(tmp_path / "d.zarr", np.eye(4, dtype=np.uint8)))
    assert said["features"] == "4: f0, f1, f2, f3"
    assert said["segments"] == "1: all (4)"
    assert said["missing"] == "none"
    assert {"columns", "splits", "constant"}.isdisjoint(said)


def test_no_chunk_is_read_and_a_damaged_dataset_still_says_what_it_is(
    dataset: BinaryDataset,
) -> None:
    before = facts(dataset)
    for name in ("bits", "observed", "order", "columns"):
        shutil.rmtree(dataset.path / name)
    assert facts(open_dataset(dataset.path)) == before
    shutil.rmtree(dataset.path / "ones")
    assert "Ingest the dataset again" in facts(dataset)["ones"]


def test_many_counts_are_left_alone(
    dataset: BinaryDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.display._MAX_COUNTS", 12 * dataset.n_chunks - 1)
    assert {"ones", "constant"}.isdisjoint(facts(dataset))


def test_an_artifact(tmp_path: Path) -> None:
    arrays = {
        "loadings": NamedArray(("feature", "component"), np.ones((1200, 2))),
        "scale": NamedArray((), np.array(2.0)),
    }
    manifest = {
        "model": "clipped-pca",
        "dataset": {"path": "votes.zarr", "digest": "d", "n_rows": 5000, "n_chunks": 1},
        "split": None,
        "n_samples": 5000,
        "feature_names": [SCRIPT, "b"],
        "n_components": 2,
        "converged": False,
        "iterations": 7,
        "warnings": [f"constant: {SCRIPT!r}", "stopped"],
    }
    artifact = load_artifact(write_artifact(tmp_path / "a", arrays, manifest))
    said = facts(artifact)
    assert said.pop("path") == str(artifact.path)
    assert said.pop("warning") == "stopped"
    assert said == {
        "model": "clipped-pca",
        "dataset": "votes.zarr",
        "rows": "5,000",
        "features": f"2: {SCRIPT}, b",
        "components": "2",
        "converged": "no, iterations: 7",
        "loadings": "feature 1,200 × component 2, float64",
        "scale": "one number, float64",
    }
    assert repr(artifact).count("warning") == artifact._repr_html_().count("warning") == 2
    bare = load_artifact(write_artifact(tmp_path / "b", arrays, {}))
    assert facts(bare).keys() == {"path", "loadings", "scale"}


def test_codes(tmp_path: Path) -> None:
    arrays = {
        "mean": CodeArraySpec(("component",), (2,), "float32"),
        "row": CodeArraySpec((), (), "int64"),
    }
    writer = create_codes(tmp_path / "z.zarr", arrays, 2500, 2500)
    values = {"mean": np.ones((2500, 2), np.float32), "row": np.arange(2500)}
    manifest = {"model": "blica", "artifact_path": "a", "split": "test", "warnings": [SCRIPT]}
    seal_codes(writer, [writer(0, values)], manifest)
    codes = open_codes(tmp_path / "z.zarr")
    said = facts(codes)
    assert said.pop("path") == str(codes.path)
    assert said == {
        "model": "blica",
        "artifact": "a",
        "split": "test",
        "rows": "2,500",
        "mean": "row 2,500 × component 2, float32",
        "row": "row 2,500, int64",
        "warning": SCRIPT,
    }
