"""Lines that arrive night by night, against the same lines in one table."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from flows.data.columns import ColumnRoles
from flows.data.ingest import (
    AppendRules,
    ingest_sources,
    open_new_sources,
    open_sources,
    write_rows,
)
from flows.fitting import checkpoints
from pipeline.executors.progress import ignore_progress
from storage import load_artifact, open_dataset
from storage.dataset import levels, writer
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.sources import name_index
from storage.stores.locations import AnyPath, parse_path
from storage.stores.object_path import parse_object_url
from tests.storage.conftest import files_of

HEADER = "member,date,party,item,vote"
LONG = "row=member,row=date,feature=item,value=vote"
EVENTS = "row=member,row=date,feature=item"
NIGHTLY = AppendRules("add", "member,date")
Line = tuple[str, str, str, str]  # member, date, item, vote


def write_lines(path: Path, lines: Sequence[Line]) -> str:
    rows = (f"{m},{d},{m.upper()},{i},{v}" for m, d, i, v in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return str(path)


def append(path: AnyPath, file: str, roles: ColumnRoles, how: AppendRules = NIGHTLY):
    return write_rows(open_sources([file], path, roles, True, False, how), ignore_progress)


def create(path: AnyPath, file: str, roles: ColumnRoles) -> BinaryDataset:
    return write_rows(open_sources([file], path, roles, False, False), ignore_progress)


def cells(dataset: BinaryDataset) -> dict[tuple[str, str, str], int]:
    """All values by member, date and item; 2 where missing."""
    names = [*zip(dataset.column("member"), dataset.column("date"), strict=True)]
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    found = np.where(observed, X, 2)
    return {
        (*name, item): int(found[r, j])
        for r, name in enumerate(names)
        for j, item in enumerate(dataset.feature_names)
    }


def cells_in_zarr(dataset: BinaryDataset) -> dict[tuple[str, str, str], int]:
    """The same, as another client reads it: whole arrays, tables and the manifest."""
    group = zarr.open_group(str(dataset.path), mode="r")
    manifest = dataset.manifest
    bits = np.unpackbits(group["bits"][:], axis=1, bitorder="little")
    mask = np.ones_like(bits)
    if "observed" in group:
        mask = np.unpackbits(group["observed"][:], axis=1, bitorder="little")
    texts = {name: np.array([*dataset.levels[name]]) for name in ("member", "date")}
    positions = manifest.get("positions", range(dataset.n_chunks))
    found = {}
    for chunk, _, first, n_rows in group["blocks"][:]:
        start = 64 * (positions[chunk] * manifest["words_per_chunk"] + first)
        slots = np.arange(start, start + n_rows)
        names = [texts[name][group[f"columns/{name}"][:][slots]] for name in texts]
        values = np.where(mask[:, slots], bits[:, slots], 2)
        for j, item in enumerate(manifest["feature_names"]):
            cells = zip(*names, values[j].tolist(), strict=True)
            found |= {(str(m), str(d), item): value for m, d, value in cells}
    return found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 rows."""
    monkeypatch.setattr(writer, "_choose_chunk_words", lambda *sizes: 1)


lines = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "c/d", "eve"]),
        st.sampled_from(["1", "2", "d/1"]),
        st.sampled_from("xyzvw"),
        st.sampled_from(["0", "1", "NA"]),
    ),
    max_size=12,
)


@given(
    st.lists(lines.filter(len), min_size=1, max_size=3),
    st.sampled_from(["last", "any"]),
    st.sampled_from([LONG, EVENTS]),
    st.sampled_from([None, "date"]),
)
@pytest.mark.matrix
def test_nights_give_what_one_table_gives(tmp_path_factory, nights, rule, long, segment_by):
    folder = tmp_path_factory.mktemp("nights")
    first = [("ann", "1", "x", "1"), ("ann", "2", "y", "0"), ("bob", "1", "x", "NA")]
    roles = ColumnRoles(long=long, duplicates=rule, keep=("party",), segment_by=segment_by)
    dataset = create(folder / "d.zarr", write_lines(folder / "0.csv", first), roles)
    for k, night in enumerate(nights, start=1):
        dataset = append(dataset.path, write_lines(folder / f"{k}.csv", night), roles)
        dataset.verify()
    whole = write_lines(folder / "all.csv", [*first, *(line for night in nights for line in night)])
    expected = create(folder / "all.zarr", whole, roles)
    assert cells(dataset) == cells(expected)
    assert cells_in_zarr(dataset) == cells(expected)
    for name in ("member", "date", "party"):
        assert dataset.column(name).tolist() == expected.column(name).tolist()
    assert dataset.segments().tolist() == expected.segments().tolist()


def draw_lines(first: int, n_rows: int, items: str, seed: int) -> list[Line]:
    bits = np.random.default_rng(seed).integers(0, 2, (n_rows, len(items))).tolist()
    return [
        (f"m{first + r}", "1", item, str(bits[r][j]))
        for r in range(n_rows)
        for j, item in enumerate(items)
    ]


def test_only_chunks_with_new_values_are_written_anew(small_chunks, tmp_path):
    roles = ColumnRoles(long=LONG)
    night = draw_lines(0, 300, "xy", 1)
    before = create(tmp_path / "d.zarr", write_lines(tmp_path / "0.csv", night), roles)
    files, expected = files_of(before.path), cells(before)
    more = [("m70", "1", "z", "1"), night[2 * 71], ("m299", "1", "z", "0"), ("new", "1", "x", "1")]
    after = append(before.path, write_lines(tmp_path / "1.csv", more), roles)
    after.verify()
    assert after.manifest["positions"] == [0, 5, 2, 3, 6, 7]
    assert after.manifest["added_features"] == {"z": "missing"}
    assert after.manifest["chunk_features"] == [2, 3, 2, 2, 3, 3]
    now = files_of(after.path)
    assert all(now[f"bits/c/0/{k}"] == files[f"bits/c/0/{k}"] for k in (0, 2, 3))
    assert not {"bits/c/0/1", "columns/member/c/4"} & {*now}
    expected |= {(f"m{k}", "1", "z"): 2 for k in range(300)}
    expected |= {("m70", "1", "z"): 1, ("m299", "1", "z"): 0}
    expected |= {("new", "1", "x"): 1, ("new", "1", "y"): 2, ("new", "1", "z"): 2}
    assert cells(after) == cells_in_zarr(after) == expected
    with pytest.raises(DataError, match="the dataset has changed since the start"):
        before.read_chunk(1)
    again = append(after.path, write_lines(tmp_path / "2.csv", [("m3", "1", "z", "1")]), roles)
    assert again.manifest["positions"] == [1, 5, 2, 3, 6, 7]  # positions are used again
    assert cells(again) == cells_in_zarr(again) == expected | {("m3", "1", "z"): 1}
    assert append(again.path, str(tmp_path / "1.csv"), roles).digest == again.digest


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("positions", [0, 0], "positions is [0, 0], but should be 2 different positions"),
        ("positions", [0, 5], "the dataset is damaged"),
        ("added_features", {"x": "zero"}, "should be the last of the feature names"),
        ("chunk_features", [1, 3], "should be 2 numbers of features from 2 to 3"),
        ("chunk_features", [3, 3], "chunk 0 is missing"),
    ],
)
def test_a_manifest_that_contradicts_the_arrays_is_refused(tmp_path, entry, value, words):
    roles, path = ColumnRoles(long=LONG), tmp_path / "d.zarr"
    create(path, write_lines(tmp_path / "0.csv", draw_lines(0, 3, "xy", 1)), roles)
    append(path, write_lines(tmp_path / "1.csv", draw_lines(3, 3, "xyz", 2)), roles)
    write_manifest(path, {**open_dataset(path).manifest, entry: value})
    with pytest.raises(DataError) as error:
        open_dataset(path).verify()
    assert words in str(error.value)


@pytest.mark.parametrize(("new", "value"), [("0", 0), ("1", 1), ("NA", None)])
def test_a_contradiction_is_refused_with_its_line(plain_cli, tmp_path, new, value):
    first = [("ann", "1", "x", "1"), ("bob", "1", "x", "0"), ("bob", "1", "y", "0")]
    create(tmp_path / "d.zarr", write_lines(tmp_path / "a.csv", first), ColumnRoles(long=LONG))
    write_lines(tmp_path / "b.csv", [("eve", "1", "x", "1"), ("ann", "1", "x", new)])
    before = files_of(tmp_path / "d.zarr")
    words = ["ingest", "b.csv", "--dataset", "d.zarr", "--append", "--merge-by", "member,date"]
    done = plain_cli(*words, "--json")
    if value == 0:
        assert done.check_refused() == (
            "error: b.csv: row 2 (data rows counted from 1): row 'ann/1', feature 'x': the value "
            "is 0, but 1 in the dataset. Correct the line, or use --duplicates last or "
            "--duplicates any."
        )
        assert files_of(tmp_path / "d.zarr") == before
        done = plain_cli(*words, "--duplicates", "any", "--json")
        value = 1
    assert done.code == 0, done.err
    assert (done.json["n_rows_added"], done.json["n_rows_updated"]) == (1, 1)
    assert cells(open_dataset(tmp_path / "d.zarr"))["ann", "1", "x"] == 1
    done = plain_cli(*words, "--duplicates", "last")
    assert "0 added, 2 updated" in done.out
    expected = {"0": 0, "1": 1, "NA": 2}[new]
    assert cells(open_dataset(tmp_path / "d.zarr"))["ann", "1", "x"] == expected


REFUSALS = [
    (
        ["--append"],
        "b.csv: row 1 (data rows counted from 1): row 'ann/1' is already in the dataset",
    ),
    (["--append"], "(in all, 2 rows are). Use --merge-by member,date to add values"),
    (["--append", "--merge-by", "member"], "Use --merge-by member,date."),
    (
        ["--append", "--merge-by", "date,member"],
        "column 'item': 'z' is not a feature of the dataset.",
    ),
    (["--append", "--long", EVENTS], f"the dataset was made with --long {LONG}"),
    (["--append", "--long", "row=member,feature=item,value=vote"], "the same columns row"),
    (["--overwrite", "--merge-by", "member,date", "--long", LONG], "need --append or --new"),
]


@pytest.mark.parametrize(("options", "words"), REFUSALS)
def test_what_may_be_a_mistake_is_refused(plain_cli, tmp_path, options, words):
    first = [("ann", "1", "x", "1"), ("bob", "1", "y", "0")]
    create(tmp_path / "d.zarr", write_lines(tmp_path / "a.csv", first), ColumnRoles(long=LONG))
    night = [("ann", "1", "y", "1"), ("bob", "1", "x", "1"), ("eve", "1", "z", "1")]
    if "is already" in words or "in all" in words:
        night = night[:2]
    write_lines(tmp_path / "b.csv", night)
    before = files_of(tmp_path / "d.zarr")
    assert words in plain_cli("ingest", "b.csv", "--dataset", "d.zarr", *options).check_refused()
    assert files_of(tmp_path / "d.zarr") == before


def write_ids(path: Path, ids: pa.Array, items: str) -> str:
    """Write a line for each member and item; values are 0 and 1 in turn."""
    n_lines = len(ids) * len(items)
    columns = {
        "member": pa.concat_arrays([ids] * len(items)),
        "date": ["1"] * n_lines,
        "item": np.repeat([*items], len(ids)),
        "vote": np.arange(n_lines) % 2,
    }
    pa.parquet.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize("first", [pa.int64(), pa.string()])
@pytest.mark.parametrize("then", [pa.int64(), pa.string()])
@pytest.mark.parametrize("long", [LONG, "row=member,feature=item,value=vote"])
def test_rows_are_found_by_integers_and_by_texts(
    small_chunks, tmp_path, monkeypatch, first, then, long
):
    """The first file decides which of them the dataset stores."""
    monkeypatch.setattr(levels, "PAGE_TEXTS", 16)
    monkeypatch.setattr(levels, "_SEARCHED_TEXTS", 20)
    rows = NIGHTLY if long == LONG else NIGHTLY._replace(merge_by="member")
    ids = pa.array([*range(-70, 70), 2**63 - 1, 10**15])
    file = write_ids(tmp_path / "a.parquet", ids.cast(first), "xy")
    dataset = create(tmp_path / "d.zarr", file, ColumnRoles(long=long))
    assert dataset.column("member").tolist() == ids.cast(first).to_pylist()
    more = pa.array([5, 1000, -70, 2**63 - 1])
    file = write_ids(tmp_path / "b.parquet", more.cast(then), "z")
    after = append(dataset.path, file, ColumnRoles(long=long), rows)
    after.verify()
    expected_ids = pa.concat_arrays([ids, more[1:2]]).cast(first)
    assert after.column("member").tolist() == expected_ids.to_pylist()
    X, observed = zip(*(after.dense(key) for key in range(after.n_chunks)), strict=True)
    z = np.where(np.concatenate(observed), np.concatenate(X), 2)[:, 2]
    expected = np.full(len(ids) + 1, 2)
    expected[[75, len(ids), 0, 140]] = [0, 1, 0, 1]
    assert z.tolist() == expected.tolist()


def test_texts_that_are_no_integers_are_refused_after_integers(tmp_path):
    roles = ColumnRoles(long="row=member,feature=item,value=vote")
    create(tmp_path / "d.zarr", write_ids(tmp_path / "a.parquet", pa.array([7, 8]), "xy"), roles)
    before = files_of(tmp_path / "d.zarr")
    lines = write_lines(tmp_path / "b.csv", [("9", "1", "x", "1"), ("007", "1", "y", "1")])
    with pytest.raises(DataError, match="integers in the first rows, but now also the text '007'"):
        append(tmp_path / "d.zarr", lines, roles, AppendRules())
    assert files_of(tmp_path / "d.zarr") == before


def test_other_labels_of_a_known_row_are_refused(tmp_path):
    first = [("ann", "1", "x", "1"), ("bob", "1", "y", "0")]
    roles = ColumnRoles(long="row=member,feature=item,value=vote", segment_by="date")
    create(tmp_path / "d.zarr", write_lines(tmp_path / "a.csv", first), roles)
    file = write_lines(tmp_path / "b.csv", [("bob", "2", "x", "1")])
    with pytest.raises(DataError, match="row 'bob': segment is '2', but '1' in the dataset"):
        append(tmp_path / "d.zarr", file, roles, AppendRules("add", "member"))


def test_new_features_may_be_added_or_ignored(plain_cli, tmp_path):
    first = [("ann", "1", "x", "1"), ("bob", "1", "y", "0")]
    night = [("eve", "1", item, "1") for item in "zyw"]
    write_lines(tmp_path / "b.csv", night)
    for choice, names in (("ignore", ("x", "y")), ("add", ("x", "y", "w", "z"))):
        path = tmp_path / f"{choice}.zarr"
        create(path, write_lines(tmp_path / "a.csv", first), ColumnRoles(long=LONG))
        done = plain_cli("ingest", "b.csv", "--dataset", path, "--append", "--new-features", choice)
        assert done.code == 0, done.err
        verb = "ignored" if choice == "ignore" else "added"
        assert f"features {verb}" in done.out
        assert "2: w, z" in done.out
        assert open_dataset(path).feature_names == names
        assert cells(open_dataset(path))["eve", "1", "y"] == 1


def fit(cli, name: str, *options: str):
    done = cli("fit", "--dataset", name, "--components", "1", "--json", *options)
    assert done.code == 0, done.err
    return done.json


def test_fits_see_what_changed(cli, small_chunks, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_MAX_SHARE", 1e9)
    path, roles = tmp_path / "d.zarr", ColumnRoles(long=LONG)
    create(path, write_lines(tmp_path / "0.csv", draw_lines(0, 600, "xyzw", 1)), roles)
    fit(cli, "d.zarr")
    append(path, write_lines(tmp_path / "1.csv", draw_lines(600, 200, "xyzw", 2)), roles)
    assert fit(cli, "d.zarr")["drift"]["rows_new"] == 200
    more = [*draw_lines(800, 200, "xyzw", 3), ("m5", "2", "x", "1"), ("m5", "1", "x", "NA")]
    last = replace(roles, duplicates="last")
    append(path, write_lines(tmp_path / "2.csv", more), last)
    updated = fit(cli, "d.zarr")
    assert updated["drift"]["note"].endswith("earlier rows have changed since")
    append(path, write_lines(tmp_path / "3.csv", draw_lines(0, 500, "uv", 4)), last)
    added = fit(cli, "d.zarr")
    assert added["drift"]["note"].startswith("not measured: the latest fit, ")
    assert added["n_features"] == 6
    shutil.copytree("d.zarr", "fresh.zarr")
    shutil.rmtree(Path("fresh.zarr", checkpoints.STATISTICS_FOLDER))
    artifacts = [load_artifact(f["artifact"]) for f in (added, fit(cli, "fresh.zarr"))]
    for name in artifacts[0]:
        assert artifacts[0][name].tobytes() == artifacts[1][name].tobytes()


def arrive(folder: Path, name: str, night: Sequence[Line]) -> None:
    write_lines(folder / name, night)
    then = time.time() - 3600
    os.utime(folder / name, (then, then))


NIGHTS = [
    draw_lines(0, 150, "xyz", 1),
    [*draw_lines(0, 80, "uv", 2), *draw_lines(150, 20, "xu", 3)],
    [*draw_lines(0, 10, "w", 4), *draw_lines(150, 20, "w", 5)],  # frees the last position
]


def ingest_new(folder: str | Path, path: AnyPath) -> BinaryDataset:
    job = open_new_sources([str(folder)], path, ColumnRoles(long=LONG), NIGHTLY)
    return write_rows(job, ignore_progress) if job.sources else open_dataset(path)


@pytest.mark.matrix
def test_new_files_in_an_object_store(small_chunks, s3, tmp_path):
    local, remote = tmp_path / "d.zarr", parse_path(f"{s3}/d.zarr")
    for k, night in enumerate(NIGHTS):
        arrive(tmp_path / "in", f"{k}.csv", night)
        content = (tmp_path / "in" / f"{k}.csv").read_bytes()
        parse_object_url(f"{s3}/in/{k}.csv").write_bytes(content)
        expected, found = ingest_new(tmp_path / "in", local), ingest_new(f"{s3}/in", remote)
        found.verify()
        assert cells(found) == cells(expected)
        assert found.digest == expected.digest
    objects = {key.removeprefix("d.zarr/") for key in remote.list_keys()}
    assert {name for name in files_of(local) if "/c/" in name} == {n for n in objects if "/c/" in n}


def ingest_until_killed(
    moment: tuple[str, int, str], folder: str, path: str, work: str, environment: dict[str, str]
) -> None:
    """Kill this process before or after it does something for so many times."""
    os.chdir(work)
    os.environ.update(environment)
    event, number, when = moment
    writer._choose_chunk_words = lambda *sizes: 1
    owner = writer.DatasetWriter if hasattr(writer.DatasetWriter, event) else writer
    original, calls = getattr(owner, event), []

    def kill(*arguments, **options):
        calls.append(event)
        if len(calls) == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = original(*arguments, **options)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(owner, event, kill)
    ingest_new(folder, parse_path(path))


def check_killed(moment: tuple[str, int, str], folder: str | Path, path: AnyPath) -> None:
    """Ingest new files in a process that is killed.

    Such processes are forked from one that has imported the modules, which takes most of the time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    given = moment, str(folder), str(path), os.getcwd(), {**os.environ}
    process = context.Process(target=ingest_until_killed, args=given)
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL


MOMENTS = [
    *(("_write_array_chunk", k, "after") for k in (1, 2, 9, 12)),
    ("_mark_missing_features", 1, "before"),
    ("_write_tables", 1, "before"),
    ("_write_tables", 1, "after"),
    ("write_manifest", 1, "before"),
    ("write_manifest", 1, "after"),
    ("delete_chunks", 1, "after"),
    ("delete_chunks", 3, "after"),
]


@pytest.mark.matrix
@pytest.mark.parametrize("moment", [MOMENTS[-4], MOMENTS[0], MOMENTS[-3]])
def test_a_killed_night_in_an_object_store_is_repeated(small_chunks, s3, tmp_path, moment):
    remote = parse_path(f"{s3}/d.zarr")
    for k, night in enumerate(NIGHTS[:2]):
        arrive(tmp_path / "in", f"{k}.csv", night)
        expected = ingest_new(tmp_path / "in", tmp_path / "d.zarr")
        if not k:
            before = ingest_new(tmp_path / "in", remote)
    check_killed(moment, tmp_path / "in", remote)
    found = open_dataset(remote)
    found.verify()
    is_done = moment[2] == "after" and moment[0] == "write_manifest"
    assert found.digest == (expected if is_done else before).digest
    append(remote, str(tmp_path / "in" / "1.csv"), ColumnRoles(long=LONG))
    found = open_dataset(remote)
    assert (found.digest, cells(found)) == (expected.digest, cells(expected))
    objects = {key.removeprefix("d.zarr/") for key in remote.list_keys()}
    assert {name for name in objects if "/c/" in name} == {
        name for name in files_of(tmp_path / "d.zarr") if "/c/" in name
    }


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("night", "moment"), [*((1, moment) for moment in MOMENTS[::-1]), (2, MOMENTS[-4])]
)
def test_a_killed_night_is_repeated(small_chunks, tmp_path, monkeypatch, night, moment):
    monkeypatch.chdir(tmp_path)
    path = parse_path("d.zarr")
    for k in range(night):
        arrive(tmp_path / "in", f"{k}.csv", NIGHTS[k])
        before = ingest_new("in", path)
    arrive(tmp_path / "in", f"{night}.csv", NIGHTS[night])
    shutil.copytree("d.zarr", "copy.zarr")
    expected = ingest_new("in", parse_path("copy.zarr"))
    assert (expected.n_positions < before.n_positions) == (night == 2)
    check_killed(moment, "in", path)
    found = open_dataset(path)
    found.verify()
    is_done = moment in [("write_manifest", 1, "after")] or moment[0] == "delete_chunks"
    assert found.digest == (expected if is_done else before).digest
    assert cells(found) == cells(expected if is_done else before)
    if is_done:  # the file is known, but may be read once more
        append(path, f"in/{night}.csv", ColumnRoles(long=LONG))
    else:
        ingest_new("in", path)
    files, expected_files = files_of(Path("d.zarr")), files_of(Path("copy.zarr"))
    assert files.keys() == expected_files.keys()
    assert files == expected_files


KILLED_WHILE_NUMBERED = """
import os, signal, sys
from pathlib import Path
from flows.data.columns import ColumnRoles
from flows.data.ingest import ingest_sources
from storage.sources import name_index

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

name_index._MAX_MEMORY = name_index._MIN_WAITING_ROWS = 0
name_index._PartitionedBatches._number_partitions = kill
ingest_sources(["a.csv", "b.csv"], Path("d.zarr"), ColumnRoles(long=sys.argv[1]))
"""


def test_a_first_ingest_that_is_killed_leaves_nothing(tmp_path, monkeypatch):
    """Nor do its bytes depend on the memory for names."""
    monkeypatch.chdir(tmp_path)
    Path("temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    nights = {"a.csv": draw_lines(0, 300, "xy", 1), "b.csv": draw_lines(200, 300, "zw", 2)}
    files = [write_lines(Path(name), night) for name, night in nights.items()]
    arguments = [sys.executable, "-c", KILLED_WHILE_NUMBERED, LONG]
    assert subprocess.run(arguments, timeout=600).returncode == -9
    assert not Path("d.zarr").exists()
    assert len([*Path("temporary").iterdir()]) == 2  # a folder and its lock
    ingest_sources(files, parse_path("expected.zarr"), ColumnRoles(long=LONG))
    monkeypatch.setattr(name_index, "_MAX_MEMORY", 0)
    monkeypatch.setattr(name_index, "_MIN_WAITING_ROWS", 0)
    ingest_sources(files, parse_path("d.zarr"), ColumnRoles(long=LONG))
    gc.collect()
    assert not [*Path("temporary").iterdir()]
    assert files_of(Path("d.zarr")) == files_of(Path("expected.zarr"))
