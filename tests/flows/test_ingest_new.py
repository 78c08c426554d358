"""Ingesting what arrived since: every file once, whatever happens in between."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flows.data import ingest
from flows.data.columns import ColumnRoles
from pipeline.executors.progress import ignore_progress
from storage import open_dataset
from storage.errors import DataError, FolderInUseError
from storage.sources import NewFiles
from storage.stores.locations import AnyPath, parse_path
from storage.stores.object_path import parse_object_url
from tests.flows.test_ingest import dense, write_csv


@pytest.fixture
def bits() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 2, (500, 5), dtype=np.uint8)


def arrive(name: str, X: np.ndarray, seconds_ago: float = 3600) -> Path:
    """Leave a file that was last written to so long ago."""
    path = Path("incoming", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, X)
    then = time.time() - seconds_ago
    os.utime(path, (then, then))
    return path


def take_in(folders: list[str], path: AnyPath) -> NewFiles:
    """Ingest what is new, without a command."""
    intake = ingest.open_new_sources(folders, path, ColumnRoles())
    if intake.sources:
        ingest.write_rows(intake, ignore_progress)
    return intake.new_files


def ingest_new(cli, *more: str):
    done = cli("ingest", "incoming", "--dataset", "v.zarr", "--new", "--json", *more)
    assert done.code == 0, done.err
    return done


def test_files_are_taken_once_in_name_order(cli, bits):
    arrive("b.csv", bits[100:200])
    arrive("2026/a.csv", bits[:100])
    first = ingest_new(cli)
    assert [Path(name).name for name in first.json["new"]] == ["a.csv", "b.csv"]
    arrive("a.csv", bits[200:300])
    arrive("c.csv", bits[300:])
    second = ingest_new(cli)
    assert [Path(name).name for name in second.json["new"]] == ["a.csv", "c.csv"]
    assert (second.json["n_known"], second.json["n_rows"]) == (2, 500)
    before = open_dataset("v.zarr")
    nothing = ingest_new(cli)
    assert nothing.json["new"] == []
    assert "0 new files, 4 known" in nothing.err
    assert open_dataset("v.zarr").manifest == before.manifest
    np.testing.assert_array_equal(dense(before)[0], bits)


def test_an_empty_folder_is_no_failure(cli):
    Path("incoming").mkdir()
    assert ingest_new(cli).json == {"new": [], "waiting": [], "n_known": 0}
    assert not Path("v.zarr").exists()


def test_what_may_still_grow_waits_and_what_is_no_data_is_left_alone(cli, bits):
    arrive("a.csv", bits[:100])
    arrive("b.csv", bits[100:200], seconds_ago=5)
    for name in (".c.csv", "_temporary/d.csv", "e.csv.partial"):
        arrive(name, bits[200:])
    done = ingest_new(cli)
    assert [Path(name).name for name in done.json["waiting"]] == ["b.csv"]
    assert done.json["n_rows"] == 100
    arrive("b.csv", bits[100:200])
    assert ingest_new(cli).json["n_rows"] == 200


def test_a_file_that_changed_is_refused(cli, bits):
    arrive("a.csv", bits[:100])
    ingest_new(cli)
    arrive("a.csv", bits[:200])
    arrive("b.csv", bits[200:])
    refused = cli("ingest", "incoming", "--dataset", "v.zarr", "--new")
    assert refused.code == 2
    assert "a.csv: the file has changed since it was ingested." in refused.message
    assert open_dataset("v.zarr").n_rows == 100


def test_one_bad_file_keeps_all_new_ones_out(cli, bits):
    arrive("a.csv", bits[:100])
    ingest_new(cli)
    arrive("b.csv", bits[100:200])
    bad = bits[200:].copy()
    bad[7, 2] = 5
    arrive("c.csv", bad)
    refused = cli("ingest", "incoming", "--dataset", "v.zarr", "--new")
    assert refused.code == 2
    assert "c.csv" in refused.message
    arrive("c.csv", bits[200:])
    assert ingest_new(cli).json["n_rows"] == 500
    np.testing.assert_array_equal(dense(open_dataset("v.zarr"))[0], bits)


def test_files_ingested_by_name_are_known_too(cli, bits):
    a, b = arrive("a.csv", bits[:100]), arrive("b.csv", bits[100:200])
    assert cli("ingest", a, "--dataset", "v.zarr").code == 0
    assert cli("ingest", b, "--dataset", "v.zarr", "--append").code == 0
    arrive("c.csv", bits[200:])
    done = ingest_new(cli)
    assert [Path(name).name for name in done.json["new"]] == ["c.csv"]
    np.testing.assert_array_equal(dense(open_dataset("v.zarr"))[0], bits)


def test_roles_are_those_of_the_first_time(cli, bits):
    arrive("a.csv", bits[:100])
    ingest_new(cli, "--keep", "q0", "--segment-by", "q1")
    arrive("b.csv", bits[100:])
    done = ingest_new(cli)
    assert (done.json["columns"], done.json["n_segments"]) == (["q0"], 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--new"], "nowhere: this is not a folder"),
        (["a.csv", "--new"], "a.csv: this is not a folder"),
        (["incoming", "--new", "--append"], "--append, --overwrite and --new cannot be combined"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli, bits, arguments, words):
    write_csv(Path("a.csv"), bits)
    refused = cli("ingest", *arguments, "--dataset", "v.zarr")
    assert refused.code == 2
    assert words in refused.message


def test_a_writer_in_between_keeps_a_file_from_being_taken_twice(bits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrive("a.csv", bits[:100])
    take_in(["incoming"], parse_path("v.zarr"))
    arrive("b.csv", bits[100:])
    opened = ingest._open_sources

    def other_writer_first(*arguments):
        monkeypatch.setattr(ingest, "_open_sources", opened)
        take_in(["incoming"], parse_path("v.zarr"))
        return opened(*arguments)

    monkeypatch.setattr(ingest, "_open_sources", other_writer_first)
    with pytest.raises(FolderInUseError, match="in between"):
        take_in(["incoming"], parse_path("v.zarr"))
    np.testing.assert_array_equal(dense(open_dataset("v.zarr"))[0], bits)


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["before", "after"])
def test_a_run_killed_beside_the_manifest_ingests_nothing_twice(bits, tmp_path, monkeypatch, step):
    monkeypatch.chdir(tmp_path)
    arrive("a.csv", bits[:100])
    take_in(["incoming"], parse_path("v.zarr"))
    arrive("b.csv", bits[100:])
    program = (
        "import os\n"
        "from storage.dataset import writer\n"
        "from storage.stores.locations import parse_path\n"
        "from storage.format.manifests import write_manifest\n"
        "from tests.flows.test_ingest_new import take_in\n"
        "def killed(*arguments):\n"
        f"    if {step == 'after'}: write_manifest(*arguments)\n"
        "    os._exit(9)\n"
        "writer.write_manifest = killed\n"
        "take_in(['incoming'], parse_path('v.zarr'))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=600).returncode == 9
    found = take_in(["incoming"], parse_path("v.zarr"))
    assert len(found.new) == (step == "before")
    np.testing.assert_array_equal(dense(open_dataset("v.zarr"))[0], bits)


def test_objects_below_a_prefix(bits, tmp_path, monkeypatch, s3):
    monkeypatch.chdir(tmp_path)
    folder, dataset = f"{s3}/incoming", parse_path(f"{s3}/v.zarr")

    def put(name: str, X: np.ndarray) -> None:
        write_csv(Path("part.csv"), X)
        parse_object_url(f"{folder}/{name}").write_bytes(Path("part.csv").read_bytes())

    put("b.csv", bits[100:200])
    put("2026/a.csv", bits[:100])
    put("c.csv.partial", bits)
    found = take_in([folder], dataset)
    assert found.new == [f"{folder}/2026/a.csv", f"{folder}/b.csv"]
    put("c.csv", bits[200:])
    put("b.csv", bits[100:200])  # the same again is the same
    found = take_in([folder], dataset)
    assert (found.new, found.n_known) == ([f"{folder}/c.csv"], 2)
    np.testing.assert_array_equal(dense(open_dataset(dataset))[0], bits)
    put("b.csv", bits)
    with pytest.raises(DataError, match=r"b\.csv: the file has changed since it was ingested"):
        take_in([folder], dataset)
    with pytest.raises(DataError, match="this is not a folder"):
        take_in([f"{folder}/c.csv"], dataset)
