"""The ingest command: what it stores, in which order, and what an interruption leaves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flows.data.columns import ColumnRoles
from flows.data.ingest import ingest_sources
from storage import open_dataset
from storage.errors import DataError
from tests.support.data import find_shared_data


def dense(dataset) -> tuple[np.ndarray, np.ndarray]:
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(list(part)) for part in zip(*parts, strict=True))
    return X, observed


def segment_of_rows(dataset) -> list[str]:
    names = np.empty(dataset.n_rows, object)
    for key in range(dataset.n_chunks):
        chunk = dataset.read_chunk(key)
        labels = np.repeat(chunk.blocks[:, 0], chunk.blocks[:, 2])
        names[chunk.rows] = [dataset.segment_names[label] for label in labels]
    return list(names)


def write_csv(path: Path, X: np.ndarray, **columns: list) -> None:
    header = [*(f"q{i}" for i in range(X.shape[1])), *columns]
    rows = (
        ",".join(map(str, [*row, *(values[i] for values in columns.values())]))
        for i, row in enumerate(X.tolist())
    )
    path.write_text("\n".join([",".join(header), *rows]) + "\n", encoding="utf-8")


@pytest.fixture
def bits() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 2, (300, 5), dtype=np.uint8)


@pytest.mark.parametrize("option", ["--segment-by", "--split-by"])
@pytest.mark.parametrize("years", ["2020,,2021", "u,,v", "1.5,,2"])
def test_rows_without_segment_or_split_are_refused(cli, tmp_path, option, years):
    rows = [f"{k % 2},{(k + 1) % 2},{year}" for k, year in enumerate(years.split(","))]
    (tmp_path / "v.csv").write_text("\n".join(["a,b,year", *rows]), encoding="utf-8")
    pd.read_csv(tmp_path / "v.csv").to_parquet(tmp_path / "v.parquet")
    for file in ("v.csv", "v.parquet"):
        done = cli("ingest", file, "--dataset", "d.zarr", option, "year")
        expected = f"error: {option} year: row 2 of all rows read has no value. "
        assert done.check_refused() == expected + "Leave the row out, or give it a value."
        assert not (tmp_path / "d.zarr").exists()


def test_columns_become_segments_splits_and_labels(cli, bits):
    years = [str(2000 + i % 3) for i in range(300)]
    parts = ["train" if i % 2 else "test" for i in range(300)]
    write_csv(Path("v.csv"), bits, year=years, part=parts, party=["x"] * 300)
    roles = ("--segment-by", "year", "--split-by", "part", "--keep", "party", "--keep", "year")
    done = cli("ingest", "v.csv", "--dataset", "v.zarr", *roles, "--json")
    assert done.code == 0, done.err
    assert (done.json["n_rows"], done.json["n_features"], done.json["n_segments"]) == (300, 5, 3)
    dataset = open_dataset("v.zarr")
    assert dataset.feature_names == ("q0", "q1", "q2", "q3", "q4")
    np.testing.assert_array_equal(dense(dataset)[0], bits)
    assert segment_of_rows(dataset) == years
    assert list(dataset.column("split")) == parts
    assert list(dataset.column("party")) == ["x"] * 300
    assert list(dataset.column("year")) == years


def test_time_bins_are_equal_and_in_order(cli, bits):
    write_csv(Path("v.csv"), bits)
    assert cli("ingest", "v.csv", "--dataset", "v.zarr", "--segments", 4).code == 0
    expected = [f"bin {i * 4 // 300 + 1}" for i in range(300)]
    assert segment_of_rows(open_dataset("v.zarr")) == expected


def test_tokens_and_thresholds(cli):
    Path("t.csv").write_text("a,b\n0.2,7\n-9,1\n0.9,-9\n")
    done = cli("ingest", "t.csv", "--dataset", "t.zarr", "--missing", "-9", "--threshold", "0.5")
    assert done.code == 0, done.err
    X, observed = dense(open_dataset("t.zarr"))
    np.testing.assert_array_equal(X, [[0, 1], [0, 1], [1, 0]])
    np.testing.assert_array_equal(observed, [[1, 1], [0, 1], [1, 0]])


def test_the_summary_names_words_that_are_read_as_bits(cli):
    Path("w.csv").write_text("a,b\nyes,1\nno,0\nYES,nein\n")
    done = cli("ingest", "w.csv", "--dataset", "w.zarr")
    assert done.code == 0, done.err
    assert re.search("^words read as bits +yes=1, no=0, nein=0 *$", done.out, re.MULTILINE)
    np.testing.assert_array_equal(dense(open_dataset("w.zarr"))[0], [[1, 1], [0, 0], [1, 0]])


@pytest.mark.matrix
def test_several_files_are_stored_in_the_order_given(cli, bits):
    for part in range(6):
        rows = bits[part * 50 : part * 50 + 50]
        write_csv(Path(f"part-{part}.csv"), rows, who=[f"p{part}"] * 50)
    write_csv(Path("whole.csv"), bits, who=[f"p{i // 50}" for i in range(300)])
    for source, name in (("part-*.csv", "parts.zarr"), ("whole.csv", "whole.zarr")):
        assert cli("ingest", source, "--dataset", name, "--keep", "who").code == 0
    parts, whole = open_dataset("parts.zarr"), open_dataset("whole.zarr")
    assert parts.digest == whole.digest
    reverse = [f"part-{part}.csv" for part in reversed(range(6))]
    assert cli("ingest", *reverse, "--dataset", "reverse.zarr", "--keep", "who").code == 0
    backwards = np.concatenate([bits[p * 50 : p * 50 + 50] for p in reversed(range(6))])
    np.testing.assert_array_equal(dense(open_dataset("reverse.zarr"))[0], backwards)


@pytest.mark.matrix
def test_append_remembers_the_roles_and_touches_no_chunk(cli, bits):
    write_csv(Path("1.csv"), bits[:200], year=[str(i % 2) for i in range(200)])
    write_csv(Path("2.csv"), bits[200:], year=[str(1 + i % 2) for i in range(100)])
    assert cli("ingest", "1.csv", "--dataset", "v.zarr", "--segment-by", "year").code == 0
    first = Path("v.zarr/bits/c/0/0")
    before = (first.read_bytes(), first.stat().st_mtime_ns)
    done = cli("ingest", "2.csv", "--dataset", "v.zarr", "--append", "--json")
    assert done.code == 0, done.err
    assert done.json["n_rows"] == 300
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    dataset = open_dataset("v.zarr")
    assert dataset.segment_names == ("0", "1", "2")
    np.testing.assert_array_equal(dense(dataset)[0], bits)


def test_appended_time_bins_go_on_counting(cli, bits):
    np.save("x.npy", bits)
    assert cli("ingest", "x.npy", "--dataset", "x.zarr", "--segments", 2).code == 0
    assert cli("ingest", "x.npy", "--dataset", "x.zarr", "--append").code == 0
    assert open_dataset("x.zarr").segment_names == ("bin 1", "bin 2", "bin 3", "bin 4")


def test_overwrite_replaces_the_dataset(cli, bits):
    np.save("x.npy", bits)
    np.save("y.npy", 1 - bits)
    assert cli("ingest", "x.npy", "--dataset", "x.zarr").code == 0
    assert cli("ingest", "y.npy", "--dataset", "x.zarr", "--overwrite").code == 0
    np.testing.assert_array_equal(dense(open_dataset("x.zarr"))[0], 1 - bits)
    assert sorted(path.name for path in Path().iterdir()) == ["x.npy", "x.zarr", "y.npy"]


def test_the_packed_form_brings_its_own_roles(cli):
    source = find_shared_data("unvotes_core.npz")
    assert cli("ingest", source, "--dataset", "un.zarr").code == 0
    dataset = open_dataset("un.zarr")
    packed = np.load(source)
    n_features = packed["shape"][1]
    X, observed = (
        np.unpackbits(packed[name], axis=1)[:, :n_features].astype(np.uint8) for name in "XM"
    )
    got, mask = dense(dataset)
    np.testing.assert_array_equal(mask, observed)
    np.testing.assert_array_equal(got, X & observed)
    assert dataset.n_segments == 15
    assert dataset.feature_names == tuple(packed["cols"].tolist())
    assert segment_of_rows(dataset) == [str(packed["segnames"][s]) for s in packed["seg"]]


def test_baskets_share_their_items(cli):
    Path("1.dat").write_text("3 5\n\n10\n")
    Path("2.dat").write_text("5 7\n3\n")
    assert cli("ingest", "1.dat", "2.dat", "--dataset", "b.zarr").code == 0
    dataset = open_dataset("b.zarr")
    assert dataset.feature_names == ("3", "5", "7", "10")
    expected = [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0]]
    np.testing.assert_array_equal(dense(dataset)[0], expected)
    Path("3.dat").write_text("7 10\n")
    assert cli("ingest", "3.dat", "--dataset", "b.zarr", "--append").code == 0
    Path("4.dat").write_text("7 99\n")
    refused = cli("ingest", "4.dat", "--dataset", "b.zarr", "--append")
    assert refused.code == 2
    assert "99" in refused.message


@pytest.mark.matrix
def test_a_killed_ingest_is_refused_and_completed(cli, tmp_path):
    X = np.random.default_rng(0).integers(0, 2, (400_000, 200), dtype=np.uint8)
    np.save("x.npy", X)
    command = [sys.executable, "-m", "flows.ingest", "x.npy", "--dataset", "x.zarr"]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 600
    while len(list(Path("x.zarr/bits").glob("c/0/*"))) < 2:
        assert process.poll() is None, "the ingest ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(DataError, match="interrupted"):
        open_dataset("x.zarr")
    assert cli("fit", "--dataset", "x.zarr").code == 2
    assert cli("ingest", "x.npy", "--dataset", "x.zarr").code == 0
    dataset = open_dataset("x.zarr")
    dataset.verify()
    np.testing.assert_array_equal(dense(dataset)[0], X)


def test_roles_are_never_dropped_silently(cli, bits):
    write_csv(Path("v.csv"), bits, part=["a"] * 300)
    assert cli("ingest", "v.csv", "--dataset", "v.zarr", "--keep", "part").code == 0
    write_csv(Path("w.csv"), bits, part=["a"] * 300, other=["b"] * 300)
    for option in ("--keep", "--split-by"):
        refused = cli("ingest", "w.csv", "--dataset", "v.zarr", "--append", option, "other")
        assert refused.code == 2
    assert open_dataset("v.zarr").n_rows == 300


def test_a_threshold_of_zero_replaces_the_one_remembered(cli):
    Path("t.csv").write_text("a,b\n0.2,0\n0.9,0.4\n")
    assert cli("ingest", "t.csv", "--dataset", "t.zarr", "--threshold", "0.5").code == 0
    assert cli("ingest", "t.csv", "--dataset", "t.zarr", "--append", "--threshold", "0").code == 0
    X, _ = dense(open_dataset("t.zarr"))
    np.testing.assert_array_equal(X, [[0, 0], [1, 0], [1, 0], [1, 1]])


def test_a_split_of_numbers_is_named_by_them(cli, bits):
    np.savez("x.npz", X=bits, part=np.arange(300) % 2)
    assert cli("ingest", "x.npz", "--dataset", "x.zarr", "--split-by", "part").code == 0
    done = cli("fit", "--dataset", "x.zarr", "--split", "1", "--components", 1, "--json")
    assert done.code == 0, done.err
    assert done.json["n_samples"] == 150


def test_a_dataset_with_a_damaged_manifest_can_be_replaced(cli, bits):
    np.save("x.npy", bits)
    assert cli("ingest", "x.npy", "--dataset", "x.zarr").code == 0
    Path("x.zarr/manifest.json").write_text("{")
    assert cli("ingest", "x.npy", "--dataset", "x.zarr").code == 2
    assert cli("ingest", "x.npy", "--dataset", "x.zarr", "--overwrite").code == 0
    assert open_dataset("x.zarr").n_rows == 300


def test_a_column_may_have_any_name(cli, bits):
    names = ["..", "zarr.json", "a/b", "é" * 60, "%2F"]
    columns = {name: [str(i % n) for i in range(300)] for n, name in enumerate(names, start=2)}
    write_csv(Path("v.csv"), bits, **columns)
    keep = [word for name in names for word in ("--keep", name)]
    done = cli("ingest", "v.csv", "--dataset", "v.zarr", *keep)
    assert done.code == 0, done.err
    dataset = open_dataset("v.zarr")
    assert {name: list(dataset.column(name)) for name in names} == columns


def test_examples_and_files_keep_the_order_given(cli):
    X = np.random.default_rng(0).integers(0, 2, (50, 6), dtype=np.uint8)
    np.save("x.npy", X)
    example = "example:probit:features=6,factors=1,rows=30"
    assert cli("ingest", "x.npy", example, "--dataset", "d.zarr").code == 0
    got, _ = dense(open_dataset("d.zarr"))
    assert len(got) == 80
    np.testing.assert_array_equal(got[:50], X)


@pytest.mark.parametrize("segment_by", [None, "kind"])
def test_parquet_files_of_any_row_groups_make_the_dataset_of_one_file(tmp_path, segment_by):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((3001, 9)) < 0.4).astype("boolean").add_prefix("f")
    table = table.mask(rng.random(table.shape) < 0.1).assign(f9=rng.integers(0, 2, 3001))
    table["kind"] = rng.choice(["a", "b"], 3001)
    table.to_parquet(tmp_path / "all.parquet")
    parts = np.split(np.arange(3001), [7, 64, 65, 1300])
    for k, (rows, size) in enumerate(zip(parts, [1, 13, 100, 64, 999], strict=True)):
        table.iloc[rows].to_parquet(tmp_path / f"part {k}.parquet", row_group_size=size)
    roles = ColumnRoles(segment_by=segment_by, drop=() if segment_by else ("kind",))
    one, several = (
        ingest_sources([str(tmp_path / pattern)], tmp_path / f"{pattern[0]}.zarr", roles)
        for pattern in ("all.parquet", "part*.parquet")
    )
    assert one.digest == several.digest
