"""Weights of rows in Python: those of the command line, for datasets on disk and in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from pipeline.data.datasets import Dataset
from pipeline.params import get_named_arrays
from storage.artifacts.artifacts import load_artifact
from tests.support.data import draw_probit_rows, write_arrays

SURVEY = {"weight": "survey", "weights": "sampling"}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return draw_probit_rows(1500, 8, 1, seed=5)[0]


@pytest.fixture(scope="module")
def datasets(X: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """The distinct rows with columns of frequencies and others, in segments that alternate."""
    counts = Counter(map(tuple, X.tolist()))
    patterns, frequency = np.array([*counts], np.uint8), np.array([*counts.values()])
    n_rows = np.arange(len(patterns))
    columns = {
        "frequency": frequency,
        # Numbers that differ from the codes of their texts.
        "texts": np.array([*map(str, frequency)], object),
        "gaps": np.where(n_rows == 3, "", frequency.astype(str)).astype(object),
        "words": np.where(n_rows == 3, "NA", frequency.astype(str)).astype(object),
        "names": np.array([f"p{i}" for i in n_rows], object),
        "survey": frequency / 7,
        "unit": np.array([f"u{i % 20}" for i in n_rows], object),
        "split": np.where(n_rows % 3, "train", "test").astype(object),
    }
    segments = np.where(n_rows % 2, "b", "a")
    path = tmp_path_factory.mktemp("weights") / "d.zarr"
    stored = write_arrays(path, patterns, None, segments, words_per_chunk=2, columns=columns)
    assert stored.n_chunks > 1
    return {"stored": stored, "memory": lb.from_numpy(patterns, segment=segments, keep=columns)}


@pytest.mark.parametrize("where", ["stored", "memory"])
@pytest.mark.parametrize("weight", ["frequency", "texts"])
@pytest.mark.parametrize("model", ["latent-trait", "bernoulli-mixture", "clipped-pca"])
def test_a_frequency_is_that_many_rows(
    X: np.ndarray, datasets: dict[str, Dataset], where: str, weight: str, model: str
) -> None:
    repeated = lb.fit(X, model, components=1)
    weighted = lb.fit(datasets[where], model, components=1, weight=weight)
    assert weighted.manifest["row_weights"]["total"] == 1500
    found = get_named_arrays(weighted.params)
    for name, (_, expected) in get_named_arrays(repeated.params).items():
        np.testing.assert_allclose(found[name][1], expected, rtol=1e-7, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    "arguments", [{"weight": "texts"}, {**SURVEY, "psu": "unit"}, {**SURVEY, "split": "test"}]
)
def test_the_command_gives_the_same(
    cli: Any, datasets: dict[str, Dataset], arguments: dict[str, str]
) -> None:
    given = {"split": "all", **arguments}
    options = [text for name, value in given.items() for text in (f"--{name}", value)]
    command = ("fit", "--dataset", Path(datasets["stored"].describe()["path"]), "--json")
    command = (*command, "--model", "latent-trait", "--components", "1", *options)
    expected = load_artifact(cli(*command).json["artifact"])
    for dataset in datasets.values():
        fitted = lb.fit(dataset, "latent-trait", components=1, **arguments)
        assert fitted.manifest["row_weights"] == expected.manifest["row_weights"]
        for name, (_, values) in get_named_arrays(fitted.params).items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("where", ["stored", "memory"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": "nobody"}, "no per-row column 'nobody'. It has: frequency, "),
        ({"weight": "names"}, "'p0', which is not a number"),
        ({"weight": "gaps"}, "row 4: the weight in gaps is missing"),
        ({"weight": "words"}, "row 4: the weight in words is missing"),
        ({"weight": "survey"}, 'is not a whole number; use weights="sampling"'),
        ({"weight": "frequency", "weights": "x"}, "weights must be frequency or sampling"),
        ({"weight": np.ones(3)}, "weight must be the name of a per-row column, but is a ndarray"),
        ({"weights": "sampling"}, "weights needs weight="),
        ({"psu": "unit"}, "psu needs weight="),
        ({"weight": "frequency", "psu": "unit"}, 'psu needs weights="sampling"'),
        ({**SURVEY, "psu": "survey"}, "psu: survey holds the weights"),
        ({**SURVEY, "psu": "gaps"}, "row 4 has no unit in gaps"),
        ({"weight": "frequency", "model": "rbm"}, "rbm cannot use weights"),
        ({**SURVEY, "psu": "unit", "model": "clipped-pca"}, "do not allow for clusters"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(
    datasets: dict[str, Dataset], where: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        lb.fit(datasets[where], **{"model": "latent-trait", "components": 1, **arguments})
