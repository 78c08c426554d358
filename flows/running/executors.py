"""Open the executor that the options choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from typing_extensions import Unpack

from flows.cli.options import ExecutorName, ExecutorOptions, parse_local_path
from flows.cli.startup import pause_garbage_collection
from flows.running.cluster_settings import (
    ClusterSettings,
    check_local_workers,
    resolve_cluster_settings,
)
from flows.running.resources import find_memory_limit, keep_freed_memory
from pipeline.errors import FitError
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from storage.extras import check_installed
from storage.stores.locations import check_target_file


def open_executor(**where: Unpack[ExecutorOptions]) -> AbstractContextManager[Executor]:
    """Open the executor of a run; close it, and a cluster started for it, at the end."""
    return prepare_executor(**where)()


def prepare_executor(
    **where: Unpack[ExecutorOptions],
) -> Callable[[], AbstractContextManager[Executor]]:
    """Check the options, and return a function that opens the executor."""
    return partial(_open_checked_executor, check_executor_options(**where), where)


@contextmanager
def _open_checked_executor(
    cluster: ClusterSettings | None, where: ExecutorOptions
) -> Iterator[Executor]:
    keep_freed_memory()
    if cluster is not None:
        with pause_garbage_collection():
            from flows.running.clusters import open_cluster

        with open_cluster(cluster, where.get("performance_report")) as executor:
            yield executor
    elif where.get("name") == "serial":
        yield SerialExecutor()
    else:
        from dask.system import CPU_COUNT

        yield ThreadsExecutor(where.get("workers") or CPU_COUNT)


def compute_row_memory(executor: Executor) -> int:
    """Return the bytes of rows that each process may keep: a quarter of its free memory."""
    limit = find_memory_limit()
    describe_workers = getattr(executor, "describe_workers", dict)  # only Dask has workers
    # Workers that share this process have no limit of their own.
    limits = [worker["memory_limit"] or limit for worker in describe_workers().values()]
    return min(limits, default=limit) // 4


def check_executor_options(
    name: ExecutorName | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    **others: Any,
) -> ClusterSettings | None:
    """Check the options before anything is started; return the cluster to use, if any.

    Without a name, the executor is Dask if a cluster, workers or its report are asked for by an
    option or a variable, and threads otherwise.
    """
    if workers is not None and workers < 1:
        raise FitError(f"{{workers}} is {workers}. Choose at least 1.")
    if cluster == "":
        raise FitError("{cluster} is empty. Is a shell variable unset?")
    if name is None or name == "dask":
        report = others.get("performance_report")
        if report:
            _check_performance_report(report)
        settings = resolve_cluster_settings({"workers": workers, "cluster": cluster, **others})
        is_dask = name == "dask" or report or settings != ClusterSettings()
        return settings if is_dask else None
    for option, value in {"cluster": cluster, **others}.items():
        if value:
            raise FitError(
                f"{{{option}}} needs {{executor=dask}} and cannot be combined with "
                f"{{executor={name}}}. Leave out one of them."
            )
    if workers and name == "serial":
        raise FitError("{workers} cannot be combined with {executor=serial}. Use threads or dask.")
    if workers:
        check_local_workers(workers, "{workers}")
    return None


def _check_performance_report(file: str) -> None:
    check_target_file(parse_local_path(file), overwrite=True)
    check_installed("{performance_report}", "bokeh")
