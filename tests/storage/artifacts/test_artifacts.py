"""Arrays and manifest come back as they were, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage.artifacts.artifacts import NamedArray, load_artifact, write_artifact
from storage.errors import DataError
from storage.format.manifests import write_manifest
from tests.storage.conftest import Array, files_of, new_path, write_dataset

NUMBERS = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
)
FINITE = {"allow_nan": False, "allow_infinity": False}
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ARRAYS = hnp.arrays(NUMBERS, SHAPES, elements=FINITE)
NAMES = st.text("abcXYZ_-0123456789", min_size=1, max_size=12)


def named(values: Array, *dims: str) -> NamedArray:
    return NamedArray(dims or tuple(f"dim{i}" for i in range(values.ndim)), values)


@settings(max_examples=60, deadline=None)
@given(arrays=st.dictionaries(NAMES, ARRAYS, max_size=3))
def test_arrays_come_back(arrays: dict[str, Array]) -> None:
    with new_path() as path:
        write_artifact(path, {name: named(values) for name, values in arrays.items()}, {})
        loaded = load_artifact(path)
        assert set(loaded) == set(arrays)
        for name, values in arrays.items():
            assert loaded[name].dtype == values.dtype.newbyteorder("<")
            assert loaded.dims(name) == tuple(f"dim{i}" for i in range(values.ndim))
            np.testing.assert_array_equal(loaded[name], values, strict=not swapped(values))


def swapped(values: Array) -> bool:
    return values.dtype != values.dtype.newbyteorder("<")


def test_an_array_of_several_chunks_comes_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("storage.artifacts.artifacts._CHUNK_BYTES", 1000)
    values = np.random.default_rng(0).standard_normal((50, 7))
    values[17:34] = 0
    path = write_artifact(tmp_path / "a", {"mean": named(values)}, {})
    assert len([name for name in files_of(path) if name.startswith("mean/c/")]) == 3
    np.testing.assert_array_equal(load_artifact(path)["mean"], values)


def test_arrays_in_any_memory_order_come_back(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(4, 6)
    arrays = {"turned": named(values.T), "strided": named(values[::2, ::-3])}
    loaded = load_artifact(write_artifact(tmp_path / "a", arrays, {}))
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array.values)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(manifest=st.dictionaries(st.text("abc_ü", min_size=1), JSON, max_size=4))
def test_the_manifest_comes_back(manifest: dict[str, Any]) -> None:
    with new_path() as path:
        write_artifact(path, {}, manifest)
        assert load_artifact(path).manifest.items() >= manifest.items()


def test_a_manifest_comes_back_as_json_holds_it(tmp_path: Path) -> None:
    """Numbers for keys sort otherwise than the text that they become."""
    manifest = {"rows": {10: "ten", 9: "nine"}, "names": ("a", "b")}
    loaded = load_artifact(write_artifact(tmp_path / "a", {}, manifest)).manifest
    assert (loaded["rows"], loaded["names"]) == ({"10": "ten", "9": "nine"}, ["a", "b"])


def test_the_manifest_of_another_artifact_can_be_passed_on(tmp_path: Path) -> None:
    first = write_artifact(tmp_path / "a", {"old": named(np.ones(3))}, {"model": "pca"})
    arrays = {"new": named(np.zeros(2))}
    loaded = load_artifact(write_artifact(tmp_path / "b", arrays, load_artifact(first).manifest))
    assert (list(loaded), loaded.manifest["model"]) == (["new"], "pca")


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        act()
    (line,) = str(caught.value).splitlines()
    return line


NOT_STORED: dict[str, tuple[Array, str]] = {
    "nan": (np.array([[0, 1], [np.nan, 3]]), "is not finite: nan at (1, 0)."),
    "infinity": (np.array([1, -np.inf], np.float32), "is not finite: -inf at (1,)."),
    "nan alone": (np.array(np.nan), "is not finite: nan at ()."),
    "text": (np.array(["a"]), "is an array of <U1, not of numbers."),
    "objects": (np.array([{}, None]), "is an array of object, not of numbers."),
    "times": (np.array(["NaT"], "M8[s]"), "is an array of datetime64[s], not of numbers."),
}


@pytest.mark.parametrize("case", NOT_STORED)
def test_only_finite_numbers_are_stored(case: str, tmp_path: Path) -> None:
    values, message = NOT_STORED[case]
    path = tmp_path / "a"
    write_artifact(path, {"mean": named(np.ones(3))}, {})
    before = files_of(path)
    arrays = {"good": named(np.ones(3)), "bad": named(values)}
    assert refusal(lambda: write_artifact(path, arrays, {})) == f"{path}: bad {message}"
    assert files_of(path) == before


def test_standard_errors_may_be_unknown(tmp_path: Path) -> None:
    errors = np.array([0.5, np.nan])
    write_artifact(tmp_path / "a", {"mean_error": named(errors)}, {})
    np.testing.assert_array_equal(load_artifact(tmp_path / "a")["mean_error"], errors)
    bad = {"mean_error": named(np.array([0.5, np.inf]))}
    assert refusal(lambda: write_artifact(tmp_path / "b", bad, {})).endswith(
        "mean_error is not finite: inf at (1,)."
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    arrays = {
        "mean": named(np.linspace(0, 1, 7), "feature"),
        "loadings": named(np.arange(14).reshape(7, 2), "feature", "component"),
        "temperature": named(np.array(0.5)),
    }
    return write_artifact(tmp_path / "artifact", arrays, {"model": "pca"})


def test_it_is_a_mapping(path: Path) -> None:
    artifact = load_artifact(path)
    assert set(artifact) == {"mean", "loadings", "temperature"}
    assert artifact.dims("loadings") == ("feature", "component")
    assert (artifact.dims("temperature"), float(artifact["temperature"])) == ((), 0.5)
    assert artifact.path == path
    with pytest.raises(KeyError):
        artifact["variance"]


CHUNKS = {"mean": "c/0", "loadings": "c/0/0", "temperature": "c"}


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "deleted": Path.unlink,
    "emptied": lambda file: file.write_bytes(b""),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "one bit flipped": flip,
    "description lost": lambda file: (next_description(file)).unlink(),
    "description damaged": lambda file: (next_description(file)).write_text("{"),
}


def next_description(file: Path) -> Path:
    return next(f / "zarr.json" for f in file.parents if (f / "zarr.json").exists())


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", CHUNKS)
def test_a_damaged_array_is_refused(name: str, damage: str, path: Path) -> None:
    DAMAGE[damage](path / name / CHUNKS[name])
    line = refusal(lambda: load_artifact(path))
    assert line.startswith(f"{path}: {name} is damaged")
    assert line.endswith("Fit again.")


def edit(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def write_newer(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    write_manifest(path, {**manifest, "format_version": 2})


def make_dataset(path: Path) -> None:
    shutil.rmtree(path)
    write_dataset(path, np.eye(4, dtype=np.uint8))


NOT_LOADED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (shutil.rmtree, "there is no such artifact."),
    "no manifest": (
        lambda path: (path / "manifest.json").unlink(),
        "this is not a complete artifact: its writing was interrupted.",
    ),
    "no group": (lambda path: (path / "zarr.json").unlink(), "is damaged"),
    "newer": (write_newer, "format version 2 is not supported. Upgrade latentbits"),
    "edited": (lambda path: edit(path, model="ica"), "damaged: its digest differs"),
    "damaged": (lambda path: (path / "manifest.json").write_text("{"), "damaged: it is not JSON"),
    "a dataset": (make_dataset, "the format is 'latentbits-dataset', not 'latentbits-artifact'."),
    "an array lost": (lambda path: shutil.rmtree(path / "mean"), "mean is damaged"),
}


@pytest.mark.parametrize("case", NOT_LOADED)
def test_what_is_no_whole_artifact_is_not_loaded(case: str, path: Path) -> None:
    spoil, message = NOT_LOADED[case]
    spoil(path)
    line = refusal(lambda: load_artifact(path))
    assert line.startswith(str(path))
    assert message in line


def test_the_latest_is_found_from_the_folder_of_runs(path: Path) -> None:
    (path.parent / "latest").write_text(f"{path.name}\n")
    assert load_artifact(path.parent).path == path
    (path.parent / "latest").write_text("gone\n")
    assert "there is no such artifact" in refusal(lambda: load_artifact(path.parent))
    (path.parent / "latest").write_bytes(b"\xff\xfe\n")
    assert "there is no such artifact" in refusal(lambda: load_artifact(path.parent))
    for elsewhere in ("", "..", "/etc", "../artifact"):
        (path.parent / "latest").write_text(elsewhere)
        assert "is not the name of an artifact in this folder" in refusal(
            lambda: load_artifact(path.parent)
        )


def test_writing_replaces_what_was_there(path: Path) -> None:
    write_artifact(path, {"bias": named(np.ones(2))}, {})
    assert list(load_artifact(path)) == ["bias"]
    assert not (path / "mean").exists()


def test_an_interrupted_write_is_no_artifact(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("storage.artifacts.artifacts.write_manifest", stop)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(path, {"mean": named(np.ones(2))}, {})
    assert "writing was interrupted" in refusal(lambda: load_artifact(path))


def test_nothing_on_disk_is_a_pickle(path: Path) -> None:
    for name, content in files_of(path).items():
        if name.endswith(".json"):
            json.loads(content)
        else:
            assert content.startswith(b"\x28\xb5\x2f\xfd"), f"{name} is no zstd frame"
