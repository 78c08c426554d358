"""The one thing an executor does: map a function over keys, results in key order."""

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
"""What central work is handed to split itself with: `Executor.map`, or `map`."""


class Executor(Protocol):
    """Where work runs."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a pure function to every item; yield results in the items' order.

        Close it to stop the items that are under way, which ask `pipeline.executors.cancellation`.
        """


def iter_results_in_order(
    submit: Callable[[T], F],
    result: Callable[[F], R],
    items: Iterable[T],
    ahead: int,
    drop: Callable[[F], object] = lambda left: None,
) -> Generator[R]:
    """Keep up to `ahead` submitted items under way, so that memory does not grow with them.

    Those that are left when a result fails, or nobody takes them, are dropped. Whether the results
    are wanted at all is asked after each.
    """
    pending: deque[F] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) >= ahead:
                yield result(pending.popleft())
            check_cancelled()
        while pending:
            yield result(pending.popleft())
            check_cancelled()
    finally:
        for left in pending:
            drop(left)


class _BlasThreadLimit:
    """Limits are of the whole process: the first user sets them, the last restores them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                # The limit obeys the thread alone that set one first, and says nothing to others.
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits = _find_blas_libraries(len(sys.modules)).limit(limits=1)
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread()


@lru_cache(maxsize=1)
def _find_blas_libraries(n_modules: int) -> ThreadpoolController:
    """Find the libraries that are loaded, again whenever something was imported."""
    return ThreadpoolController()


_blas_thread_limit = _BlasThreadLimit()


def limit_blas_threads() -> AbstractContextManager[None]:
    """Limit BLAS to one thread inside a `with`: sums have the same bytes in every executor."""
    return _blas_thread_limit
