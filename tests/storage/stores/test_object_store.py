"""Datasets, artifacts, codes and runs in an object store: the same objects as files on disk."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.data.datasets import make_row_source
from pipeline.executors.base import SerialExecutor
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.counts import FeatureCounts
from storage import load_artifact, open_codes, open_dataset
from storage.artifacts.artifacts import NamedArray, RunFolder, write_artifact
from storage.codes.codes import CodeArraySpec, UnfinishedCodes, create_codes, seal_codes
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import BinaryDataset, ChunkReader
from storage.dataset.writer import _choose_chunk_words, append_dataset, create_dataset
from storage.errors import DataError, FolderInUseError, StoreUnreachableError
from storage.format.schema import has_chunk
from storage.sources import ReadOptions, expand_sources, open_source
from storage.stores.locations import AnyPath, parse_path
from storage.stores.object_path import ObjectPath
from tests.storage.conftest import (
    Table,
    feature_names,
    files_of,
    new_path,
    random_bits,
    tables,
    write_dataset,
)
from tests.support.data import ArrayBatch
from tests.support.object_proxy import (
    AFTER,
    BEFORE,
    BROKEN,
    DENIED,
    THROTTLED,
    ProxyRequest,
    fail_every,
    fail_writes,
)

CODES = {
    "mean": CodeArraySpec(("component",), (3,), "float32"),
    "row": CodeArraySpec((), (), "int64"),
}


def objects_of(folder: ObjectPath) -> dict[str, bytes]:
    """Every object below a folder: its relative key and its bytes."""
    names = [key.removeprefix(f"{folder.key}/") for key in folder.list_keys()]
    return {name: (folder / name).read_bytes() for name in names}


def write_labelled(path: AnyPath, n_rows: int = 300, overwrite: bool = False) -> BinaryDataset:
    """Two segments, two columns; four chunks of two words, or one of a hundred rows."""
    labels = np.where(np.arange(n_rows) % 3 == 0, "a", "b")
    columns = {"split": labels, "a/b çalış": np.arange(n_rows)}
    X = random_bits(n_rows, 5)
    return write_dataset(
        path, X, segments=labels, columns=columns, words_per_chunk=2, overwrite=overwrite
    )


# Datasets


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables())
def test_a_dataset_has_the_same_objects_as_files(bucket: str, table: Table):
    folder = parse_path(f"{bucket}/d.zarr")
    folder.delete_tree()
    with new_path() as path:
        expected, got = table.write(path, table.cuts), table.write(folder, table.cuts)
        assert objects_of(folder) == files_of(path)
    assert got.digest == expected.digest
    got.verify()
    assert [place.name for place in folder.parent.iterdir()] == ["d.zarr"]


def test_any_process_reads_chunks(bucket):
    dataset = write_labelled(parse_path(f"{bucket}/d.zarr"))
    read = ChunkReader(str(dataset.path), dataset.digest, "a", ("a/b çalış",))
    chunk = read(1)
    assert np.array_equal(chunk.columns["a/b çalış"], chunk.rows)
    assert np.array_equal(dataset.to_dask().compute(), random_bits(300, 5))


def count_ones(dataset: BinaryDataset) -> list[int]:
    rows, one_at_a_time = make_row_source(dataset), SerialExecutor()
    clear_chunk_cache()
    counts = collect_statistics(FeatureCounts.from_block, rows, one_at_a_time, "ones")
    return counts.ones[0].tolist()


def test_a_pass_has_thirteen_chunks_in_flight(faulty_bucket, faulty):
    X = random_bits(64 * 32, 5)
    dataset = write_dataset(parse_path(f"{faulty_bucket}/d.zarr"), X, words_per_chunk=2)
    in_flight, keys = Barrier(13), []

    def fault(request: ProxyRequest) -> None:
        if "/bits/c/" in request.path:
            keys.append(request.path)
            if len(keys) <= 13:
                in_flight.wait(timeout=60)

    faulty.fault = fault
    assert count_ones(dataset) == X.sum(axis=0).tolist()
    assert len(keys) == len(set(keys)) == dataset.n_chunks == 16


def test_a_pass_goes_on_while_the_store_throttles(faulty_bucket, faulty):
    X = random_bits(64 * 24, 5)
    dataset = write_dataset(parse_path(f"{faulty_bucket}/d.zarr"), X, words_per_chunk=2)
    faulty.fault = fail_every(2, THROTTLED)
    assert count_ones(dataset) == X.sum(axis=0).tolist()


def test_overwriting_replaces_the_dataset_once_the_new_is_whole(bucket):
    folder = parse_path(f"{bucket}/d.zarr")
    first, second = random_bits(200, 4, 1), random_bits(400, 4, 2)
    write_dataset(folder, first)
    with pytest.raises(DataError, match="already exists"):
        write_dataset(folder, second)
    with pytest.raises(KeyError), _replacing(folder) as writer:  # noqa: PT012
        writer.add(ArrayBatch(second))
        raise KeyError
    assert np.array_equal(open_dataset(folder).to_dask().compute(), first)
    replaced = write_dataset(folder, second, overwrite=True)
    assert np.array_equal(replaced.to_dask().compute(), second)
    assert [place.name for place in folder.parent.iterdir()] == ["d.zarr"]


def test_the_remains_of_an_interrupted_writer_are_replaced(bucket, monkeypatch):
    folder, X = parse_path(f"{bucket}/d.zarr"), random_bits(200, 4)
    with pytest.raises(KeyboardInterrupt), _replacing(folder) as writer:  # noqa: PT012
        writer.add(ArrayBatch(X))
        raise KeyboardInterrupt
    (folder / "bits/c/0/0").write_bytes(b"late")
    write_dataset(folder, X)

    for function, n_calls in (("obstore.delete", 1), ("obstore.copy", 2)):
        with monkeypatch.context() as patch:
            interrupt_call(patch, function, n_calls)
            with pytest.raises(KeyboardInterrupt):
                write_dataset(folder, X, overwrite=True)
        # The lease, whose deletion may have been interrupted, is of this process.
        (folder.parent / ".d.zarr.lock").unlink()
        assert write_dataset(folder, X).n_rows == 200


def interrupt_call(patch: pytest.MonkeyPatch, name: str, n_calls: int):
    """Let a function of obstore work that often, and then interrupt."""
    import obstore

    function, calls = getattr(obstore, name.partition(".")[2]), []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) > n_calls:
            raise KeyboardInterrupt
        return function(*arguments)

    patch.setattr(name, call)


def _replacing(folder: AnyPath):
    return create_dataset(folder, feature_names(4), words_per_chunk=1, overwrite=True)


def test_something_else_is_not_overwritten(bucket):
    folder = parse_path(f"{bucket}/d.zarr")
    (folder / "notes.txt").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(DataError):
            write_dataset(folder, random_bits(64, 4), overwrite=overwrite)
    assert objects_of(folder) == {"notes.txt": b"mine"}
    with pytest.raises(DataError):
        write_dataset(folder / "notes.txt", random_bits(64, 4), overwrite=True)
    assert objects_of(folder) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("append", [False, True])
def test_an_error_while_writing_leaves_nothing_new(bucket, append):
    folder = parse_path(f"{bucket}/d.zarr")
    if append:
        write_dataset(folder, random_bits(100, 4))
    before = objects_of(folder)
    opened = append_dataset(folder, feature_names(4)) if append else _replacing(folder)
    with pytest.raises(KeyError), opened as writer:  # noqa: PT012
        writer.add(ArrayBatch(random_bits(500, 4)))
        raise KeyError
    after = objects_of(folder)
    assert after.keys() == before.keys()
    if append:
        assert np.array_equal(open_dataset(folder).to_dask().compute(), random_bits(100, 4))
        open_dataset(folder).verify()


KILLED = """
import os, signal, sys
from storage.stores.locations import parse_path
from storage.dataset.writer import append_dataset, create_dataset
from tests.support.data import ArrayBatch
from tests.storage.conftest import feature_names, random_bits
url, append = sys.argv[1], len(sys.argv) > 2
names = feature_names(4)
opened = append_dataset(url, names) if append else create_dataset(url, names, words_per_chunk=1)
with opened as writer:
    writer.add(ArrayBatch(random_bits(500, 4)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("append", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_a_killed_writer_is_followed_at_once(bucket, append):
    folder, X = parse_path(f"{bucket}/d.zarr"), random_bits(100, 4)
    if append:
        write_dataset(folder, X)
    arguments = [sys.executable, "-c", KILLED, str(folder), *(["append"] if append else [])]
    assert subprocess.run(arguments).returncode == -signal.SIGKILL
    assert any(key.rpartition("/")[2] == "5" for key in folder.list_keys())  # a chunk that it wrote
    assert folder.with_name(".d.zarr.lock").is_file()
    if append:
        assert np.array_equal(open_dataset(folder).to_dask().compute(), X)
    else:
        with pytest.raises(DataError, match="interrupted"):
            open_dataset(folder)
    found = write_dataset(folder, X, append=append)
    expected = np.concatenate([X, X]) if append else X
    assert np.array_equal(found.to_dask().compute(), expected)
    found.verify()
    assert not any(key.rpartition("/")[2] == "5" for key in folder.list_keys())


def test_a_second_writer_is_refused(bucket):
    folder = parse_path(f"{bucket}/d.zarr")
    with _replacing(folder) as writer:
        writer.add(ArrayBatch(random_bits(100, 4)))
        with pytest.raises(FolderInUseError):
            write_dataset(folder, random_bits(100, 4))
    open_dataset(folder).verify()


DAMAGES = [
    *(("bits/c/0/1", damage) for damage in ("missing", "cut", "flipped", "empty")),
    ("order/c/1", "missing"),
    ("chunks/c/0/0", "flipped"),
    ("bits/zarr.json", "missing"),
]


def test_damage_is_seen(bucket):
    folder = parse_path(f"{bucket}/d.zarr")
    write_labelled(folder)
    for name, damage in DAMAGES:
        whole = (folder / name).read_bytes()
        _damage(folder / name, damage)
        with pytest.raises(DataError) as told:
            open_dataset(folder).verify()
        assert str(folder) in str(told.value), (name, damage)
        (folder / name).write_bytes(whole)
    open_dataset(folder).verify()


def _damage(path: AnyPath, damage: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 4])
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(content[:middle] + flipped + content[middle + 1 :])
    else:
        path.write_bytes(content[: middle if damage == "cut" else 0])


def test_a_missing_chunk_of_zeros_is_seen(bucket):
    folder = parse_path(f"{bucket}/d.zarr")
    write_dataset(folder, np.zeros((200, 4), np.uint8))
    open_dataset(folder).verify()
    (folder / "bits/c/0/1").unlink()
    with pytest.raises(DataError, match="chunk 1 is missing"):
        open_dataset(folder).verify()


def test_a_chunk_whose_request_is_refused_is_not_missing(faulty_bucket, faulty):
    folder = parse_path(f"{faulty_bucket}/d.zarr")
    write_dataset(folder, np.zeros((200, 4), np.uint8))
    array = open_dataset(folder).open_array("bits")
    assert has_chunk(folder, array, 0, 1)
    assert not has_chunk(folder, array, 0, 9)
    faulty.fault = lambda request: DENIED if request.method == "HEAD" else None
    with pytest.raises(StoreUnreachableError, match="refused access"):
        has_chunk(folder, array, 0, 1)
    open_dataset(folder).verify()
    faulty.fault = lambda request: DENIED if "/bits/c/" in request.path else None
    with pytest.raises(StoreUnreachableError, match="refused access"):
        open_dataset(folder).verify()


@pytest.mark.matrix
def test_failing_requests_change_nothing(faulty_bucket, faulty, tmp_path):
    expected = write_labelled(tmp_path / "d.zarr")
    faulty.fault = fail_every(4, THROTTLED, BEFORE, BROKEN, AFTER)
    folder = parse_path(f"{faulty_bucket}/d.zarr")
    write_labelled(folder, 100)
    write_labelled(folder, overwrite=True).verify()
    faulty.fault = lambda request: None
    assert objects_of(folder) == files_of(expected.path)
    assert [place.name for place in folder.parent.iterdir()] == ["d.zarr"]


def test_what_may_not_be_written_is_told(faulty_bucket, faulty, tmp_path):
    folder = parse_path(f"{faulty_bucket}/d.zarr")
    arrays = {"a": NamedArray(("x",), np.ones(3))}
    refused = {
        "claim": lambda: write_dataset(folder, random_bits(100, 4)),
        "artifact": lambda: write_artifact(folder, arrays, {}),
        "codes": lambda: create_codes(folder, CODES, 10, 10),
    }
    faulty.fault = fail_writes(DENIED)
    for name, write in refused.items():
        with pytest.raises(DataError, match="AccessDenied"):
            write()
        assert not folder.exists(), name


def test_what_fails_midway_is_told_and_taken_away(faulty_bucket, faulty):
    folder = parse_path(f"{faulty_bucket}/d.zarr")
    chunk = "/bits/c/0/3"
    faulty.fault = lambda request: DENIED if request.path.endswith(chunk) else None
    with pytest.raises(DataError, match="AccessDenied"):
        write_dataset(folder, random_bits(500, 4))
    assert folder.parent.list_keys() == []


# Numbers of objects


@pytest.mark.parametrize("expected_rows", [10**9, None])
def test_a_billion_rows_of_a_thousand_features_are_thousands_of_objects(expected_rows):
    n_rows, n_features, n_columns = 10**9, 1000, 3
    rows_per_chunk = 64 * _choose_chunk_words(n_features, expected_rows)
    n_chunks = -(-n_rows // rows_per_chunk)
    of_chunks = n_chunks * (2 + 1 + n_columns)  # bits and observed, order, columns
    tables_bytes = 8 * n_chunks * (n_features + 3 + 4 + 3 + n_columns)
    assert 3000 < n_chunks < 15_000
    assert of_chunks + tables_bytes / (1 << 20) < 100_000
    assert rows_per_chunk * n_features / 8 > 7 << 20  # bytes of an object of `bits`
    assert rows_per_chunk * 4 > 128 << 10  # of `order`


# Artifacts, codes, runs


def test_an_artifact_has_the_same_objects_as_files(bucket, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"a{i}": NamedArray(("x", "y"), rng.random((i, 3))) for i in range(12)}
    arrays["scalar"] = NamedArray((), np.array(2.5))
    folder, path = parse_path(f"{bucket}/runs/fit"), tmp_path / "fit"
    for target in (folder, path, folder):  # the second time something lies there
        write_artifact(target, arrays, {"note": "ç"})
    assert objects_of(folder) == files_of(path)
    found = load_artifact(str(folder))
    assert list(found) == list(arrays)
    assert all(found[name].tobytes() == a.values.tobytes() for name, a in arrays.items())
    (folder.with_name("latest")).write_bytes(b"fit\n")
    assert load_artifact(f"{bucket}/runs").path == folder


@pytest.mark.parametrize("name", ["a/c/0", "a/zarr.json", "zarr.json", "manifest.json"])
def test_a_damaged_artifact_is_refused(bucket, name):
    folder = parse_path(f"{bucket}/fit")
    write_artifact(folder, {"a": NamedArray(("x",), np.arange(9.0))}, {})
    (folder / name).unlink()
    with pytest.raises(DataError, match="fit"):
        load_artifact(folder)


def test_an_interrupted_artifact_is_none(faulty_bucket, faulty):
    folder = parse_path(f"{faulty_bucket}/fit")
    arrays = {f"a{i}": NamedArray(("x",), np.arange(9.0) + i) for i in range(5)}
    write_artifact(folder, arrays, {})
    faulty.fault = lambda r: DENIED if r.method == "PUT" and r.path.endswith("a4/c/0") else None
    with pytest.raises(DataError, match="AccessDenied"):
        write_artifact(folder, arrays, {})
    with pytest.raises(DataError, match="complete artifact"):
        load_artifact(folder)


def test_codes_have_the_same_objects_as_files(bucket, tmp_path):
    n_rows = 9000
    values = {"mean": np.random.default_rng(0).random((n_rows, 3), np.float32)}
    values["row"] = np.arange(n_rows)
    for folder in (parse_path(f"{bucket}/z"), tmp_path / "z"):
        writer = create_codes(folder, CODES, n_rows, 4096)
        runs = [slice(4096 * key, 4096 * (key + 1)) for key in range(3)]
        checksums = [
            writer(key, {name: array[rows] for name, array in values.items()})
            for key, rows in enumerate(runs)
        ]
        assert writer.has_range(1, checksums[1])
        assert not writer.has_range(1, checksums[0])
        seal_codes(writer, checksums, {})
    assert objects_of(parse_path(f"{bucket}/z")) == files_of(tmp_path / "z")
    codes = open_codes(f"{bucket}/z")
    assert np.array_equal(codes["mean"], values["mean"])
    elsewhere = pickle.loads(pickle.dumps(codes.read_chunk))  # as workers read
    assert np.array_equal(elsewhere(1)["row"], values["row"][4096:8192])
    (parse_path(f"{bucket}/z/mean/c/1/0")).unlink()
    with pytest.raises(DataError, match="chunk 1"):
        open_codes(f"{bucket}/z").verify()


def test_codes_are_published_over_older_ones(bucket):
    target = parse_path(f"{bucket}/out/z")
    for seed in (1, 2):
        unfinished = UnfinishedCodes(target, f"fingerprint {seed}")
        with unfinished.claim_work(resume=False):
            writer = create_codes(unfinished.results.codes_folder, CODES, 5, 5)
            mean = np.full((5, 3), seed, np.float32)
            checksums = [writer(0, {"mean": mean, "row": np.arange(5)})]
            unfinished.results.record_finished(checksums)
            assert unfinished.results.read_finished() == checksums
            seal_codes(writer, checksums, {})
            unfinished.publish(overwrite=seed == 2)
        assert np.array_equal(open_codes(target)["mean"], mean)
    assert [place.name for place in target.parent.iterdir()] == ["z"]


def test_the_work_of_a_run_is_kept_or_cleared(bucket):
    run = RunFolder(parse_path(f"{bucket}/runs"), "model", "0123456789abcdef")
    with run.claim_work(resume=False):
        (run.work_folder / "states" / "1").write_bytes(b"")
        with pytest.raises(FolderInUseError), run.claim_work(resume=True):
            pass
    with run.claim_work(resume=True):
        assert run.has_states()
    with run.claim_work(resume=False):
        assert not run.has_states()
        run.delete_work()
    run.set_latest(parse_path(f"{bucket}/runs/model-1"))
    assert run.output.list_keys() == ["runs/latest"]


# Sources


@pytest.fixture
def incoming(bucket: str) -> ObjectPath:
    folder = parse_path(f"{bucket}/incoming")
    for name in ("b.csv", "a.csv", ".hidden.csv", "deeper/c.csv", "notes.md"):
        (folder / name).write_bytes(b"x,y,night\n0,1,%d\n1,1,3\n" % ord(name[0]))
    return folder


def test_wildcards_are_those_of_a_shell(incoming):
    urls = [f"{incoming}/a.csv", f"{incoming}/b.csv"]
    assert expand_sources([f"{incoming}/*.csv"]) == urls
    assert expand_sources([f"{incoming}/[b-z].csv", urls[0]]) == [urls[1], urls[0]]
    assert expand_sources([f"{incoming.parent}/*/a.csv"]) == urls[:1]
    assert expand_sources([f"{incoming}/*/*.csv"]) == [f"{incoming}/deeper/c.csv"]


@pytest.mark.parametrize("name", ["c.csv", "*.parquet", "", "a"])
def test_no_file_is_told(incoming, name):
    with pytest.raises(DataError, match=r"://.*the store has no such file.*b-\w+/folder/"):
        expand_sources([f"{incoming}/{name}"])


def test_a_file_is_read_as_from_disk(incoming, tmp_path):
    (tmp_path / "a.csv").write_bytes((incoming / "a.csv").read_bytes())
    options = ReadOptions(row_columns=("night",))
    for_both = [open_source(str(p), options) for p in (tmp_path / "a.csv", incoming / "a.csv")]
    expected, got = ([*source.iter_batches()] for source in for_both)
    assert for_both[1].feature_names == ("x", "y")
    assert for_both[1].path == f"{incoming}/a.csv"
    assert [batch.X.tolist() for batch in got] == [batch.X.tolist() for batch in expected]
    assert got[0].columns["night"].tolist() == ["97", "3"]


def test_errors_name_the_url(incoming, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = open_source(f"{incoming}/a.csv")
    for action in (
        lambda: [*source.iter_batches()],
        lambda: open_source(f"{incoming}/notes.md"),
        lambda: open_source(f"{incoming}/nothing.csv"),
        lambda: open_source(f"{incoming}/a.csv", ReadOptions(row_columns=("day",))),
    ):
        with pytest.raises(DataError) as told:
            action()
        assert f"{incoming}/" in str(told.value)
        assert str(tmp_path) not in str(told.value)
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_changes_between_its_names_and_its_rows_is_refused(incoming):
    source = open_source(f"{incoming}/a.csv")
    (incoming / "a.csv").write_bytes(b"x,y,night\n1,1,1\n")
    with pytest.raises(DataError, match="changed"):
        next(source.iter_batches())


def test_a_copy_is_deleted_when_reading_stops(incoming, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (incoming / "d.csv").write_bytes(b"x,y\n0,1\n1,1\n")
    batches = open_source(f"{incoming}/d.csv").iter_batches()
    next(batches)
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".lock"}
    batches.close()
    assert list(tmp_path.iterdir()) == []


def test_paths_of_this_machine_are_no_urls(tmp_path):
    with pytest.raises(DataError, match="s3://"):
        expand_sources(["gopher://host/a.csv"])
    assert Path("bucket:").exists() is False
