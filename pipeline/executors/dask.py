"""Runs items on a Dask cluster; only keys go out and only results come back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker
from distributed.comm import CommClosedError

from pipeline.errors import ClusterLost
from pipeline.executors.base import in_order, one_blas_thread

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class DaskExecutor:
    """The executor of a cluster: a lost worker's items are computed again by the others."""

    client: Client

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply a function to every item; yield results in the items' order."""
        name = f"{_name(function)}-{uuid.uuid4().hex[:8]}"
        homes = self._threads()
        # Twice as many items as threads keeps workers busy while results come back in order.
        ahead = max(4, 2 * len(homes))

        def submit(numbered: tuple[int, T]) -> Future:
            index, item = numbered
            return self.client.submit(
                _run,
                function,
                item,
                key=f"{name}-{index}",
                priority=-index,
                pure=False,
                # An item comes back to the worker that may have kept its chunks; idle ones steal.
                workers=homes[index % max(len(homes), 1) :][:1],
                allow_other_workers=True,
            )

        yield from in_order(submit, _result, enumerate(items), ahead)

    def _threads(self) -> list[str]:
        """Address of the worker of every thread."""
        counts = sorted(self.client.nthreads().items())
        return [address for address, n_threads in counts for _ in range(n_threads)]


def _run(function: Callable[[T], R], item: T) -> R:
    with one_blas_thread():
        return function(item)


def _result(future: Future) -> Any:
    try:
        value = future.result()
    except (CancelledError, CommClosedError, KilledWorker) as error:
        reason = " ".join(str(error).split())[:200]
        raise ClusterLost(
            f"Expected the cluster to stay, lost it or its workers ({reason}). "
            "Start it again and go on with --resume."
        ) from error
    future.release()
    return value


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
