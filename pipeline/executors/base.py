"""The one thing an executor does: map a function over keys, results in key order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")


class Executor(Protocol):
    """Where work runs."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply a pure function to every item; yield results in the items' order."""


def in_order(
    submit: Callable[[T], F], result: Callable[[F], R], items: Iterable[T], ahead: int
) -> Iterator[R]:
    """Keep up to `ahead` submitted items under way, so that memory does not grow with them."""
    pending: deque[F] = deque()
    for item in items:
        pending.append(submit(item))
        if len(pending) >= ahead:
            yield result(pending.popleft())
    while pending:
        yield result(pending.popleft())


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Limit BLAS to one thread inside a `with`: sums have the same bytes in every executor."""
    return _libraries().limit(limits=1)
