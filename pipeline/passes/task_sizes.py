"""Sizes of tasks, chosen by the estimated work of a pass.

They depend on data and model only, never on the number of workers, because sums of floats depend on
them. A task takes about two seconds, and less if the whole pass is short. It takes more if results
are large, because the process that started the pass receives and merges all of them: that must not
take longer than the pass on as many workers as its work may deserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.data.blocks import WHOLE_CHUNK, ChunkPart

_TASK_SECONDS = 2.0
_TARGET_TASKS = 512
"""Tasks of a short pass: eight or more for each of 64 workers, so that all end at the same time."""
_TASK_OVERHEAD, _BYTES_PER_SECOND = 2e-3, 5e8
"""Seconds per task in the process that started the pass, and bytes per second of its results."""
_SECONDS_PER_WORKER, _MIN_WORKERS, _MAX_WORKERS = 60.0, 20, 1000
"""A pass may deserve so many workers that it takes a minute, within these limits."""
_MIN_ROW_TIME = 8.0  # for the rows of a task, as a multiple of its fixed time
_MAX_PARTS = 64
"""Parts of a chunk: limits what an estimate that is far too high can do."""
_ROWS_PER_WORD = 64


class WorkEstimate(NamedTuple):
    """Estimated work of a pass; too high or too low, it costs time but does no harm.

    Attributes
    ----------
    nanoseconds
        CPU time per row, on one core of 2026.
    result_bytes
        Size of the statistics that each task returns.
    task_nanoseconds
        Fixed CPU time of each task, whatever its number of rows.
    """

    nanoseconds: float
    result_bytes: float = 0
    task_nanoseconds: float = 0


class GroupPiece(NamedTuple):
    """Neighbouring chunks of a group, or a part of one of its chunks."""

    keys: range
    part: ChunkPart = WHOLE_CHUNK


def choose_rows_per_task(work: WorkEstimate, rows_per_chunk: Sequence[int]) -> float:
    """Return the number of rows per task; infinite if the estimate is 0 or not a number."""
    seconds_per_row = 1e-9 * work.nanoseconds
    if not seconds_per_row > 0:
        return float("inf")
    overhead = _TASK_OVERHEAD + work.result_bytes / _BYTES_PER_SECOND
    total = seconds_per_row * sum(rows_per_chunk)
    n_workers = min(max(total / _SECONDS_PER_WORKER, _MIN_WORKERS), _MAX_WORKERS)
    seconds = max(min(total / _TARGET_TASKS, _TASK_SECONDS), n_workers * overhead)
    seconds = max(seconds, _MIN_ROW_TIME * 1e-9 * work.task_nanoseconds)
    return seconds / seconds_per_row


def split_group(keys: range, rows_per_chunk: Sequence[int], size: float) -> list[GroupPiece]:
    """Split a group of chunks into pieces of about `size` rows, in order.

    `rows_per_chunk` has the rows of all chunks of the dataset. A piece has between half and one
    and a half times `size` rows, unless the group or a row group of 64 limits it.
    """
    pieces, first, n_rows = [], keys.start, 0
    for key in keys:
        rows = rows_per_chunk[key]
        n_parts = max(1, round(min(rows / max(size, 1), rows // _ROWS_PER_WORD, _MAX_PARTS)))
        if key > first and (n_parts > 1 or n_rows + rows > size):
            pieces.append(GroupPiece(range(first, key)))
            first, n_rows = key, 0
        if n_parts > 1:
            parts = (ChunkPart(position, n_parts) for position in range(n_parts))
            pieces += [GroupPiece(range(key, key + 1), part) for part in parts]
            first = key + 1
        else:
            n_rows += rows
    return pieces if first == keys.stop else [*pieces, GroupPiece(range(first, keys.stop))]
