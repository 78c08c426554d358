"""The sample command: whose rows they are, the same bytes everywhere, what they are good for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.data.datasets import load_fitted_model
from pipeline.models.capabilities import CanSample
from pipeline.models.registry import find_models
from storage import load_artifact, open_dataset
from storage.dataset.dataset import BinaryDataset
from tests.conformance.models import FACTS
from tests.storage.conftest import files_of
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import mark_models, write_fit

NAMES = ["bread", "milk", "eggs", "tea", "rice", "salt"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Path of the fit of a model to segments of 500, 300 and 200 rows."""
    folder = tmp_path_factory.mktemp("sample")
    X, _ = draw_probit_rows(1000, 6, 2, seed=1)
    segments = np.random.default_rng(0).permutation(
        ["night"] * 500 + ["day"] * 300 + ["dusk"] * 200
    )
    dataset = write_arrays(folder / "d.zarr", X, segments=segments, names=NAMES)
    return lru_cache(lambda name: write_fit(folder / name, FACTS[name].make(), dataset))


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("pipeline.inference.sample._CELLS_AT_ONCE", 600 * len(NAMES))


@pytest.fixture
def sampled(cli, fitted):
    """Call the command; return the dataset."""

    def call(name: str, *options: object) -> BinaryDataset:
        given = ("--artifact", fitted(name), "--rows", 4000, "--output", "s.zarr")
        done = cli("sample", *given, *options, "--json")
        assert done.code == 0, done.err
        assert done.json["n_rows"] == 4000
        return open_dataset("s.zarr")

    return call


def values(dataset: BinaryDataset) -> np.ndarray:
    return np.asarray(dataset.to_dask())


def pair_shares(X: np.ndarray) -> np.ndarray:
    return X.T.astype(np.float64) @ X / len(X)


@pytest.mark.parametrize(
    "name",
    mark_models(
        [name for name in sorted(find_models()) if isinstance(FACTS[name].make(), CanSample)],
        "bernoulli-mixture blica",
        "latent-trait noisy-or tree-mixture",
    ),
)
def test_a_sample_has_the_pair_shares_of_the_model(sampled, fitted, name):
    dataset, source = sampled(name), load_fitted_model(fitted(name))
    dataset.verify()
    assert dataset.feature_names == tuple(NAMES)
    drawn = source.model.sample(source.params, 20_000, np.random.default_rng(5))
    X = values(dataset)
    np.testing.assert_allclose(pair_shares(X), pair_shares(drawn), atol=0.035)
    assert len({X[start : start + 600].tobytes() for start in range(0, 3600, 600)}) == 6
    assert set(dataset.segment_names) == set(source.segments or ["all"])
    origin = dataset.attributes["sampled_from"]
    assert origin == {
        "artifact": str(fitted(name).resolve()),
        "digest": source.digest,
        "model": name,
        "seed": 0,
    }


def test_segments_are_as_large_as_they_were(sampled, fitted):
    dataset, source = sampled("blica"), load_fitted_model(fitted("blica"))
    rows = np.bincount(dataset.blocks[:, 1], dataset.blocks[:, 3])
    found = dict(zip(dataset.segment_names, rows.tolist(), strict=True))
    assert found == {"night": 2000, "day": 1200, "dusk": 800}
    edges = np.cumsum([0, *rows]).astype(int)
    X = values(dataset)
    for k, name in enumerate(dataset.segment_names):  # one after the other
        of_segment = np.full(20_000, source.segments[name])
        drawn = source.model.sample(
            source.params, len(of_segment), np.random.default_rng(5), of_segment
        )
        shares = X[edges[k] : edges[k + 1]].mean(axis=0)
        np.testing.assert_allclose(shares, drawn.mean(axis=0), atol=0.06)


@pytest.mark.matrix
def test_every_executor_gives_the_same_bytes(sampled, cluster):
    first = sampled("blica", "--executor", "serial")
    serial = files_of(Path("s.zarr"))
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        sampled("blica", *options, "--overwrite")
        assert files_of(Path("s.zarr")) == serial, options
    assert sampled("blica", "--seed", 1, "--overwrite").digest != first.digest


@pytest.mark.parametrize("name", ["blica", pytest.param("clipped-pca", marks=pytest.mark.matrix)])
def test_a_sample_can_be_fitted(cli, sampled, fitted, name):
    sampled(name)
    plain = [
        word for item in FACTS[name].plain.items() for word in ("--set", "=".join(map(str, item)))
    ]
    given = ("--dataset", "s.zarr", "--model", name, "--components", 2, *plain)
    truth = ("--truth",) if name == "blica" else ()
    done = cli("fit", *given, *truth, "--json")
    assert done.code == 0, done.err
    if truth:
        assert 0 <= done.json["mcs"] <= 1
    else:
        pair = [load_artifact(path)["loadings"] for path in (fitted(name), done.json["artifact"])]
        products = [loadings @ loadings.T for loadings in pair]
        np.testing.assert_allclose(*products, atol=0.3)


def test_the_table_ends_with_the_dataset(cli, fitted):
    done = cli("sample", "--artifact", fitted("clipped-pca"), "--rows", 50, "--output", "s.zarr")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "dataset: s.zarr"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--rows", 5), "--rows: 5 rows are too few"),
        (("--rows", 1), "--rows is 1. Choose at least 2."),
        (("--rows", "many"), "--rows"),
        (("--seed", -1), "--seed"),
        (("--artifact", "nowhere"), "nowhere: there is no such artifact"),
        (("--output", "s3://bucket/s.zarr"), "s3://bucket"),
        (("--output", "taken"), "taken already exists"),
        (("--output", "taken", "--overwrite"), "taken is not a dataset"),
    ],
)
def test_what_is_refused(cli, fitted, tmp_path, options, word):
    (tmp_path / "taken").touch()
    given = {"--artifact": fitted("blica"), "--rows": 100, "--output": "s.zarr"}
    given |= dict(zip(options[::2], options[1::2], strict=False))
    extra = options[2:] if len(options) % 2 else ()
    done = cli("sample", *[word for item in given.items() for word in item], *extra)
    assert done.code == 2
    assert word in done.message
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
