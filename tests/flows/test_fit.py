"""The fit command, from its options to its artifact."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from storage import load_artifact, open_dataset
from storage.dataset.dataset import BinaryDataset
from storage.dataset.writer import append_dataset
from storage.errors import DataError
from tests.support.data import ArrayBatch, draw_probit_rows, find_shared_data, write_arrays
from tests.support.processes import kill_fit_at

SUMMARY_KEYS = {
    "artifact", "model", "n_samples", "n_features", "n_components", "objective", "iterations",
    "converged", "warnings", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def probit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(3000, 40, 4, seed=11)
    split = np.where(np.arange(len(X)) % 3 == 0, "test", "train")
    path = tmp_path_factory.mktemp("fit") / "probit.zarr"
    write_arrays(path, X, words_per_chunk=4, columns={"split": split})
    return path


def test_digits_need_nothing(plain_cli):
    done = plain_cli("fit", "--dataset", "example:digits", "--json")
    assert done.code == 0, done.err
    assert done.json.keys() >= SUMMARY_KEYS
    assert done.json["n_samples"] == 1797
    assert done.json["converged"] is True
    assert done.json["warnings"] == []  # a first fit is a good one
    fitted = load_artifact("runs/" + Path(done.json["artifact"]).parent.name)
    assert fitted.dims("loadings") == ("feature", "component")
    assert fitted["loadings"].shape == (done.json["n_features"], done.json["n_components"])


def test_the_table_ends_with_the_artifact(cli, probit):
    done = cli("fit", "--dataset", probit)
    assert done.code == 0, done.err
    last = done.out.strip().splitlines()[-1]
    assert last.startswith("artifact: ")
    assert load_artifact(last.removeprefix("artifact: ")).manifest["n_components"] == 4
    assert "spectrum" in done.out


def test_the_artifact_records_where_it_comes_from(cli, probit):
    done = cli("fit", "--dataset", probit, "--set", "correlation=arcsine", "--seed", 5, "--json")
    manifest = load_artifact(done.json["artifact"]).manifest
    assert manifest["hyperparameters"]["correlation"] == "arcsine"
    assert manifest["seed"] == 5
    assert len(manifest["dataset"]["digest"]) == 64
    assert {"latentbits", "numpy", "numba"} <= manifest["versions"].keys()
    assert manifest["feature_names"][:2] == ["f0", "f1"]
    assert any("arcsine" in warning for warning in manifest["warnings"])


def test_every_executor_gives_the_same_bytes(cli, probit):
    serial = cli("fit", "--dataset", probit, "--executor", "serial", "--json")
    expected = load_artifact(serial.json["artifact"])
    for options in (["--executor", "threads"], ["--workers", "2"]):
        other = cli("fit", "--dataset", probit, *options, "--json")
        assert other.code == 0, other.err
        got = load_artifact(other.json["artifact"])
        assert set(got) == set(expected)
        for name in expected:
            assert got[name].tobytes() == expected[name].tobytes(), (options, name)


@pytest.mark.matrix
def test_the_split_train_is_fitted_unless_another_is_named(cli, probit):
    chosen = {(): ("2,000 (split train)", 2000, "train")}
    chosen["--split", "test"] = ("1,000 (split test)", 1000, "test")
    chosen["--split", "all"] = ("3,000 (all)", 3000, None)
    for options, expected in chosen.items():
        done = cli("fit", "--dataset", probit, "--components", 2, *options)
        assert expected[0] in done.out
        manifest = load_artifact(done.out.split("artifact: ")[1].strip()).manifest
        assert (manifest["n_samples"], manifest["split"]) == expected[1:]


def test_a_split_called_all_is_meant_by_that(cli):
    X, _ = draw_probit_rows(400, 6, 2, seed=1)
    write_arrays(Path("a.zarr"), X, columns={"split": np.repeat(["all", "other"], 200)})
    for options, rows in (((), 400), (("--split", "all"), 200)):
        done = cli("fit", "--dataset", "a.zarr", *options, "--components", 1, "--json")
        assert done.json["n_samples"] == rows


def test_a_split_fits_its_own_rows(cli, probit):
    done = cli("fit", "--dataset", probit, "--split", "train", "--json")
    assert done.json["n_samples"] == 2000
    X, _ = draw_probit_rows(3000, 40, 4, seed=11)
    train = np.arange(len(X)) % 3 != 0
    path = write_arrays(Path("train.zarr"), X[train]).path
    alone = cli("fit", "--dataset", path, "--json")
    loadings = [load_artifact(d.json["artifact"])["loadings"] for d in (done, alone)]
    assert loadings[0].tobytes() == loadings[1].tobytes()


def test_latest_points_to_the_last_fit(cli, probit):
    first = cli("fit", "--dataset", probit, "--components", 2, "--json")
    second = cli("fit", "--dataset", probit, "--components", 3, "--json")
    assert first.json["artifact"] != second.json["artifact"]
    assert load_artifact("runs/probit")["loadings"].shape == (40, 3)
    assert not Path("runs/probit/.unfinished").exists()


@pytest.mark.matrix
def test_usps_digits_through_both_commands(cli):
    source = find_shared_data("usps16_train.npz")
    assert cli("ingest", source, "--dataset", "usps.zarr").code == 0
    done = cli("fit", "--dataset", "usps.zarr", "--components", 25, "--json")
    assert done.code == 0, done.err
    assert (done.json["n_samples"], done.json["n_features"]) == (7291, 256)
    fitted = load_artifact(done.json["artifact"])
    assert fitted["loadings"].shape == (256, 25)
    assert np.isfinite(fitted["correlation"]).all()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_fit_uses_the_rows_of_its_start(cli, tmp_path, monkeypatch, is_replaced):
    X, path = draw_probit_rows(1280, 8, 2, seed=3)[0], tmp_path / "d.zarr"
    write_arrays(path, X[:640], words_per_chunk=1)
    options = ("--components", 2, "--executor", "serial", "--no-report")
    command = ("fit", "--dataset", path, *options, "--json")
    expected = load_artifact(cli(*command).json["artifact"])
    files = sorted(Path("runs").rglob("*"))
    read_chunk = BinaryDataset.read_chunk

    def change_first(dataset, key, *others):
        """Change the dataset as soon as the fit reads it."""
        monkeypatch.setattr(BinaryDataset, "read_chunk", read_chunk)
        if is_replaced:
            shutil.rmtree(path)
            write_arrays(path, X[640:], words_per_chunk=1)
        else:
            with append_dataset(path, dataset.feature_names) as writer:
                writer.add(ArrayBatch(X[640:]))
        return read_chunk(dataset, key, *others)

    monkeypatch.setattr(BinaryDataset, "read_chunk", change_first)
    done = cli(*command)
    if is_replaced:
        assert done.code == 2
        assert done.err.endswith(
            f"error: {path}: the dataset has changed since the start. Run again.\n"
        )
        assert sorted(Path("runs").rglob("*")) == files
    else:
        fitted = load_artifact(done.json["artifact"])
        assert fitted.manifest["n_samples"] == 640
        assert all(fitted[name].tobytes() == expected[name].tobytes() for name in expected)
        assert open_dataset(path).n_rows == 1280


def test_a_killed_fit_resumes_to_the_same_bytes(cli, probit):
    many_draws = ["--dataset", str(probit), "--set", "null_draws=300", "--executor", "serial"]
    kill_fit_at("pass/manifest.json", many_draws)
    with pytest.raises(DataError):
        load_artifact("runs/probit")
    counted = next(Path("runs/probit/.unfinished").glob("*/pass/manifest.json")).stat().st_mtime_ns
    assert counted
    resumed = cli("fit", *many_draws, "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert "pair counts" not in resumed.err  # not counted again
    fresh = cli("fit", *many_draws, "--json", "--output", "fresh")
    bytes_of = [load_artifact(d.json["artifact"])["loadings"].tobytes() for d in (resumed, fresh)]
    assert bytes_of[0] == bytes_of[1]


@pytest.mark.matrix
@pytest.mark.parametrize(("executor", "embedded"), [("serial", "true"), ("dask", "false")])
def test_ctrl_c_ends_a_fit_soon(prefect_server, probit, tmp_path, monkeypatch, executor, embedded):
    """A terminal interrupts the whole process group, not this process alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_ENABLED", embedded)
    command = [sys.executable, "-m", "flows.fit", "--dataset", str(probit), "--executor", executor]
    process = subprocess.Popen(
        [*command, "--set", "null_draws=20000"],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    deadline = time.monotonic() + 600
    while not list(Path("runs").glob("*/.unfinished/*/pass/manifest.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err


def test_ctrl_c_while_an_object_is_made_leaves_its_message_last(tmp_path):
    """A Dask future whose creation is interrupted fails when it is deleted."""
    (tmp_path / "command.py").write_text(
        "import signal\n"
        "from distributed import Future\n"
        "from flows.cli.app import make_app, run_app\n"
        "class Interrupted(Future):\n"
        "    def __init__(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "app = make_app('command', 'Make a future.', '')\n"
        "app.default(lambda: Interrupted())\n"
        "run_app(app, [])\n"
    )
    done = subprocess.run(
        [sys.executable, "command.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert done.stderr == "error: interrupted\n"


@pytest.mark.matrix
def test_ctrl_c_while_a_command_is_loaded_leaves_no_traceback(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "flows.fit", "--help"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not process.stderr.readline().endswith(" flows.running.environment\n"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT  # of which a shell makes 130
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.matrix
def test_the_embedded_server_ends_with_a_killed_command(probit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_ENABLED", "true")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    command = [sys.executable, "-m", "flows.fit", "--dataset", str(probit)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    while not (addresses := _listening(process.pid)):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=600)  # returns only when nobody holds the pipe open
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)


def _listening(pid: int) -> list:
    import psutil

    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    return [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]
