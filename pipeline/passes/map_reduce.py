"""Sum statistics over all rows: map over groups of chunks, then merge along a fixed tree.

Groups are cut into tasks of about equal work, see `task_sizes`. Neither groups, tasks nor the tree
depend on the number of workers, so sums of floats have the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from pipeline.data.blocks import (
    WHOLE_CHUNK,
    BinaryBlock,
    ChunkPart,
    PackedChunk,
    RowSource,
    Tile,
    iter_blocks,
    iter_chunks,
)
from pipeline.errors import FitError
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.passes.task_sizes import WorkEstimate, choose_rows_per_task, split_group
from pipeline.statistics.sums import Statistics

CHUNKS_PER_GROUP = 8
"""Chunks whose sum is kept together, and the most that one task sums."""
_N_LATER = 64
"""Chunks that tasks know in advance; threads read a few of them ahead, each other ones."""
TASK_MEMORY = 256 << 20
"""Bytes of statistics that one task may hold; wider data are counted in tiles of features."""


class Mergeable(Protocol):
    """Anything with an associative `merge`."""

    def merge(self, other: Self) -> Self:
        """Combine with the partial result that follows."""


M = TypeVar("M", bound=Mergeable)
S = TypeVar("S", bound=Statistics)
ReadBlocks = Callable[[], Iterator[BinaryBlock]]
"""Reads the blocks of a group that have rows; every call reads them again."""
GroupReducer = Callable[[ReadBlocks, S | None], S | None]
"""Sums a group, given the sum of its earlier chunks if known; None if there are no rows."""


def split_chunks_into_groups(n_chunks: int, first: int = 0) -> list[range]:
    """Split the chunks from `first` on into fixed groups; appended chunks change only the last."""
    cuts = range((first // CHUNKS_PER_GROUP + 1) * CHUNKS_PER_GROUP, n_chunks, CHUNKS_PER_GROUP)
    edges = [first, *cuts, n_chunks]
    return [range(*pair) for pair in pairwise(edges)] if first < n_chunks else []


@dataclass(frozen=True)
class MergedChunks(Generic[M]):
    """The sum of the leading chunks, as a few partial sums to which more chunks can be added."""

    n_chunks: int = 0
    stack: tuple[tuple[int, M], ...] = ()  # merged groups, each with its height in the tree
    open_group: M | None = None  # merged chunks of a group that is not full yet, or None

    def add_groups(self, parts: Iterable[tuple[range, M | None]]) -> MergedChunks[M]:
        """Add groups, each given by its chunks and its sum (None if it has no rows).

        The sum of the first group includes `open_group`.
        """
        n_chunks, stack, open_group = self.n_chunks, list(self.stack), self.open_group
        for keys, part in parts:
            n_chunks = keys.stop
            is_full = n_chunks % CHUNKS_PER_GROUP == 0
            open_group = None if is_full else part
            if is_full and part is not None:
                _push_part(stack, part)
        return MergedChunks(n_chunks, tuple(stack), open_group)

    def list_ends(self) -> list[int]:
        """Return the number of leading chunks up to the end of each merged group.

        The list is empty if it is not known, because some group had no rows.
        """
        ends = [*accumulate(CHUNKS_PER_GROUP << height for height, _ in self.stack)]
        n_full = self.n_chunks - self.n_chunks % CHUNKS_PER_GROUP
        return ends if ends and ends[-1] == n_full else []

    def merge_all(self) -> M | None:
        """Merge everything; None if there are no rows."""
        stack = list(self.stack)
        if self.open_group is not None:
            _push_part(stack, self.open_group)
        return _merge_stack(stack) if stack else None


def tree_merge(parts: Iterable[M]) -> M:
    """Merge partial results, at least one, in order along a fixed binary tree.

    At most log2(number of parts) partial results are held at the same time.
    """
    stack: list[tuple[int, M]] = []
    for part in parts:
        _push_part(stack, part)
    if not stack:
        raise ValueError("There are no parts to merge.")
    return _merge_stack(stack)


def _push_part(stack: list[tuple[int, M]], part: M) -> None:
    """Add a part, and merge parts of equal height."""
    height = 0
    while stack and stack[-1][0] == height:
        part = stack.pop()[1].merge(part)
        height += 1
    stack.append((height, part))


def _merge_stack(stack: list[tuple[int, M]]) -> M:
    _, merged = stack[-1]
    for _, earlier in reversed(stack[:-1]):
        merged = earlier.merge(merged)
    return merged


@dataclass(frozen=True)
class KeptSums(Generic[S]):
    """Storage of sums over leading chunks, so that the next fit reads only new chunks.

    `load` returns the stored sum of a tile over leading chunks of the same rows, or an empty one;
    `save` stores the sum of a tile.
    """

    load: Callable[[Tile | None], MergedChunks[S]] = lambda tile: MergedChunks()
    save: Callable[[Tile | None, MergedChunks[S]], None] = lambda tile, merged: None


NO_KEPT_SUMS: KeptSums[Any] = KeptSums()


class GroupTask(NamedTuple, Generic[S]):
    """Chunks of a group to sum, or a part of one of its chunks."""

    tile: Tile | None  # the pairs of features to count; None means all
    keys: range
    part: ChunkPart = WHOLE_CHUNK  # of each chunk
    before: S | None = None  # sum of the group's earlier chunks, if it was stored
    later: tuple[int, ...] = ()  # chunks that the next tasks of the same process read


def collect_statistics(
    summarize: Callable[[BinaryBlock], S],
    rows: RowSource,
    executor: Executor,
    label: str,
    tiles: Sequence[Tile | None] = (None,),
    progress: Progress = ignore_progress,
    kept: KeptSums[S] = NO_KEPT_SUMS,
    work: WorkEstimate | None = None,
) -> S:
    """Sum `summarize(block)` over all rows; the other parameters are as for `collect_groups`."""
    fold = partial(sum_blocks, summarize)
    return collect_groups(fold, rows, executor, label, tiles, progress, kept, work)


def collect_groups(
    fold: GroupReducer[S],
    rows: RowSource,
    executor: Executor,
    label: str,
    tiles: Sequence[Tile | None] = (None,),
    progress: Progress = ignore_progress,
    kept: KeptSums[S] = NO_KEPT_SUMS,
    work: WorkEstimate | None = None,
) -> S:
    """Sum a statistic over all rows, group by group.

    Parameters
    ----------
    fold
        Sums the rows of one task; it is sent to the workers.
    rows, executor
        The rows, at least one, and where tasks run.
    label, progress
        Name of the pass, and a function that receives its progress after every task.
    tiles
        Sets of feature pairs, each summed in a separate sweep.
    kept
        Stored sums over leading chunks.
    work
        Estimate of the work per row, by which groups are cut into tasks; None makes every group a
        task.
    """
    size = float("inf") if work is None else choose_rows_per_task(work, rows.rows_per_chunk)
    stored = [kept.load(tile) for tile in tiles]
    groups_by_tile = [
        _make_tasks(*pair, rows.rows_per_chunk, size) for pair in zip(tiles, stored, strict=True)
    ]
    tasks = [task for groups in groups_by_tile for group in groups for task in group]
    if isinstance(executor, SerialExecutor | ThreadsExecutor):
        tasks = _list_later_chunks(tasks)
    parts = []
    with closing(executor.map(partial(reduce_group, fold, rows.read), tasks)) as mapped:
        results = _iter_with_progress(mapped, len(tasks), label, progress)
        for tile, before, groups in zip(tiles, stored, groups_by_tile, strict=True):
            merged = before.add_groups(_merge_tasks(group, results) for group in groups)
            kept.save(tile, merged)
            parts.append(_merge_all_chunks(merged))
    return type(parts[0]).stitch(parts)


def _make_tasks(
    tile: Tile | None, stored: MergedChunks[S], rows_per_chunk: Sequence[int], size: float
) -> list[list[GroupTask[S]]]:
    """Return the tasks of each group, of about `size` rows each."""
    groups = split_chunks_into_groups(len(rows_per_chunk), stored.n_chunks)
    tasks: list[list[GroupTask[S]]] = [
        [GroupTask(tile, *piece) for piece in split_group(keys, rows_per_chunk, size)]
        for keys in groups
    ]
    if tasks:
        tasks[0][0] = tasks[0][0]._replace(before=stored.open_group)
    return tasks


def _list_later_chunks(tasks: Sequence[GroupTask[S]]) -> list[GroupTask[S]]:
    """Add to each task the chunks that the tasks after it read."""
    later: tuple[int, ...] = ()
    listed = []
    for task in reversed(tasks):
        listed.append(task._replace(later=later))
        later = tuple(dict.fromkeys((*task.keys, *later)))[:_N_LATER]
    return listed[::-1]


def _merge_tasks(
    tasks: Sequence[GroupTask[S]], results: Iterator[S | None]
) -> tuple[range, S | None]:
    """Merge the results of a group's tasks in order; None if the group has no rows."""
    total = None
    for part in islice(results, len(tasks)):
        if part is not None:
            total = part if total is None else total.merge(part)
    return range(tasks[0].keys.start, tasks[-1].keys.stop), total


def _merge_all_chunks(merged_chunks: MergedChunks[S]) -> S:
    merged = merged_chunks.merge_all()
    if merged is None:
        raise FitError("There are no rows. Choose another {split}.", parameter="split")
    return merged


def _iter_with_progress(
    results: Iterator[S | None], total: int, label: str, progress: Progress
) -> Iterator[S | None]:
    rows = 0
    progress(label, 0, total, rows)
    for n_tasks, part in enumerate(results, start=1):
        rows += 0 if part is None else part.n_rows
        progress(label, n_tasks, total, rows)
        yield part


def reduce_group(
    fold: GroupReducer[S], read: Callable[[int], PackedChunk], task: GroupTask[S]
) -> S | None:
    """Sum the rows of a task; None if it has none of the split.

    While one chunk is summed, the next ones are read.
    """

    def read_blocks() -> Iterator[BinaryBlock]:
        chunks = iter_chunks(read, task.keys, task.later)
        blocks = (block for chunk in chunks for block in iter_blocks(chunk, task.part))
        return (replace(block, tile=task.tile) for block in blocks if block.n_samples)

    return fold(read_blocks, task.before)


def sum_blocks(
    summarize: Callable[[BinaryBlock], S],
    blocks: ReadBlocks,
    before: S | None,
    add: Callable[[S, BinaryBlock], S] | None = None,
) -> S | None:
    """Summarize the blocks of a group one by one, and merge them in order.

    `add` may change the sum in place, so it is called only on a sum that this function created.
    """
    total, is_own = before, False
    for block in blocks():
        check_cancelled()
        if add is not None and is_own and total is not None:
            total = add(total, block)
        else:
            part = summarize(block)
            total, is_own = part if total is None else total.merge(part), True
    return total
