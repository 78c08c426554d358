"""Continuous features: what is stored comes back, also through cuts, and is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from storage.errors import DataError
from tests.storage.conftest import ArrayBatch

NAMES = ["a", "age", "mood", "income"]
LEVELS: dict[str, list[str]] = {"age": [], "mood": ["no", "perhaps", "yes"], "income": []}


def draw(n_rows: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    X = np.zeros((n_rows, 4), np.uint8)
    X[:, 0], X[:, 2] = rng.integers(2, size=n_rows), rng.integers(3, size=n_rows)
    numbers = rng.standard_normal((n_rows, 2)).astype(np.float32)
    numbers[rng.random((n_rows, 2)) < 0.1] = np.nan
    return X, numbers


def write(path: Path, segments: Any = None, n_rows: int = 300) -> BinaryDataset:
    X, numbers = draw(n_rows)
    with create_dataset(path, NAMES, words_per_chunk=2, feature_levels=LEVELS) as writer:
        for part in (slice(0, 130), slice(130, n_rows)):
            own = None if segments is None else segments[part]
            writer.add(ArrayBatch(X[part], numbers=numbers[part]), own)
    return open_dataset(path)


def read(dataset: BinaryDataset) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    X, observed = zip(*map(dataset.dense, range(dataset.n_chunks)), strict=True)
    return np.concatenate(X), np.concatenate(observed)


def test_numbers_come_back(tmp_path: Path) -> None:
    segments = np.array(["u", "v", "w"])[np.arange(300) % 3]
    dataset = write(tmp_path / "d", segments)
    X, numbers = draw(300)
    assert dataset.continuous_features == ("age", "income")
    assert (dataset.n_features, dataset.n_planes, dataset.manifest["format_version"]) == (4, 3, 3)
    dataset.verify()
    values, observed = read(dataset)
    np.testing.assert_array_equal(values[:, [1, 3]], numbers)
    np.testing.assert_array_equal(values[:, [0, 2]], X[:, [0, 2]])
    np.testing.assert_array_equal(observed[:, [1, 3]], ~np.isnan(numbers))
    assert observed[:, [0, 2]].all()
    np.testing.assert_array_equal(dataset.to_dask().compute(), values)
    array: Any = zarr.open_group(tmp_path / "d")["values/age"]
    assert (array.dtype, array.chunks) == (np.float32, (128,))


def test_cuts_make_planes_of_continuous_features(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", np.array(["u", "v"])[np.arange(300) % 2])
    view = dataset.view_planes(["old", "mood", "income"], LEVELS, [("age", 0.25), 1, 2])
    assert (view.n_planes, view.continuous_features) == (3, ("income",))
    X, numbers = draw(300)
    values, observed = read(view)
    assert np.isnan(numbers[:, 0]).any()
    np.testing.assert_array_equal(observed[:, 0], ~np.isnan(numbers[:, 0]))
    np.testing.assert_array_equal(values[:, 0], numbers[:, 0] >= 0.25)
    np.testing.assert_array_equal(values[:, 1], X[:, 2])
    np.testing.assert_array_equal(values[:, 2], numbers[:, 1])
    # A view of the view, and one without any continuous feature, whose values are bits.
    again = view.view_planes(["old", "poor"], {}, [0, ("income", -1.0)])
    values, observed = read(again)
    assert values.dtype == np.uint8
    np.testing.assert_array_equal(observed, ~np.isnan(numbers))
    np.testing.assert_array_equal(values, numbers >= [0.25, -1.0])
    np.testing.assert_array_equal(again.ones().sum(axis=0), values.sum(axis=0))
    assert again.digest_leading_chunks(1) != view.digest_leading_chunks(1)
    reader = again.make_reader()
    np.testing.assert_array_equal(reader(1).words, again.read_chunk(1).words)


def test_a_view_changes_signs(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", np.array(["u", "v"])[np.arange(300) % 2])
    levels = {"years": (), "income": ()}
    view = dataset.view_planes(["income", "years"], levels, [], {"years": "age"})
    numbers = draw(300)[1]
    np.testing.assert_array_equal(read(view)[0], np.column_stack([numbers[:, 1], -numbers[:, 0]]))
    cut = view.view_planes(["young"], {}, [("years", -0.25)])
    np.testing.assert_array_equal(read(cut)[0][:, 0], numbers[:, 0] <= 0.25)
    assert view.make_reader()(1).numbers is not None


def test_rows_are_appended_and_grouped(tmp_path: Path) -> None:
    X, numbers = draw(200)
    kinds = np.arange(200) % 3
    batch = ArrayBatch(X, None, {"kind": kinds}, numbers)
    with create_dataset(
        tmp_path / "d", NAMES, words_per_chunk=1, feature_levels=LEVELS, columns=["kind"]
    ) as writer:
        writer.add(batch)
    with append_dataset(tmp_path / "d", NAMES) as writer:
        writer.add(batch)
    dataset = open_dataset(tmp_path / "d")
    dataset.verify()
    expected = np.concatenate([numbers, numbers])
    for own in (dataset, dataset.segment_by("kind")):
        np.testing.assert_array_equal(read(own)[0][:, [1, 3]], expected)
    chunk = dataset.segment_by("kind").make_reader()(0)
    assert chunk.numbers is not None
    np.testing.assert_array_equal(chunk.numbers.T, expected[chunk.rows])


def test_a_dataset_may_have_no_bits(tmp_path: Path) -> None:
    numbers = draw(300)[1]
    levels: dict[str, list[str]] = {"x": [], "y": []}
    with create_dataset(tmp_path / "d", ["x", "y"], feature_levels=levels) as writer:
        writer.add(ArrayBatch(np.zeros((300, 2), np.uint8), numbers=numbers))
    with append_dataset(tmp_path / "d", ["x", "y"]) as writer:
        writer.add(ArrayBatch(np.zeros((300, 2), np.uint8), numbers=numbers))
    dataset = open_dataset(tmp_path / "d")
    dataset.verify()
    assert dataset.n_planes == 0
    np.testing.assert_array_equal(read(dataset)[0], np.concatenate([numbers, numbers]))
    assert "continuous  2: x, y" in repr(dataset)


def test_damage_and_wrong_values_are_refused(tmp_path: Path) -> None:
    X, numbers = draw(300)
    wrong = numbers.copy()
    wrong[3, 1] = np.inf
    for own in (None, wrong, numbers[:, :1]):
        with (
            pytest.raises(DataError, match="values of continuous features of shape"),
            create_dataset(tmp_path / "e", NAMES, feature_levels=LEVELS) as writer,
        ):
            writer.add(ArrayBatch(X, numbers=own))
    write(tmp_path / "d")
    names, levels = [*NAMES, "new"], {**LEVELS, "new": []}
    with (
        pytest.raises(DataError, match=r"'new' is continuous\. To add such a feature, ingest all"),
        append_dataset(tmp_path / "d", names, "missing", levels),
    ):
        pass
    other = {**LEVELS, "age": ["young", "old"]}
    with (
        pytest.raises(DataError, match="'age' has the levels young<old, but continuous values"),
        append_dataset(tmp_path / "d", NAMES, None, other),
    ):
        pass
    array: Any = zarr.open_group(tmp_path / "d")["values/income"]
    array[5] = 7.0
    with pytest.raises(DataError, match="values/income: chunk 0 is damaged"):
        open_dataset(tmp_path / "d").verify()
