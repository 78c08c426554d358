"""What is written is read back, however it was cut; what cannot be written is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from storage.errors import DataError
from storage.format.manifests import write_manifest
from tests.storage.conftest import (
    Array,
    Table,
    feature_names,
    files_of,
    new_path,
    random_bits,
    tables,
    write_dataset,
)
from tests.support.data import ArrayBatch
from tests.support.faults import limit_file_size
from tests.support.traced_memory import measure_peak_memory, start_tracing_process


@pytest.mark.matrix
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


def _write_batches(path: Path, n_batches: int) -> None:
    batch = random_bits(8192, 64, 0)
    with create_dataset(path, feature_names(64), words_per_chunk=100) as writer:
        for _ in range(n_batches):
            writer.add(ArrayBatch(batch, None, {}))


@pytest.mark.matrix
def test_memory_of_writing_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    with start_tracing_process() as process:

        def peak(n_batches: int) -> int:
            path = tmp_path / str(n_batches)
            return process.submit(measure_peak_memory, _write_batches, path, n_batches).result()[1]

        peak(2)
        few, many = peak(4), peak(24)
    assert many < 1.25 * few


Refused = tuple[str, Callable[[Path], Any]]
TWO = np.array([[0, 1], [1, 0]], np.uint8)
REFUSED: dict[str, Refused] = {
    "no rows": ("The sources contain no rows", lambda p: write_dataset(p, TWO[:0])),
    "no batch": ("The sources contain no rows", lambda p: create(p, ["a", "b"])),
    "one row": ("only one row", lambda p: write_dataset(p, TWO[:1])),
    "one feature": ("at least 2 features, but the sources have 1", lambda p: create(p, ["a"])),
    "a name twice": (
        "Several features are named 'a'",
        lambda p: create(p, ["a", "b", "a"]),
    ),
    "other width": (
        "A batch has 2 features, but earlier ones have 3",
        lambda p: create(p, ["a", "b", "c"], ArrayBatch(TWO)),
    ),
    "text after numbers": (
        "Column 'age' has integers in the first rows, but now also the text 'x'",
        lambda p: create_ages(p, np.array([1, 2]), np.array(["x", "y"])),
    ),
    "fractions after whole numbers": (
        "Column 'age' has float values, but int values in the first rows",
        lambda p: create_ages(p, np.array([1, 2]), np.array([0.5, 1])),
    ),
    "a number past int64": (
        "Column 'age' contains 9223372036854775808, but integers may be at most "
        "9223372036854775807",
        lambda p: create_ages(p, np.array([1, 2**63], np.uint64)),
    ),
}


def create(
    path: Path, names: list[str], *batches: ArrayBatch, columns: tuple[str, ...] = ()
) -> None:
    with create_dataset(path, names, columns=columns, words_per_chunk=1) as writer:
        for batch in batches:
            writer.add(batch)


def create_ages(path: Path, *ages: Array) -> None:
    create(path, ["a", "b"], *(ArrayBatch(TWO, None, {"age": a}) for a in ages), columns=("age",))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused(case: str, tmp_path: Path) -> None:
    message, write = REFUSED[case]
    with pytest.raises(DataError, match=message) as caught:
        write(tmp_path / "data.zarr")
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_empty_batches_say_nothing_about_a_column(tmp_path: Path) -> None:
    none = ArrayBatch(TWO[:0], None, {"age": np.array([])})
    rows = ArrayBatch(TWO, None, {"age": np.array(["old", "new"])})
    create(tmp_path / "data.zarr", ["a", "b"], none, rows, none, columns=("age",))
    assert open_dataset(tmp_path / "data.zarr").column("age").tolist() == ["old", "new"]


APPENDED = {
    "fewer features": ("The new rows have no feature 'f2'.* Add the column", ["f0", "f1"]),
    "more features": ("The new rows have the feature 'g'.*drop", ["f0", "f1", "f2", "g"]),
    "another feature": ("The new rows have no feature 'f1'", ["f0", "g", "f2"]),
    "another order": ("Feature 1 is 'f2', but 'f0' in .*", ["f2", "f1", "f0"]),
}


@pytest.mark.parametrize("case", APPENDED)
def test_other_features_are_not_appended(case: str, tmp_path: Path) -> None:
    message, names = APPENDED[case]
    write_dataset(tmp_path / "data.zarr", random_bits(20, 3, 0))
    before = files_of(tmp_path)
    with (
        pytest.raises(DataError, match=f"^append: {message}"),
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


WIDE = random_bits(200, 1000)
HEAD_ROWS, TAIL_ROWS = random_bits(150, 5, 1), random_bits(200, 5, 2)
TAIL_MASK = random_bits(200, 5, 3)
TAIL_SEGMENTS = np.array(["a", "b"])[np.arange(200) // 20 % 2]


def write_head(path: Path, **options: Any) -> BinaryDataset:
    """One segment and no missing value: neither `order` nor `observed` is there."""
    columns = {"age": np.arange(150)}
    return write_dataset(path, HEAD_ROWS, columns=columns, words_per_chunk=2, **options)


def append_tail(path: Path) -> BinaryDataset:
    columns = {"age": -np.arange(200)}
    return write_dataset(path, TAIL_ROWS, TAIL_MASK, TAIL_SEGMENTS, columns, append=True)


@pytest.fixture
def moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Path]]:
    """Copy a folder before each change to it, as if the process had been killed then."""

    def watch(folder: Path) -> list[Path]:
        copies: list[Path] = []

        def copy() -> None:
            if folder.exists():
                copies.append(shutil.copytree(folder, tmp_path / f"moment-{len(copies)}"))

        def watched(change: Callable[..., Any]) -> Callable[..., Any]:
            async def copy_first(*args: Any, **options: Any) -> Any:
                async with lock:
                    copy()
                    return await change(*args, **options)

            return copy_first

        lock = asyncio.Lock()
        for name in ("set", "set_if_not_exists", "delete", "delete_dir"):
            monkeypatch.setattr(LocalStore, name, watched(getattr(LocalStore, name)))
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: (copy(), fsync(file)))
        return copies

    return watch


def test_create_survives_a_kill_at_any_moment(
    tmp_path: Path, moments: Callable[[Path], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "data.zarr"
    copies = moments(target)
    write_head(target)
    monkeypatch.undo()
    assert len(copies) > 15
    for path in copies:
        with pytest.raises(DataError, match=r"interrupted|this is not a dataset"):
            open_dataset(path)
        write_head(path)
        assert files_of(path) == files_of(target)


@pytest.mark.matrix
def test_append_survives_a_kill_at_any_moment(
    tmp_path: Path, moments: Callable[[Path], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "data.zarr"
    digest = write_head(target).digest
    copies = moments(target)
    append_tail(target)
    monkeypatch.undo()
    assert len(copies) > 25
    for index, path in enumerate(copies):
        dataset = open_dataset(path)
        dataset.verify()
        assert dataset.digest == digest
        if index % 3 == 0 or index > len(copies) - 3:
            (path / "bits/c/0/2.0123abcd.partial").write_bytes(b"half of a ch")
            append_tail(path)
            assert files_of(path) == files_of(target)


def test_overwrite_survives_a_kill_at_any_moment(
    tmp_path: Path, moments: Callable[[Path], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    digest = write_dataset(place / "data.zarr", WIDE).digest
    copies = moments(place)
    write_head(place / "data.zarr", overwrite=True)
    monkeypatch.undo()
    for copy in copies[::4]:
        assert open_dataset(copy / "data.zarr").digest == digest
        (copy / ".data.zarr.lock").unlink(missing_ok=True)  # of this process, which lives
        write_head(copy / "data.zarr", overwrite=True)
        assert files_of(copy) == files_of(place)


class Stop(BaseException):
    """Ctrl-C, as the code sees it."""


@pytest.mark.parametrize("error", [OSError, Stop])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_error_while_creating_leaves_things_as_they_were(
    overwrite: bool, error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "data.zarr"
    if overwrite:
        write_head(path)
    before = files_of(tmp_path)
    options: dict[str, Any] = {"words_per_chunk": 1, "overwrite": overwrite}
    with pytest.raises(error), create_dataset(path, ["a", "b"], **options) as writer:  # noqa: PT012
        writer.add(ArrayBatch(random_bits(500, 2)))
        raise error
    after = files_of(tmp_path)
    if error is Stop:  # Zarr may still be writing, so the mark of a dataset stays
        place = ".data.zarr.replacing" if overwrite else "data.zarr"
        assert b"latentbits-dataset" in after.pop(f"{place}/zarr.json")
    assert after == before
    assert path.exists() == (overwrite or error is Stop)


@pytest.mark.parametrize("error", [OSError, Stop])
def test_an_error_while_appending_leaves_things_as_they_were(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "data.zarr"
    write_head(path)
    before = files_of(path)
    with pytest.raises(error), append_dataset(path, feature_names(5)) as writer:  # noqa: PT012
        writer.add(ArrayBatch(TAIL_ROWS, TAIL_MASK, {"age": np.arange(200)}), TAIL_SEGMENTS)
        raise error
    assert files_of(path) == before


def test_a_refused_append_leaves_things_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    write_head(path)
    before = files_of(path)
    with pytest.raises(DataError, match="The sources contain no rows"):
        write_dataset(path, TAIL_ROWS[:0], columns={"age": np.zeros(0, int)}, append=True)
    assert files_of(path) == before


LIMITS = {"group": 100, "chunk": 6000, "manifest": 9000}


def test_the_limits_stop_the_writing_where_they_say(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data.zarr", WIDE)
    sizes = {name: len(content) for name, content in files_of(tmp_path / "data.zarr").items()}
    manifest, chunk = sizes.pop("manifest.json"), sizes["bits/c/0/0"]
    assert sizes["zarr.json"] > LIMITS["group"]
    assert LIMITS["chunk"] < chunk
    assert max(sizes.values()) < LIMITS["manifest"] < manifest


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_full_disk_leaves_no_dataset(limit: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"), limit_file_size(limit):
        write_dataset(tmp_path / "data.zarr", WIDE)
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_full_disk_leaves_the_dataset_without_the_new_rows(limit: int, tmp_path: Path) -> None:
    path, whole = tmp_path / "data.zarr", tmp_path / "whole.zarr"
    digest = write_dataset(path, WIDE).digest
    before = sorted(files_of(path))
    with pytest.raises(OSError, match="File too large"), limit_file_size(limit):
        write_dataset(path, WIDE, append=True)
    assert sorted(files_of(path)) == before
    dataset = open_dataset(path)
    dataset.verify()
    assert dataset.digest == digest
    group: Any = zarr.open_group(path, mode="r")
    lengths = [group[name].shape[0] for name in ("chunks", "blocks", "ones", "checksums")]
    assert [*lengths, group["bits"].shape[1]] == [4, 4, 4, 4, 4 * 8]
    write_dataset(path, WIDE, append=True)
    write_dataset(whole, WIDE)
    write_dataset(whole, WIDE, append=True)
    assert files_of(path) == files_of(whole)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """Return a folder that this process cannot write to, even as root."""
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_that_may_not_be_written_is_an_error(read_only_folder: Path) -> None:
    with pytest.raises(PermissionError):
        write_head(read_only_folder / "data.zarr")
    assert list(read_only_folder.iterdir()) == []


def test_a_path_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_head(tmp_path / "file" / "data.zarr")
    assert files_of(tmp_path) == {"file": b""}


def fill_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")


TAKEN = {"dataset": write_head, "folder": fill_folder, "file": Path.touch}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_path_that_is_taken_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    TAKEN[kind](path)
    before = files_of(tmp_path)
    message = f"{path} already exists. Use append .* or overwrite"
    with pytest.raises(DataError, match=message):
        write_head(path)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_only_a_dataset_is_overwritten(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    TAKEN[kind](path)
    before = files_of(tmp_path)
    with pytest.raises(DataError, match="is not a dataset, so it is not replaced"):
        write_head(path, overwrite=True)
    assert files_of(tmp_path) == before


def test_overwriting_replaces_the_dataset_and_nothing_else(tmp_path: Path) -> None:
    for name in ("data.zarr.old", "data.zarr.new"):
        fill_folder(tmp_path / name)
    path = tmp_path / "data.zarr"
    write_dataset(path, WIDE, WIDE)
    write_head(path, overwrite=True)
    write_head(tmp_path / "fresh.zarr")
    assert files_of(path) == files_of(tmp_path / "fresh.zarr")
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["data.zarr", "data.zarr.new", "data.zarr.old", "fresh.zarr"]
    assert (tmp_path / "data.zarr.old/thesis.tex").exists()


def test_an_empty_folder_is_a_new_path(tmp_path: Path) -> None:
    write_head(tmp_path).verify()


def test_what_zarr_writes_after_an_interrupt_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    with pytest.raises(KeyboardInterrupt), create_dataset(path, feature_names(2)) as writer:  # noqa: PT012
        writer.add(ArrayBatch(TWO))
        raise KeyboardInterrupt
    (path / "bits/c/0").mkdir(parents=True)
    (path / "bits/c/0/0").write_bytes(b"late")
    assert write_dataset(path, TWO).n_rows == 2
    fill_folder(other := tmp_path / "other.zarr")
    with pytest.raises(DataError, match="is not a dataset, so it is not replaced"):
        write_dataset(other, TWO, overwrite=True)


def test_a_deletion_that_is_interrupted_leaves_the_format_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.zarr"

    def fail() -> None:
        with create_dataset(path, feature_names(2), words_per_chunk=1) as writer:
            writer.add(ArrayBatch(np.tile(TWO, (100, 1))))
            raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fail()
    assert {"bits", "zarr.json"} <= {entry.name for entry in path.iterdir()}
    assert write_dataset(path, TWO).n_rows == 2


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_mark_that_is_half_written_is_replaced(tmp_path: Path) -> None:
    (path := tmp_path / "data.zarr").mkdir()
    (path / f"zarr.{'0' * 32}.partial").write_text("{")
    assert write_dataset(path, TWO).n_rows == 2


TRUTH = {"truth": {"mixing": [[0.1, -1e-300], [2.0, 3.0]], "by": "ü", "none": None}}


def write_known(path: Path, attributes: dict[str, Any] | None) -> BinaryDataset:
    with create_dataset(path, feature_names(2), attributes=attributes, words_per_chunk=1) as writer:
        writer.add(ArrayBatch(TWO))
    return open_dataset(path)


def test_attributes_come_back_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    assert write_known(path, TRUTH).attributes == TRUTH
    assert write_dataset(path, TWO, append=True).attributes == TRUTH
    assert write_dataset(path, TWO, append=True).n_rows == 6


def test_attributes_say_nothing_of_the_data(tmp_path: Path) -> None:
    known, plain = (write_known(tmp_path / str(k), k) for k in (TRUTH, None))
    assert known.digest == plain.digest
    assert plain.attributes == {}


def test_changed_attributes_are_damage(tmp_path: Path) -> None:
    manifest = write_known(tmp_path, TRUTH).path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("3.0", "4.0"))
    with pytest.raises(DataError, match="damaged: its digest differs"):
        open_dataset(tmp_path)


def test_a_dataset_from_before_attributes_has_none(tmp_path: Path) -> None:
    manifest = dict(write_known(tmp_path, None).manifest)
    del manifest["attributes"]
    write_manifest(tmp_path, manifest)
    assert open_dataset(tmp_path).attributes == {}
    assert write_dataset(tmp_path, TWO, append=True).attributes == {}


@pytest.mark.parametrize("value", [np.ones(2), float("nan"), float("inf"), {1, 2}], ids=str)
def test_attributes_that_json_cannot_keep_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Attributes must be JSON values"):
        write_known(tmp_path / "data.zarr", {"truth": value})
    assert list(tmp_path.iterdir()) == []


def test_two_writers_do_not_share_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "d.zarr"
    write_dataset(path, random_bits(10, 3))
    with append_dataset(path, feature_names(3)) as writer:
        writer.add(ArrayBatch(random_bits(5, 3)))
        with (
            pytest.raises(DataError, match="another process is writing"),
            append_dataset(path, feature_names(3)),
        ):
            pass
    assert open_dataset(path).n_rows == 15
    new = path.with_name("new.zarr")
    with create_dataset(new, feature_names(3)) as writer:
        with (
            pytest.raises(DataError, match="another process is writing"),
            create_dataset(new, feature_names(3)),
        ):
            pass
        writer.add(ArrayBatch(random_bits(5, 3)))
    assert open_dataset(new).n_rows == 5


@pytest.mark.parametrize(("share", "is_raw"), [(0.4, True), (0.05, False)])
def test_chunks_that_hardly_compress_are_stored_as_they_are(tmp_path, share, is_raw):
    rng = np.random.default_rng(0)
    X = (rng.random((1 << 14, 64)) < share).astype(np.uint8)
    path, names = tmp_path / "d.zarr", [f"f{i}" for i in range(64)]
    for opened in (create_dataset(path, names, words_per_chunk=128), append_dataset(path, names)):
        with opened as writer:
            writer.add(ArrayBatch(X))
    dataset, n_bytes = open_dataset(path), 64 * 128 * 8
    sizes = [(path / "bits" / "c" / "0" / str(k)).stat().st_size for k in range(4)]
    assert [size > n_bytes for size in sizes] == [is_raw] * 4
    dataset.verify()
    array = zarr.open_group(path)["bits"]
    assert type(array.metadata.codecs[1]) is ZstdCodec  # any reader's
    bits = np.unpackbits(np.asarray(array[:]), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits.T, np.tile(X, (2, 1)))
