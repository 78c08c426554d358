"""Arrays that would run code of their author are refused by name, and nothing runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from storage.artifacts.artifacts import NamedArray, load_artifact, write_artifact
from storage.codes.codes import CodeArraySpec, create_codes, open_codes, seal_codes
from storage.dataset.dataset import open_dataset
from storage.errors import DataError
from storage.format.schema import check_codecs
from storage.sources import open_source
from tests.storage.conftest import random_bits, write_dataset


class Canary:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.fixture(autouse=True)
def unpickling_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow unpickling, as libraries did for years: the test is that they are not asked to."""
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary"
    pickle.loads(pickle.dumps(Canary(path)))
    assert path.is_dir()  # it sings where it is unpickled
    path.rmdir()
    return path


def refused(act: Callable[[], Any], canary: Path) -> str:
    with pytest.raises(DataError) as caught:
        act()
    assert not canary.exists()
    (line,) = str(caught.value).splitlines()
    return line


def objects(canary: Path) -> np.ndarray:
    values = np.empty((4, 3), object)
    values[:] = Canary(canary)
    return values


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def archive(path: Path, **members: np.ndarray) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, values in members.items():
            file.writestr(f"{name}.npy", npy(values))
    return path


def read(path: Path) -> list[Any]:
    return list(open_source(str(path)).iter_batches())


def test_objects_in_npy(tmp_path: Path, canary: Path) -> None:
    (path := tmp_path / "x.npy").write_bytes(npy(objects(canary)))
    assert "the values are object" in refused(lambda: read(path), canary)
    path.write_bytes(pickle.dumps(Canary(canary)))
    assert "the file cannot be read" in refused(lambda: read(path), canary)


BITS = np.eye(4, 3, dtype=np.uint8)


@pytest.mark.parametrize("name", ["X", "cols", "seg", "format", "shape", "segnames"])
def test_objects_in_npz(tmp_path: Path, canary: Path, name: str) -> None:
    hostile = objects(canary) if name == "X" else objects(canary)[:, 0]
    packed = {"shape": np.array([4, 3]), "X": np.packbits(BITS, axis=1)}
    members: dict[str, Any] = {"X": BITS} if name in ("X", "cols") else packed
    line = refused(lambda: read(archive(tmp_path / "x.npz", **members | {name: hostile})), canary)
    assert "x.npz" in line


def pickled_zarr(path: Path, canary: Path, dtype: str) -> Path:
    """A matrix of version 2 whose chunk is a pickle."""
    values = zarr.create_array(path, shape=(4, 3), chunks=(4, 3), dtype="u1", zarr_format=2)
    described = json.loads((path / ".zarray").read_text())
    described |= {"filters": [{"id": "pickle", "protocol": 5}], "compressor": None, "dtype": dtype}
    described["fill_value"] = 0
    (path / ".zarray").write_text(json.dumps(described))
    (path / "0.0").write_bytes(pickle.dumps(Canary(canary)))
    assert values.shape == (4, 3)
    return path


@pytest.mark.parametrize("dtype", ["|u1", "|O"])
def test_zarr_of_pickles(tmp_path: Path, canary: Path, dtype: str) -> None:
    line = refused(lambda: read(pickled_zarr(tmp_path / "x.zarr", canary, dtype)), canary)
    assert "the codec 'pickle'" in line
    group = zarr.open_group(tmp_path / "group.zarr", mode="w", zarr_format=2)
    assert list(group) == []
    pickled_zarr(tmp_path / "group.zarr" / "X", canary, dtype)
    line = refused(lambda: read(tmp_path / "group.zarr"), canary)
    assert "the codec 'pickle'" in line


@pytest.mark.parametrize("version", [2, 3])
def test_codecs_that_only_compute_are_taken(tmp_path: Path, version: Any) -> None:
    filters = (
        [numcodecs.Delta(dtype="u1")] if version == 2 else [zarr.codecs.numcodecs.Delta(dtype="u1")]
    )
    shards: Any = None if version == 2 else (4, 3)
    for more in ({"filters": filters}, {"shards": shards, "chunks": (2, 3)}):
        path = tmp_path / f"x{len(list(tmp_path.iterdir()))}.zarr"
        options: dict[str, Any] = {"shape": BITS.shape, "dtype": "u1", "zarr_format": version}
        zarr.create_array(path, **options | more)[...] = BITS
        (batch,) = read(path)
        assert np.array_equal(batch.X, BITS)


def test_codecs_within_shards_are_looked_at() -> None:
    inner = {"codecs": [{"name": "numcodecs.pickle"}], "index_codecs": []}

    described = {"codecs": [{"name": "sharding_indexed", "configuration": inner}]}
    with pytest.raises(DataError, match="'pickle'"):
        check_codecs("x", described, frozenset({"sharding_indexed"}))


# Our own arrays, described anew


def redescribed(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name / "zarr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DELTA = [
    {"name": "numcodecs.delta", "configuration": {"dtype": "u1"}},
    {"name": "bytes", "configuration": {"endian": "little"}},
]
OTHERS = {
    "codec": {"codecs": DELTA},
    "unknown": {"codecs": [{"name": "numcodecs.pickle", "configuration": {"protocol": 5}}]},
    "text": {"data_type": "string", "codecs": [{"name": "vlen-utf8"}], "fill_value": ""},
    "chunks": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}},
    "huge": {"shape": [1 << 60]},
}


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, tuple[Path, str, Callable[[], Any]]]:
    """Return a dataset, an artifact and codes, an array of each, and its reader."""
    columns = {"id": np.array([f"i{k}" for k in range(100)], object)}
    dataset = write_dataset(tmp_path / "d.zarr", random_bits(100, 3), columns=columns).path
    arrays = {"mean": NamedArray(("row",), np.arange(9, dtype=np.uint8))}
    artifact = tmp_path / "a"
    write_artifact(artifact, arrays, {})
    writer = create_codes(
        codes := tmp_path / "z.zarr", {"mean": CodeArraySpec((), (), "uint8")}, 9, 9
    )
    seal_codes(writer, [writer(0, {"mean": np.arange(9, dtype=np.uint8)})], {})
    return {
        "dataset": (dataset, "bits", lambda: open_dataset(dataset).verify()),
        "table": (dataset, "chunks", lambda: open_dataset(dataset).verify()),
        "texts": (dataset, "levels/id", lambda: open_dataset(dataset).verify()),
        "artifact": (artifact, "mean", lambda: load_artifact(artifact)),
        "codes": (codes, "mean", lambda: open_codes(codes).verify()),
    }


@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("what", ["dataset", "table", "texts", "artifact", "codes"])
def test_our_arrays_described_anew(
    kept: dict[str, Any], what: str, change: str, canary: Path
) -> None:
    folder, name, act = kept[what]
    redescribed(folder, name, **OTHERS[change])
    for chunk in (path for path in (folder / name / "c").rglob("*") if path.is_file()):
        chunk.write_bytes(pickle.dumps(Canary(canary)))
    line = refused(act, canary)
    assert str(folder) in line
    if change == "codec":
        assert "'delta'" in line
