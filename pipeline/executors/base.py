"""The executor protocol, the serial and the threaded executor, and parts that executors share."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled, current_check, run_cancellable

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")
MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""A map for central work: `Executor.map` or `map`."""


class Executor(Protocol):
    """Runs tasks on this thread, on other threads or on a cluster."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a pure function to every item; yield the results in the order of the items.

        Closing the generator cancels running items; see `pipeline.executors.cancellation`.
        """


class SerialExecutor:
    """Executor on the calling thread, the reference for all others."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items."""
        with limit_blas_threads():
            for item in items:
                yield function(item)
                check_cancelled()


def count_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ThreadsExecutor:
    """Executor on threads of this process; compiled kernels release the interpreter lock."""

    n_threads: int = field(default_factory=count_cpus)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items."""
        end, caller_should_continue = threading.Event(), current_check()

        def should_continue() -> bool:
            """Ask the caller too, because its thread may receive an interrupt late or never."""
            return not end.is_set() and caller_should_continue()

        with limit_blas_threads(), ThreadPoolExecutor(self.n_threads) as pool:

            def submit(item: T) -> Future[R]:
                return pool.submit(run_cancellable, should_continue, function, item)

            try:
                yield from iter_results_in_order(
                    submit, Future.result, items, 2 * self.n_threads, Future.cancel
                )
            finally:
                end.set()  # cancel running items; leaving the pool waits for them


def choose_executor(executor: Executor | str | None, n_jobs: int | None) -> Executor:
    """Return the executor; without one, or with the name of a kind, make it as `make_executor`."""
    if isinstance(executor, str):
        if executor not in ("serial", "threads"):
            raise FitError(
                f"{{executor}} is {executor!r}. Pass serial, threads or an executor object.",
                parameter="executor",
            )
        return make_executor(1 if executor == "serial" else n_jobs or -1)
    return executor or make_executor(n_jobs)


def make_executor(n_jobs: int | None) -> Executor:
    """Return an executor with `n_jobs` threads, as in scikit-learn: None is 1, -1 is all CPUs."""
    if n_jobs == 0:
        text = "{n_jobs} is 0. Choose a number of threads, or -1 for all CPUs."
        raise FitError(text, parameter="n_jobs")
    n_threads = n_jobs or 1
    if n_threads < 0:
        n_threads = max(1, count_cpus() + 1 + n_threads)
    return SerialExecutor() if n_threads == 1 else ThreadsExecutor(n_threads)


def iter_results_in_order(
    submit: Callable[[T], F],
    get_result: Callable[[F], R],
    items: Iterable[T],
    n_ahead: int,
    discard: Callable[[F], object] = lambda future: None,
) -> Generator[R]:
    """Yield the results in the order of the items, with at most `n_ahead` items submitted.

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
    """Find the loaded BLAS libraries, again whenever the number of imported modules changes."""
    return ThreadpoolController()


_blas_thread_limit = _BlasThreadLimit()


def limit_blas_threads() -> AbstractContextManager[None]:
    """Limit BLAS to one thread, so that sums have the same bytes in every executor."""
    return _blas_thread_limit
