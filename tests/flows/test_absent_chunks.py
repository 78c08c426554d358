"""Chunks that a Zarr or HDF5 array does not store: read with a warning, refused, or missing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import latentbits as lb
from storage.dataset.dataset import open_dataset
from storage.errors import DataError
from storage.sources.zarr_arrays import find_absent_chunks

ROWS, COLUMNS = 230, 7
KINDS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2, "chunks": (100, 4)},
    "v2 nested": {
        "zarr_format": 2,
        "chunks": (100, 4),
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "v3": {"zarr_format": 3, "chunks": (100, 4)},
    "v3 flat": {"chunks": (100, 4), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "sharded": {"chunks": (50, 2), "shards": (100, 4)},
}
IS_WRITTEN = np.zeros((ROWS, COLUMNS), np.bool_)
IS_WRITTEN[:100, :4] = IS_WRITTEN[100:200, 4:] = IS_WRITTEN[200:, :4] = True
X = np.random.default_rng(0).integers(0, 2, (ROWS, COLUMNS), np.uint8)
X[0] = 1


def write_part(array: Any) -> Any:
    array[:100, :4], array[100:200, 4:], array[200:, :4] = X[:100, :4], X[100:200, 4:], X[200:, :4]
    return array


def make_array(store: Any, kind: str, **options: Any) -> Any:
    options = {"shape": X.shape, "dtype": "u1", "fill_value": 1, **KINDS[kind], **options}
    config = {"write_empty_chunks": True}
    return write_part(zarr.create_array(store, config=config, **options))


def read(dataset: Any) -> Any:
    """All values, 2 where missing."""
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    values, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    return np.where(observed, values, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_absent_chunks_of_a_file(cli, kind: str) -> None:
    make_array("x.zarr", kind)
    done = cli("ingest", "x.zarr", "--dataset", "d.zarr", "--json")
    assert done.code == 0, done.err
    n_absent, n_chunks = (10, 20) if kind == "sharded" else (3, 6)
    (warning,) = done.json["warnings"]
    assert warning == (
        f"x.zarr: {n_absent} of {n_chunks} chunks are absent and were read as the fill value 1; "
        "--absent-chunks missing makes these cells missing"
    )
    dataset = open_dataset("d.zarr")
    np.testing.assert_array_equal(read(dataset), np.where(IS_WRITTEN, X, 1))
    assert len(dataset.manifest["ingest"]["warnings"]) == 1
    options = ("--dataset", "d.zarr", "--overwrite", "--absent-chunks")
    message = cli("ingest", "x.zarr", *options, "refuse").check_refused()
    assert "x.zarr: the chunk of rows 1 to " in message
    assert "columns 5 to " in message
    filled = cli("ingest", "x.zarr", *options, "fill", "--json").json
    assert filled["warnings"] == []
    assert cli("ingest", "x.zarr", *options, "missing").code == 0
    dataset = open_dataset("d.zarr")
    np.testing.assert_array_equal(read(dataset), np.where(IS_WRITTEN, X, 2))
    assert cli("ingest", "x.zarr", "--dataset", "d.zarr", "--append").code == 0
    appended = read(open_dataset("d.zarr"))
    np.testing.assert_array_equal(appended[ROWS:], np.where(IS_WRITTEN, X, 2))


def test_a_single_absent_chunk_and_appended_warnings(cli) -> None:
    array = zarr.create_array("x.zarr", shape=(4, 4), chunks=(2, 2), dtype="u1")
    array[:2], array[2:, :2] = 1, 1
    for option in ("--overwrite", "--append"):
        done = cli("ingest", "x.zarr", "--dataset", "d.zarr", option, "--json")
        (warning,) = done.json["warnings"]
        assert "x.zarr: 1 of 4 chunks is absent and was read as the fill value 0" in warning
    assert len(open_dataset("d.zarr").manifest["ingest"]["warnings"]) == 2
    array[2:, 2:] = 1
    done = cli("ingest", "x.zarr", "--dataset", "d.zarr", "--overwrite", "--json")
    assert done.json["warnings"] == []
    assert "warnings" not in open_dataset("d.zarr").manifest["ingest"]


def make_hdf5(kind: str) -> Any:
    options: dict[str, Any] = {"chunks": (100, 4)} if kind == "hdf5" else {}
    file = h5py.File.in_memory()
    return write_part(file.create_dataset("X", X.shape, "u1", fillvalue=1, **options))


@pytest.mark.parametrize("kind", ["v2", "sharded", "hdf5"])
def test_absent_chunks_in_python(kind: str, tmp_path: Path) -> None:
    array = make_hdf5(kind) if kind == "hdf5" else make_array(zarr.storage.MemoryStore(), kind)
    counts = "10 of 20" if kind == "sharded" else "3 of 6"
    text = f'X: {counts} chunks are absent .* fill value 1; absent_chunks="missing" makes'
    with pytest.warns(UserWarning, match=text):
        lb.from_numpy(array)
    with pytest.warns(UserWarning, match=text):
        lb.fit(array, components=1)
    with pytest.raises(DataError, match='absent_chunks="fill" or absent_chunks="missing"'):
        lb.from_numpy(array, absent_chunks="refuse")
    with pytest.raises(DataError, match=r"absent_chunks is 'never'\. Choose one of refuse, fill"):
        lb.from_numpy(array, absent_chunks="never")  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rule, absent in (("fill", 1), ("missing", 2)):
            options: dict[str, Any] = {"absent_chunks": rule, "path": tmp_path / rule}
            dataset: Any = lb.from_numpy(array, **options)
            np.testing.assert_array_equal(read(dataset), np.where(IS_WRITTEN, X, absent))


def test_absent_chunks_of_missing_values_need_no_warning(tmp_path: Path) -> None:
    array = make_array({}, "v3", dtype="f4", fill_value=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset: Any = lb.from_numpy(array, path=tmp_path / "d.zarr")
    np.testing.assert_array_equal(read(dataset), np.where(IS_WRITTEN, X, 2))


def test_hdf5_that_was_never_written_is_absent_as_a_whole() -> None:
    file = h5py.File.in_memory()
    assert find_absent_chunks(file.create_dataset("X", X.shape, "u1")).tolist() == [[True]]
    assert find_absent_chunks(file.create_dataset("Y", data=X)).tolist() == [[False]]


def test_the_store_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    array = make_array(zarr.storage.MemoryStore(), "v3", chunks=(5, 1))
    listed: list[str] = []
    original = zarr.storage.MemoryStore.list_prefix

    def record(store: Any, prefix: str) -> Any:
        listed.append(prefix)
        return original(store, prefix)

    monkeypatch.setattr(zarr.storage.MemoryStore, "list_prefix", record)
    monkeypatch.setattr(zarr.storage.MemoryStore, "get", None)
    assert find_absent_chunks(array).sum() == 20 * 3 + 20 * 4 + 6 * 3
    assert len(listed) == 1
