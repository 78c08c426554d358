"""Chunks that stay in the memory of a process, so that later passes need not read them again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Protocol, TypeVar


class HasNbytes(Protocol):
    """Anything that knows its size in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


S = TypeVar("S", bound=HasNbytes)
CacheKey = tuple[Hashable, int]

_cache: dict[CacheKey, HasNbytes] = {}
_lock = Lock()


def get_or_read_chunk(rows: Hashable, key: int, memory: int, read: Callable[[], S]) -> S:
    """Give a chunk from memory, or read it and keep it if there is room.

    Chunks of other rows make room, the oldest first; those of the same rows do not, since a pass
    that goes round would find each chunk gone just before its turn.

    Parameters
    ----------
    rows
        What the chunk is a part of.
    key
        Index of the chunk.
    memory
        Bytes that all chunks kept may take.
    read
        Reads the chunk.
    """
    found = _cache.get((rows, key))
    if found is not None:
        return found  # type: ignore[return-value]
    chunk = read()
    with _lock:
        if _evict_other_chunks(rows, memory - chunk.nbytes):
            _cache[rows, key] = chunk
    return chunk


def clear_chunk_cache() -> None:
    """Drop all that this process has kept."""
    with _lock:
        _cache.clear()


def _evict_other_chunks(rows: Hashable, memory: int) -> bool:
    """Drop chunks of other rows until those kept take no more than this, if that can be."""
    own = sum(chunk.nbytes for place, chunk in _cache.items() if place[0] == rows)
    if own > memory:
        return False
    others = [place for place in _cache if place[0] != rows]
    while sum(chunk.nbytes for chunk in _cache.values()) > memory:
        del _cache[others.pop(0)]
    return True
