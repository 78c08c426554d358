"""Run items on a Dask cluster: only keys are sent to it, and only results are returned.

The function of a map is sent once, as the result of a separate task. Workers pass it to each other,
and Dask recomputes it if the worker that holds it dies, whereas scattered data would be lost.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dask
from distributed import Client, Future, KilledWorker, get_worker
from distributed.comm import CommClosedError

from pipeline.errors import ClusterLost, FitError
from pipeline.executors.base import iter_results_in_order, limit_blas_threads
from pipeline.executors.cancellation import run_cancellable
from pipeline.executors.code_digest import describe_environment

T = TypeVar("T")
R = TypeVar("R")
_CLOSE_SECONDS, _POLL_SECONDS = 2.0, 1.0


@dataclass
class DaskExecutor:
    """Executor on a cluster; if a worker is lost, the others compute its items again.

    Attributes
    ----------
    client
        The client; it is closed when the cluster is lost.
    connect
        Creates a client for the next map after the cluster was lost; None if that is impossible.
    worker_timeout
        Seconds to wait for another worker after all workers were lost.
    """

    client: Client
    connect: Callable[[], Client] | None = None
    worker_timeout: float = 60.0

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items.

        Raises
        ------
        ClusterLost
            If the scheduler or, for `worker_timeout` seconds, all workers were lost, or several
            workers died while computing the same item.
        """
        name = f"{_get_function_name(function)}-{uuid.uuid4().hex[:8]}"
        addresses = self._list_thread_addresses()
        # Twice as many items as threads keep workers busy while results are returned in order.
        n_ahead = max(4, 2 * len(addresses))
        sent_function = self._submit(_return_function, function, key=f"{name}-function")

        def submit(numbered: tuple[int, T]) -> Future:
            index, item = numbered
            return self._submit(
                _run_task,
                sent_function,
                item,
                key=f"{name}-{index}",
                priority=-index,
                # The same worker may still have an item's chunks in memory; idle workers steal.
                workers=addresses[index % max(len(addresses), 1) :][:1],
                allow_other_workers=True,
            )

        try:
            yield from iter_results_in_order(
                submit, self._wait_for_result, enumerate(items), n_ahead, Future.release
            )
        finally:
            sent_function.release()

    def _submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        """Submit a task, without Dask's warning that large arguments are sent repeatedly."""
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": sys.maxsize}):
            return self.client.submit(function, *arguments, pure=False, **options)

    def describe_workers(self) -> dict[str, dict[str, Any]]:
        """Describe the current workers, by address."""
        with self._raise_cluster_lost(OSError):
            workers: dict[str, dict[str, Any]]
            workers = self._get_client().scheduler_info(n_workers=-1)["workers"]
        return workers

    def run_on_workers(self, function: Callable[[], R]) -> dict[str, R]:
        """Call a function on every worker; workers that do not answer have no result."""
        client = self._get_client()
        results: dict[str, R] = {}
        with suppress(OSError):  # if the cluster was lost, the next map raises
            results = client.run(function, on_error="ignore")
        return results

    def _get_client(self) -> Client:
        """Return the client, or a new one if the cluster was lost."""
        if self.client.status == "closed" and self.connect is not None:
            self.client = self.connect()
        return self.client

    def _list_thread_addresses(self) -> list[str]:
        """Return the address of each thread's worker, (n_threads,)."""
        counts = sorted(
            (address, worker["nthreads"]) for address, worker in self.describe_workers().items()
        )
        return [address for address, n_threads in counts for _ in range(n_threads)]

    def _wait_for_result(self, future: Future) -> Any:
        with self._raise_cluster_lost(CommClosedError):
            value = self._get_result(future)
        future.release()
        return value

    def _get_result(self, future: Future) -> Any:
        """Return the result of a task, or raise its error; without workers, do not wait forever."""
        seconds = _POLL_SECONDS
        while True:
            try:
                return future.result(seconds)
            except TimeoutError:
                if future.status == "error":  # meanwhile, or the task itself raised this error
                    return future.result()
                if future.status == "finished":  # a large result, or one whose worker is lost
                    seconds *= 2
            if not self.client.scheduler_info(n_workers=0)["n_workers"]:
                self._wait_for_any_worker()

    def _wait_for_any_worker(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=self.worker_timeout)
        except TimeoutError as error:
            raise CommClosedError(f"no worker for {self.worker_timeout:g} s") from error

    @contextmanager
    def _raise_cluster_lost(self, connection_error: type[OSError]) -> Iterator[None]:
        """Raise `ClusterLost`, and close the client, which would wait until the cluster returns."""
        try:
            yield
        except KilledWorker as error:
            raise _make_cluster_lost(error) from error
        except (CancelledError, connection_error) as error:
            self.client.close(_CLOSE_SECONDS)
            raise _make_cluster_lost(error) from error


def _make_cluster_lost(error: BaseException) -> ClusterLost:
    reason = " ".join(str(error).split())[:200]
    return ClusterLost(f"The cluster or its workers were lost ({reason}). Start the cluster again.")


def check_workers(client: Client, packages: Sequence[str]) -> None:
    """Refuse a cluster whose workers have other code or libraries than this process."""
    expected = describe_environment(packages)
    for worker, versions in client.run(describe_environment, packages, on_error="return").items():
        if isinstance(versions, Exception):
            raise FitError(
                f"worker {worker}: latentbits is missing or has another version there "
                f"({' '.join(str(versions).split())[:200]}). Install the version that is here."
            )
        for name, value in expected.items():
            if versions.get(name) != value:
                raise FitError(
                    f"worker {worker}: {name} is {versions.get(name)} there, but {value} here. "
                    "Install the version that is here."
                )


def _return_function(function: Callable[[T], R]) -> Callable[[T], R]:
    return function


def _run_task(function: Callable[[T], R], item: T) -> R:
    worker = get_worker()
    key = worker.get_current_task()

    def should_continue() -> bool:
        """Return whether the worker still wants the task's result.

        The scheduler informs the worker when the client releases the task or dies. Dask documents
        these states ("Worker State Machine"), but offers a task no function to read its own. A
        `distributed.Event` would miss clients that die, and a `WorkerPlugin` would learn the same
        states, but stay on the user's cluster.
        """
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    with limit_blas_threads():
        return run_cancellable(should_continue, function, item)


def _get_function_name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
