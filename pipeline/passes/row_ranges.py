"""Runs of rows: what a task owns whose results are as long as its rows, whichever chunks hold them.

How rows are cut depends on their number and on the shape of the results alone.
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
"""Dimensions, shape and type of what one row has, by the array's name."""


class RowRange(NamedTuple):
    """The work of one task.

    Attributes
    ----------
    key
        Index of the run.
    start, stop
        Places of its rows among all, in original order.
    chunks
        The chunks that they lie in: key, and place of the first row.
    done
        Checksums of the run where one before this wrote it.
    """

    key: int
    start: int
    stop: int
    chunks: tuple[tuple[int, int], ...]
    checksums: Sequence[int] | None = None


class RangeBlockRows(NamedTuple):
    """Rows of a run that lie in one block.

    Attributes
    ----------
    block
        The block.
    at
        Which of its rows, (n_rows,).
    places
        Place of each within the run, (n_rows,).
    """

    block: BinaryBlock
    at: NDArray[np.int64]
    places: NDArray[np.int64]


class RangeStore(Protocol):
    """Where runs are written: `storage.codes.codes.CodesWriter` is one."""

    def __call__(self, key: int, arrays: Arrays) -> list[int]:
        """Write a run and give a checksum of each array."""

    def has_range(self, key: int, checksums: Sequence[int]) -> bool:
        """Tell whether a run lies there as it was written."""


class ReadRange(Protocol):
    """Gives the arrays of a run by its key, all or those named, in any process."""

    def __call__(self, key: int, names: Sequence[str] | None = None) -> Arrays:
        """Give the arrays of a run."""


class RangeResults(NamedTuple):
    """What all runs gave, read one by one.

    Attributes
    ----------
    n_runs
        Number of runs.
    read
        Reads one.
    """

    n_ranges: int
    read: ReadRange


def write_range(make: Callable[[RowRange], Arrays], store: RangeStore, run: RowRange) -> list[int]:
    """Make and store a run, unless it lies there; give the checksum of each array."""
    if run.checksums is not None and store.has_range(run.key, run.checksums):
        return list(run.checksums)
    return store(run.key, make(run))


def choose_rows_per_range(arrays: ArrayDescriptions, n_rows: int) -> int:
    """Give the rows of a run.

    Results take long to compute: small data are cut finer than their bytes ask for, so that all
    workers have some, and no run is so long that losing it hurts.
    """
    sizes = (np.dtype(dtype).itemsize * int(np.prod(shape)) for _, shape, dtype in arrays.values())
    even = min(max(-(-n_rows // _TARGET_RANGES), _MIN_ROWS), _MAX_ROWS, n_rows)
    return max(1, min(even, _RANGE_BYTES // max(1, *sizes)))


def split_into_ranges(n_rows: Sequence[int], size: int) -> list[RowRange]:
    """Cut the rows of all chunks, so many in each, into runs of one size, the last shorter."""
    edges = np.concatenate([[0], np.cumsum(n_rows)])
    runs = []
    for key, start in enumerate(range(0, int(edges[-1]), size)):
        stop = min(start + size, int(edges[-1]))
        first = np.searchsorted(edges, start, side="right") - 1
        last = np.searchsorted(edges, stop, side="left")
        chunks = tuple((int(k), int(edges[k])) for k in range(first, last) if n_rows[k])
        runs.append(RowRange(key, start, stop, chunks))
    return runs


def count_rows_by_chunk(rows: RowSource, executor: Executor) -> list[int]:
    """Count the rows of each chunk that are of the chosen split."""
    return list(executor.map(partial(count_split_rows, rows.read), range(rows.n_chunks)))


def count_split_rows(read: Callable[[int], PackedChunk], key: int) -> int:
    """Count the rows of a chunk that are of the chosen split."""
    chunk = read(key)
    return len(chunk.rows) if chunk.keep is None else int(np.count_nonzero(chunk.keep))


def iter_range_rows(read: Callable[[int], PackedChunk], run: RowRange) -> Iterator[RangeBlockRows]:
    """Find the rows of a run, block by block."""
    for key, first in run.chunks:
        blocks = [block for block in iter_blocks(read(key)) if block.n_samples]
        for block, places in zip(blocks, _compute_places(blocks, first), strict=True):
            at = np.flatnonzero((places >= run.start) & (places < run.stop))
            yield RangeBlockRows(block, at, places[at] - run.start)


def fill_places(
    arrays: dict[str, NDArray[Any]], run: RowRange, places: NDArray[np.int64], part: Arrays
) -> None:
    """Put what some rows of a run have in its places."""
    for name, values in part.items():
        if name not in arrays:
            arrays[name] = np.empty((run.stop - run.start, *values.shape[1:]), values.dtype)
        arrays[name][places] = values


def _compute_places(blocks: Sequence[BinaryBlock], first: int) -> list[NDArray[np.int64]]:
    """Give the place of every row of a chunk's blocks, counted on from its first row's."""
    rows = np.concatenate([block.rows for block in blocks])
    offsets = rows - rows.min()
    present = np.zeros(int(offsets.max()) + 1, np.bool_)
    present[offsets] = True
    places = first - 1 + np.cumsum(present)[offsets]
    return np.split(places, np.cumsum([block.n_samples for block in blocks])[:-1])
