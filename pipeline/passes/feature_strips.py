"""Pairs of features too many for one table: a strip of features beside all that follow, a task.

A task reads all chunks one by one, adds up what its strip needs in place, and gives what its
features have with each other and with all that follow; the strips before it have the other pairs.
Results are written where they were made, and read strip by strip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk, RowSource
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.passes.row_ranges import ArrayDescriptions, Arrays, RowRange

MIN_STRIP_HEIGHT = 16
_MAX_STRIP_HEIGHT, _STRIP_CELLS = 512, 1 << 21
_CELL_BYTES = 32
"""Of a pair in a task: counts, the estimate in float64 and as it is stored, its status."""
_CONCATENATED_BYTES = 128 << 20
"""Of small chunks put together, their masks, and what the kernel copies of them."""


@dataclass(frozen=True)
class FeaturePairJob:
    """What all tasks share; small enough to send with every one.

    Attributes
    ----------
    tabulate
        Makes the arrays of a strip, given its features and all chunks: see
        `CanTabulatePairs.tabulate`.
    rows
        The rows to count.
    height
        Features of a strip.
    """

    label: ClassVar[str] = "pair tables"
    tabulate: Callable[[slice, Iterator[PackedChunk]], Arrays]
    rows: RowSource
    height: int

    def __call__(self, run: RowRange) -> Arrays:
        """Make a strip of each array, (n_strip, n_features − first).

        Raises
        ------
        Unwanted
            If the run was interrupted.
        """
        return self.tabulate(slice(run.start, run.stop), self._iter_chunks())

    def _iter_chunks(self) -> Iterator[PackedChunk]:
        """Read the chunks one by one, but those that have no rows, as damaged ones left out."""
        for key in range(self.rows.n_chunks):
            check_cancelled()
            chunk = self.rows.read(key)
            if len(chunk.rows):
                yield chunk

    def describe_arrays(self) -> ArrayDescriptions:
        """Describe the arrays that strips are stored in, by a strip of no features."""
        n = self.rows.n_features
        found = self.tabulate(slice(n, n), iter(()))
        return {name: (("feature_j",), (n,), str(a.dtype)) for name, a in found.items()}

    def count_per_chunk(self, executor: Executor) -> list[int]:
        """Count what is cut into runs: features, that lie in one place."""
        return [self.rows.n_features]

    def choose_range_length(self, total: int) -> int:
        """Count the features of a strip."""
        return self.height

    def count_rows_done(self, stop: int) -> int:
        """Count the rows that are done with: none, as every task goes over all."""
        return 0


def choose_strip_height(n_features: int, n_threads: int, spare: int | None) -> int:
    """Count the features of a strip, by the number of features alone unless memory is short.

    So many that reading a chunk costs little beside counting it, and that sums in place stay small.

    Parameters
    ----------
    n_features, n_threads
        Number of features, and of tasks at a time.
    spare
        Bytes that tasks may take beyond those of strips of `MIN_STRIP_HEIGHT`; None is any.
    """
    height = max(_MAX_STRIP_HEIGHT // 2, min(_MAX_STRIP_HEIGHT, _STRIP_CELLS // n_features))
    least = estimate_strip_memory(MIN_STRIP_HEIGHT, n_features)
    while spare is not None and height > MIN_STRIP_HEIGHT:
        if n_threads * (estimate_strip_memory(height, n_features) - least) <= spare:
            break
        height //= 2
    return height


def estimate_strip_memory(height: int, n_features: int) -> int:
    """Bytes that a task needs for a strip."""
    return _CELL_BYTES * height * n_features + _CONCATENATED_BYTES


def make_square_rows(work: FeaturePairJob, run: RowRange) -> dict[str, NDArray[Any]]:
    """Make a strip as rows of square arrays, with 0 where other strips have the pairs."""
    n_features = work.rows.n_features
    return {name: _widen_strip(strip, n_features) for name, strip in work(run).items()}


def _widen_strip(strip: NDArray[Any], n_features: int) -> NDArray[Any]:
    wide = np.zeros((len(strip), n_features), strip.dtype)
    wide[:, n_features - strip.shape[1] :] = strip
    return wide
