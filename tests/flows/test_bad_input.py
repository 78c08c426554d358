"""Bad input: one clear line, exit code 2, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from distributed import LocalCluster

from flows.running import tls
from tests.support.data import draw_probit_rows, write_arrays


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(1000, 12, 2, seed=2)
    return write_arrays(tmp_path_factory.mktemp("whole") / "d.zarr", X, words_per_chunk=4).path


@pytest.fixture
def dataset(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "d.zarr"))


@pytest.fixture
def refused(cli, tmp_path):
    """Call a command that must be refused and leave no new file; return its message."""

    def call(name: str, *arguments: object) -> str:
        before = set(tmp_path.rglob("*"))
        line = cli(name, *arguments).check_refused()
        left = set(tmp_path.rglob("*")) - before
        assert not left
        return line

    return call


def text(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


# What `flows.fit` refuses: its options, and words of the message

LAYERS = "--dataset d.zarr --model stack --executor serial --layers"
COMMAS = "but should be whole numbers separated by commas"
REFUSED_FITS: Sequence[tuple[str, str]] = [
    ("--dataset nowhere.zarr", "nowhere.zarr"),
    ("--dataset example:digit", "'digits'?"),
    ("--dataset gs://bucket/d.zarr", "gs://"),
    ("--datset d.zarr", "--dataset"),
    ("d.zarr --components 3", "Did you mean --dataset d.zarr?"),
    ("--dataset d.zarr b", "Unexpected arguments: 'b'."),
    (
        "--dataset nowhere.zarr --set repair=none --set repair=shrink",
        "error: --set: repair is given twice. Choose one value.",
    ),
    (
        "--dataset nowhere.zarr --model stack --layers 4 --set layers=3,2",
        "error: --set: layers is given twice. Choose one value.",
    ),
    *((f"--dataset d.zarr --components {k}", "--components") for k in ("0", "-3", "many", "2.5")),
    ("--dataset d.zarr --components 13", "--components is 13, but "),
    ("--dataset d.zarr --components 13", "12"),
    (
        "--dataset d.zarr --layers 8,4",
        "clipped-pca has no layers, unlike stack.",
    ),
    (f"{LAYERS}=", "--layers must be at least 1, but is ()"),
    (f"{LAYERS} 8,many", COMMAS),
    (f"{LAYERS} 8,2.5", COMMAS),
    (f"{LAYERS} 8,,4", COMMAS),
    (f"{LAYERS} 8,0", "--layers must be at least 1, but is (8, 0)"),
    (f"{LAYERS} 8,100", "--layers has 100 units above 8, more than 10 times as many"),
    (f"{LAYERS} 200,4", "--layers has 200 units above 12, more than 10 times as many"),
    ("--dataset d.zarr --model cliped-pca", "'clipped-pca'?"),
    ("--dataset d.zarr --set estimater=arcsine", "'estimator'?"),
    ("--dataset d.zarr --set estimator=other", "estimator"),
    ("--dataset d.zarr --set null_draws=x", "null_draws"),
    ("--dataset d.zarr --set null_draws=3", "null_draws"),
    ("--dataset d.zarr --set estimator", "estimator"),
    ("--dataset d.zarr --split train", "--split"),
    ("--dataset d.zarr --executor serial --workers 2", "--workers"),
    ("--dataset d.zarr --executor threads --cluster tcp://127.0.0.1:1", "--cluster"),
    ("--dataset d.zarr --workers 0", "--workers"),
    ("--dataset d.zarr --cluster local --tls-key key.pem", "--tls"),
    ("--dataset d.zarr --cluster=", "--cluster"),
    ("--dataset d.zarr --cluster foo", "--cluster"),
    ("--dataset d.zarr --seed -1", "--seed"),
    ("--dataset d.zarr --seed 1.5", "--seed"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED_FITS)
def test_fits_are_refused(refused, dataset, options, words):
    message = refused("fit", *options.split())
    assert words in message
    if words.startswith("error: "):
        assert message == words


# What `flows.ingest` refuses: contents of files, options, and words of the message

GOOD, SEGMENTS = "a,b\n0,1\n1,0\n", "a,b\n0,1\n1,0\n1,1\n"
REFUSED_SOURCES: Sequence[tuple[Mapping[str, str], str, str]] = [
    ({}, "nowhere.csv", "nowhere.csv"),
    ({"v.csv": "a,b\n0,1\n1,0\n1,3\n"}, "v.csv", "v.csv: row 3"),
    ({"v.csv": "a,b\n0,1\n1,0\n1,3\n"}, "v.csv", "column 'b': the value '3'"),
    ({"r.csv": "a,b,c\n0,1,1\n0,1\n"}, "r.csv", "r.csv: row 2"),
    ({"e.csv": ""}, "e.csv", "e.csv"),
    ({"z.csv": "a,b\n"}, "z.csv", "row"),
    ({"o.csv": "a\n0\n1\n"}, "o.csv", "2 features"),
    ({"n.csv": "a,b,a\n0,1,0\n"}, "n.csv", "'a'"),
    ({"s.csv": "a b c\n0 1 1\n1 0 0\n"}, "s.csv", "which seems to be several separated by spaces"),
    ({"k.csv": "a,b,party\n0,1,x\n"}, "k.csv --keep prty", "there is no column 'prty'"),
    ({"k.csv": "a,b,party\n0,1,x\n"}, "k.csv --keep prty", "'party'?"),
    ({"1.csv": GOOD, "2.csv": "a,c\n0,1\n1,0\n"}, "1.csv 2.csv", "2.csv"),
    ({"1.csv": GOOD, "2.csv": "a,b\n0,1\n1,7\n"}, "1.csv 2.csv", "2.csv: row 2"),
    ({"s.csv": "a,b,year\n0,1,2001\n1,0,2001\n1,1,\n"}, "s.csv --segment-by year", "year"),
    *(({"x.csv": SEGMENTS}, f"x.csv --segments {k}", "--segments") for k in ("0", "2.5", "100")),
    ({"x.csv": SEGMENTS}, f"x.csv --segments {'9' * 30}", "--segments"),
]


@pytest.mark.parametrize(("files", "options", "words"), REFUSED_SOURCES)
def test_sources_are_refused(refused, tmp_path, files, options, words):
    for name, content in files.items():
        text(tmp_path / name, content)
    assert words in refused("ingest", *options.split(), "--dataset", "d.zarr")


def test_a_dataset_cannot_be_written_below_a_file(refused, tmp_path):
    text(tmp_path / "x.csv", GOOD)
    text(tmp_path / "file", "not a folder")
    assert "file" in refused("ingest", "x.csv", "--dataset", "file/d.zarr")


@pytest.mark.parametrize(
    "command",
    [
        "transform --dataset d.zarr --artifact runs --output ideal.tsv",
        "sample --artifact runs --rows 9 --output ideal.tsv",
        "ingest x.csv --dataset ideal.tsv",
    ],
)
def test_a_folder_is_not_named_like_a_file(refused, tmp_path, command):
    text(tmp_path / "x.csv", GOOD)
    assert refused(*command.split()) == (
        "error: ideal.tsv: Zarr arrays are written to a folder, but this is the name of "
        "a file. Name it ideal.zarr."
    )


def test_a_path_that_is_not_a_dataset(refused, tmp_path):
    (tmp_path / "folder").mkdir()
    assert "dataset" in refused("fit", "--dataset", "folder")
    text(tmp_path / "file.csv", "a,b\n0,1\n")
    message = refused("fit", "--dataset", "file.csv")
    assert message.endswith("python -m flows.ingest file.csv --dataset file.zarr")


def test_nothing_is_written_into_a_dataset(refused, cli, dataset, tmp_path):
    fitted = ["--artifact", "runs"]
    assert cli("fit", "--dataset", dataset, "--output", "runs").code == 0
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.uint8))
    (tmp_path / "link").symlink_to(dataset)
    commands = [
        ("fit", "--dataset", dataset, "--output", dataset),
        ("fit", "--dataset", dataset, "--output", dataset / "runs"),
        ("transform", "--dataset", dataset, *fitted, "--output", "link/codes"),
        ("transform", "--dataset", dataset, *fitted, "--output", "d.zarr/z.csv"),
        ("export", *fitted, "--what", "items", "--output", "d.zarr/t.csv"),
        ("report", *fitted, "--output", "d.zarr/r.html"),
        ("report", *fitted, "--output", "r.html", "--pictures", "d.zarr/pictures"),
        ("sample", *fitted, "--rows", 9, "--output", "d.zarr/bits/drawn"),
        ("neighbours", "--dataset", dataset, "--k", 2, "--output", "d.zarr/near"),
        ("ingest", "x.npy", "--dataset", "d.zarr/e"),
        ("certificates", "d.zarr/tls"),
        ("fit", "--dataset", dataset, "--performance-report", "d.zarr/p.html", "--workers", 1),
    ]
    for command in commands:
        assert f"is inside the dataset {dataset}. Choose another path." in refused(*command)


@pytest.mark.parametrize(
    "damage",
    ["flipped", *(pytest.param(d, marks=pytest.mark.matrix) for d in ("missing", "empty", "cut"))],
)
def test_a_damaged_chunk(refused, dataset, damage):
    chunk = dataset / "bits" / "c" / "0" / "1"
    data = bytearray(chunk.read_bytes())
    if damage == "missing":
        chunk.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 4
        chunk.write_bytes(data)
    else:
        chunk.write_bytes(data[: 0 if damage == "empty" else len(data) // 2])
    message = refused("fit", "--dataset", dataset)
    assert "d.zarr" in message
    assert "bits: chunk 1 is" in message


def test_a_newer_format_version(refused, dataset):
    manifest = json.loads((dataset / "manifest.json").read_text())
    text(dataset / "manifest.json", json.dumps({**manifest, "format_version": 99}))
    message = refused("fit", "--dataset", dataset)
    assert "99" in message
    assert "Upgrade" in message


def test_a_constant_feature(refused, tmp_path):
    X, _ = draw_probit_rows(300, 5, 2, seed=3)
    X[:, 2] = 1
    write_arrays(tmp_path / "c.zarr", X, names=["a", "b", "always", "d", "e"])
    message = refused("fit", "--dataset", "c.zarr")
    assert "'always'" in message
    assert "constant_features=keep" in message


def test_a_constant_feature_can_be_kept(cli, tmp_path):
    X, _ = draw_probit_rows(300, 5, 2, seed=3)
    X[:, 2] = 1
    write_arrays(tmp_path / "c.zarr", X, names=["a", "b", "always", "d", "e"])
    keep = ("--set", "constant_features=keep", "--components", 2)
    done = cli("fit", "--dataset", "c.zarr", *keep, "--json")
    assert done.code == 0, done.err
    assert any("'always'" in warning for warning in done.json["warnings"])


def test_a_feature_with_all_values_missing(refused, tmp_path):
    X, _ = draw_probit_rows(300, 5, 2, seed=3)
    observed = np.ones_like(X)
    observed[:, 3] = 0
    write_arrays(tmp_path / "m.zarr", X * observed, observed, names=["a", "b", "c", "gone", "e"])
    assert "'gone'" in refused("fit", "--dataset", "m.zarr")


@pytest.fixture
def hasty(monkeypatch):
    """Wait for a cluster 1 s, not 10."""
    assert tls.CONNECT_SECONDS == 10
    monkeypatch.setattr(tls, "CONNECT_SECONDS", 1.0)


@pytest.mark.usefixtures("hasty")
def test_an_unreachable_cluster(refused, dataset):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = refused("fit", "--dataset", dataset, "--cluster", f"tcp://127.0.0.1:{port}")
    assert str(port) in message


def test_an_output_that_cannot_be_written(refused, dataset, tmp_path):
    text(tmp_path / "taken", "a file")
    assert "taken" in refused("fit", "--dataset", dataset, "--output", tmp_path / "taken" / "runs")


def test_a_cluster_without_workers(refused, dataset):
    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        where = ["--cluster", cluster.scheduler_address, "--worker-timeout", 1]
        message = refused("fit", "--dataset", dataset, *where)
    assert "had only 0 of 1 workers after 1 s" in message


def test_a_folder_of_files(refused, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.parquet", "b.parquet", "notes.txt", "c.npz"):
        text(tmp_path / "in" / name, "")
    message = refused("ingest", "in", "--dataset", "d.zarr")
    assert message.endswith("Name its files, for example 'in/*.parquet'.")


def test_a_segment_with_one_row_is_for_models_that_need_none(cli, refused, tmp_path):
    rows = "\n".join(f"{i % 2},{i // 2 % 2},{i // 3 % 2},{2001 + i // 40}" for i in range(81))
    text(tmp_path / "s.csv", f"a,b,c,year\n{rows}\n")
    done = cli("ingest", "s.csv", "--dataset", "d.zarr", "--segment-by", "year", "--json")
    assert done.code == 0, done.err
    (warning,) = [text for text in done.json["warnings"] if "single row" in text]
    assert warning.startswith("segments with a single row: '2003';")
    fitted = cli("fit", "--dataset", "d.zarr", "--components", 1, "--no-report")
    assert fitted.code == 0, fitted.err
    message = refused("fit", "--dataset", "d.zarr", "--model", "blica", "--components", 1)
    assert "BLICA needs at least 3 usable segments, but there are 2" in message
    assert "'2003'" in message


def test_append_with_other_features(refused, dataset, tmp_path):
    append = ("ingest", "x.csv", "--dataset", dataset, "--append")
    text(tmp_path / "x.csv", "f0,b\n0,1\n1,0\n")
    assert "--absent-features missing" in refused(*append)
    text(tmp_path / "x.csv", "a,b\n0,1\n1,0\n")
    options = ("--absent-features", "missing", "--new-features", "ignore")
    assert "x.csv has no column of a feature of" in refused(*append, *options)


def test_a_dataset_that_is_there_already(refused, dataset, tmp_path):
    text(tmp_path / "x.csv", "a,b\n0,1\n1,0\n")
    assert "--overwrite" in refused("ingest", "x.csv", "--dataset", dataset)


@pytest.mark.matrix
def test_no_space_leaves_nothing_behind(tmp_path, prefect_server):
    """A limit on file size stands for a full disk: writing fails in the middle."""
    X = np.random.default_rng(0).integers(0, 2, (20_000, 200), dtype=np.uint8)
    np.save(tmp_path / "x.npy", X)
    program = (
        "import resource, sys\n"
        "import flows.ingest as ingest\n"
        "from flows.cli.app import run_app\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "run_app(ingest.app, sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "x.npy", "--dataset", "d.zarr"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d.zarr").exists()


ODD_VALUES = ["", "nan", "1e400", "9" * 400, "x" * 5000, "a\0b", "\ud800", "a,a", "a:1-1", "{x}"]
ODD_PATHS = ["folder", "loop", "pipe.csv", "/dev/null", "x.csv/y", "binary.csv", "s3://"]


@pytest.mark.parametrize("value", [*ODD_VALUES, *ODD_PATHS], ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize("name", ["fit", "ingest"])
@pytest.mark.parametrize(
    "n_parts", [pytest.param(4, marks=pytest.mark.matrix), pytest.param(1, marks=pytest.mark.slow)]
)
def test_odd_values_of_options_are_used_or_refused(cli, dataset, tmp_path, name, value, n_parts):
    """Options take the values by turns, or all of them."""
    text(tmp_path / "x.csv", "a,b\n0,1\n1,0\n1,1\n")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe.csv")
    arguments = {"fit": ["--dataset", dataset], "ingest": ["x.csv", "--dataset", "out/d.zarr"]}
    options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", cli(name, "--help").out)
    left_out = {"--help", "--cluster", "--workers", "--log-json", "--dataset"}
    place = [*ODD_VALUES, *ODD_PATHS].index(value)
    for option in sorted({*options} - left_out)[place % n_parts :: n_parts]:
        done = cli(name, *arguments[name], option, value)
        assert done.code in (0, 2), (option, done.err)
        assert "Traceback" not in done.err
        if done.code == 2:
            assert done.message.startswith("error: "), option
            assert len(done.message) < 2000, option
        shutil.rmtree("out", ignore_errors=True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--items", "twice.csv", "--items: twice.csv has columns with the same name: 'slope'"),
        ("--items", "pipe.csv", "pipe.csv is a pipe or a device. Write what it holds to a file."),
        ("--items", "x" * 300, "is no usable path: File name too long."),
        ("--components", "9" * 400, "need more than a billion GB"),
        ("--memory", "1e400GB", "--memory is '1e400GB', which is not a size such as 4GB."),
        ("--output", "loop", "'loop' is no usable path: Too many levels of symbolic links."),
    ],
)
def test_odd_values_of_options_of_fit(refused, dataset, tmp_path, option, value, message):
    text(tmp_path / "twice.csv", "feature,slope,offset,slope\na,1,2,3\n")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe.csv")
    assert message in refused("fit", "--dataset", dataset, "--model", "latent-trait", option, value)


def test_a_source_that_is_a_pipe(refused, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is a pipe or a device" in refused("ingest", "pipe.csv", "--dataset", "d.zarr")


def test_a_long_message_keeps_its_remedy(refused, dataset):
    message = refused("fit", "--dataset", dataset, "--weight", "x" * 100_000)
    assert len(message) < 2000
    assert " … " in message


def test_more_folds_than_rows(refused, cli, dataset):
    fitted = cli("fit", "--dataset", dataset, "--components", 1, "--output", "runs")
    assert fitted.code == 0, fitted.err
    options = ("--dataset", dataset, "--artifact", "runs", "--folds", "9" * 400)
    assert "but there are only 1000 rows. Choose at most 1000." in refused("evaluate", *options)
