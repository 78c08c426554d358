"""The executor protocol, its serial implementation, and what all executors share."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from pipeline.executors.cancellation import check_cancelled

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")
MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""The map that central work splits itself with: `Executor.map` or `map`."""


class Executor(Protocol):
    """Runs work: on this thread, on other threads or on a cluster."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a pure function to every item; yield the results in the order of the items.

        Closing the generator cancels running items; see `pipeline.executors.cancellation`.
        """


class SerialExecutor:
    """The executor without concurrency, the reference for all others."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items."""
        with limit_blas_threads():
            for item in items:
                yield function(item)
                check_cancelled()


def iter_results_in_order(
    submit: Callable[[T], F],
    get_result: Callable[[F], R],
    items: Iterable[T],
    n_ahead: int,
    discard: Callable[[F], object] = lambda future: None,
) -> Generator[R]:
    """Yield the results of items, at most `n_ahead` of which are submitted at any time.

    Memory therefore does not grow with the number of items. After an error, or when the generator
    is closed, pending items are discarded. `check_cancelled` is called after each result.
    """
    pending: deque[F] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) >= n_ahead:
                yield get_result(pending.popleft())
            check_cancelled()
        while pending:
            yield get_result(pending.popleft())
            check_cancelled()
    finally:
        for future in pending:
            discard(future)


class _BlasThreadLimit:
    """Limits BLAS to one thread in the whole process while it has at least one user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._n_users == 0:
                # OpenBLAS lets only the thread that first set a limit change it, and silently
                # ignores all others.
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits = _find_blas_libraries(len(sys.modules)).limit(limits=1)
            self._n_users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_users -= 1
            if self._n_users == 0:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread()


@lru_cache(maxsize=1)
def _find_blas_libraries(n_modules: int) -> ThreadpoolController:
    """Find the loaded BLAS libraries; the cache is renewed whenever a module was imported."""
    return ThreadpoolController()


_blas_thread_limit = _BlasThreadLimit()


def limit_blas_threads() -> AbstractContextManager[None]:
    """Limit BLAS to one thread, so that sums have the same bytes in every executor."""
    return _blas_thread_limit
