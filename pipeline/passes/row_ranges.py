"""Ranges of rows, the work of a task whose results have one entry per row.

A range may span several chunks. The ranges depend only on the number of rows and on the shape of
the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, PackedChunk, RowSource, iter_blocks
from pipeline.executors.base import Executor

ROW = "row"
"""Name of the array of original rows."""
_TARGET_RANGES, _MIN_ROWS, _MAX_ROWS = 64, 1 << 12, 1 << 17
_RANGE_BYTES = 16 << 20

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


class RangeBlockRows(NamedTuple):
    """The rows of a range that lie in one block.

    `indices` are their indices within the block, and `places` their positions within the range,
    (n_rows,) each.
    """

    block: BinaryBlock
    indices: NDArray[np.int64]
    places: NDArray[np.int64]


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
) -> Iterator[RangeBlockRows]:
    """Yield the rows of a range, block by block."""
    for key, first in row_range.chunks:
        blocks = [block for block in iter_blocks(read(key)) if block.n_samples]
        for block, places in zip(blocks, _compute_places(blocks, first), strict=True):
            indices = np.flatnonzero((places >= row_range.start) & (places < row_range.stop))
            yield RangeBlockRows(block, indices, places[indices] - row_range.start)


def fill_places(
    arrays: dict[str, NDArray[Any]], row_range: RowRange, places: NDArray[np.int64], part: Arrays
) -> None:
    """Copy the results of some rows to their places in the arrays of a range."""
    for name, values in part.items():
        if name not in arrays:
            arrays[name] = np.empty(
                (row_range.stop - row_range.start, *values.shape[1:]), values.dtype
            )
        arrays[name][places] = values


def _compute_places(blocks: Sequence[BinaryBlock], first: int) -> list[NDArray[np.int64]]:
    """Return the positions of the rows of a chunk, block by block; the first row is at `first`."""
    rows = np.concatenate([block.rows for block in blocks])
    offsets = rows - rows.min()
    present = np.zeros(int(offsets.max()) + 1, np.bool_)
    present[offsets] = True
    places = first - 1 + np.cumsum(present)[offsets]
    return np.split(places, np.cumsum([block.n_samples for block in blocks])[:-1])
