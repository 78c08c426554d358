"""Count the pairs of features strip by strip, if they are too many for one table.

A task reads all chunks one by one and counts the pairs of its strip's features with each other and
with all later features. Pairs with earlier features belong to earlier strips. Workers write the
results to storage, from which they are read strip by strip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk, RowSource
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.passes.row_ranges import ArrayDescriptions, Arrays, RowRange

MIN_STRIP_HEIGHT = 16
_MAX_STRIP_HEIGHT, _STRIP_BYTES = 512, 1 << 26
CELL_BYTES = 32
"""Memory per pair of bits in a task: counts, the estimate, its status, and all as stored."""
_CONCATENATED_BYTES = 128 << 20
"""Memory of concatenated small chunks, their masks, and the kernel's copies."""


class EarlierStrips(NamedTuple):
    """Strips that an earlier fit stored, of the same rows in the leading `n_chunks` chunks.

    `read` returns the counts of a strip; None if they are damaged.
    """

    n_chunks: int
    read: Callable[[int], Arrays | None]


@dataclass(frozen=True)
class UndamagedChunks:
    """The chunks from `first` on, read by every iteration; damaged ones have no rows."""

    rows: RowSource
    first: int

    def __iter__(self) -> Iterator[PackedChunk]:
        for key in range(self.first, self.rows.n_chunks):
            check_cancelled()
            chunk = self.rows.read(key)
            if len(chunk.row_numbers):
                yield chunk


@dataclass(frozen=True)
class FeaturePairJob:
    """The job that all tasks share, small enough to send with each task.

    `tabulate` computes the arrays of a strip from its features, the chunks, and the counts of
    earlier chunks (see `CanTabulatePairs.tabulate`). `rows` are the rows to count, `n_features` is
    the number of all features and `height` the number per strip. `earlier` has the counts of
    leading chunks if they are known.
    """

    label: ClassVar[str] = "pair tables"
    tabulate: Callable[[slice, Iterable[PackedChunk], Arrays | None], Arrays]
    rows: RowSource
    n_features: int
    height: int
    earlier: EarlierStrips | None = None

    def __call__(self, strip: RowRange) -> Arrays:
        """Compute a strip of each array, (n_strip, n_features − first)."""
        counts = None if self.earlier is None else self.earlier.read(strip.key)
        first = 0 if self.earlier is None or counts is None else self.earlier.n_chunks
        chunks = UndamagedChunks(self.rows, first)
        return self.tabulate(slice(strip.start, strip.stop), chunks, counts)

    def describe_arrays(self) -> ArrayDescriptions:
        """Describe the stored arrays of a strip, by tabulating a strip without features."""
        n = self.n_features
        arrays = self.tabulate(slice(n, n), (), None)
        return {name: (("feature_j",), (n,), str(a.dtype)) for name, a in arrays.items()}

    def count_per_chunk(self, executor: Executor) -> list[int]:
        """Return the number of features, as if of one chunk: ranges consist of features."""
        return [self.n_features]

    def choose_range_length(self, total: int) -> int:
        """Return the number of features per strip."""
        return self.height

    def count_rows_done(self, stop: int) -> int:
        """Return 0: every task reads all rows, so no row is done before the last task."""
        return 0


def choose_strip_height(
    n_columns: int, n_threads: int, spare: int | None, cell_bytes: int = CELL_BYTES
) -> int:
    """Choose the number of columns per strip, from `n_columns` alone unless memory is short.

    A strip is high enough that reading a chunk takes little time compared to counting it, and low
    enough that the sums stay small. `n_threads` tasks run at the same time. Together they may use
    `spare` bytes more than with strips of `MIN_STRIP_HEIGHT`; None for no limit. A pair of columns
    takes `cell_bytes`.
    """
    least = _MAX_STRIP_HEIGHT // 2 * CELL_BYTES // cell_bytes
    height = max(least, min(_MAX_STRIP_HEIGHT, _STRIP_BYTES // cell_bytes // n_columns))
    minimum = estimate_strip_memory(MIN_STRIP_HEIGHT, n_columns, cell_bytes)
    while spare is not None and height > MIN_STRIP_HEIGHT:
        needed = estimate_strip_memory(height, n_columns, cell_bytes) - minimum
        if n_threads * needed <= spare:
            break
        height //= 2
    return height


def count_strip_features(columns: NDArray[np.int64], height: int) -> int:
    """Return the most features per strip with which no strip has more than `height` columns.

    `columns` are the columns of each feature, (n_features,). A strip has at least one feature.
    """
    edges = np.concatenate([[0], np.cumsum(columns)])
    for n_features in range(height, 1, -1):
        starts = edges[:-1:n_features]
        if np.diff(starts, append=edges[-1]).max() <= height:
            return n_features
    return 1


def estimate_strip_memory(height: int, n_columns: int, cell_bytes: int = CELL_BYTES) -> int:
    """Return the bytes that a task needs for a strip of `height` columns."""
    return cell_bytes * height * n_columns + _CONCATENATED_BYTES


def make_square_rows(job: FeaturePairJob, strip: RowRange) -> dict[str, NDArray[Any]]:
    """Compute a strip as rows of square arrays, 0 at pairs that belong to other strips."""
    return {name: _widen_strip(values, job.n_features) for name, values in job(strip).items()}


def _widen_strip(strip: NDArray[Any], n_features: int) -> NDArray[Any]:
    wide = np.zeros((len(strip), n_features), strip.dtype)
    wide[:, n_features - strip.shape[1] :] = strip
    return wide
