"""The values of a column as segments: the chunks are those of rows stored in these segments."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.tables import BinaryTable
from pipeline.errors import FitError
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError
from tests.storage.conftest import Table, new_path, random_bits, tables, write_dataset

KINDS = ("texts", "integers", "floats")


def draw_groups(data: st.DataObject, n_rows: int) -> tuple[np.ndarray, list[str]]:
    """A column of one kind, and the name of each row's group."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    codes = rng.integers(data.draw(st.integers(1, 70)), size=n_rows)
    kind = data.draw(st.sampled_from(KINDS))
    if kind == "texts":
        names = [f"group {code}" for code in codes]
        return np.array(names, object), names
    offset = data.draw(st.sampled_from([-3, 0, 2**53]))
    numbers = (codes + offset).astype(int if kind == "integers" else float)
    return numbers, [str(int(number)) for number in numbers]


@pytest.mark.matrix
@given(table=tables(), data=st.data())
def test_chunks_are_those_of_rows_stored_in_these_segments(table: Table, data: Any) -> None:
    values, names = draw_groups(data, len(table.X))
    columns = {**table.columns, "group": values, "split": np.array(names)}
    with new_path() as path:
        dataset = replace(table, columns=columns).write(path, table.cuts).segment_by("group")
        assert dataset.segment_names == tuple(dict.fromkeys(names))
        np.testing.assert_array_equal(dataset.segments(), names)
        for name, column in table.columns.items():
            np.testing.assert_array_equal(dataset.column(name), column)
        for key in range(dataset.n_chunks):
            check_chunk(dataset, key, replace(table, columns=columns), np.array(names))
        dataset.verify()


def check_chunk(dataset: BinaryDataset, key: int, table: Table, names: np.ndarray) -> None:
    """Compare a chunk with the only chunk of a dataset of its rows in these segments."""
    first, n_rows, n_words = dataset.chunks[key].tolist()
    if n_rows == 1:  # too few for a dataset; there is nothing to sort
        chunk, stored = dataset.read_chunk(key), dataset.with_stored_segments().read_chunk(key)
        index = dataset.segment_names.index(names[first])
        np.testing.assert_array_equal(chunk.blocks, [[index, 0, 1]])
        np.testing.assert_array_equal(chunk.rows, [first])
        np.testing.assert_array_equal(chunk.words, stored.words)
        np.testing.assert_equal(chunk.observed, stored.observed)
        return
    rows = slice(first, first + n_rows)
    columns = {name: column[rows] for name, column in table.columns.items()}
    # The first rows have one segment each, so that all segments have their indices.
    with new_path() as path:
        expected = write_dataset(
            path,
            table.X[rows],
            None if table.observed is None else table.observed[rows],
            names[rows],
            columns,
            words_per_chunk=n_rows,
        ).read_chunk(0, columns=("age", "weight"))
        stored_names = open_dataset(path).segment_names
    split = str(names[first])
    chunk = dataset.read_chunk(key, split, ("age", "weight"))
    parts = dict(zip(chunk.blocks[:, 0].tolist(), split_blocks(chunk), strict=True))
    assert n_words == chunk.words.shape[1] == expected.words.shape[1]
    for (index, *_), part in zip(expected.blocks.tolist(), split_blocks(expected), strict=True):
        own = parts[dataset.segment_names.index(stored_names[index])]
        assert own.keys() == part.keys()
        own["rows"] = own["rows"] - first
        for name, value in part.items():
            np.testing.assert_array_equal(own[name], value)
    np.testing.assert_array_equal(chunk.keep, names[chunk.rows] == split)


def split_blocks(chunk: Any) -> list[dict[str, Any]]:
    """The bits, mask, rows and columns of each block."""
    blocks, start = [], 0
    for _, first, n_rows in chunk.blocks.tolist():
        words = slice(first, first + -(-n_rows // 64))
        rows = slice(start, start + n_rows)
        masks = {} if chunk.observed is None else {"observed": chunk.observed[:, words]}
        columns = {name: values[rows] for name, values in chunk.columns.items()}
        blocks.append(
            {"words": chunk.words[:, words], **masks, "rows": chunk.rows[rows], **columns}
        )
        start += n_rows
    return blocks


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    """Several chunks of two segments, with columns that can and that cannot be groups."""
    n_rows = 300
    i = np.arange(n_rows)
    columns = {
        "site": np.array(["north", "south", "east"], object)[i % 3],
        "year": (2020 + i // 100).astype(float),
        "gap": np.where(i == 40, "", "x").astype(object),
        "hole": np.where(i == 130, np.nan, 1.0),
        "dose": np.where(i == 7, 0.5, 1.0),
        "limit": np.where(i == 9, np.inf, 1.0),
    }
    return write_dataset(
        tmp_path_factory.mktemp("groups") / "data.zarr",
        random_bits(n_rows, 7),
        None,
        np.array(["a", "b"])[i // 3 % 2],
        columns,
        words_per_chunk=2,
    )


@pytest.fixture(scope="module")
def in_memory(stored: BinaryDataset) -> MemoryDataset:
    columns = {
        name: values.astype(object) if values.dtype.kind == "U" else values
        for name, values in ((name, stored.column(name)) for name in stored.column_names)
    }
    X = np.concatenate([stored.dense(key)[0] for key in range(stored.n_chunks)])
    return make_memory_dataset([BinaryTable(X, None, stored.feature_names, None, columns)])


def test_a_dataset_in_memory_has_the_same_groups(
    stored: BinaryDataset, in_memory: MemoryDataset
) -> None:
    for name in ("site", "year"):
        by_column, grouped = stored.segment_by(name), in_memory.segment_by(name)
        assert grouped.segment_names == by_column.segment_names
        own, other = ([*d.iter_segments()] for d in (grouped, by_column))
        for k in (0, 1):
            np.testing.assert_array_equal(
                np.concatenate([part[k] for part in own]),
                np.concatenate([part[k] for part in other]),
            )
        tables = [*grouped.iter_tables()]
        np.testing.assert_array_equal(
            np.concatenate([table.X for table in tables]),
            np.concatenate([stored.dense(key)[0] for key in range(stored.n_chunks)]),
        )
        np.testing.assert_array_equal(
            np.concatenate([table.segments for table in tables]), by_column.segments()
        )


def test_other_segments_can_be_chosen_again(stored: BinaryDataset) -> None:
    again = stored.segment_by("site").segment_by("year")
    assert again.segment_names == ("2020", "2021", "2022")
    assert again.with_stored_segments().segment_names == ("a", "b")
    np.testing.assert_array_equal(again.with_stored_segments().segments(), stored.segments())
    assert "3: north (100), south (100), east (100)" in repr(stored.segment_by("site"))


def test_a_reader_travels_to_other_processes(stored: BinaryDataset) -> None:
    dataset = stored.segment_by("site")
    reader = dataset.make_reader(memory=1 << 20, columns=("year",))
    sent = pickle.dumps(reader)
    assert len(sent) < 1000
    chunk, plain = pickle.loads(sent)(1), stored.make_reader(memory=1 << 20, columns=("year",))(1)
    np.testing.assert_array_equal(chunk.words, dataset.read_chunk(1).words)
    assert [*chunk.columns] == [*plain.columns] == ["year"]
    np.testing.assert_array_equal(plain.words, stored.read_chunk(1).words)
    assert chunk.rows.tolist() != plain.rows.tolist()
    assert sorted(chunk.rows.tolist()) == sorted(plain.rows.tolist())


def test_digests_name_the_column_and_survive_an_append(tmp_path: Path) -> None:
    i = np.arange(130)
    columns = {"one": np.array(["p", "q"])[i % 2], "two": np.array(["p", "q"])[(i + i // 64) % 2]}
    write = {"columns": columns, "words_per_chunk": 2}
    dataset = write_dataset(tmp_path / "d.zarr", random_bits(130, 3), **write)
    groupings = [dataset, dataset.segment_by("one"), dataset.segment_by("two")]
    n = dataset.n_chunks
    digests = [d.digest_leading_chunks(n) for d in groupings]
    assert len({*digests}) == 3
    assert {d.digest for d in groupings} == {dataset.digest}
    late = {"one": np.full(9, "r"), "two": np.full(9, "p")}
    longer = write_dataset(tmp_path / "d.zarr", random_bits(9, 3), columns=late, append=True)
    again = [longer, longer.segment_by("one"), longer.segment_by("two")]
    assert again[1].segment_names == ("p", "q", "r")
    assert [d.digest_leading_chunks(n) for d in again] == digests


REFUSALS = {
    "gap": "ow 41 has no value in column 'gap'. Give every row a group.",
    "hole": "ow 131 has no value in column 'hole'. Give every row a group.",
    "dose": "ow 8 has 0.5 in column 'dose', which is no whole number. Choose a column of texts",
    "limit": "ow 10 has inf in column 'limit', which is no whole number.",
    "nothing": "here is no per-row column 'nothing'. It has: site, year, gap",
}


@pytest.mark.parametrize("column", REFUSALS)
def test_columns_that_cannot_be_groups_are_refused(
    stored: BinaryDataset, in_memory: MemoryDataset, column: str
) -> None:
    for dataset, kind in ((stored, DataError), (in_memory, FitError)):
        with pytest.raises(kind) as caught:
            dataset.segment_by(column)
        (line,) = str(caught.value).splitlines()
        assert REFUSALS[column] in line
        assert line.startswith(str(stored.path)) == (dataset is stored)


def test_too_many_groups_are_refused(tmp_path: Path) -> None:
    n_rows = 70_000
    columns = {
        "number": np.arange(n_rows),
        "text": np.array([f"r{i}" for i in range(n_rows)], object),
        "few": np.arange(n_rows) % 1000,
    }
    X = random_bits(n_rows, 2)
    dataset = write_dataset(tmp_path / "d.zarr", X, columns=columns, words_per_chunk=400)
    memory = make_memory_dataset([BinaryTable(X, None, dataset.feature_names, None, columns)])
    for own in (dataset, memory):
        assert len(own.segment_by("few").segment_names) == 1000
        with pytest.raises(ValueError, match=r"'number' has more than 1,000 different values"):
            own.segment_by("number")
    with pytest.raises(FitError, match=r"Column 'text' has more than 1,000 different values"):
        memory.segment_by("text")
    with pytest.raises(DataError, match=r"column 'text' has more than 65,536 different texts"):
        dataset.segment_by("text")
