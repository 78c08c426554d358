"""Many small arrays in one: they come back as they were, and are checked like others."""

from __future__ import annotations

import json

import numpy as np
import pytest

from storage.artifacts.artifacts import (
    NamedArray,
    load_packed,
    select_prefix,
    write_artifact,
    write_packed,
)
from storage.errors import DataError
from storage.stores.locations import AnyPath, parse_path

ARRAYS = {
    "bits": np.arange(7) % 2 == 0,  # so that what follows lies at an odd place
    "counts": np.arange(12, dtype=np.int64).reshape(3, 4),
    "large": np.random.default_rng(0).random((100, 200)),
    "none": np.empty((0, 3), np.float32),
    "scalar": np.array(2.5),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def test_arrays_come_back(tmp_path):
    write_packed(tmp_path / "a", ARRAYS, {"note": 1})
    found = load_packed(tmp_path / "a")
    assert found.manifest["note"] == 1
    assert found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].flags.c_contiguous
        assert np.array_equal(found.arrays[name], array)
    assert arrays_on_disk(tmp_path / "a") == {"packed", "large"}


@pytest.mark.parametrize("arrays", [{}, {"none": np.empty(0)}])
def test_nothing_comes_back(tmp_path, arrays):
    write_packed(tmp_path / "a", arrays, {})
    assert load_packed(tmp_path / "a").arrays.keys() == arrays.keys()


@pytest.mark.parametrize("size", [2, 20_000], ids=["small", "large"])
def test_what_is_not_finite_is_refused_by_name(tmp_path, size):
    values = np.append(np.ones(size), np.nan)
    with pytest.raises(DataError, match=rf"b is not finite: nan at \({size},\)"):
        write_packed(tmp_path / "a", {"a": np.ones(2), "b": values}, {})
    assert not (tmp_path / "a").exists()


def test_damage_is_seen(tmp_path):
    write_packed(tmp_path / "a", ARRAYS, {})
    (tmp_path / "a" / "packed" / "c" / "0").write_bytes(b"")
    with pytest.raises(DataError, match="packed is damaged"):
        load_packed(tmp_path / "a")


def test_an_artifact_of_another_layout_is_refused(tmp_path):
    write_artifact(tmp_path / "a", {"a": NamedArray(("x",), np.ones(3))}, {})
    with pytest.raises(DataError, match="no packed arrays"):
        load_packed(tmp_path / "a")


def test_few_objects_are_written(bucket):
    folder = parse_path(f"{bucket}/a")
    write_packed(folder, {f"a{i}": np.arange(9) for i in range(50)}, {})
    assert len(folder.list_keys()) == 4
    assert len(load_packed(folder).arrays) == 50


def test_parts_lose_their_beginning():
    assert select_prefix({"a-x": 1, "a-y": 2, "b-x": 3}, "a-") == {"x": 1, "y": 2}


def arrays_on_disk(folder: AnyPath) -> set[str]:
    return set(json.loads((folder / "manifest.json").read_text())["arrays"])
