"""Clusters of real processes: over TLS, with the wrong papers, with other code."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from datetime import timedelta
from functools import partial
from pathlib import Path

import dask
import pytest
from cryptography import x509
from distributed import Client

import pipeline
import storage
from flows import certificates as command
from flows.cli.app import run_app
from flows.running.cluster_settings import ClusterSettings
from flows.running.clusters import open_cluster
from pipeline.errors import FitError
from storage import load_artifact
from tests.support.cluster_processes import (
    make_tls_options,
    start_scheduler,
    start_worker,
    write_certificates,
)
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.faults import SchedulerTrap, install_trap


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(3000, 12, 3, seed=4)
    return write_arrays(tmp_path_factory.mktemp("data") / "d.zarr", X, words_per_chunk=2).path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("tls") / "files")


@pytest.fixture(scope="module")
def encrypted(files: Path, tmp_path_factory: pytest.TempPathFactory):
    """Address of a scheduler over TLS with two workers."""
    with ExitStack() as stack:
        address = stack.enter_context(start_scheduler(tmp_path_factory.mktemp("scheduler"), files))
        for _ in range(2):
            stack.enter_context(start_worker(address, files))
        yield address


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory):
    """Address of a scheduler without TLS and without workers."""
    with start_scheduler(tmp_path_factory.mktemp("plain")) as address:
        yield address


@pytest.fixture
def refused(cli, dataset, tmp_path):
    """Fit on a cluster that must be refused before any work; return the message."""

    def call(address: str, *options: object) -> str:
        done = cli("fit", "--dataset", dataset, "--cluster", address, *options)
        assert not (tmp_path / "runs").exists()
        return done.check_refused()

    return call


@pytest.mark.matrix
def test_a_fit_over_tls_has_the_bytes_of_a_serial_one(cli, dataset, encrypted, files):
    over_tls = ["--cluster", encrypted, "--workers", 2, *make_tls_options(files)]
    serial = cli("fit", "--dataset", dataset, "--executor", "serial", "--no-report", "--json")
    fitted = cli("fit", "--dataset", dataset, *over_tls, "--no-report", "--json")
    assert fitted.code == 0, fitted.err
    expected, got = (load_artifact(done.json["artifact"]) for done in (serial, fitted))
    assert set(got) == set(expected)
    for name in expected:
        assert got[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.matrix
def test_other_commands_take_the_cluster_of_the_environment(
    plain_cli, dataset, encrypted, files, monkeypatch
):
    alone = ["--executor", "serial"]
    done = plain_cli("fit", "--dataset", dataset, *alone, "--no-report", "--json")
    fitted = ["--artifact", done.json["artifact"]]
    names = {"TLS_CA": "ca.pem", "TLS_CERT": "node.pem", "TLS_KEY": "node-key.pem"}
    for name, file in names.items():
        monkeypatch.setenv(f"LATENTBITS_{name}", str(files / file))
    monkeypatch.setenv("LATENTBITS_CLUSTER", encrypted)
    commands = {"transform": ["--dataset", dataset], "sample": ["--rows", 500]}
    for name, options in commands.items():
        for output, where in {f"{name}-alone": alone, f"{name}-there": []}.items():
            done = plain_cli(name, *fitted, *options, "--output", output, *where)
            assert done.code == 0, done.err
    codes = [storage.open_codes(f"transform-{where}")["mean"][:] for where in ("alone", "there")]
    assert codes[0].tobytes() == codes[1].tobytes()
    drawn = [storage.open_dataset(f"sample-{where}").digest for where in ("alone", "there")]
    assert drawn[0] == drawn[1]


def test_a_certificate_of_another_ca(refused, encrypted, tmp_path):
    other = write_certificates(tmp_path / "other")
    assert "--tls-ca" in refused(encrypted, *make_tls_options(other))


def test_a_certificate_that_the_scheduler_does_not_take(refused, encrypted, files, tmp_path):
    other = write_certificates(tmp_path / "other")
    shutil.copy(files / "ca.pem", other / "ca.pem")
    assert "--tls-cert" in refused(encrypted, *make_tls_options(other))


def test_an_expired_certificate(refused, encrypted, tmp_path):
    old = write_certificates(tmp_path / "old", age=timedelta(days=40))
    assert "valid from" in refused(encrypted, *make_tls_options(old))


def test_a_scheduler_whose_certificate_has_expired(refused, tmp_path, monkeypatch):
    """The command's own files have expired as well, which it is kept from seeing."""
    old = write_certificates(tmp_path / "old", age=timedelta(days=40))
    monkeypatch.setattr("flows.running.tls._read_certificates", _unchecked)
    with start_scheduler(tmp_path, old) as address:
        assert "expired" in refused(address, *make_tls_options(old))


def _unchecked(given):
    return x509.load_pem_x509_certificates(Path(given.value).read_bytes())


@pytest.mark.matrix
def test_tls_to_a_scheduler_without(refused, plain, files):
    message = refused(plain.replace("tcp", "tls"), *make_tls_options(files))
    assert "does not use TLS" in message


def test_tcp_to_a_scheduler_with_tls(refused, encrypted):
    message = refused(encrypted.replace("tls", "tcp"))
    assert encrypted in message


def test_less_memory_than_asked_for(refused, encrypted, files):
    message = refused(encrypted, *make_tls_options(files), "--worker-memory", "4TB")
    assert "--worker-memory" in message


def copy_of_the_code(folder: Path) -> Path:
    """Our packages as an operator who changed a line would have them."""
    for package in (pipeline, storage):
        source = Path(package.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "storage" / "schema.py").open("a") as file:
        file.write("# changed\n")
    return folder


@pytest.mark.matrix
def test_a_worker_with_other_code(refused, plain, tmp_path):
    other = copy_of_the_code(tmp_path / "other")
    with start_worker(plain, PYTHONPATH=str(other)):
        message = refused(plain)
    assert "worker tcp://127.0.0.1" in message
    assert "latentbits (storage/)" in message
    _wait_until_gone(plain)


@pytest.mark.matrix
def test_a_worker_without_latentbits(refused, plain, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "pipeline.py").touch()  # stands before the installed package
    with start_worker(plain, PYTHONPATH=str(tmp_path / "empty")):
        message = refused(plain)
    assert "worker tcp://127.0.0.1" in message
    assert "latentbits" in message
    _wait_until_gone(plain)


def kill_in_first_pass(
    worker: subprocess.Popen[bytes], address: str, frozen_seconds: float = 0.0
) -> None:
    """Let the scheduler kill a worker once it has counted the first chunks of a fit.

    Before it is killed, the worker may be frozen, so that nobody can fetch what it has counted.
    """
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=600)
        kill = partial(_kill_process, worker.pid, frozen_seconds)
        install_trap(client, SchedulerTrap("reduce_pieces", 1, 0, kill))


def _kill_process(pid: int, frozen_seconds: float) -> None:
    if frozen_seconds:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(frozen_seconds, os.kill, (pid, signal.SIGKILL)).start()
    else:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "frozen_seconds",
    [pytest.param(0.0, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.matrix)],
)
def test_a_fit_ends_if_all_workers_are_lost(cli, dataset, plain, frozen_seconds):
    with start_worker(plain) as worker:
        kill_in_first_pass(worker, plain, frozen_seconds)
        done = cli("fit", "--dataset", dataset, "--cluster", plain, "--worker-timeout", 1)
    assert (done.code, done.message) == (
        1,
        "error: The cluster or its workers were lost (no worker for 1 s). "
        "Start the cluster again. Then continue with --resume.",
    )
    assert cli("fit", "--dataset", dataset, "--resume").code == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (signal.SIGSTOP, "the scheduler has not answered for 9 s"),
        (signal.SIGKILL, "the scheduler has gone"),
    ],
)
def test_a_fit_ends_if_the_scheduler_freezes_or_dies(cli, dataset, tmp_path, fault, reason):
    with start_scheduler(tmp_path) as address, start_worker(address):
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=600)
            fail = partial(_signal_own_process, fault)
            install_trap(client, SchedulerTrap("reduce_pieces", 1, 0, fail))
        done = cli("fit", "--dataset", dataset, "--cluster", address, "--worker-timeout", 9)
    assert (done.code, done.message) == (
        1,
        f"error: The cluster or its workers were lost ({reason}). "
        "Start the cluster again. Then continue with --resume.",
    )


def _signal_own_process(fault: int) -> None:
    os.kill(os.getpid(), fault)


@pytest.mark.matrix
def test_a_fit_goes_on_if_a_worker_returns(cli, dataset, plain):
    with ExitStack() as stack:
        worker = stack.enter_context(start_worker(plain))
        kill_in_first_pass(worker, plain)

        def replace_worker() -> None:
            worker.wait()
            stack.enter_context(start_worker(plain))

        replacement = threading.Thread(target=replace_worker)
        replacement.start()
        done = cli("fit", "--dataset", dataset, "--cluster", plain)
        replacement.join()
    assert done.code == 0, done.err
    assert worker.returncode == -signal.SIGKILL
    _wait_until_gone(plain)


def _wait_until_gone(address: str) -> None:
    deadline = time.monotonic() + 600
    with Client(address, set_as_default=False) as client:
        while client.scheduler_info()["workers"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_certificates_are_not_replaced_by_accident(tmp_path, capsys):
    def made(*arguments: object) -> int:
        with pytest.raises(SystemExit) as leaving:
            run_app(command.app, [str(argument) for argument in arguments])
        return int(leaving.value.code or 0)

    folder = tmp_path / "files"
    assert made(folder, "--host", "scheduler.example", "--host", "10.0.0.7") == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"ca.pem", "node.pem", "node-key.pem"}
    assert (folder / "node-key.pem").stat().st_mode & 0o777 == 0o600
    assert made(folder) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert made(folder, "--overwrite") == 0
    assert (folder / "node-key.pem").read_bytes() != before["node-key.pem"]
    assert "evelopment" in capsys.readouterr().out


@pytest.mark.matrix
def test_evaluate_takes_a_cluster(cli, dataset, encrypted, files):
    done = cli("fit", "--dataset", dataset, "--executor", "serial", "--no-report", "--json")
    fitted = ["--dataset", dataset, "--artifact", done.json["artifact"], "--no-baselines"]
    where = [["--executor", "serial"], ["--cluster", encrypted, *make_tls_options(files)]]
    alone, there = (cli("evaluate", *fitted, *options, "--json") for options in where)
    assert there.code == 0, there.err
    assert there.json["models"] == alone.json["models"]


def _fail(item: int) -> int:
    raise FitError(f"failed at {item}")


@pytest.mark.parametrize("task", [abs, _fail])
def test_logs_of_dask_are_silent_during_a_run_only(task: Callable[[int], int]) -> None:
    logger = logging.getLogger("distributed.worker")
    before = logger.level
    try:
        logger.setLevel(logging.WARNING)
        expected = nullcontext() if task is abs else pytest.raises(FitError, match="failed at -1")
        with expected, open_cluster(ClusterSettings()) as executor:
            assert not logger.isEnabledFor(logging.ERROR)
            assert list(executor.map(task, [-1])) == [1]
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(before)


def test_other_clusters_of_the_process_keep_their_configuration() -> None:
    before = deepcopy(dask.config.config)
    with open_cluster(ClusterSettings()):
        assert dask.config.get("distributed.worker.memory.pause") is False
    assert dask.config.config == before


@pytest.mark.matrix
def test_logs_of_dask_return_if_no_cluster_answers() -> None:
    logger = logging.getLogger("distributed.worker")
    before = logger.level
    try:
        logger.setLevel(logging.WARNING)
        silent = ClusterSettings(address="tcp://127.0.0.1:9", worker_timeout=1)
        with pytest.raises(FitError), open_cluster(silent):
            raise AssertionError("no cluster is there")
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(before)
