"""Which executor a run uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from typing_extensions import Unpack

from flows.cli.imports import pause_garbage_collection
from flows.cli.options import ExecutorName, ExecutorOptions
from flows.running.cluster_settings import ClusterSettings, resolve_cluster_settings
from pipeline.errors import FitError
from pipeline.executors.base import Executor, SerialExecutor
from pipeline.executors.threads import ThreadsExecutor


def open_executor(**where: Unpack[ExecutorOptions]) -> AbstractContextManager[Executor]:
    """Open an executor for a run and close what was opened with it.

    Raises
    ------
    FitError
        If the options contradict each other, or the cluster does not answer or runs other code.
    """
    return prepare_executor(**where)()


def prepare_executor(
    **where: Unpack[ExecutorOptions],
) -> Callable[[], AbstractContextManager[Executor]]:
    """Refuse what cannot work before anything is started; give what opens the executor.

    Raises
    ------
    FitError
        If options contradict each other, or a setting of the cluster cannot be used.
    """
    return partial(_open_checked_executor, check_executor_options(**where), where)


@contextmanager
def _open_checked_executor(
    cluster: ClusterSettings | None, where: ExecutorOptions
) -> Iterator[Executor]:
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
    """Bytes of a dataset that each process may keep: a quarter of its memory."""
    from distributed.system import MEMORY_LIMIT

    from pipeline.executors.dask import DaskExecutor

    limits: list[int] = []
    if isinstance(executor, DaskExecutor):
        # Workers that share this process have no limit of their own.
        limits = [w["memory_limit"] or MEMORY_LIMIT for w in executor.describe_workers().values()]
    return min(limits, default=MEMORY_LIMIT) // 4


def check_executor_options(
    name: ExecutorName = "dask",
    workers: int | None = None,
    cluster: str | None = None,
    **more: Any,
) -> ClusterSettings | None:
    """Refuse what cannot work before anything is started; give the cluster to use, if any.

    Raises
    ------
    FitError
        If options contradict each other, or a setting of the cluster cannot be used.
    """
    if workers is not None and workers < 1:
        raise FitError(f"--workers: Expected at least 1, got {workers}.")
    if cluster == "":
        raise FitError("--cluster: Expected an address, got an empty one. Is a variable unset?")
    if name == "dask":
        return resolve_cluster_settings({"workers": workers, "cluster": cluster, **more})
    for option, value in {"cluster": cluster, **more}.items():
        if value:
            raise FitError(
                f"--{option.replace('_', '-')}: Expected --executor dask, got {name}. Leave one of "
                "them out."
            )
    if workers and name == "serial":
        raise FitError("--workers: Expected --executor threads or dask, got serial.")
    return None
