"""Runs items on a Dask cluster; only keys go out and only results come back.

The function of a map goes out once, as the result of a task of its own: workers hand it to each
other, and it is computed again where the worker that held it died. Scattered, it would be lost.
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
_CLOSE_SECONDS = 2.0


@dataclass
class DaskExecutor:
    """The executor of a cluster: a lost worker's items are computed again by the others.

    Attributes
    ----------
    client
        Is closed when the cluster is lost.
    connect
        Gives a new client then, for the next map; without it there is none.
    """

    client: Client
    connect: Callable[[], Client] | None = None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield results in the items' order.

        Raises
        ------
        ClusterLost
            If the scheduler went away, or an item took several workers with it.
        """
        name = f"{_get_function_name(function)}-{uuid.uuid4().hex[:8]}"
        homes = self._list_thread_addresses()
        # Twice as many items as threads keeps workers busy while results come back in order.
        ahead = max(4, 2 * len(homes))
        held = self._submit(_return_function, function, key=f"{name}-function")

        def submit(numbered: tuple[int, T]) -> Future:
            index, item = numbered
            return self._submit(
                _run_task,
                held,
                item,
                key=f"{name}-{index}",
                priority=-index,
                # An item comes back to the worker that may have kept its chunks; idle ones steal.
                workers=homes[index % max(len(homes), 1) :][:1],
                allow_other_workers=True,
            )

        try:
            yield from iter_results_in_order(
                submit, self._wait_for_result, enumerate(items), ahead, Future.release
            )
        finally:
            held.release()

    def _submit(self, function: Callable[..., Any], *arguments: Any, **where: Any) -> Future:
        """Submit a task; of large arguments Dask would say that they are sent again and again."""
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": sys.maxsize}):
            return self.client.submit(function, *arguments, pure=False, **where)

    def describe_workers(self) -> dict[str, dict[str, Any]]:
        """Describe the workers there are, by address."""
        with self._raise_cluster_lost(OSError):
            found: dict[str, dict[str, Any]]
            found = self._get_client().scheduler_info(n_workers=-1)["workers"]
        return found

    def run_on_workers(self, function: Callable[[], R]) -> dict[str, R]:
        """Call a function on every worker; one that does not answer has no result."""
        client = self._get_client()
        found: dict[str, R] = {}
        with suppress(OSError):  # a cluster that is lost now is missed by the next map, if at all
            found = client.run(function, on_error="ignore")
        return found

    def _get_client(self) -> Client:
        """Give the client, a new one after the cluster was lost."""
        if self.client.status == "closed" and self.connect is not None:
            self.client = self.connect()
        return self.client

    def _list_thread_addresses(self) -> list[str]:
        """Address of the worker of every thread."""
        counts = sorted(
            (address, worker["nthreads"]) for address, worker in self.describe_workers().items()
        )
        return [address for address, n_threads in counts for _ in range(n_threads)]

    def _wait_for_result(self, future: Future) -> Any:
        with self._raise_cluster_lost(CommClosedError):
            value = future.result()
        future.release()
        return value

    @contextmanager
    def _raise_cluster_lost(self, silence: type[OSError]) -> Iterator[None]:
        """Say that the cluster is lost, and close the client, which would wait for it to return."""
        try:
            yield
        except KilledWorker as error:
            raise _make_cluster_lost(error) from error
        except (CancelledError, silence) as error:
            self.client.close(_CLOSE_SECONDS)
            raise _make_cluster_lost(error) from error


def _make_cluster_lost(error: BaseException) -> ClusterLost:
    reason = " ".join(str(error).split())[:200]
    return ClusterLost(
        f"Expected the cluster to stay, lost it or its workers ({reason}). "
        "Start it again and go on with --resume."
    )


def check_workers(client: Client, packages: Sequence[str]) -> None:
    """Refuse workers that compute with other code than this process; those of now, not later ones.

    Raises
    ------
    FitError
        Naming a worker, what it has and what is expected.
    """
    expected = describe_environment(packages)
    for worker, found in client.run(describe_environment, packages, on_error="return").items():
        if isinstance(found, Exception):
            raise FitError(
                f"worker {worker}: Expected latentbits as it is here, got none or another version "
                f"({' '.join(str(found).split())[:200]}). Install the same there."
            )
        for name, value in expected.items():
            if found.get(name) != value:
                raise FitError(
                    f"worker {worker}: Expected {name} {value}, as it is here, got "
                    f"{found.get(name)}. Install the same there."
                )


def _return_function(function: Callable[[T], R]) -> Callable[[T], R]:
    return function


def _run_task(function: Callable[[T], R], item: T) -> R:
    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        """Ask the worker, which is told when the client lets go of a task or dies."""
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    with limit_blas_threads():
        return run_cancellable(wanted, function, item)


def _get_function_name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
