"""What a local cluster opens, and who can reach it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import weakref
from io import StringIO
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, comm
from distributed.security import Security

from flows.cli.app import make_app, run_app
from flows.cli.errors import hide_expected_tracebacks
from flows.running.executors import check_executor_options, open_executor
from flows.running.resources import MALLOC_VARIABLES
from pipeline.errors import ClusterLost, FitError
from storage.errors import DataError
from storage.sources.spool import TemporaryFolder


def listening() -> set[str]:
    own = psutil.Process()
    processes = [own, *own.children(recursive=True)]
    return {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("where", [{}, {"cluster": "local", "workers": 2}], ids=str)
def test_a_local_cluster_listens_on_loopback_alone(where):
    with open_executor(**where) as executor:
        assert list(executor.map(abs, [-1, -2, -3])) == [1, 2, 3]
        assert listening() <= {"127.0.0.1", "::1"}


@pytest.mark.matrix
def test_a_killed_worker_process_returns_however_long_it_takes():
    # Dask would take 15 s, which a busy machine needs, for the end of a worker.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
        open_executor(workers=1) as executor,
    ):
        (killed,) = executor.client.run(os.getpid).values()
        os.kill(killed, signal.SIGKILL)
        assert list(executor.map(abs, [-1, -2])) == [1, 2]


def test_only_the_command_can_use_its_worker_processes():
    with open_executor(workers=1) as executor:
        scheduler, (worker,) = executor.client.scheduler.address, executor.describe_workers()
        for address in (scheduler, worker):
            connect(address, executor.client.security, seconds=60)
            with pytest.raises(OSError, match="certificate does not match"):
                connect(address, Security.temporary(), seconds=1)
            with pytest.raises(OSError, match="closed"):
                connect(address.replace("tls", "tcp"), None, seconds=1)
        with pytest.raises(OSError, match="closed"):
            Client(scheduler.replace("tls", "tcp"), timeout=1)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
@pytest.mark.parametrize("where", [{"name": "threads", "workers": 1}, {"workers": 1}], ids=str)
def test_processes_reuse_the_memory_of_arrays(where, monkeypatch):
    for name in MALLOC_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with open_executor(**where) as executor:
        _, *n_faults = executor.map(count_page_faults, [40_000_000] * 5)
    assert max(n_faults) < 1000


def count_page_faults(n_bytes: int) -> int:
    """Return the pages that the system had to provide for two arrays."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(n_bytes, np.uint8)[:-1].copy()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def connect(address: str, security: Security | None, seconds: float) -> None:
    """Connect to a scheduler or a worker."""

    async def shake_hands() -> None:
        arguments = security.get_connection_args("client") if security else {}
        (await comm.connect(address, timeout=seconds, **arguments)).abort()

    asyncio.run(shake_hands())


def test_what_was_mapped_is_let_go_of():
    mapped: list[weakref.ref] = []

    def items():
        for _ in range(50):
            item = np.ones(1000)
            mapped.append(weakref.ref(item))
            yield item

    with open_executor() as executor:
        assert list(executor.map(np.sum, items())) == [1000] * 50
        gc.collect()
        assert sum(item() is not None for item in mapped) < 25


@pytest.mark.matrix
def test_worker_processes_do_not_import_the_command():
    with open_executor(workers=1, worker_memory="500MiB") as executor:
        loaded = executor.client.run(_loaded)
        workers = executor.client.scheduler_info()["workers"].values()
    assert not any(loaded.values())
    assert [worker["memory_limit"] for worker in workers] == [500 << 20]


def _loaded() -> bool:
    import sys

    return "prefect" in sys.modules


def test_an_interrupt_is_told_whatever_came_of_it(capsys):
    app = make_app("stumbling", "", "")

    @app.default
    def main() -> None:
        try:
            raise KeyboardInterrupt
        except BaseException:
            raise ValueError("stumbled") from None

    with pytest.raises(SystemExit) as leaving:
        run_app(app, [])
    assert leaving.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_termination_is_an_interrupt(capsys):
    app, folders = make_app("terminated", "", ""), []

    @app.default
    def main() -> None:
        with TemporaryFolder() as folder:
            folders.append(Path(folder))
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as leaving:
        run_app(app, [])
    assert (leaving.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")
    assert not folders[0].exists()


def test_prefect_tells_an_interrupt_without_a_traceback(prefect_server, caplog, monkeypatch):
    from prefect import flow, task  # workers import this module

    hide_expected_tracebacks()
    app = make_app("stumbling", "", "")
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
        monkeypatch.setattr(logging.getLogger(name), "handlers", [caplog.handler])

    def stumble() -> None:
        try:
            raise KeyboardInterrupt
        except BaseException:
            raise ValueError("stumbled") from None

    @app.default
    def main() -> None:
        flow(lambda: task(stumble)(), name="stumbling")()

    with pytest.raises(SystemExit) as leaving:
        run_app(app, [])
    assert leaving.value.code == 130
    told = [record for record in caplog.records if "stumbled" in record.getMessage()]
    assert told
    assert not any(record.exc_info for record in told)


class Deleted:
    """Drops what is raised while it is deleted, as Python says on standard error."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("name", ["serial", "threads", "dask"])
def test_an_interrupt_that_python_drops_is_obeyed(capsys, monkeypatch, name):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # restored after the test
    app, taken, dropped = make_app("deleting", "", ""), [], []

    @app.default
    def main() -> None:
        with open_executor(name=name) as executor:
            for number in executor.map(abs, range(50)):
                taken.append(number)
                if number == 9:
                    Deleted()
                    dropped.append(number)

    with pytest.raises(SystemExit) as leaving:
        run_app(app, [])
    assert leaving.value.code == 130
    assert dropped == [9]
    assert taken == list(range(10))
    assert capsys.readouterr().err == "error: interrupted\n"


def test_dasks_account_needs_bokeh(monkeypatch):
    monkeypatch.setattr("storage.extras.find_spec", lambda _: None)
    check_executor_options()
    with pytest.raises(DataError, match=r"pip install 'latentbits\[dashboard\]'"):
        check_executor_options(performance_report="account.html")


def test_dask_writes_an_account_where_asked(tmp_path, monkeypatch):
    pytest.importorskip("bokeh")
    path = tmp_path / "account.html"
    with open_executor(performance_report=str(path)) as executor:
        assert list(executor.map(abs, [-1, 2])) == [1, 2]
    assert "abs" in path.read_text()
    path.unlink()
    warnings = logging.StreamHandler(StringIO())
    monkeypatch.setattr(logging.getLogger("latentbits"), "handlers", [warnings])
    lost = ClusterLost("The cluster was lost.")
    with pytest.raises(ClusterLost, match="The cluster was lost"):  # noqa: PT012, SIM117
        with open_executor(performance_report=str(path)) as executor:
            executor.client.close()
            raise lost
    assert f"{path} was not written (the cluster was lost)" in warnings.stream.getvalue()
    assert not path.exists()
    with pytest.raises(FitError, match='performance_report needs executor="dask"'):
        check_executor_options("threads", performance_report=str(path))
