"""Read the next parts of a source while earlier ones are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def read_ahead(parts: Iterable[T]) -> Iterator[T]:
    """Yield parts; a thread reads the next part while one is processed.

    Call it in the head of a `for` statement, which closes it when an error ends the loop. In a
    variable, it would live on in the error's traceback until the garbage collector closes it. The
    collector may run while Python starts a thread, and before Python 3.13, waiting for a thread
    then never ends.
    """
    iterator, end = iter(parts), object()
    with ThreadPoolExecutor(1) as reader:
        coming: Future[Any] = reader.submit(next, iterator, end)
        while (part := coming.result()) is not end:
            coming = reader.submit(next, iterator, end)
            yield part
