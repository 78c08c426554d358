"""Runs items on threads of this process; the kernels release the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.errors import FitError
from pipeline.executors.base import Executor, iter_results_in_order, limit_blas_threads
from pipeline.executors.cancellation import current_check, run_cancellable
from pipeline.executors.serial import SerialExecutor

T = TypeVar("T")
R = TypeVar("R")


def count_cpus() -> int:
    """Count the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ThreadsExecutor:
    """The executor of one machine without a cluster."""

    n_threads: int = field(default_factory=count_cpus)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield results in the items' order."""
        ended, is_wanted = threading.Event(), current_check()

        def wanted() -> bool:
            """Ask the caller too: an interrupt may come to its thread late, or be dropped there."""
            return not ended.is_set() and is_wanted()

        with limit_blas_threads(), ThreadPoolExecutor(self.n_threads) as pool:

            def submit(item: T) -> Future[R]:
                return pool.submit(run_cancellable, wanted, function, item)

            try:
                yield from iter_results_in_order(
                    submit, Future.result, items, 2 * self.n_threads, Future.cancel
                )
            finally:
                ended.set()  # what is under way need not be finished; leaving the pool waits for it


def make_executor(n_jobs: int | None) -> Executor:
    """Give so many threads, counted as scikit-learn counts jobs: -1 is all CPUs, -2 all but one.

    Raises
    ------
    FitError
        If it is 0; None is one.
    """
    if n_jobs == 0:
        raise FitError("n_jobs: Expected a number of threads, or -1 for all CPUs, got 0.")
    n_threads = n_jobs or 1
    if n_threads < 0:
        n_threads = max(1, count_cpus() + 1 + n_threads)
    return SerialExecutor() if n_threads == 1 else ThreadsExecutor(n_threads)
