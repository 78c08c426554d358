"""Dask worker processes with one thread each, for benchmarks."""

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, LocalCluster

from pipeline.executors.dask import DaskExecutor


@contextmanager
def worker_processes(n_workers: int) -> Iterator[DaskExecutor]:
    """Start workers and yield an executor; its client is not the default client."""
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=n_workers, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield DaskExecutor(client)
