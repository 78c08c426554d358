"""Runs everything here, one item after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from pipeline.executors.base import limit_blas_threads
from pipeline.executors.cancellation import check_cancelled

T = TypeVar("T")
R = TypeVar("R")


class SerialExecutor:
    """The executor without concurrency: the reference for all others."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield results in the items' order."""
        with limit_blas_threads():
            for item in items:
                yield function(item)
                check_cancelled()
