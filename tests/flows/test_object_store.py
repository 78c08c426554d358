"""The commands with everything in an object store: the same bytes as on disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from storage import load_artifact, open_codes, open_dataset
from storage.errors import DataError
from storage.stores.locations import parse_path
from storage.stores.object_path import ObjectPath
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.object_proxy import (
    AFTER,
    BEFORE,
    BROKEN,
    DENIED,
    MIDWAY,
    THROTTLED,
    fail_always,
    fail_at_random,
    fail_writes,
)
from tests.support.object_servers import SERVERS

SERIAL = ("--executor", "serial")
MIXTURE = ("--model", "bernoulli-mixture", "--components", 2, "--set", "starts=1")
MIXTURE = (*MIXTURE, "--set", "max_iter=4", "--set", "tol=1e-12")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(900, 12, 2, seed=3)
    path = tmp_path_factory.mktemp("source") / "night.npz"
    np.savez(path, X=X, split=np.where(np.arange(900) % 4, "train", "test"))
    return path


def arrays_of(path: str) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_artifact(path).items()}


def worked(done):
    assert done.code == 0, done.err
    return done.json


def ingest(cli, source: Path | str, dataset: object):
    options = ("--split-by", "split", "--segments", 2, "--json")
    return worked(cli("ingest", source, "--dataset", dataset, *options))


def results(cli, source: Path, root: str, where: tuple[object, ...], *more: object) -> list:
    """What all commands find and write below a root."""
    data, runs, drawn = f"{root}/d.zarr", f"{root}/runs", f"{root}/drawn.zarr"
    serial = (*SERIAL, "--json")
    ingest(cli, source, data)
    options = ("--components", 2, *where, *more)
    worked(cli("fit", "--dataset", data, "--output", runs, *options, "--json"))
    coded = ("--dataset", data, "--artifact", runs, "--output", f"{root}/z", "--split", "test")
    worked(cli("transform", *coded, *where, "--json"))
    scored = worked(
        cli("evaluate", "--dataset", data, "--artifact", runs, "--no-baselines", *serial)
    )
    worked(cli("sample", "--artifact", runs, "--rows", 500, "--output", drawn, *serial))
    codes = open_codes(f"{root}/z")
    return [
        open_dataset(data).digest,
        open_dataset(drawn).digest,
        arrays_of(runs),
        {name: codes[name].tobytes() for name in codes},
        [{k: v for k, v in m.items() if k not in ("name", "artifact")} for m in scored["models"]],
    ]


@pytest.mark.parametrize(
    ("store", "where"),
    [
        ("s3", SERIAL),
        *(pytest.param(s, ("--workers", 2), marks=pytest.mark.matrix) for s in SERVERS),
    ],
    indirect=["store"],
    ids=["serial", *SERVERS],
)
def test_everything_in_the_store_is_as_on_disk(cli, bucket, source, where):
    root = f"{bucket}/all"
    there = results(cli, source, root, where, "--report")
    assert there == results(cli, source, "local", SERIAL)
    page = load_artifact(f"{root}/runs").path / "report.html"
    assert page.read_text().startswith("<!DOCTYPE html>")
    figures = f"{bucket}/figures"
    done = cli(
        *("report", "--artifact", f"{root}/runs", "--output", "page.html", "--pictures", figures)
    )
    assert done.code == 0, done.err
    assert Path("page.html").is_file()
    names = {path.name for path in parse_path(figures).iterdir()}
    captions = (parse_path(figures) / "captions.txt").read_text()
    assert {line.partition(": ")[0] for line in captions.splitlines()} == names - {"captions.txt"}
    left = {path.name for path in parse_path(root).iterdir()}
    assert left == {"d.zarr", "runs", "drawn.zarr", "z"}  # no claims, nothing unfinished
    assert not any(Path(f"{scheme}:").exists() for scheme in SERVERS)


@pytest.mark.matrix
def test_a_killed_fit_resumes_to_the_same_bytes(cli, s3, source):
    data = f"{s3}/d.zarr"
    ingest(cli, source, data)
    runs = parse_path(f"{s3}/runs")
    options = [*map(str, MIXTURE[:-4]), "--set", "max_iter=9", "--set", "tol=1e-300"]
    options = ["--dataset", data, *options, "--executor", "serial", "--no-report"]
    kill_fit_in_a_pass([*options, "--output", str(runs)], runs)
    with pytest.raises(DataError):
        load_artifact(runs)
    resumed = worked(cli("fit", *options, "--output", runs, "--resume", "--json"))
    assert resumed["iterations"] > 3
    fresh = worked(cli("fit", *options, "--output", f"{s3}/fresh", "--json"))
    assert arrays_of(resumed["artifact"]) == arrays_of(fresh["artifact"])
    assert not any("/." in key for key in runs.list_keys())


def kill_fit_in_a_pass(arguments: list[str], runs: ObjectPath) -> None:
    """Start a fit and kill it once two passes have left their state."""
    process = subprocess.Popen([sys.executable, "-m", "flows.fit", *arguments])
    deadline = time.monotonic() + 600
    while not any("/states/000003/manifest.json" in key for key in runs.list_keys()):
        assert process.poll() is None, "the fit ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.matrix
def test_failing_requests_lose_nothing(cli, faulty_bucket, faulty, source):
    faulty.fault = fail_at_random(7, 0.2, THROTTLED, BEFORE, BROKEN, AFTER, MIDWAY)
    faulty.delay = 0.02
    found = []
    for root in ("local", faulty_bucket):
        data, runs = f"{root}/d.zarr", f"{root}/runs"
        ingest(cli, source, data)
        fit = ("--dataset", data, *MIXTURE, "--executor", "threads", "--no-report", "--json")
        worked(cli("fit", *fit, "--output", runs))
        coded = ("--dataset", data, "--artifact", runs, "--output", f"{root}/z")
        worked(cli("transform", *coded, "--executor", "threads", "--json"))
        codes = open_codes(f"{root}/z")
        page = Path(f"{Path(root).name}.html")
        assert cli("report", "--artifact", runs, "--output", page).code == 0
        found.append([open_dataset(data).digest, arrays_of(runs), codes["mean"].tobytes()])
    assert found[0] == found[1]
    assert len(faulty.seen) > 100


@pytest.mark.matrix
def test_a_slow_upload_does_not_begin_again(faulty_bucket, faulty):
    path = parse_path(f"{faulty_bucket}/slow")
    assert not path.exists()
    faulty.fault = lambda request: time.sleep(31) if request.is_write else None
    path.write_bytes(b"content")
    assert faulty.counts_by_method["PUT"] == 1
    assert path.read_bytes() == b"content"


@pytest.mark.matrix
def test_a_state_that_cannot_be_read_now_is_kept(cli, faulty_bucket, faulty, source):
    """A fit that took it for missing would begin anew and delete it."""
    data, runs = f"{faulty_bucket}/d.zarr", parse_path(f"{faulty_bucket}/runs")
    ingest(cli, source, data)
    options = ("--dataset", data, *MIXTURE, "--executor", "serial", "--output", runs)
    faulty.fault = lambda r: DENIED if r.is_write and "/states/000003/" in r.path else None
    assert cli("fit", *options).code == 2
    kept = [key for key in runs.list_keys() if "/states/000002/" in key]
    assert kept
    faulty.fault = lambda r: DENIED if r.path.endswith("/states/000002/manifest.json") else None
    done = cli("fit", *options, "--resume")
    assert done.code == 2
    assert "AccessDenied" in done.message
    assert [key for key in runs.list_keys() if "/states/000002/" in key] == kept


def test_a_store_that_fails_for_good_midway_is_told(cli, faulty_bucket, faulty, source):
    data = f"{faulty_bucket}/d.zarr"
    ingest(cli, source, data)
    faulty.fault = lambda r: DENIED if r.is_write and "/states/" in r.path else None
    runs = f"{faulty_bucket}/runs"
    done = cli("fit", "--dataset", data, "--output", runs, "--executor", "serial")
    assert done.code == 2
    assert "AccessDenied" in done.message
    assert "Traceback" not in done.err


# Requests


@pytest.mark.matrix
def test_a_fit_makes_few_requests(cli, faulty_bucket, faulty, source):
    data = f"{faulty_bucket}/d.zarr"
    ingest(cli, source, data)
    assert len(faulty.seen) < 120
    counted = []
    for n_passes in (2, 6):
        faulty.seen.clear()
        options = (*MIXTURE[:-4], "--set", f"max_iter={n_passes}", "--set", "tol=1e-300")
        options = (*options, "--executor", "serial", "--no-report")
        done = cli("fit", "--dataset", data, *options, "--output", f"{faulty_bucket}/r{n_passes}")
        assert done.code == 0, done.err
        counted.append(len(faulty.seen))
    assert counted[0] < 250
    assert (counted[1] - counted[0]) / 4 < 20  # a pass: its state is written, the last one deleted
    chunks = [r for r in faulty.seen if r.method == "GET" and "/d.zarr/bits/c/" in r.path]
    assert len(chunks) == open_dataset(data).n_chunks  # six passes read the data once


# Sources in the store


def test_files_of_the_store_are_ingested(cli, s3, source):
    X, split = (np.load(source)[name] for name in ("X", "split"))
    for name, rows in (("2.npz", slice(400, None)), ("1.npz", slice(400)), ("0.csv", None)):
        if rows is None:
            parse_path(f"{s3}/in/{name}").write_bytes(b"no,source\n")
            continue
        np.savez("part.npz", X=X[rows], split=split[rows])
        parse_path(f"{s3}/in/{name}").write_bytes(Path("part.npz").read_bytes())
    whole = ingest(cli, source, "whole.zarr")
    from_store = ingest(cli, f"{s3}/in/*.npz", f"{s3}/d.zarr")
    assert from_store["n_rows"] == whole["n_rows"] == 900
    assert open_dataset(f"{s3}/d.zarr").digest == open_dataset("whole.zarr").digest
    done = cli("ingest", f"{s3}/in/1.npz", "--dataset", f"{s3}/d.zarr", "--append", "--json")
    assert worked(done)["n_rows"] == 1300


def test_baskets_of_the_store_have_common_items(cli, s3):
    parse_path(f"{s3}/in/a.dat").write_bytes(b"1 2\n2 3\n1\n")
    parse_path(f"{s3}/in/b.dat").write_bytes(b"7\n1 7\n")
    done = cli("ingest", f"{s3}/in/*.dat", "--dataset", "b.zarr", "--json")
    assert worked(done)["n_features"] == 4
    assert open_dataset("b.zarr").feature_names == ("1", "2", "3", "7")


@pytest.mark.timeout(300)
def test_columns_of_a_source_in_a_store_are_left_out_too(cli, s3):
    parse_path(f"{s3}/in/ids.csv").write_bytes(b"id,x,y,z\n7,yes,no,yes\n8,no,yes,yes\n")
    options = ("--drop", "id", "--yes", "yes", "--no", "no", "--drop-constant", "--json")
    done = worked(cli("ingest", f"{s3}/in/ids.csv", "--dataset", "d.zarr", *options))
    assert done["left_out"] == ["id", "z"]
    assert open_dataset("d.zarr").feature_names == ("x", "y")


LONG = ("--long", "row=who,feature=page", "--json")


def test_long_tables_of_the_store(cli, s3):
    parse_path(f"{s3}/in/1.csv").write_bytes(b"who,page\n7,b\n7,c\n")
    parse_path(f"{s3}/in/2.csv").write_bytes(b"page,who\nb,9\na,7\n")
    worked(cli("ingest", f"{s3}/in/*.csv", "--dataset", "d.zarr", *LONG))
    data = open_dataset("d.zarr")
    assert data.feature_names == ("a", "b", "c")
    np.testing.assert_array_equal(data.to_xarray()["values"], [[1, 1, 1], [0, 1, 0]])
    done = worked(cli("ingest", f"{s3}/in", "--dataset", "n.zarr", "--new", *LONG))
    assert (done["n_rows"], done["n_known"]) == (2, 0)
    done = worked(cli("ingest", f"{s3}/in", "--dataset", "n.zarr", "--new", *LONG))
    assert (done["n_rows"], done["n_known"]) == (2, 2)
    parse_path(f"{s3}/in/3.csv").write_bytes(b"who,page\n8,\n")
    done = cli("ingest", f"{s3}/in/3.csv", "--dataset", "e.zarr", *LONG)
    assert done.code == 2
    assert f"{s3}/in/3.csv: row 1" in done.message


def test_a_bad_value_names_the_url(cli, s3):
    parse_path(f"{s3}/in/a.csv").write_bytes(b"x,y\n0,1\n2,1\n")
    done = cli("ingest", f"{s3}/in/a.csv", "--dataset", "d.zarr")
    assert done.code == 2
    assert f"{s3}/in/a.csv: row 2" in done.message
    assert not Path("d.zarr").exists()


# Bad input


@pytest.fixture
def refused(cli):
    """Call a command that must be refused in one line; return it."""

    def call(*arguments: object) -> str:
        done = cli(*arguments)
        assert "a-secret-of-tests" not in done.err
        assert "hunter2" not in done.err
        return done.check_refused()

    return call


@pytest.fixture
def local(tmp_path: Path) -> Path:
    X, _ = draw_probit_rows(300, 6, 2, seed=2)
    return write_arrays(tmp_path / "data" / "d.zarr", X).path


BAD_URLS = ["s3://me:hunter2@bucket/d", "s3://bucket", "s3://bucket/d?sign=hunter2"]
BAD_URLS += [pytest.param("gs://b/d", marks=pytest.mark.matrix)]  # each waits for credentials


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_urls_are_refused_by_every_command(refused, local, url):
    for arguments in (
        ("fit", "--dataset", url),
        ("fit", "--dataset", local, "--output", url),
        ("transform", "--dataset", local, "--artifact", url, "--output", "z"),
        ("evaluate", "--dataset", url, "--artifact", "a"),
        ("sample", "--artifact", "a", "--rows", 5, "--output", url),
        ("ingest", url, "--dataset", "d.zarr"),
        ("ingest", "example:digits", "--dataset", url),
        ("report", "--artifact", url),
    ):
        assert f"error: {url[:5]}" in refused(*arguments)


def test_an_unreachable_store_is_told(refused, s3, local, monkeypatch):
    from storage.stores import object_store

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    object_store.open_bucket.cache_clear()
    for arguments in (
        ("fit", "--dataset", f"{s3}/d.zarr"),
        ("fit", "--dataset", local, "--output", f"{s3}/runs"),
    ):
        assert "AWS_ENDPOINT_URL" in refused(*arguments)


def test_a_missing_bucket_is_told(refused, s3, local):
    other = f"{s3}-other"
    for arguments in (
        ("fit", "--dataset", f"{other}/d.zarr"),
        ("fit", "--dataset", local, "--output", f"{other}/runs"),
        ("ingest", f"{other}/in/*.csv", "--dataset", "d.zarr"),
        ("ingest", "example:ring", "--dataset", f"{other}/d.zarr"),
    ):
        assert "the bucket does not exist" in refused(*arguments)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (fail_always((403, "InvalidAccessKeyId")), "InvalidAccessKeyId"),
        (fail_writes(DENIED), "AccessDenied"),
    ],
    ids=["wrong credentials", "read-only"],
)
def test_a_store_that_refuses_is_told_before_any_work(
    refused, faulty_bucket, faulty, local, fault, expected
):
    faulty.fault = fault
    for arguments in (
        ("fit", "--dataset", local, "--output", f"{faulty_bucket}/runs"),
        ("ingest", "example:ring", "--dataset", f"{faulty_bucket}/d.zarr"),
    ):
        message = refused(*arguments)
        assert expected in message
        assert faulty_bucket in message


def test_what_is_not_there_is_told(refused, s3):
    assert "there is no such dataset" in refused("fit", "--dataset", f"{s3}/nowhere.zarr")
    message = refused("ingest", f"{s3}/nowhere.csv", "--dataset", "d.zarr")
    assert "the store has no such file" in message
