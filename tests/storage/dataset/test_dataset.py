"""Reading: every value comes back, and whatever is missing, damaged or foreign is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset import dataset as dataset_module
from storage.dataset.dataset import BinaryDataset, ChunkReader, open_dataset
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.format.schema import DATASET_FORMAT, has_chunk
from storage.stores.locations import checksum
from tests.storage.conftest import (
    Array,
    Table,
    files_of,
    new_path,
    random_bits,
    tables,
    write_dataset,
)


@pytest.mark.matrix
@given(table=tables())
def test_rows_come_back_in_their_order(table: Table) -> None:
    with new_path() as path:
        dataset = table.write(path, table.cuts)
        dataset.verify()
        parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
        np.testing.assert_array_equal(np.concatenate([X for X, _ in parts]), table.X)
        np.testing.assert_array_equal(np.concatenate([mask for _, mask in parts]), table.mask)
        for name, values in table.columns.items():
            np.testing.assert_array_equal(dataset.column(name), values)
        assert dataset.n_rows == len(table.X)
        assert sorted(dataset.segment_names) == sorted(set(table.labels))
        for key in range(dataset.n_chunks):
            check_layout(dataset, key, table)


def check_layout(dataset: BinaryDataset, key: int, table: Table) -> None:
    """Check that blocks start on words, are padded with zeros, and keep the order of rows."""
    first_row, n_rows, n_words = dataset.chunks[key].tolist()
    chunk = dataset.read_chunk(key)
    assert sorted(chunk.rows) == list(range(first_row, first_row + n_rows))
    assert chunk.words.shape == (dataset.n_features, n_words)
    assert n_words <= table.words_per_chunk
    slots = np.unpackbits(chunk.words.view(np.uint8), axis=1, bitorder="little")
    padding = np.ones(64 * n_words, bool)
    done = next_word = 0
    for segment, first_word, size in chunk.blocks:
        assert first_word == next_word
        padding[64 * first_word : 64 * first_word + size] = False
        rows = chunk.rows[done : done + size]
        in_segment = table.labels[first_row : first_row + n_rows] == dataset.segment_names[segment]
        np.testing.assert_array_equal(rows, first_row + np.flatnonzero(in_segment))
        done, next_word = done + size, next_word + -(-size // 64)
    assert (done, next_word) == (n_rows, n_words)
    assert not slots[:, padding].any()
    missing = not table.mask[first_row : first_row + n_rows].all()
    assert (chunk.observed is not None) == missing


@given(table=tables())
def test_any_zarr_client_reads_it(table: Table) -> None:
    with new_path() as path:
        table.write(path)
        X, mask, segments, columns = read_with_zarr_alone(path)
    np.testing.assert_array_equal(X, table.X)
    np.testing.assert_array_equal(mask, table.mask)
    np.testing.assert_array_equal(segments, table.labels)
    for name, values in table.columns.items():
        np.testing.assert_array_equal(columns[name], values)


def read_with_zarr_alone(path: Path) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Read as any client can: with Zarr, JSON, `unpackbits` and the tables."""
    group: Any = zarr.open_group(path, mode="r")
    manifest = json.loads((path / "manifest.json").read_text())
    bits = np.unpackbits(group["bits"][:], axis=1, bitorder="little")
    mask_bits = np.ones_like(bits)
    if "observed" in group:
        mask_bits = np.unpackbits(group["observed"][:], axis=1, bitorder="little")
    order = group["order"][:] if "order" in group else np.full(bits.shape[1], -1)
    per_slot = {array.attrs["doc"]: array[:] for _, array in group["columns"].arrays()}
    chunk_slots = 8 * group["bits"].chunks[1]
    row_of_slot = np.full(bits.shape[1], -1)
    segment_of_slot = np.full(bits.shape[1], "", object)
    for chunk, segment, first_word, n_rows in group["blocks"][:]:
        slots = chunk * chunk_slots + 64 * first_word + np.arange(n_rows)
        arrival = np.where(order[slots] < 0, np.arange(n_rows), order[slots])
        row_of_slot[slots] = group["chunks"][chunk, 0] + arrival
        segment_of_slot[slots] = manifest["segment_names"][segment]
    slots = np.flatnonzero(row_of_slot >= 0)[np.argsort(row_of_slot[row_of_slot >= 0])]
    texts = {}
    if "levels" in group:
        texts = {a.attrs["doc"]: bytes(a[:]).splitlines() for _, a in group["levels"].arrays()}
    columns = {}
    for name in manifest["columns"]:
        (values,) = (a[slots] for doc, a in per_slot.items() if repr(name) in doc)
        columns[name] = values
        for lines in (lines for doc, lines in texts.items() if repr(name) in doc):
            columns[name] = np.array([json.loads(line) for line in lines])[values]
    return bits[:, slots].T, mask_bits[:, slots].T, segment_of_slot[slots], columns


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three chunks with a mask, two segments and all kinds of columns."""
    path = tmp_path_factory.mktemp("whole") / "data.zarr"
    n_rows = 300
    observed = (np.random.default_rng(1).random((n_rows, 7)) < 0.9).astype(np.uint8)
    columns = {
        "age": np.arange(n_rows) - 5,
        "weight": np.arange(n_rows) / 7,
        "split": np.array(["train", "test", "train"])[np.arange(n_rows) % 3],
    }
    segments = np.array(["a", "b"])[np.arange(n_rows) // 3 % 2]
    write_dataset(path, random_bits(n_rows, 7), observed, segments, columns, words_per_chunk=2)
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy of that dataset, to be damaged."""
    return shutil.copytree(whole, tmp_path / "data.zarr")


def test_dask_gives_what_the_chunks_give(whole: Path) -> None:
    dataset = open_dataset(whole)
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    assert dataset.n_chunks == 3
    for name, values in zip(("values", "observed"), zip(*parts, strict=True), strict=True):
        lazy, dense = dataset.to_dask(name), np.concatenate(values)
        assert (lazy.shape, lazy.dtype) == ((300, 7), np.uint8)
        np.testing.assert_array_equal(lazy.compute(), dense)
        np.testing.assert_array_equal(lazy[100:200, 3].compute(), dense[100:200, 3])


def test_a_split_marks_its_rows(whole: Path) -> None:
    dataset = open_dataset(whole)
    names = dataset.column("split")
    for key in range(dataset.n_chunks):
        chunk = dataset.read_chunk(key, split="test", columns=("age",))
        np.testing.assert_array_equal(chunk.keep, names[chunk.rows] == "test")
        np.testing.assert_array_equal(chunk.columns["age"], chunk.rows - 5)


def test_a_reader_travels_to_other_processes(whole: Path) -> None:
    dataset = open_dataset(whole)
    reader = ChunkReader(str(whole), dataset.digest, "train")
    sent = pickle.dumps(reader)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent)(1).words, dataset.read_chunk(1).words)


def test_a_reader_refuses_a_dataset_that_changed(path: Path) -> None:
    reader = ChunkReader(str(path), open_dataset(path).digest)
    write_dataset(path, random_bits(10, 7, 1), columns=ages(10), append=True)
    with pytest.raises(DataError, match="the dataset has changed since the start"):
        reader(0)


def test_a_dataset_that_is_replaced_while_it_is_opened_is_opened_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_dataset(path)

    def replace_first(folder: Path) -> zarr.Group:
        monkeypatch.undo()
        write_dataset(path, random_bits(200, 7, 1), overwrite=True)
        return dataset_module.open_group(folder)

    monkeypatch.setattr(dataset_module, "open_group", replace_first)
    after = open_dataset(path)
    assert after.n_rows == 200
    after.verify()
    with pytest.raises(DataError, match="the dataset has changed since the start"):
        before.ones()


def ages(n_rows: int) -> dict[str, Array]:
    return {
        "age": np.zeros(n_rows, int),
        "weight": np.zeros(n_rows),
        "split": np.full(n_rows, "new"),
    }


def refusal(read: Callable[[], Any]) -> str:
    """Return the one-line message of an error."""
    with pytest.raises(DataError) as caught:
        read()
    (line,) = str(caught.value).splitlines()
    return line


def test_unknown_columns_and_splits_are_refused(whole: Path, tmp_path: Path) -> None:
    dataset = open_dataset(whole)
    has = "It has: age, weight, split."
    expected = f"{whole}: there is no per-row column 'agee'. {has}"
    assert refusal(lambda: dataset.column("agee")) == expected
    expected = f"{whole}: split: there is no split 'valid'. It has: train, test."
    assert refusal(lambda: dataset.read_chunk(0, split="valid")) == expected
    bare = write_dataset(tmp_path / "bare", random_bits(10, 2))
    assert "split: there is no split" in refusal(lambda: bare.read_chunk(0, split="train"))


def manifest_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "manifest.json").read_text())


def leave_text(path: Path, text: str) -> None:
    (path / "manifest.json").write_text(text)


def cut_manifest(path: Path) -> None:
    leave_text(path, (path / "manifest.json").read_text()[:-40])


def edit_manifest(path: Path) -> None:
    leave_text(path, json.dumps({**manifest_of(path), "n_rows": 299}))


def write_newer(path: Path) -> None:
    write_manifest(path, {**manifest_of(path), "format_version": 5})


def make_artifact(path: Path) -> None:
    write_artifact(path, {"mean": NamedArray(("feature",), np.ones(3))}, {})


def make_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("0,1\n")


def make_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


NOT_OPENED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (shutil.rmtree, "there is no such dataset."),
    "empty folder": (make_folder, "this is not a dataset"),
    "a file": (make_file, "this is not a dataset"),
    "plain folder": (
        lambda path: (make_folder(path), (path / "notes.txt").touch()),
        "this is not a dataset",
    ),
    "artifact": (make_artifact, f"the format is 'latentbits-artifact', not '{DATASET_FORMAT}'."),
    "interrupted": (
        lambda path: (path / "manifest.json").unlink(),
        "this is not a complete dataset: its writing was interrupted. Run the command again.",
    ),
    "truncated manifest": (cut_manifest, "damaged: it is not JSON."),
    "empty manifest": (lambda path: leave_text(path, ""), "damaged: it is not JSON."),
    "binary manifest": (
        lambda path: (path / "manifest.json").write_bytes(b"\xff\x00" * 9),
        "damaged: it is not JSON.",
    ),
    "list for a manifest": (
        lambda path: leave_text(path, "[]"),
        "damaged: it is not a JSON object",
    ),
    "foreign manifest": (
        lambda path: leave_text(path, "{}"),
        f"the format is None, not '{DATASET_FORMAT}'.",
    ),
    "edited manifest": (edit_manifest, "damaged: its digest differs."),
    "newer": (write_newer, "format version 5 is not supported. Upgrade latentbits"),
    "no group": (lambda path: (path / "zarr.json").unlink(), "the dataset is damaged"),
    "no chunk table": (lambda path: shutil.rmtree(path / "chunks"), "the dataset is damaged"),
    "chunk table lost": (
        lambda path: shutil.rmtree(path / "chunks/c"),
        "table chunks does not match",
    ),
    "block table lost": (
        lambda path: shutil.rmtree(path / "blocks/c"),
        "the table blocks does not match",
    ),
    "checksums lost": (
        lambda path: shutil.rmtree(path / "checksums/c"),
        "the table checksums does not match the",
    ),
    "block table damaged": (
        lambda path: flip_bit(path / "blocks/c/0/0", 100),
        "the dataset is damaged",
    ),
}


def flip_bit(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.parametrize("case", NOT_OPENED)
def test_what_is_no_whole_dataset_is_not_opened(case: str, path: Path) -> None:
    spoil, message = NOT_OPENED[case]
    spoil(path)
    line = refusal(lambda: open_dataset(path))
    assert line.startswith(str(path))
    assert message in line


ARRAYS = ("bits", "observed", "order", "columns/age", "columns/split")


def chunk_file(path: Path, array: str, key: int) -> Path:
    two_dimensional = array in ("bits", "observed")
    return path / array / (f"c/0/{key}" if two_dimensional else f"c/{key}")


def swap(file: Path) -> None:
    other = file.with_name("0")
    ours, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(ours)


FAULTS: dict[str, Callable[[Path], Any]] = {
    "deleted": Path.unlink,
    "emptied": lambda file: file.write_bytes(b""),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "halved": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "one bit flipped": lambda file: flip_bit(file, 77),
    "swapped": swap,
    "a copy of the next": lambda file: file.write_bytes(file.with_name("2").read_bytes()),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.few(22)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("array", ARRAYS)
def test_a_damaged_chunk_is_never_read(array: str, fault: str, path: Path) -> None:
    dataset = open_dataset(path)
    FAULTS[fault](chunk_file(path, array, 1))
    columns = ("age", "split")
    line = refusal(lambda: dataset.read_chunk(1, columns=columns))
    assert line.startswith(f"{path}: {array}: chunk 1 is ")
    assert refusal(open_dataset(path).verify).startswith(f"{path}: {array}: chunk ")
    dataset.read_chunk(2, columns=columns)
    if not array.startswith("columns/"):
        assert line == refusal(lambda: dataset.dense(1))
        whole_name = "observed" if array == "observed" else "values"
        assert f"{array}: chunk " in refusal(dataset.to_dask(whole_name).compute)
    else:
        assert f"{array}: chunk " in refusal(lambda: dataset.column(array.removeprefix("columns/")))


@pytest.mark.parametrize("array", ["bits", "columns/zero", "columns/kind"])
def test_a_missing_chunk_of_zeros_is_missed(array: str, tmp_path: Path) -> None:
    columns = {"zero": np.zeros(200, int), "kind": np.full(200, "same")}
    dataset = write_dataset(tmp_path / "data.zarr", np.zeros((200, 3), np.uint8), columns=columns)
    dataset.verify()
    chunk_file(dataset.path, array, 2).unlink()
    line = f"{dataset.path}: {array}: chunk 2 is missing. Ingest the dataset again."
    assert refusal(lambda: dataset.read_chunk(2, columns=("zero", "kind"))) == line
    assert refusal(dataset.verify) == line


def test_a_chunk_that_cannot_be_examined_is_not_missing(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data.zarr", np.zeros((200, 3), np.uint8))
    array, file = dataset.open_array("bits"), chunk_file(dataset.path, "bits", 2)
    assert has_chunk(dataset.path, array, 0, 2)
    file.unlink()
    assert not has_chunk(dataset.path, array, 0, 2)
    file.mkdir()
    assert not has_chunk(dataset.path, array, 0, 2)
    file.rmdir()
    file.symlink_to(file)
    with pytest.raises(OSError, match="Too many levels"):
        has_chunk(dataset.path, array, 0, 2)


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text("{")])
@pytest.mark.parametrize("array", ARRAYS)
def test_an_array_without_its_description_is_not_read(
    array: str, damage: Callable[[Path], Any], path: Path
) -> None:
    dataset = open_dataset(path)
    damage(path / array / "zarr.json")
    assert f"{path}: {array}: chunk 0 is damaged" in refusal(dataset.verify)


@pytest.mark.parametrize(
    "damage",
    [
        shutil.rmtree,
        lambda ones: shutil.rmtree(ones / "c"),
        lambda ones: flip_bit(ones / "c/0/0", 99),
    ],
)
def test_verify_checks_the_table_of_ones(damage: Callable[[Path], Any], path: Path) -> None:
    damage(path / "ones")
    refusal(open_dataset(path).verify)


def test_verify_counts_the_ones_again(path: Path) -> None:
    """A writer that counts wrongly would still seal its table."""
    ones: Any = zarr.open_group(path, mode="r+")["ones"]
    ones[1, 2] += 1
    tables = {**manifest_of(path)["tables"], "ones": checksum(ones[:])}
    write_manifest(path, {**manifest_of(path), "tables": tables})
    line = f"{path}: chunk 1: the counts of ones per feature do not match the recorded "
    line += "counts. Ingest the dataset again."
    assert refusal(open_dataset(path).verify) == line


@given(data=st.data(), array=st.sampled_from(ARRAYS), key=st.integers(0, 2))
def test_any_flipped_bit_is_seen(whole: Path, data: st.DataObject, array: str, key: int) -> None:
    file = chunk_file(whole, array, key)
    original = file.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(original) - 1))
    flip_bit(file, bit)
    try:
        refusal(lambda: open_dataset(whole).read_chunk(key, columns=("age", "split")))
    finally:
        file.write_bytes(original)


def test_nothing_on_disk_is_a_pickle(whole: Path) -> None:
    for name, content in files_of(whole).items():
        if name.endswith(".json"):
            json.loads(content)
        else:
            assert content.startswith(ZSTD_MAGIC), name


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
