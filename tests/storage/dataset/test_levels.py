"""Texts of per-row columns: arrays next to the codes, read on access, a page at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from storage.dataset import levels
from storage.dataset.batches import pack_batch
from storage.dataset.dataset import open_dataset
from storage.dataset.updates import find_rows
from storage.dataset.writer import append_dataset
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.stores.locations import checksum
from tests.storage.conftest import files_of, new_path, random_bits, write_dataset

ODD = ["", "a\nb", 'say "x"', "\\", "çalış", "\ud800", "a,b", "\u2028", " "]


def ids(first: int, last: int) -> np.ndarray:
    return np.array([f"user-{i:09d}" for i in range(first, last)], object)


def manifest_of(path: Path) -> dict:
    return json.loads((path / "manifest.json").read_text())


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "PAGE_TEXTS", 4)


def test_many_texts_stay_out_of_the_manifest(tmp_path):
    n_rows = 150_000
    X, who = random_bits(n_rows, 3), ids(0, n_rows)
    dataset = write_dataset(
        tmp_path / "d.zarr", X, columns={"id": who}, words_per_chunk=400, cuts=[70_000]
    )
    assert (dataset.path / "manifest.json").stat().st_size < 2000
    assert dataset.column("id").tolist() == who.tolist()


def test_texts_are_read_when_they_are_asked_for(tmp_path):
    columns = {"id": ids(0, 300), "age": np.arange(300)}
    path = write_dataset(tmp_path / "d.zarr", random_bits(300, 3), columns=columns).path
    shutil.rmtree(path / "levels" / "id" / "c")
    dataset = open_dataset(path)
    assert dataset.read_chunk(2, columns=("id",)).columns["id"].tolist() == list(range(128, 192))
    assert dataset.column("age").tolist() == list(range(300))
    for read in (lambda: dataset.column("id"), dataset.verify):
        with pytest.raises(DataError, match="levels/id: the texts do not match the manifest"):
            read()


@pytest.mark.usefixtures("small_pages")
def test_a_page_is_read_alone(tmp_path):
    path = write_dataset(tmp_path / "d.zarr", random_bits(64, 3), columns={"id": ids(0, 64)}).path
    dataset = open_dataset(path)
    (_, begin, _), (_, end, _) = dataset.levels["id"].pages[4:6]
    zarr.open_group(path)["levels/id"][begin : end - 2] = ord("x")
    assert dataset.decode_texts("id", np.array([3, 63])).tolist() == [
        "user-000000003",
        "user-000000063",
    ]
    with pytest.raises(DataError, match="levels/id"):
        dataset.decode_texts("id", np.array([20]))


@given(
    texts=st.lists(st.sampled_from([*"abcdefg", *ODD]), min_size=4, max_size=60),
    share=st.floats(0, 1),
    batch=st.integers(1, 9),
)
def test_texts_come_back_however_they_are_cut(texts, share, batch):
    """Also where pages repeat a text."""
    first = 2 + int(share * (len(texts) - 2))
    values, X = np.array(texts, object), random_bits(len(texts), 3)
    with new_path() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "PAGE_TEXTS", 4)
        cuts = [*range(batch, first, batch)]
        write_dataset(path, X[:first], columns={"who": values[:first]}, cuts=cuts)
        if first < len(texts):
            columns, cuts = {"who": values[first:]}, [*range(batch, len(texts) - first, batch)]
            write_dataset(path, X[first:], columns=columns, cuts=cuts, append=True)
        dataset = open_dataset(path)
        dataset.verify()
        assert dataset.column("who").tolist() == texts
        assert len(dataset.levels["who"].pages) <= 1 + len(texts) // 4


def test_a_dataset_of_an_older_version_is_refused(tmp_path):
    path = write_dataset(tmp_path / "d.zarr", random_bits(100, 3)).path
    write_manifest(path, {**manifest_of(path), "format_version": 1})
    with pytest.raises(DataError, match=r"version 1 is not supported\. Ingest the dataset again"):
        open_dataset(path)


@pytest.mark.usefixtures("small_pages")
def test_an_interrupted_append_leaves_no_texts(tmp_path):
    path = write_dataset(tmp_path / "d.zarr", random_bits(66, 3), columns={"id": ids(0, 66)}).path
    before = files_of(path)

    def interrupted() -> None:
        with append_dataset(path, ["f0", "f1", "f2"]) as writer:
            writer.add(pack_batch(random_bits(200, 3), None, {"id": ids(66, 266)}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    dataset = open_dataset(path)
    dataset.verify()
    assert dataset.column("id").tolist() == ids(0, 66).tolist()
    left = {name for name in files_of(path) if not name.startswith("levels/id/c/")}
    assert left == {name for name in before if not name.startswith("levels/id/c/")}
    write_dataset(path, random_bits(5, 3), columns={"id": ids(66, 71)}, append=True)
    assert open_dataset(path).column("id").tolist() == ids(0, 71).tolist()


@pytest.mark.usefixtures("small_pages")
def test_splits_are_few(tmp_path):
    with pytest.raises(DataError, match="Column 'split' has more than 4 different texts"):
        write_dataset(tmp_path / "d.zarr", random_bits(9, 3), columns={"split": ids(0, 9)})
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.parametrize(
    "texts", ['"a"\n"a"\n', '"a"\n\n', '"a"\n"b","c"\n', '"a"\n1\n', '"a"\n' + 9999 * "["]
)
def test_texts_of_others_are_refused_before_an_append(tmp_path, texts):
    names = np.array(["a", "b"], object)[np.arange(66) % 2]
    path = write_dataset(tmp_path / "d.zarr", random_bits(66, 3), columns={"who": names}).path
    lines = np.frombuffer(texts.encode(), np.uint8)
    array = zarr.open_group(path)["levels/who"]
    array.resize(lines.shape)
    array[:] = lines
    manifest = manifest_of(path)
    manifest["columns"]["who"]["levels"] = [[2, len(lines), checksum(lines)]]
    write_manifest(path, manifest)
    before = files_of(path)
    for act in (
        open_dataset(path).verify,
        lambda: write_dataset(
            path, random_bits(5, 3), columns={"who": names[:5]}, cuts=[], append=True
        ),
    ):
        with pytest.raises(DataError, match="levels/who: the texts do not match the manifest"):
            act()
    assert files_of(path) == before


@pytest.mark.parametrize("pages", [[], [[0, 0, 0]], [[2, 8]], [[2, 8, 0], [2, 9, 0]], [[-1, 8, 0]]])
def test_pages_of_others_are_refused(tmp_path, pages):
    names = np.array(["a", "b"], object)[np.arange(66) % 2]
    path = write_dataset(tmp_path / "d.zarr", random_bits(66, 3), columns={"who": names}).path
    manifest = manifest_of(path)
    manifest["columns"]["who"]["levels"] = pages
    write_manifest(path, manifest)
    with pytest.raises(DataError, match=r"manifest.json: columns.who.levels.* but should"):
        open_dataset(path)


@pytest.mark.parametrize("code", [-1, 2])
def test_codes_without_a_text_are_refused(tmp_path, code):
    names = np.array(["a", "b"], object)[np.arange(66) % 2]
    path = write_dataset(tmp_path / "d.zarr", random_bits(66, 3), columns={"who": names}).path
    with pytest.raises(DataError, match="levels/who: the texts do not match the manifest"):
        open_dataset(path).decode_texts("who", np.array([0, code]))


def test_readers_give_empty_texts_as_missing(tmp_path, small_pages):
    names = np.array(["a", "", "b", "c", "d", "e", "", "f"], object)
    dataset = write_dataset(
        tmp_path / "d.zarr", random_bits(8, 3), columns={"who": names}, cuts=[5]
    )
    whole, read = dataset.read_chunk(0, columns=("who",)), dataset.make_reader(columns=("who",))(0)
    assert dataset.decode_texts("who", whole.columns["who"]).tolist() == names.tolist()
    codes = read.columns["who"]
    assert codes.dtype == np.int32
    assert (codes == -1).tolist() == (names == "").tolist()
    np.testing.assert_array_equal(codes[codes >= 0], whole.columns["who"][codes >= 0])


def test_words_that_mean_missing_are_missing_among_numbers_only(tmp_path):
    ages = np.array(["21", "NA", "", "None", "2.5"], object)
    dataset = write_dataset(tmp_path / "d.zarr", random_bits(5, 3), columns={"age": ages})
    ((_, codes),) = dataset.iter_codes("age")
    assert (codes == -1).tolist() == [False, False, True, False, False]
    ((_, numbers),) = dataset.iter_numbers("age")
    np.testing.assert_array_equal(numbers, [21, np.nan, np.nan, np.nan, 2.5])
    assert dataset.decode_texts("age", codes[:2]).tolist() == ["21", "NA"]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("kind", ["int", "text", "odd text"])
def test_rows_are_found_by_name_unless_two_have_it(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(levels, "_SEARCHED_TEXTS", 3)
    names = {"int": np.arange(20), "text": ids(0, 20), "odd text": [*ODD, *ids(9, 20)]}[kind]
    values = np.array(names, np.int64 if kind == "int" else object)
    column = np.concatenate([values, values[7:8]])
    path = write_dataset(tmp_path / "d.zarr", random_bits(21, 3), columns={"id": column}).path
    dataset = open_dataset(path)

    def find(*places):
        found = values[[*places]].tolist()
        return find_rows(dataset, pa.table({"id": [-1 if kind == "int" else "new", *found]}))

    assert find(2, 19, 0).tolist() == [-1, 2, 19, 0]
    with pytest.raises(DataError, match=r"rows 8 and 21 are both named .* so new lines cannot"):
        find(2, 7)
