"""Arrays and manifest come back as they were, or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage.artifacts.artifacts import (
    NamedArray,
    RunFolder,
    load_artifact,
    load_packed,
    select_prefix,
    write_artifact,
    write_packed,
)
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.stores.locations import AnyPath, parse_path
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
    for name in ("mean_error", "s_x2_p"):
        write_artifact(tmp_path / "a", {name: named(errors)}, {})
        np.testing.assert_array_equal(load_artifact(tmp_path / "a")[name], errors)
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


PACKED_ARRAYS = {
    "bits": np.arange(7) % 2 == 0,  # so that what follows lies at an odd place
    "counts": np.arange(12, dtype=np.int64).reshape(3, 4),
    "large": np.random.default_rng(0).random((100, 200)),
    "none": np.empty((0, 3), np.float32),
    "scalar": np.array(2.5),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def test_packed_arrays_come_back(tmp_path):
    write_packed(tmp_path / "a", PACKED_ARRAYS, {"note": 1})
    found = load_packed(tmp_path / "a")
    assert found.manifest["note"] == 1
    assert found.arrays.keys() == PACKED_ARRAYS.keys()
    for name, array in PACKED_ARRAYS.items():
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
    write_packed(tmp_path / "a", PACKED_ARRAYS, {})
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


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs", "clipped_pca", "1" * 64)


def test_work_of_another_fit_lies_elsewhere(run: RunFolder) -> None:
    other = RunFolder(run.output, run.model, "2" * 64)
    same = RunFolder(run.output, run.model, "1" * 64)
    assert run.work_folder == same.work_folder != other.work_folder
    assert run.work_folder.is_relative_to(run.output)


@pytest.mark.parametrize("resume", [True, False])
def test_work_is_kept_for_who_resumes(resume: bool, run: RunFolder) -> None:
    with run.claim_work(resume):
        (run.work_folder / "state").write_text("pass 3")
    with run.claim_work(resume):
        assert (run.work_folder / "state").exists() == resume


def test_the_same_fit_does_not_run_twice_at_once(run: RunFolder) -> None:
    with run.claim_work(resume=False):
        (run.work_folder / "state").write_text("pass 3")
        with (
            pytest.raises(DataError, match="another process is writing"),
            run.claim_work(resume=False),
        ):
            pass
        assert (run.work_folder / "state").exists()
    with run.claim_work(resume=False):
        assert not (run.work_folder / "state").exists()


def test_work_on_a_dataset_that_changed_since_is_deleted(run: RunFolder) -> None:
    def leave_work(dataset: str, digest: str) -> Path:
        fingerprint = sha256(f"{dataset} {digest}".encode()).hexdigest()
        left = RunFolder(run.output, run.model, fingerprint, dataset, digest)
        with left.claim_work(resume=False):
            (left.work_folder / "state").write_text("pass 3")
        return left.work_folder

    folder = run.work_folder.parent
    old, other = leave_work("d.zarr", "old"), leave_work("e.zarr", "old")
    with run.claim_work(resume=False):
        lease = (folder / f".{run.work_folder.name}.lock").read_text()
    killed = folder / ".clipped_pca-0.lock"  # after its work folder was deleted
    killed.write_text(lease.replace('"pid": ', '"pid": 99999'))
    assert old.is_dir()
    with RunFolder(run.output, run.model, "3" * 64, "d.zarr", "older").claim_work(resume=False):
        assert not old.exists()
        old = leave_work("d.zarr", "old")
        with RunFolder(run.output, run.model, "4" * 64, "d.zarr", "new").claim_work(resume=False):
            assert {*folder.iterdir()} >= {other}
            assert not old.exists()
            assert (folder / f"{run.model}-{'3' * 12}").is_dir()  # it is being worked on
    assert {*folder.iterdir()} == {other}


def test_a_fit_that_never_began_leaves_nothing(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.claim_work(resume=False):
        raise ZeroDivisionError
    assert not run.output.exists()


def test_a_finished_fit_leaves_no_work(run: RunFolder) -> None:
    other = RunFolder(run.output, "bmm", run.fingerprint)
    with run.claim_work(resume=False), other.claim_work(resume=False):
        (other.work_folder / "state").write_text("pass 3")
        run.delete_work()
    assert not run.work_folder.exists()
    assert other.work_folder.is_dir()
    with other.claim_work(resume=True):
        other.delete_work()
    assert list(run.output.iterdir()) == []
    other.delete_work()


def test_artifacts_are_named_after_model_and_time(run: RunFolder) -> None:
    assert re.fullmatch(r"clipped_pca-\d{8}T\d{12}", run.make_artifact_path().name)
    assert run.make_artifact_path().parent == run.output


def test_the_latest_is_the_one_pointed_to(run: RunFolder) -> None:
    for value in (1.0, 2.0):
        path = run.output / f"clipped_pca-{value:.0f}"
        write_artifact(path, {"mean": NamedArray((), np.array(value))}, {})
        run.set_latest(path)
        assert load_artifact(run.output)["mean"] == value
    assert (run.output / "latest").read_text() == "clipped_pca-2\n"
    assert sorted(path.name for path in run.output.iterdir()) == [
        "clipped_pca-1",
        "clipped_pca-2",
        "latest",
    ]


def test_runs_can_be_moved(run: RunFolder) -> None:
    path = run.output / "clipped_pca-1"
    write_artifact(path, {"mean": NamedArray((), np.array(3.0))}, {})
    run.set_latest(path)
    moved = run.output.rename(run.output.with_name("elsewhere"))
    assert load_artifact(moved)["mean"] == 3.0


def test_the_latest_stays_when_the_next_cannot_be_named(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.output.mkdir()
    run.set_latest(run.output / "clipped_pca-1")

    def refuse(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        run.set_latest(run.output / "clipped_pca-2")
    assert files_of(run.output) == {"latest": b"clipped_pca-1\n"}


SETTINGS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4)
