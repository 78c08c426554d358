"""Datasets and artifacts as xarray: values in their places, under their names."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from storage.artifacts.artifacts import NamedArray, load_artifact, write_artifact
from storage.errors import DataError
from tests.support.data import write_arrays


def test_a_dataset_has_its_rows_in_the_order_they_came(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (500, 3)).astype(np.uint8)
    observed = (rng.random(X.shape) < 0.9).astype(np.uint8)
    segments = np.array(["b", "a", "c"])[rng.integers(0, 3, 500)]
    columns = {"age": rng.integers(0, 90, 500), "segment": segments}
    dataset = write_arrays(
        tmp_path / "d.zarr", X, observed, segments, words_per_chunk=4, columns=columns, names="xyz"
    )
    labelled = dataset.to_xarray()
    np.testing.assert_array_equal(labelled["values"], X & observed)
    np.testing.assert_array_equal(labelled["observed"], observed)
    np.testing.assert_array_equal(labelled["segment"], segments)
    np.testing.assert_array_equal(labelled["column_segment"], segments)
    np.testing.assert_array_equal(labelled["age"], columns["age"])
    assert labelled["feature"].values.tolist() == ["x", "y", "z"]
    assert labelled["values"].chunks is not None  # nothing was unpacked so far
    np.testing.assert_array_equal(labelled["values"].sel(feature="y"), (X & observed)[:, 1])


def test_an_artifact_has_the_names_of_features_and_of_the_segments_it_knows(tmp_path: Path) -> None:
    arrays = {
        "loadings": NamedArray(("feature", "component"), np.arange(6.0).reshape(3, 2)),
        "correlation": NamedArray(("feature", "feature_j"), np.eye(3)),
        "segments": NamedArray(("segment",), np.array([2, 0])),
        "means": NamedArray(("segment", "component"), np.ones((2, 2))),
    }
    manifest = {"feature_names": ["x", "y", "z"], "segment_names": ["a", "b", "c"], "seed": 3}
    labelled = load_artifact(write_artifact(tmp_path / "a", arrays, manifest)).to_xarray()
    assert labelled["means"].coords["segment"].values.tolist() == ["c", "a"]
    assert labelled["loadings"].sel(feature="z").values.tolist() == [4.0, 5.0]
    assert labelled["correlation"].sel(feature="x", feature_j="x") == 1
    assert labelled.attrs["seed"] == 3


def test_without_xarray_there_is_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_arrays(tmp_path / "d.zarr", np.eye(3, dtype=np.uint8))
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(DataError, match=r"pip install 'latentbits\[notebooks\]'"):
        dataset.to_xarray()
