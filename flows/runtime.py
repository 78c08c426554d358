"""Which executor a run uses, and the Dask cluster behind it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import dask
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT

from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.dask import DaskExecutor
from pipeline.executors.serial import SerialExecutor
from pipeline.executors.threads import ThreadsExecutor

ExecutorName = Literal["serial", "threads", "dask"]

_CONNECT_SECONDS = 10
_NO_SPILLING = ("target", "spill", "pause")


@contextmanager
def opened_executor(
    name: ExecutorName, workers: int | None, cluster: str | None
) -> Iterator[Executor]:
    """Open an executor for a run and close what was opened with it.

    Raises
    ------
    FitError
        If the options contradict each other or the cluster does not answer.
    """
    check_executor(name, workers, cluster)
    if name == "serial":
        yield SerialExecutor()
    elif name == "threads":
        yield ThreadsExecutor(workers or CPU_COUNT)
    else:
        with _client(workers, cluster) as client:
            yield DaskExecutor(client)


def memory_for_rows(executor: Executor) -> int:
    """Bytes of a dataset that each process may keep: a quarter of its memory."""
    limits: list[int] = []
    if isinstance(executor, DaskExecutor):
        workers = executor.client.scheduler_info()["workers"].values()
        # Workers that share this process have no limit of their own.
        limits = [worker["memory_limit"] or MEMORY_LIMIT for worker in workers]
    return min(limits, default=MEMORY_LIMIT) // 4


def check_executor(name: ExecutorName, workers: int | None, cluster: str | None) -> None:
    """Refuse options that contradict each other."""
    if workers is not None and workers < 1:
        raise FitError(f"--workers: Expected at least 1, got {workers}.")
    if cluster == "":
        raise FitError("--cluster: Expected an address, got an empty one. Is a variable unset?")
    if cluster and name != "dask":
        raise FitError(f"--cluster: Expected --executor dask, got {name}. Leave one of them out.")
    if cluster and workers:
        raise FitError(
            "--workers: Expected no --cluster beside it, got both. Leave one of them out."
        )
    if workers and name == "serial":
        raise FitError("--workers: Expected --executor threads or dask, got serial.")


@contextmanager
def _client(workers: int | None, cluster: str | None) -> Iterator[Client]:
    _quiet_dask()
    if cluster:
        with _connected(cluster) as client:
            _wait_for_a_worker(client, cluster)
            yield client
        return
    with _light_processes(), _local_cluster(workers) as local, Client(local) as client:
        yield client


def _wait_for_a_worker(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:
        raise FitError(
            f"--cluster: Expected a worker at {address}, got none within {_CONNECT_SECONDS} s. "
            "Start some."
        ) from error


def _quiet_dask() -> None:
    """Leave it to the command to tell what failed; a lost worker is no failure."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _local_cluster(workers: int | None) -> LocalCluster:
    """Workers in this process share its memory; a number of workers asks for processes."""
    # Results are small: a full worker is a mistake to stop, not to spill to disk as pickles.
    dask.config.set({f"distributed.worker.memory.{name}": False for name in _NO_SPILLING})
    return LocalCluster(
        memory_limit="auto" if workers else 0,
        n_workers=workers or 1,
        threads_per_worker=1 if workers else CPU_COUNT,
        processes=workers is not None,
        host="127.0.0.1" if workers else None,
        # Given no address these would listen on every interface.
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def _light_processes() -> Iterator[None]:
    """Start worker processes without this command in them.

    Multiprocessing would import it again in each, and Prefect with it: two seconds and 100 MB.
    """
    main = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name, None) for name in ("__spec__", "__file__")}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def _connected(address: str) -> Client:
    try:
        return Client(address, timeout=_CONNECT_SECONDS)
    except ValueError as error:
        raise FitError(
            f"--cluster: Expected an address such as tcp://host:8786, got {address!r}."
        ) from error
    except OSError as error:
        raise FitError(
            f"--cluster: Expected a Dask scheduler at {address}, got no answer within "
            f"{_CONNECT_SECONDS} s ({type(error).__name__}). Check the address."
        ) from error
