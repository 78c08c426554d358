"""Chunks that stay in the memory of a process, so that later passes need not read them again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Protocol, TypeVar


class Sized(Protocol):
    """Anything that knows its size in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


S = TypeVar("S", bound=Sized)
Place = tuple[Hashable, int]

_kept: dict[Place, Sized] = {}
_lock = Lock()


def kept(rows: Hashable, key: int, memory: int, read: Callable[[], S]) -> S:
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
    found = _kept.get((rows, key))
    if found is not None:
        return found  # type: ignore[return-value]
    chunk = read()
    with _lock:
        if _make_room(rows, memory - chunk.nbytes):
            _kept[rows, key] = chunk
    return chunk


def forget_chunks() -> None:
    """Drop all that this process has kept."""
    with _lock:
        _kept.clear()


def _make_room(rows: Hashable, memory: int) -> bool:
    """Drop chunks of other rows until those kept take no more than this, if that can be."""
    own = sum(chunk.nbytes for place, chunk in _kept.items() if place[0] == rows)
    if own > memory:
        return False
    others = [place for place in _kept if place[0] != rows]
    while sum(chunk.nbytes for chunk in _kept.values()) > memory:
        del _kept[others.pop(0)]
    return True
