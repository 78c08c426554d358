"""A single tree of more than 2,000 features, whose pairs are counted strip by strip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import latentbits as lb
from tests.support.data import write_arrays

FIT = ("fit", "--dataset", "d.zarr", "--model", "chow-liu", "--no-report", "--json")
N_FEATURES = 2100


def draw_chain(n_rows: int) -> np.ndarray:
    """Features that each repeat the one before, but for a tenth of the rows."""
    errors = np.random.default_rng(0).random((n_rows, N_FEATURES)) < 0.1
    errors[:, 0] = np.arange(n_rows) % 2 == 0
    return (errors.cumsum(axis=1) % 2).astype(np.uint8)


def test_a_wide_tree_has_the_same_bytes_with_any_executor_and_start(cli) -> None:
    write_arrays(Path("d.zarr"), draw_chain(400))
    artifact = cli(*FIT, "--executor", "serial").json["artifact"]
    fitted = lb.load(artifact)
    parents = fitted.params.parents[0]
    assert (np.abs(parents - np.arange(N_FEATURES)) == 1).sum() > 0.99 * N_FEATURES
    assert fitted.manifest["iterations"] == 1
    assert fitted.manifest["diagnostics"]["n_components"] == 1
    again = lb.load(cli(*FIT, "--executor", "threads", "--warm-start").json["artifact"])
    assert again.params.tables.tobytes() == fitted.params.tables.tobytes()
    assert again.params.parents.tobytes() == parents.tobytes()

    export = ("export", "--artifact", artifact, "--output", "t.csv", "--what")
    assert cli(*export, "edges").code == 0
    assert len(pd.read_csv("t.csv")) == N_FEATURES - 1
    refused = cli(*export, "correlations", "--overwrite").check_refused()
    assert "tree-mixture has no correlations of features" in refused


def test_a_wide_tree_of_incomplete_rows_is_refused(cli) -> None:
    seen = np.ones((400, N_FEATURES), np.uint8)
    seen[7, 8] = 0
    write_arrays(Path("d.zarr"), draw_chain(400), observed=seen)
    refused = cli(*FIT, "--executor", "serial").check_refused()
    assert "Values are missing, but a tree of 2,100 features" in refused
    assert not Path("runs").exists() or not [*Path("runs").rglob("pairs")]
