"""Texts, codes and columns that are no features, from the command line to the dataset."""

from pathlib import Path

import numpy as np
import pytest

from storage.dataset.dataset import open_dataset

CALLS = "id,unanimous,r1,r2,r3\n" + "".join(
    f"{1000 + k},yea,{'yea' if k % 3 else 'nay'},{'nay' if k % 2 else 'present'},"
    f"{'yea' if k < 9 else 'nay'}\n"
    for k in range(30)
)


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "calls.csv").write_text(CALLS)
    return tmp_path


def values(dataset):
    """All values, 2 where missing."""
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    return np.where(observed, X, 2)


def test_roll_calls_of_texts(plain_cli, calls):
    options = ["--yes", "yea", "--no", "nay", "--missing", "present", "--keep", "id"]
    options += ["--drop-constant", "--json"]
    done = plain_cli("ingest", "calls.csv", "--dataset", "d.zarr", *options)
    assert done.code == 0, done.err
    dataset = open_dataset(calls / "d.zarr")
    # Of r2 one value is left: nay, or missing.
    assert dataset.feature_names == ("r1", "r3")
    assert done.json["left_out"] == ["unanimous", "r2"]
    assert dataset.manifest["ingest"]["drop"] == ["unanimous", "r2"]
    assert values(dataset)[:, 0].tolist() == [int(k % 3 > 0) for k in range(30)]


def test_rows_are_added_as_those_before_were_read(plain_cli, calls):
    options = ["--map", "yea=1,nay=0", "--missing", "present", "--drop", "id"]
    made = plain_cli("ingest", "calls.csv", "--dataset", "d.zarr", *options, "--drop-constant")
    assert made.code == 0, made.err
    more = "id,r1,r3\n7,nay,yea\n"
    (calls / "more.csv").write_text(more)
    assert plain_cli("ingest", "more.csv", "--dataset", "d.zarr", "--append").code == 0
    dataset = open_dataset(calls / "d.zarr")
    assert dataset.feature_names == ("r1", "r3")
    assert values(dataset)[-1].tolist() == [0, 1]


def test_a_map_that_makes_all_values_alike_leaves_nothing(plain_cli, calls):
    options = ["--map", "yea=1,no=0", "--missing", "nay", "--missing", "present", "--drop", "id"]
    error = plain_cli("ingest", "calls.csv", "--dataset", "d.zarr", *options).check_refused()
    assert "--map, --yes: all 59 values mean 1, none means 0." in error
    assert not (calls / "d.zarr").exists()


def test_ids_are_recognised(plain_cli, calls):
    error = plain_cli("ingest", "calls.csv", "--dataset", "d.zarr").check_refused()
    assert "if they name the rows, use --keep id to keep them as a per-row column" in error


@pytest.mark.matrix
def test_names_of_several_rows_are_told(plain_cli, calls):
    text = CALLS.replace("1004,", "1003,")
    (calls / "calls.csv").write_text(text)
    words = ["ingest", "calls.csv", "--map", "yea=1,nay=0", "--missing", "present", "--json"]
    done = plain_cli(*words, "--keep", "id", "--keep", "r3", "--dataset", "d.zarr")
    assert done.json["warnings"] == [
        "values of id that occur in several rows: '1003'; correct them if they name the rows"
    ]
    (calls / "calls.csv").write_text(CALLS)
    assert plain_cli(*words, "--keep", "id", "--dataset", "e.zarr").json["warnings"] == []
    added = plain_cli("ingest", "calls.csv", "--dataset", "e.zarr", "--append", "--json")
    assert added.json["warnings"] == []


@pytest.mark.parametrize("option", [["--drop", "p1"], ["--map", "1=1,2=0"]])
def test_examples_are_made_as_they_are(plain_cli, calls, option):
    error = plain_cli("ingest", "example:digits", "--dataset", "d.zarr", *option).check_refused()
    assert f"{option[0]} cannot be used with example:digits, only with files." in error


def test_a_long_table_becomes_rows_and_takes_more(plain_cli, tmp_path):
    lines = [f"v{k % 7},c{k},{'yes' if k % 3 else 'no'},{k % 7 % 2}" for k in range(70)]
    (tmp_path / "long.csv").write_text("\n".join(["call,voter,vote,year", *lines]) + "\n")
    options = ["--long", "row=call,feature=voter,value=vote", "--yes", "yes", "--no", "no"]
    options += ["--segment-by", "year"]
    made = plain_cli("ingest", "long.csv", "--dataset", "d.zarr", *options)
    assert made.code == 0, made.err
    (tmp_path / "more.csv").write_text("call,voter,vote,year\nv9,c3,no,0\n")
    added = plain_cli("ingest", "more.csv", "--dataset", "d.zarr", "--append")
    assert added.code == 0, added.err
    dataset = open_dataset(tmp_path / "d.zarr")
    assert dataset.feature_names == tuple(sorted(f"c{k}" for k in range(70)))
    assert dataset.column("call").tolist() == [*(f"v{k}" for k in range(7)), "v9"]
    again = plain_cli("ingest", "more.csv", "--dataset", "d.zarr", "--append")
    assert "row 'v9' is already in the dataset. Use --merge-by call to" in again.check_refused()
    assert dataset.segment_names == ("0", "1")
    (tmp_path / "other.csv").write_text("call,voter,vote,year\nv10,nobody,no,0\n")
    error = plain_cli("ingest", "other.csv", "--dataset", "d.zarr", "--append").check_refused()
    assert "'nobody' is not a feature of the dataset" in error


def test_duplicates_are_of_long_tables(plain_cli, calls):
    words = ["ingest", "calls.csv", "--dataset", "d.zarr", "--duplicates", "last"]
    assert "--duplicates needs --long" in plain_cli(*words).check_refused()


def test_what_was_left_out_of_a_long_table_is_left_out_of_more(plain_cli, tmp_path):
    lines = [
        f"r{k},{name},{value}"
        for k in range(4)
        for name, value in zip(("a", "b", "same"), (k % 2, k // 2, 1), strict=True)
    ]
    (tmp_path / "long.csv").write_text("\n".join(["row,item,value", *lines]) + "\n")
    options = ["--long", "row=row,feature=item,value=value", "--drop-constant"]
    made = plain_cli("ingest", "long.csv", "--dataset", "d.zarr", *options)
    assert made.code == 0, made.err
    (tmp_path / "more.csv").write_text("row,item,value\nr9,a,1\nr9,same,0\n")
    added = plain_cli("ingest", "more.csv", "--dataset", "d.zarr", "--append")
    assert added.code == 0, added.err
    assert open_dataset(tmp_path / "d.zarr").feature_names == ("a", "b")


def test_the_encoding_is_recorded_and_used_for_appended_files(plain_cli, tmp_path):
    (tmp_path / "a.csv").write_text("id,Größe,b\nä,1,0\nö,0,1\n", encoding="latin-1")
    refused = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", "--keep", "id").check_refused()
    assert "a.csv: line 1: the bytes f6 are not UTF-8 text" in refused
    assert "--encoding latin-1" in refused
    options = ["--keep", "id", "--encoding", "latin-1"]
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *options)
    assert done.code == 0, done.err
    (tmp_path / "b.csv").write_text("id,Größe,b\nü,1,1\n", encoding="latin-1")
    done = plain_cli("ingest", "b.csv", "--dataset", "d.zarr", "--append")
    assert done.code == 0, done.err
    (tmp_path / "c.csv").write_text("id,Größe,b\nß,0,0\n", encoding="utf-8-sig")
    done = plain_cli("ingest", "c.csv", "--dataset", "d.zarr", "--append")
    assert done.code == 0, done.err
    dataset = open_dataset(tmp_path / "d.zarr")
    assert dataset.manifest["ingest"]["encoding"] == "latin-1"
    assert dataset.feature_names == ("Größe", "b")
    ids = dataset.column("id").tolist()
    assert ids == ["ä", "ö", "ü", "ß"]
    assert "seems to be UTF-8" not in done.out
    (tmp_path / "d.csv").write_text("b,id\n0,ß\n", encoding="utf-8")
    options = ["--append", "--absent-features", "missing"]
    done = plain_cli("ingest", "d.csv", "--dataset", "d.zarr", *options)
    assert "d.csv: the file was read as iso8859-1, but seems to be UTF-8: use" in done.out


@pytest.mark.parametrize("text", ["1_0", "１", "infinity"])
def test_options_are_plain_numbers(plain_cli, calls, text):
    for option, noun in (("--threshold", "a number"), ("--segments", "a whole number")):
        refused = plain_cli("ingest", "calls.csv", "--dataset", "d.zarr", option, text)
        assert f"{option}: {text!r} is not {noun}" in refused.check_refused()
    for options in (("--components", text), ("--set", f"max_iter={text}"), ("--seed", text)):
        line = ("fit", "--dataset", "d.zarr", "--model", "rbm", *options)
        assert repr(text) in plain_cli(*line).check_refused()
