"""Parts of files worked on by threads, one a CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

T = TypeVar("T")
U = TypeVar("U")


def map_on_all_cpus(function: Callable[[T], U], parts: Iterable[T]) -> Iterator[U]:
    """Give what a function that lets go of the interpreter makes of each part, in order."""
    n_threads = pa.cpu_count()
    with ThreadPoolExecutor(n_threads) as pool:
        waiting: deque[Future[U]] = deque()
        try:
            for part in _read_ahead(parts):
                waiting.append(pool.submit(function, part))
                if len(waiting) > n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _read_ahead(parts: Iterable[T]) -> Iterator[T]:
    """Give parts, of which a thread reads the next while one is worked on."""
    iterator, end = iter(parts), object()
    with ThreadPoolExecutor(1) as reader:
        coming: Future[Any] = reader.submit(next, iterator, end)
        while (part := coming.result()) is not end:
            coming = reader.submit(next, iterator, end)
            yield part
