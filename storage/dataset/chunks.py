"""A chunk of a dataset, as it is read at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.dataset.levels import Levels

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Chunk:
    """One contiguous range of original rows, stably sorted by segment.

    Attributes
    ----------
    key
        Index of the chunk.
    words
        Packed values, (n_features, n_words); padding bits are 0.
    observed
        Packed mask of the same shape, or None when every value is there.
    blocks
        One row a segment, (n_blocks, 3): segment, first word, number of rows.
    rows
        Original row of every stored row, (n_rows,), padding left out.
    columns
        Per-row columns asked for, each (n_rows,) in stored order.
    keep
        Rows of the split asked for, (n_rows,), or None for all.
    """

    key: int
    words: Words
    observed: Words | None
    blocks: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    keep: NDArray[np.bool_] | None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.words, self.observed, self.blocks, self.rows, self.keep)
        held = [array for array in (*arrays, *self.columns.values()) if array is not None]
        return sum(array.nbytes for array in held)


def mark_missing_texts(chunk: Chunk, levels: Mapping[str, Levels]) -> Chunk:
    """Give the columns of a chunk with -1 for the codes of empty texts."""
    coded = {name: a for name, a in chunk.columns.items() if name in levels}
    marked = {name: levels[name].mark_missing(codes) for name, codes in coded.items()}
    return replace(chunk, columns={**chunk.columns, **marked})


def make_empty_chunk(key: int) -> Chunk:
    """Stand in for a chunk that is not read."""
    words, rows = np.empty((0, 0), np.uint64), np.empty(0, np.int64)
    return Chunk(key, words, None, np.empty((0, 3), np.int64), rows, {}, None)


Bytes = NDArray[np.uint8]

# Delta swaps of an 8x8 bit matrix held in one word (Warren, Hacker's Delight, section 7-3).
_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
# 8,192 rows keep the intermediate copies in the second-level cache: 1.7 times faster.
_ROWS_AT_ONCE = 8192


def pack_rows(X: NDArray[np.uint8]) -> Bytes:
    """Pack a dense 0/1 matrix row by row: (n_samples, n_features) to (n_samples, n_bytes)."""
    return np.packbits(X, axis=1, bitorder="little")


def unpack_rows(rows: Bytes, n_features: int) -> NDArray[np.uint8]:
    """Undo `pack_rows`."""
    return np.unpackbits(rows, axis=1, count=n_features, bitorder="little")


def unpack_slots(words: NDArray[np.uint64], slots: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Unpack some slots of feature-major words: (n_features, n_words) to (n_slots, n_features)."""
    packed = np.ascontiguousarray(words.astype("<u8", copy=False)).view(np.uint8)
    return np.unpackbits(packed, axis=1, bitorder="little").T[slots]


def transpose_bits(rows: Bytes) -> Bytes:
    """Transpose a packed bit matrix: (8 a, b) bytes to (8 b, a) bytes; its own inverse."""
    starts = range(0, len(rows), _ROWS_AT_ONCE)
    parts = [_transpose_part(rows[start : start + _ROWS_AT_ONCE]) for start in starts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _transpose_part(rows: Bytes) -> Bytes:
    n_rows, n_bytes = rows.shape
    tiles = np.ascontiguousarray(rows.reshape(n_rows // 8, 8, n_bytes).transpose(2, 0, 1))
    words = tiles.view("<u8")[..., 0]
    for shift, mask in _SWAPS:
        moved = (words ^ (words >> np.uint64(shift))) & np.uint64(mask)
        words = words ^ moved ^ (moved << np.uint64(shift))
    columns = words.astype("<u8", copy=False)[..., None].view(np.uint8)
    return np.ascontiguousarray(columns.transpose(0, 2, 1)).reshape(8 * n_bytes, n_rows // 8)


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


def list_occupied_slots(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """List the slots of a chunk that hold rows, given its (segment, first_word, n_rows) blocks."""
    return np.concatenate([64 * first + np.arange(rows) for _, first, rows in blocks])
