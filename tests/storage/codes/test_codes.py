"""Codes on disk: what is read back, what is refused, and what an interrupted writer leaves."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

import storage
from storage.codes.codes import (
    CodeArraySpec,
    CodesWriter,
    UnfinishedCodes,
    create_codes,
    open_codes,
    seal_codes,
)
from storage.errors import DataError, FolderInUseError
from tests.storage.conftest import files_of

N_ROWS, ROWS_PER_CHUNK = 250, 100
ARRAYS = {
    "mean": CodeArraySpec(("component",), (2,), "float32"),
    "covariance": CodeArraySpec(("component", "component_j"), (2, 2), "float32"),
    "converged": CodeArraySpec((), (), "bool"),
    "nothing": CodeArraySpec(("component",), (0,), "float32"),
}


def values() -> dict[str, np.ndarray]:
    """The second run is zeros, which is what Zarr gives for a chunk that is missing."""
    rng = np.random.default_rng(0)
    drawn = {
        name: rng.standard_normal((N_ROWS, *shape)).astype(dtype)
        for name, (_, shape, dtype) in ARRAYS.items()
    }
    for array in drawn.values():
        array[ROWS_PER_CHUNK : 2 * ROWS_PER_CHUNK] = 0
    return drawn


def write_run(writer: CodesWriter, key: int) -> list[int]:
    rows = slice(key * ROWS_PER_CHUNK, (key + 1) * ROWS_PER_CHUNK)
    return writer(key, {name: array[rows] for name, array in values().items()})


def write_codes(folder: Path) -> Path:
    writer = create_codes(folder, ARRAYS, N_ROWS, ROWS_PER_CHUNK)
    checksums = {key: write_run(writer, key) for key in (2, 0, 1)}
    seal_codes(writer, [checksums[key] for key in range(3)], {"note": "a"})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_codes(tmp_path / "z.zarr")


def test_codes_come_back(folder):
    codes = storage.open_codes(folder)
    assert (codes.n_rows, codes.n_chunks, codes.manifest["note"]) == (N_ROWS, 3, "a")
    assert codes.dims("covariance") == ("row", "component", "component_j")
    assert list(codes) == list(ARRAYS)
    codes.verify()
    for name, expected in values().items():
        assert codes[name].dtype == expected.dtype
        np.testing.assert_array_equal(codes[name], expected)
    np.testing.assert_array_equal(codes.read_chunk(2)["mean"], values()["mean"][200:])


def test_any_zarr_client_reads_them(folder):
    group = zarr.open_group(folder, mode="r")
    np.testing.assert_array_equal(group["mean"][:], values()["mean"])
    assert group["mean"].metadata.dimension_names == ("row", "component")


def test_runs_may_be_written_in_any_order(folder, tmp_path):
    writer = create_codes(tmp_path / "other.zarr", ARRAYS, N_ROWS, ROWS_PER_CHUNK)
    seal_codes(writer, [write_run(writer, key) for key in range(3)], {"note": "a"})
    assert files_of(tmp_path / "other.zarr") == files_of(folder)


@pytest.mark.parametrize(("array", "key"), [("mean", 0), ("mean", 1), ("converged", 1)])
def test_a_missing_chunk_is_missed(folder, array, key):
    (folder / array / "c" / (f"{key}/0" if array == "mean" else f"{key}")).unlink()
    with pytest.raises(DataError, match=rf"z\.zarr: {array}: chunk {key} is .*missing"):
        open_codes(folder).verify()


def test_a_flipped_bit_is_noticed(folder):
    chunk = folder / "mean" / "c" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 4
    chunk.write_bytes(data)
    codes = open_codes(folder)
    with pytest.raises(DataError, match=r"mean: chunk 0 is damaged .* Run the command"):
        codes["mean"]
    codes.read_chunk(1)


def test_what_is_no_whole_codes_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match="there are no such codes"):
        open_codes(tmp_path / "nowhere.zarr")
    create_codes(tmp_path / "u.zarr", ARRAYS, 5, 5)
    with pytest.raises(DataError, match=r"not complete codes: .* interrupted"):
        open_codes(tmp_path / "u.zarr")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(DataError, match=r"99 is not supported\. Upgrade"):
        open_codes(folder)
    with pytest.raises(DataError, match="not 'latentbits-dataset'"):
        storage.open_dataset(folder)


def test_a_writer_knows_what_it_wrote(folder):
    writer = CodesWriter(str(folder), tuple(ARRAYS), N_ROWS, ROWS_PER_CHUNK)
    checksums = write_run(writer, 0)
    assert writer.has_range(0, checksums)
    assert not writer.has_range(0, [checksums[0] + 1, *checksums[1:]])
    (folder / "converged" / "c" / "0").unlink()
    assert not writer.has_range(0, checksums)


# --- unfinished codes ----------------------------------------------------------------------------


def interrupt(unfinished: UnfinishedCodes, lines: int) -> None:
    """Work on some runs, then fail."""
    with suppress(RuntimeError), unfinished.claim_work(resume=True):
        for k in range(lines):
            unfinished.results.record_finished([[j, j] for j in range(k + 1)])
        raise RuntimeError


def test_a_failure_before_the_first_run_leaves_nothing(tmp_path):
    interrupt(UnfinishedCodes(tmp_path / "new" / "z.zarr", "a"), 0)
    assert not list(tmp_path.iterdir())


def test_finished_runs_are_remembered_by_the_same_transform(tmp_path):
    unfinished = UnfinishedCodes(tmp_path / "z.zarr", "a")
    interrupt(unfinished, 2)
    (unfinished.folder / "finished" / "000000064.partial").write_text("[7")  # killed at work
    with unfinished.claim_work(resume=True):
        assert unfinished.results.read_finished() == [[0, 0], [1, 1]]
        for n_runs in range(3, 200):
            unfinished.results.record_finished([[k, k] for k in range(n_runs)])
            assert unfinished.results.read_finished() == [[k, k] for k in range(n_runs)]
        with pytest.raises(FolderInUseError), unfinished.claim_work(resume=True):
            pass
    for other, resume in ((UnfinishedCodes(tmp_path / "z.zarr", "b"), True), (unfinished, False)):
        interrupt(unfinished, 2)
        with other.claim_work(resume):
            assert other.results.read_finished() == []


def test_codes_appear_when_they_are_whole(tmp_path, folder):
    before = files_of(folder)
    unfinished = UnfinishedCodes(tmp_path / "z.zarr", "a")
    with unfinished.claim_work(resume=False):
        write_codes(unfinished.results.codes_folder)
        (unfinished.results.codes_folder / "mark").touch()
        with pytest.raises(DataError, match="already exists"):
            unfinished.publish(overwrite=False)
        assert files_of(folder) == before
        unfinished.publish(overwrite=True)
    assert files_of(folder) == {**before, "mark": b""}
    assert [path.name for path in tmp_path.iterdir()] == ["z.zarr"]


@pytest.mark.parametrize("content", ["file", "folder", "dataset"])
def test_nothing_else_is_replaced(tmp_path, content):
    target = tmp_path / "z.zarr"
    if content == "file":
        target.touch()
    else:
        group = {"format": "latentbits-dataset"} if content == "dataset" else {}
        zarr.create_group(target, attributes=group)
    unfinished = UnfinishedCodes(target, "a")
    with unfinished.claim_work(resume=False):
        write_codes(unfinished.results.codes_folder)
        with pytest.raises(DataError, match="is not codes, so it is not replaced"):
            unfinished.publish(overwrite=True)
    assert target.exists()


def test_codes_as_xarray_know_their_rows(tmp_path):
    arrays = {
        "mean": CodeArraySpec(("component",), (2,), "float32"),
        "row": CodeArraySpec((), (), "int64"),
    }
    writer = create_codes(tmp_path / "z.zarr", arrays, 3, 3)
    mean, row = np.arange(6, dtype="float32").reshape(3, 2), np.array([1, 4, 7])
    seal_codes(writer, [writer(0, {"mean": mean, "row": row})], {})
    labelled = open_codes(tmp_path / "z.zarr").to_xarray()
    assert labelled["mean"].sel(row=4).values.tolist() == [2.0, 3.0]
