"""Run items on threads of this process; compiled kernels release the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.errors import FitError
from pipeline.executors.base import (
    Executor,
    SerialExecutor,
    iter_results_in_order,
    limit_blas_threads,
)
from pipeline.executors.cancellation import current_check, run_cancellable

T = TypeVar("T")
R = TypeVar("R")


def count_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ThreadsExecutor:
    """Executor on one machine, without a cluster."""

    n_threads: int = field(default_factory=count_cpus)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items."""
        ended, caller_should_continue = threading.Event(), current_check()

        def should_continue() -> bool:
            """Ask the caller too, whose thread may receive an interrupt late or drop it."""
            return not ended.is_set() and caller_should_continue()

        with limit_blas_threads(), ThreadPoolExecutor(self.n_threads) as pool:

            def submit(item: T) -> Future[R]:
                return pool.submit(run_cancellable, should_continue, function, item)

            try:
                yield from iter_results_in_order(
                    submit, Future.result, items, 2 * self.n_threads, Future.cancel
                )
            finally:
                ended.set()  # cancel running items; leaving the pool waits for them


def make_executor(n_jobs: int | None) -> Executor:
    """Return an executor with `n_jobs` threads.

    Parameters
    ----------
    n_jobs
        As in scikit-learn: None is 1, -1 all CPUs, -2 all but one.

    Raises
    ------
    FitError
        If it is 0.
    """
    if n_jobs == 0:
        text = "{n_jobs} is 0. Choose a number of threads, or -1 for all CPUs."
        raise FitError(text, parameter="n_jobs")
    n_threads = n_jobs or 1
    if n_threads < 0:
        n_threads = max(1, count_cpus() + 1 + n_threads)
    return SerialExecutor() if n_threads == 1 else ThreadsExecutor(n_threads)
