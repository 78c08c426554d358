"""Start a local Dask cluster, or connect to an existing one."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, Worker, performance_report
from distributed.security import Security

from flows.running.cluster_settings import ClusterSettings
from flows.running.resources import MALLOC_VARIABLES, read_memory_size
from pipeline.errors import ClusterLost, FitError, keep_placeholder
from pipeline.executors.dask import DaskExecutor, check_workers
from pipeline.executors.dask_monitor import ClusterMonitor, close_client

_LOCAL_CONFIG: dict[str, object] = {
    # Results are small. A worker out of memory should fail, not spill pickles to disk.
    **{f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause")},
    "distributed.scheduler.http.routes": [],  # pages that anyone could read
    # After 15 s without a worker, Dask would give up the nanny that is just restarting it.
    "distributed.deploy.lost-worker-timeout": "365 days",
    **{f"distributed.nanny.pre-spawn-environ.{k}": text for k, text in MALLOC_VARIABLES.items()},
}
"""Dask's configuration of clusters that a command starts."""
_WORKER_PACKAGES = ("pipeline", "storage")
_PAUSE_SECONDS, _START_SECONDS = 0.1, 30.0
log = logging.getLogger("latentbits")


@contextmanager
def open_cluster(cluster: ClusterSettings, report: str | None = None) -> Iterator[DaskExecutor]:
    """Start a cluster or connect to one; write Dask's performance report to a file, if given."""
    # Dask keeps its latest 1000 messages, with the arrays in them if workers share this process.
    # Only the performance report needs them.
    log_length = {} if report else {"distributed.admin.low-level-log-length": 1}
    with (
        dask.config.set(log_length),
        _silence_dask_logs(),
        _open_dask_executor(cluster) as executor,
        _write_performance_report(executor.client, report),
    ):
        yield executor


@contextmanager
def _write_performance_report(client: Client, path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    report = performance_report(path)
    with client.as_current():
        report.__enter__()
        try:
            yield
        finally:
            _finish_report(client, report)


def _finish_report(client: Client, report: performance_report) -> None:
    """Write a report; a failure is a warning, as it must not hide the error of a lost cluster."""
    reason: object = "the cluster was lost"
    if client.status == "running":
        try:
            client.sync(
                report.__aexit__, None, None, None, code="", callback_timeout=_START_SECONDS
            )
        except OSError as error:
            reason = error
        else:
            return
    log.warning("warning: %s was not written (%s).", report.filename, reason)


class _Client(Client):  # type: ignore[misc]
    """A client that does not wait forever for a scheduler that froze after it had connected."""

    def start(self, **options: Any) -> None:
        """Start the connection."""
        super().start(callback_timeout=_START_SECONDS, **options)


def _make_client(cluster: Any, **options: Any) -> Client:
    """Connect, without becoming the default client for the caller's own Dask collections."""
    return _Client(cluster, set_as_default=False, **options)


@contextmanager
def _open_dask_executor(cluster: ClusterSettings) -> Iterator[DaskExecutor]:
    if cluster.address is None:
        with (
            _hide_main_module(),
            dask.config.set(_LOCAL_CONFIG),
            _start_local_cluster(cluster) as local,
        ):
            connect = partial(_make_client, local, direct_to_workers=True)
            with _close_clients(cluster, connect(), connect) as executor:
                yield executor
        return
    client = _connect_and_check(cluster)
    with _close_clients(cluster, client, partial(_reconnect, cluster)) as executor:
        yield executor


@contextmanager
def _close_clients(
    cluster: ClusterSettings, client: Client, connect: Callable[[], Client]
) -> Iterator[DaskExecutor]:
    """Make an executor; close its last client at the end, as it connects again if necessary."""
    executor = DaskExecutor(client, connect, cluster.worker_timeout, cluster.task_timeout)
    try:
        yield executor
    finally:
        close_client(executor.client)


def _connect_and_check(cluster: ClusterSettings) -> Client:
    assert cluster.address is not None
    client = _connect(cluster.address, cluster.security)
    monitor = ClusterMonitor(client, cluster.worker_timeout)
    try:
        _wait_for_workers(monitor, cluster)
        check_workers(monitor, _WORKER_PACKAGES)
    except BaseException:
        close_client(client)
        raise
    return client


def _reconnect(cluster: ClusterSettings) -> Client:
    try:
        return _connect_and_check(cluster)
    except FitError as error:
        raise ClusterLost(error.message.render(spell=keep_placeholder)) from error


def _connect(address: str, security: Security | None) -> Client:
    from flows.running.tls import CONNECT_SECONDS, check_scheduler  # cryptography imports slowly

    check_scheduler(address, security)
    try:
        return _make_client(address, timeout=CONNECT_SECONDS, security=security)
    except OSError as error:
        raise FitError(
            f"{{cluster}}: the server at {address} is not a Dask scheduler "
            f"({type(error).__name__}). Check the address."
        ) from error


def _wait_for_workers(monitor: ClusterMonitor, cluster: ClusterSettings) -> None:
    """Wait for the number of workers, and check that each has the minimum memory."""
    n_workers, deadline = cluster.workers or 1, time.monotonic() + cluster.worker_timeout
    while len(workers := monitor.ask("identity", n_workers=-1)["workers"]) < n_workers:
        if time.monotonic() > deadline:
            raise FitError(
                f"{{cluster}}: {cluster.address} had only {len(workers)} of {n_workers} workers "
                f"after {cluster.worker_timeout} s. Start more, or wait longer by "
                "{worker_timeout}."
            )
        time.sleep(_PAUSE_SECONDS)
    for address, worker in workers.items():
        if worker["memory_limit"] and worker["memory_limit"] < (cluster.worker_memory or 0):
            raise FitError(
                f"{{worker_memory}} is {cluster.worker_memory:,} bytes, but the worker {address} "
                f"has {worker['memory_limit']:,}. Start it with more, or require less."
            )


@contextmanager
def _silence_dask_logs() -> Iterator[None]:
    """Silence Dask's logs during a run, then restore their levels.

    The command itself reports failures, and a lost worker is not a failure.
    """
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.split(".")[0] in ("distributed", "asyncio", "tornado")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _start_local_cluster(cluster: ClusterSettings) -> LocalCluster:
    """Start worker threads in this process, or worker processes if their number is set.

    Other users of this machine can connect to the ports of worker processes, but not use them:
    connections are encrypted and need a certificate that exists only in memory.
    """
    processes = cluster.workers is not None
    n_workers = cluster.workers or 1
    # Dask would not find the limits of this process's own control group.
    worker_memory = cluster.worker_memory or read_memory_size(n_workers)
    return LocalCluster(
        worker_class=None if processes else _make_worker,
        memory_limit=worker_memory if processes else 0,
        n_workers=n_workers,
        threads_per_worker=1 if processes else CPU_COUNT,
        processes=processes,
        host="127.0.0.1" if processes else None,
        security=Security.temporary() if processes else None,
        # By default these would listen on every interface.
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        silence_logs=logging.CRITICAL,
    )


def _make_worker(*arguments: Any, dashboard: bool, **settings: Any) -> Worker:
    """Start a worker without a dashboard, which would import Bokeh."""
    return Worker(*arguments, dashboard=False, **settings)


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Keep worker processes from importing this command again.

    Multiprocessing would import `__main__`, and so Prefect, in each: two seconds and 100 MB.
    """
    main = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name, None) for name in ("__spec__", "__file__")}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
