"""What is written is what comes back, however it was cut; what cannot be written is refused."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.dataset import BinaryDataset, open_dataset
from storage.errors import DataError
from storage.writer import append_dataset, create_dataset
from tests.data import Batch
from tests.storage.conftest import Array, feature_names, files_of, write_dataset


@settings(max_examples=40, deadline=None)
@given(table=tables())
def test_batches_leave_no_trace(table: Table) -> None:
    with new_path() as whole, new_path() as cut:
        assert table.write(whole).digest == table.write(cut, table.cuts).digest
        assert files_of(whole) == files_of(cut)


def test_batches_of_one_row_leave_no_trace(tmp_path: Path) -> None:
    X, observed = random_bits(150, 9, 0), np.ones((150, 9), np.uint8)
    observed[70] = 0
    one = write_dataset(tmp_path / "one", X, observed, cuts=range(1, 150))
    assert one.digest == write_dataset(tmp_path / "all", X, observed).digest


def test_a_value_under_a_missing_one_is_not_stored(tmp_path: Path) -> None:
    X, observed = random_bits(100, 5, 0), random_bits(100, 5, 1)
    dataset = write_dataset(tmp_path / "as-is", X, observed, words_per_chunk=2)
    np.testing.assert_array_equal(dataset.dense(0)[0], X & observed)
    assert (
        dataset.digest
        == write_dataset(tmp_path / "0", X & observed, observed, words_per_chunk=2).digest
    )


def test_the_mask_is_stored_only_for_chunks_that_need_it(tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    X, observed = random_bits(256, 5, 0), np.ones((256, 5), np.uint8)
    write_dataset(path, X[:128])
    assert not (path / "observed").exists()
    observed[200, 3] = 0
    dataset = write_dataset(path, X[128:], observed[128:], append=True)
    stored = [file.name for file in (path / "observed/c/0").iterdir()]
    assert stored == ["3"]
    parts = [dataset.dense(key)[1] for key in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), observed)
    assert [dataset.read_chunk(key).observed is None for key in range(4)] == [True] * 3 + [False]
    group: Any = zarr.open_group(path, mode="r")
    assert group["observed"].shape == group["bits"].shape


def test_all_missing_rows_are_kept(tmp_path: Path) -> None:
    observed = np.zeros((70, 3), np.uint8)
    dataset = write_dataset(tmp_path / "data.zarr", observed, observed)
    np.testing.assert_array_equal(dataset.dense(0)[1], observed[:64])


def test_memory_of_writing_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    batch = random_bits(8192, 64, 0)

    def peak(n_batches: int) -> int:
        tracemalloc.start()
        with create_dataset(tmp_path / str(n_batches), feature_names(64), words_per_chunk=100) as w:
            for _ in range(n_batches):
                w.add(Batch(batch, None, {}))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(2)
    few, many = peak(4), peak(24)
    assert many < 1.25 * few


Refused = tuple[str, Callable[[Path], Any]]
TWO = np.array([[0, 1], [1, 0]], np.uint8)
REFUSED: dict[str, Refused] = {
    "no rows": ("at least one row, got none", lambda p: write_dataset(p, TWO[:0])),
    "no batch": ("at least one row, got none", lambda p: create(p, ["a", "b"])),
    "one row": ("'all': Expected at least 2 rows .*, got 1", lambda p: write_dataset(p, TWO[:1])),
    "one row in a segment": (
        "segment 'lone': Expected at least 2 rows in every segment, got 1",
        lambda p: write_dataset(p, TWO[[0, 1, 0]], segments=np.array(["b", "b", "lone"])),
    ),
    "one feature": ("at least 2 features, got 1", lambda p: create(p, ["a"])),
    "a name twice": (
        "different feature names, got 'a' twice",
        lambda p: create(p, ["a", "b", "a"]),
    ),
    "other width": (
        "Expected 3 features in every batch, got 2",
        lambda p: create(p, ["a", "b", "c"], Batch(TWO)),
    ),
    "text after numbers": (
        "column 'age': Expected int values as in the first rows, got category",
        lambda p: create_ages(p, np.array([1, 2]), np.array(["x", "y"])),
    ),
    "fractions after whole numbers": (
        "column 'age': Expected int values as in the first rows, got float",
        lambda p: create_ages(p, np.array([1, 2]), np.array([0.5, 1])),
    ),
    "a number past int64": (
        "column 'age': Expected whole numbers up to 9223372036854775807, got 9223372036854775808",
        lambda p: create_ages(p, np.array([1, 2**63], np.uint64)),
    ),
}


def create(path: Path, names: list[str], *batches: Batch, columns: tuple[str, ...] = ()) -> None:
    with create_dataset(path, names, columns=columns, words_per_chunk=1) as writer:
        for batch in batches:
            writer.add(batch)


def create_ages(path: Path, *ages: Array) -> None:
    create(path, ["a", "b"], *(Batch(TWO, None, {"age": a}) for a in ages), columns=("age",))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused(case: str, tmp_path: Path) -> None:
    message, write = REFUSED[case]
    with pytest.raises(DataError, match=message) as caught:
        write(tmp_path / "data.zarr")
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_empty_batches_say_nothing_about_a_column(tmp_path: Path) -> None:
    none = Batch(TWO[:0], None, {"age": np.array([])})
    rows = Batch(TWO, None, {"age": np.array(["old", "new"])})
    create(tmp_path / "data.zarr", ["a", "b"], none, rows, none, columns=("age",))
    assert open_dataset(tmp_path / "data.zarr").column("age").tolist() == ["old", "new"]


APPENDED = {
    "fewer features": ("the 3 features of .*, got 2", ["f0", "f1"]),
    "more features": ("the 3 features of .*, got 4", ["f0", "f1", "f2", "f3"]),
    "another feature": ("feature 'f1' of .* at position 2, got 'g'", ["f0", "g", "f2"]),
    "another order": ("feature 'f0' of .* at position 1, got 'f2'", ["f2", "f1", "f0"]),
}


@pytest.mark.parametrize("case", APPENDED)
def test_other_features_are_not_appended(case: str, tmp_path: Path) -> None:
    message, names = APPENDED[case]
    write_dataset(tmp_path / "data.zarr", random_bits(20, 3, 0))
    before = files_of(tmp_path)
    with (
        pytest.raises(DataError, match=f"--append: Expected {message}"),
        append_dataset(tmp_path / "data.zarr", names),
    ):
        pass
    assert files_of(tmp_path) == before


def test_appended_segments_join_those_there(tmp_path: Path) -> None:
    path, X = tmp_path / "data.zarr", random_bits(30, 4, 0)
    write_dataset(path, X[:20], segments=np.array(["b", "a"]).repeat(10), words_per_chunk=2)
    later = np.array(["a", "c", "c", "b", "a", "c", "a", "a", "a", "a"])
    dataset = write_dataset(path, X[20:], segments=later, words_per_chunk=2, append=True)
    assert dataset.segment_names == ("b", "a", "c")
    rows = np.bincount(dataset.blocks[:, 1], dataset.blocks[:, 3])
    assert rows.tolist() == [11, 16, 3]


def is_old(dataset: Path, X: np.ndarray) -> bool:
    opened = open_dataset(dataset)
    opened.verify()
    return np.array_equal(np.concatenate([opened.dense(k)[0] for k in range(opened.n_chunks)]), X)
