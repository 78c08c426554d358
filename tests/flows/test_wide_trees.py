"""A single tree of more than 2,000 features, whose pairs are counted strip by strip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from tests.support.data import write_arrays

FIT = ("fit", "--dataset", "d.zarr", "--model", "chow-liu", "--no-report", "--json")
N_FEATURES = 2100


def draw_chain(n_rows: int) -> np.ndarray:
    """Features that each repeat the one before, but for a tenth of the rows."""
    errors = np.random.default_rng(0).random((n_rows, N_FEATURES)) < 0.1
    errors[:, 0] = np.arange(n_rows) % 2 == 0
    return (errors.cumsum(axis=1) % 2).astype(np.uint8)


@pytest.mark.matrix
def test_a_wide_tree_has_the_same_bytes_with_any_executor_and_start(cli) -> None:
    write_arrays(Path("d.zarr"), draw_chain(400))
    artifact = cli(*FIT, "--executor", "serial").json["artifact"]
    fitted = lb.load(artifact)
    parents = fitted.params.parents[0]
    assert (np.abs(parents - np.arange(N_FEATURES)) == 1).sum() > 0.99 * N_FEATURES
    assert fitted.manifest["iterations"] == 2
    assert fitted.manifest["diagnostics"]["n_components"] == 1
    again = lb.load(cli(*FIT, "--executor", "threads", "--warm-start").json["artifact"])
    assert again.params.tables.tobytes() == fitted.params.tables.tobytes()
    assert again.params.parents.tobytes() == parents.tobytes()

    export = ("export", "--artifact", artifact, "--output", "t.csv", "--what")
    assert cli(*export, "edges").code == 0
    assert len(pd.read_csv("t.csv")) == N_FEATURES - 1
    refused = cli(*export, "correlations", "--overwrite").check_refused()
    assert "tree-mixture has no correlations of features" in refused


@pytest.mark.matrix
def test_a_wide_tree_of_incomplete_rows_has_the_same_bytes_with_any_executor(cli) -> None:
    seen = np.random.default_rng(1).random((400, N_FEATURES)) < 0.95
    X = draw_chain(400)
    write_arrays(Path("d.zarr"), X * seen, observed=seen.astype(np.uint8))
    fits = [cli(*FIT, "--executor", name).json["artifact"] for name in ("serial", "threads")]
    one, other = (lb.load(artifact).params for artifact in fits)
    assert (np.abs(one.parents[0] - np.arange(N_FEATURES)) == 1).sum() > 0.99 * N_FEATURES
    assert other.tables.tobytes() == one.tables.tobytes()
    assert other.parents.tobytes() == one.parents.tobytes()
    completed = lb.transform(fits[0], "d.zarr", impute="bits")["imputed_bits"]
    assert (completed == X)[~seen].mean() > 0.85  # a feature is that before with probability 0.9
    np.testing.assert_array_equal(completed[seen], X[seen])


def test_memory_is_refused_with_the_number_of_features_not_of_their_levels(cli) -> None:
    names = [f"f{i}" for i in range(3)]
    levels = {name: list("01234") for name in names}
    X = np.random.default_rng(2).integers(0, 5, (20, 3)).astype(np.uint8)
    write_arrays(Path("d.zarr"), X, names=names, feature_levels=levels)
    message = cli(*FIT, "--memory", "1kB").check_refused()
    assert message.startswith("error: 3 features need ")
