"""Autoencoders and stacks from a dataset to codes and back: the same wherever tasks run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentbits import functions as api
from storage import load_artifact, open_codes, open_dataset
from tests.support.data import draw_probit_rows, write_arrays

MODELS = {
    "autoencoder": ("--components", 3, "--set", "corruption=flip", "--set", "max_iter=3"),
    "stack": (
        "--layers",
        "6,3",
        "--set",
        "block=rbm",
        "--set",
        "pretrain=2",
        "--set",
        "max_iter=2",
    ),
}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Rows in ten chunks, so that two tasks have some, and a few missing values."""
    X, _ = draw_probit_rows(1200, 8, 2, seed=4)
    observed = (np.random.default_rng(1).random(X.shape) < 0.95).astype(np.uint8)
    return write_arrays(tmp_path / "d.zarr", X * observed, observed, words_per_chunk=2).path


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS)
def test_workers_give_the_bytes_of_serial(
    model: str, cli: Any, dataset: Path, cluster: str
) -> None:
    command = ("fit", "--dataset", dataset, "--model", model, *MODELS[model], "--no-report")
    for output, where in (("serial", ("--executor", "serial")), ("two", ("--cluster", cluster))):
        done = cli(*command, "--output", output, *where, "--json")
        assert done.code == 0
        assert done.json["n_components"] == 3
    one, two = (load_artifact(path) for path in ("serial", "two"))
    assert sorted(one) == sorted(two)
    for name in one:
        assert one[name].tobytes() == two[name].tobytes(), name
    assert one.manifest["history"] == two.manifest["history"]


def test_codes_of_a_stack_have_as_many_units_as_its_last_layer(cli: Any, dataset: Path) -> None:
    fit = (
        "fit",
        "--dataset",
        dataset,
        "--model",
        "stack",
        *MODELS["stack"],
        "--executor",
        "serial",
    )
    assert cli(*fit).code == 0
    use = (
        "--dataset",
        dataset,
        "--artifact",
        "runs/d",
        "--output",
        "z.zarr",
        "--executor",
        "serial",
    )
    assert cli("transform", *use).code == 0
    assert open_codes("z.zarr")["mean"].shape == (1200, 3)
    artifact = load_artifact("runs/d")
    assert artifact["weights_0"].shape == (8, 6)
    assert artifact.dims("weights_0") == ("feature", "unit_1")
    assert artifact.dims("weights_1") == ("unit_1", "unit_2")
    refused = cli("sample", "--artifact", "runs/d", "--rows", 10, "--output", "s.zarr")
    assert "The model stack cannot draw rows" in refused.check_refused()


def test_a_notebook_takes_layers_as_a_setting(dataset: Path) -> None:
    fitted = api.fit(open_dataset(dataset), "stack", layers=(5, 2), pretrain=1, max_iter=1)
    assert fitted.params.sizes == (8, 5, 2)
    assert fitted.objective_is == "reconstruction"
