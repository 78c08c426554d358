"""Continuous features in memory: numbers of tables, chunks and blocks, and cuts of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import latentbits as lb
from latentbits.data import write_dataset
from pipeline.data.blocks import BinaryBlock, ChunkPart, concatenate_blocks, iter_blocks
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.features import Feature, list_features
from pipeline.data.plane_views import cut_levels, view_as_fitted
from pipeline.data.tables import BinaryTable, convert_array, convert_frame, join_tables
from pipeline.errors import FitError

NAMES = ("age", "sex", "pain", "income")
LEVELS: dict[str, tuple[str, ...]] = {"age": (), "pain": ("no", "some", "much"), "income": ()}


def draw_table(n_rows: int = 300) -> BinaryTable:
    rng = np.random.default_rng(1)
    X = np.zeros((n_rows, 4), np.uint8)
    X[:, 1], X[:, 2] = rng.integers(2, size=n_rows), rng.integers(3, size=n_rows)
    numbers = rng.standard_normal((n_rows, 2)).astype(np.float32)
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    segments = np.array(["x", "y"], object)[rng.integers(2, size=n_rows)]
    return BinaryTable(X, None, NAMES, segments, {"id": np.arange(n_rows)}, LEVELS, numbers)


def list_blocks(dataset: MemoryDataset) -> list[BinaryBlock]:
    parts = (ChunkPart(0, 2), ChunkPart(1, 2))
    return [b for chunk in dataset.chunks for part in parts for b in iter_blocks(chunk, part)]


def find_numbers(block: BinaryBlock) -> NDArray[np.float32]:
    assert block.numbers is not None
    return block.numbers.T


def test_blocks_have_the_numbers_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.data.datasets._CHUNK_BYTES", 8 * 67)  # 64 rows
    table = draw_table()
    dataset = make_memory_dataset([table])
    assert table.numbers is not None
    assert dataset.rows_per_chunk == [64, 64, 64, 64, 44]
    blocks = list_blocks(dataset)
    for block in blocks:
        np.testing.assert_array_equal(find_numbers(block), table.numbers[block.rows])
        for part in block.split_into_groups(3):
            np.testing.assert_array_equal(find_numbers(part), table.numbers[part.rows])
        taken = block.take_rows(np.arange(block.n_samples)[::-2])
        np.testing.assert_array_equal(find_numbers(taken), table.numbers[taken.rows])
    np.testing.assert_array_equal(find_numbers(concatenate_blocks(blocks)), table.numbers)
    found = join_tables([*dataset.iter_tables()])
    np.testing.assert_array_equal(found.numbers, table.numbers)
    np.testing.assert_array_equal(found.X, table.X)
    again = join_tables([*dataset.segment_by("id").iter_tables()])
    np.testing.assert_array_equal(again.numbers, table.numbers)


def test_rows_count_as_unobserved_only_without_any_number() -> None:
    X, numbers = np.zeros((3, 3), np.uint8), np.array([[1, 2], [np.nan, 1], [np.nan] * 2])
    levels: dict[str, tuple[str, ...]] = {"a": (), "b": ()}
    table = BinaryTable(X[:, :2], None, ("a", "b"), None, {}, levels, numbers.astype(np.float32))
    blocks = list_blocks(make_memory_dataset([table]))
    assert [block.count_unobserved_rows() for block in blocks] == [1]
    mixed = BinaryTable(X, None, ("a", "b", "c"), None, {}, levels, numbers.astype(np.float32))
    blocks = list_blocks(make_memory_dataset([mixed]))
    assert [block.count_unobserved_rows() for block in blocks] == [0]


def test_datasets_on_disk_and_in_memory_are_cut_alike(tmp_path: Path) -> None:
    table = draw_table()
    memory = make_memory_dataset([table])
    stored = write_dataset(memory, tmp_path / "d")
    cuts = ["age>=0.25", "pain>=much"]
    views = cut_levels(memory, cuts), cut_levels(stored, cuts)
    features = (Feature("age>=0.25"), Feature("sex"), Feature("pain>=much"), Feature("income", ()))
    assert list_features(views[0]) == list_features(views[1]) == features
    first = views[0].chunks[0]
    other = views[1].read_chunk(0)
    for name in ("words", "observed", "blocks", "rows", "numbers"):
        np.testing.assert_array_equal(getattr(first, name), getattr(other, name))
    assert table.numbers is not None
    (block, *_) = iter_blocks(first)
    np.testing.assert_array_equal(block.unpack_values()[:, 0], table.numbers[block.rows, 0] >= 0.25)
    assert list_features(view_as_fitted(memory, features[:3])) == features[:3]
    for cut, message in (("age>=x", "'x' is not a number"), ("age>=nan", "'nan' is not a number")):
        with pytest.raises(FitError, match=message):
            cut_levels(memory, [cut])


def test_arrays_and_data_frames_have_numbers(tmp_path: Path) -> None:
    X = np.array([[1, 2.5, 0], [0, np.nan, 1], [1, -1e3, 1]])
    (table,) = convert_array(X, ["a", "b", "c"], continuous=["b"])
    assert table.feature_levels == {"b": ()}
    np.testing.assert_array_equal(table.numbers, X[:, [1]].astype(np.float32))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    dataset = lb.from_dataframe(frame, continuous=["b"], path=tmp_path / "d")
    labelled = dataset.to_xarray()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(labelled["values"], X)
    again = lb.from_dataframe(labelled, continuous=["b"])
    assert (
        again.describe()["digest"]
        == lb.from_numpy(X, ["a", "b", "c"], continuous=["b"]).describe()["digest"]
    )


def test_wrong_numbers_are_refused() -> None:
    X = np.array([[1, 2.5], [0, np.inf]])
    with pytest.raises(FitError, match=r"row 2 \(counted from 1\), column 'b': the value is inf"):
        [*convert_array(X, ["a", "b"], continuous=["b"])]
    texts = pd.DataFrame({"a": [0, 1], "b": ["x", "2"]})
    with pytest.raises(FitError, match=r"column 'b': the value is 'x', not a finite number"):
        [*convert_frame(texts, None, (), continuous=["b"])]
    with pytest.raises(FitError, match="continuous has 'B', which is no feature"):
        convert_array(X, ["a", "b"], continuous=["B"])
    with pytest.raises(FitError, match="'b' is in both continuous and levels"):
        convert_array(X, ["a", "b"], continuous=["b"], levels={"b": [1, 2]})
    with pytest.raises(FitError, match=r"^continuous: The value is the text 'b'\. Pass a list"):
        convert_array(X, ["a", "b"], continuous="b")
    with pytest.raises(FitError, match="continuous cannot be combined with map"):
        convert_array(X, ["a", "b"], continuous=["b"], rule=0.5)
