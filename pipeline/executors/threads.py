"""Runs items on threads of this process; the kernels release the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from pipeline.executors.base import in_order, one_blas_thread

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ThreadsExecutor:
    """The executor of one machine without a cluster."""

    n_threads: int

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply a function to every item; yield results in the items' order."""
        with one_blas_thread(), ThreadPoolExecutor(self.n_threads) as pool:

            def submit(item: T) -> Future[R]:
                return pool.submit(function, item)

            try:
                yield from in_order(submit, Future.result, items, 2 * self.n_threads)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # what nobody waits for any more
