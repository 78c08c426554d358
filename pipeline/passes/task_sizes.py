"""Sizes of the pieces that tasks sum, chosen by the estimated work of a pass.

They depend on data and model only, never on the number of workers, because sums of floats depend on
them. A piece takes about two seconds, and less if the whole pass is short. It takes more if results
are large, because they are merged, or if the scheduler would hold up as many workers as the pass
may deserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.data.blocks import WHOLE_CHUNK, ChunkPart, RowSource

_TASK_SECONDS = 2.0
_TARGET_TASKS = 512
"""Tasks of a short pass: eight or more for each of 64 workers, so that all end at the same time."""
_TASK_OVERHEAD, _BYTES_PER_SECOND = 2e-3, 5e8
"""Seconds per task in scheduler and client, and bytes of results merged per second."""
_SECONDS_PER_WORKER, _MIN_WORKERS, _MAX_WORKERS = 60.0, 20, 1000
"""A pass may deserve so many workers that it takes a minute, within these limits."""
_MIN_ROW_TIME = 8.0  # for the rows of a piece, as a multiple of its fixed time
CHUNKS_PER_GROUP = 8
"""Most chunks of a piece."""
_SMALL_RESULT = 8 << 20
"""Bytes of a result that is merged in no time, compared to a chunk."""
_MAX_PIECES, _MAX_COUNTED_PIECES, _RESULTS_BYTES = 8, 64, 128 << 20
"""Pieces that a task may sum, the same for counts, and bytes of results that it may hold."""
_MAX_PARTS = 64
"""Parts of a chunk: limits what an estimate that is far too high can do."""
_ROWS_PER_WORD = 64


class WorkEstimate(NamedTuple):
    """Estimated work of a pass; too high or too low, it costs time but does no harm.

    Attributes
    ----------
    nanoseconds
        CPU time per row, on one core of 2026; 0 if reading takes longer.
    result_bytes
        Size of the statistics of each piece.
    task_nanoseconds
        Fixed CPU time of each piece, whatever its number of rows.
    n_chunks
        Number of chunks of each piece if it is part of the method, otherwise 0.
    """

    nanoseconds: float
    result_bytes: float = 0
    task_nanoseconds: float = 0
    n_chunks: int = 0


NO_WORK = WorkEstimate(0)


class GroupPiece(NamedTuple):
    """Neighbouring chunks of a group, or a part of one of its chunks."""

    keys: range
    part: ChunkPart = WHOLE_CHUNK


def choose_rows_per_task(work: WorkEstimate, rows_per_chunk: Sequence[int]) -> float:
    """Return the number of rows per task; infinite if the estimate is 0 or not a number."""
    seconds_per_row = 1e-9 * work.nanoseconds
    if not seconds_per_row > 0:
        return float("inf")
    total = seconds_per_row * sum(rows_per_chunk)
    n_workers = min(max(total / _SECONDS_PER_WORKER, _MIN_WORKERS), _MAX_WORKERS)
    seconds = max(min(total / _TARGET_TASKS, _TASK_SECONDS), n_workers * _TASK_OVERHEAD)
    fixed = 1e-9 * work.task_nanoseconds + work.result_bytes / _BYTES_PER_SECOND
    return max(seconds, _MIN_ROW_TIME * fixed) / seconds_per_row


def choose_chunks_per_piece(work: WorkEstimate, rows: RowSource) -> int:
    """Return the number of chunks from which pieces are cut.

    For counts it is one, unless the tables of a piece are larger than the chunk itself: adding
    tables would take longer than counting. Pieces of counts are the same after an append.
    """
    if work.n_chunks:
        return work.n_chunks
    if work.nanoseconds > 0:
        return CHUNKS_PER_GROUP
    n_chunks, n_bytes = 1, max(rows.rows_per_chunk, default=0) * rows.n_features / 8
    while (
        work.result_bytes > max(_SMALL_RESULT, n_chunks * n_bytes) and n_chunks < CHUNKS_PER_GROUP
    ):
        n_chunks *= 2
    return n_chunks


def choose_max_pieces(work: WorkEstimate) -> int:
    """Return the number of pieces that a task may sum, one result for each level of its tree."""
    n_pieces = _MAX_PIECES if work.nanoseconds > 0 else _MAX_COUNTED_PIECES
    n_results = n_pieces.bit_length()
    if n_results * work.result_bytes > _RESULTS_BYTES:
        n_results = max(1, int(_RESULTS_BYTES / work.result_bytes))
    return 1 << (n_results - 1)


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
