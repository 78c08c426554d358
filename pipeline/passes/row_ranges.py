"""Ranges of rows, the work of a task whose results have one entry per row.

A range may span several chunks. The ranges depend only on the number of rows and on the shape of
the results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import (
    AnnotatedChunk,
    BinaryBlock,
    PackedChunk,
    RowNumbers,
    RowSource,
    annotate_chunk,
    iter_blocks,
)
from pipeline.executors.base import Executor

ROW = "row"
"""Name of the array of original rows."""
_TARGET_RANGES, _MIN_ROWS, _MAX_ROWS = 64, 1 << 12, 1 << 17
_RANGE_BYTES, _TARGET_GROUPS = 16 << 20, 128

Arrays = Mapping[str, NDArray[Any]]
ArrayDescriptions = Mapping[str, tuple[tuple[str, ...], tuple[int, ...], str]]
"""Dimensions, shape and dtype of one row's entry, by the array's name."""


class RowRange(NamedTuple):
    """The work of one task."""

    key: int
    # Positions of its rows among all rows, in original order.
    start: int
    stop: int
    # The chunks that hold them: key, and position of the first row.
    chunks: tuple[tuple[int, int], ...]
    checksums: Sequence[int] | None = None  # checksums of the range if an earlier run wrote it


class RangeStore(Protocol):
    """Stores ranges; implemented by `storage.codes.codes.CodesWriter`, for example."""

    def __call__(self, key: int, arrays: Arrays, /) -> list[int]:
        """Write a range and return the checksum of each array."""

    def has_range(self, key: int, checksums: Sequence[int]) -> bool:
        """Return whether a range is stored undamaged."""


class ReadRange(Protocol):
    """Reads all or some arrays of a range, in any process."""

    def __call__(self, key: int, names: Sequence[str] | None = None) -> Arrays:
        """Return the arrays of a range; None for `names` means all."""


class RangeResults(NamedTuple):
    """The results of all ranges: their number, and a function that reads one of them."""

    n_ranges: int
    read: ReadRange


def write_range(
    compute: Callable[[RowRange], Arrays], store: RangeStore, row_range: RowRange
) -> list[int]:
    """Compute and store a range, unless it is stored already; return each array's checksum."""
    if row_range.checksums is not None and store.has_range(row_range.key, row_range.checksums):
        return list(row_range.checksums)
    return store(row_range.key, compute(row_range))


def write_ranges(
    compute: Callable[[RowRange], Arrays], store: RangeStore, row_ranges: Sequence[RowRange]
) -> list[list[int]]:
    """Compute and store neighbouring ranges; return the checksums of each."""
    return [write_range(compute, store, row_range) for row_range in row_ranges]


def group_ranges(row_ranges: Sequence[RowRange]) -> list[list[RowRange]]:
    """Group neighbouring ranges that begin in the same chunk, so that a worker reads it once.

    Groups are smaller if there would be too few of them for many workers.
    """
    size = max(1, len(row_ranges) // _TARGET_GROUPS)
    return [
        own[first : first + size]
        for _, group in groupby(row_ranges, lambda row_range: row_range.chunks[:1])
        for own in [[*group]]
        for first in range(0, len(own), size)
    ]


def choose_rows_per_range(arrays: ArrayDescriptions, n_rows: int) -> int:
    """Choose the number of rows per range.

    Small data are split more finely than memory requires. Their results take long to compute, so
    every worker should have a range, and losing one range should cost little.
    """
    sizes = (np.dtype(dtype).itemsize * int(np.prod(shape)) for _, shape, dtype in arrays.values())
    even = min(max(-(-n_rows // _TARGET_RANGES), _MIN_ROWS), _MAX_ROWS, n_rows)
    return max(1, min(even, _RANGE_BYTES // max(1, *sizes)))


def split_into_ranges(n_rows: Sequence[int], size: int) -> list[RowRange]:
    """Split the rows of all chunks, `n_rows` in each, into ranges of equal size.

    The last range may be shorter.
    """
    edges = np.concatenate([[0], np.cumsum(n_rows)])
    ranges = []
    for key, start in enumerate(range(0, int(edges[-1]), size)):
        stop = min(start + size, int(edges[-1]))
        first = np.searchsorted(edges, start, side="right") - 1
        last = np.searchsorted(edges, stop, side="left")
        chunks = tuple((int(k), int(edges[k])) for k in range(first, last) if n_rows[k])
        ranges.append(RowRange(key, start, stop, chunks))
    return ranges


def count_rows_by_chunk(rows: RowSource, executor: Executor) -> list[int]:
    """Count the rows of each chunk that belong to the chosen split."""
    return list(executor.map(partial(count_split_rows, rows.read), range(rows.n_chunks)))


def count_split_rows(read: Callable[[int], PackedChunk], key: int) -> int:
    """Count the rows of a chunk that belong to the chosen split."""
    chunk = read(key)
    return len(chunk.row_numbers) if chunk.keep is None else int(np.count_nonzero(chunk.keep))


def iter_range_rows(
    read: Callable[[int], PackedChunk], row_range: RowRange
) -> Iterator[tuple[BinaryBlock, RowNumbers]]:
    """Yield the rows of a range, block by block, and their places within the range."""
    for key, first in row_range.chunks:
        chunk = annotate_chunk(read(key))
        start, stop = max(row_range.start - first, 0), row_range.stop - first
        indices, positions = _find_rows(chunk, start, stop)
        last = 0
        for block in iter_blocks(replace(chunk, keep=None)):
            first_index, last = last, last + block.n_samples
            own = slice(bisect_left(indices, first_index), bisect_left(indices, last))
            if own.start < own.stop:
                rows = block.take_rows(_shift(indices[own], -first_index))
                yield rows, _shift(positions[own], first - row_range.start)


def _shift(numbers: RowNumbers, offset: int) -> RowNumbers:
    if isinstance(numbers, range):
        return range(numbers.start + offset, numbers.stop + offset)
    return numbers + offset


def _find_rows(chunk: AnnotatedChunk, start: int, stop: int) -> tuple[RowNumbers, RowNumbers]:
    """Find the rows at some positions among those of the split in original order.

    Returns their indices in stored order, sorted, and the position of each.
    """
    if isinstance(chunk.row_numbers, range):  # in original order
        kept = range(len(chunk.row_numbers)) if chunk.keep is None else np.flatnonzero(chunk.keep)
        return kept[start:stop], range(len(kept))[start:stop]
    is_own = np.ones(len(chunk.rows), np.bool_) if chunk.keep is None else chunk.keep
    positions = chunk.rows - chunk.rows.min()
    if not is_own.all() or positions.max() >= len(positions):
        present = np.zeros(int(positions.max()) + 1, np.bool_)
        present[positions[is_own]] = True
        positions = np.cumsum(present)[positions] - 1
    own = np.flatnonzero(is_own & (positions >= start) & (positions < stop))
    return own, positions[own]


def fill_places(
    arrays: dict[str, NDArray[Any]], row_range: RowRange, places: RowNumbers, part: Arrays
) -> None:
    """Copy the results of some rows to their places in the arrays of a range."""
    index = slice(places.start, places.stop) if isinstance(places, range) else places
    for name, values in part.items():
        if name not in arrays:
            arrays[name] = np.empty(
                (row_range.stop - row_range.start, *values.shape[1:]), values.dtype
            )
        arrays[name][index] = values
