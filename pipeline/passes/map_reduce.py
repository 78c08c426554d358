"""Which chunks are folded together, and in which order partial results merge.

Neither depends on the number of workers, so sums of floats have the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import islice, pairwise, product
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from pipeline.data.blocks import BinaryBlock, PackedChunk, RowSource, Tile, iter_blocks
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.statistics.sums import Statistics

CHUNKS_PER_GROUP = 8
"""Chunks a group: long enough that results are few, short enough that work spreads evenly."""


class Mergeable(Protocol):
    """Anything with an associative `merge`."""

    def merge(self, other: Self) -> Self:
        """Combine with the partial result that follows."""


M = TypeVar("M", bound=Mergeable)


def split_chunks_into_groups(n_chunks: int, first: int = 0) -> list[range]:
    """Cut the chunks from the first into fixed runs; appended chunks change only the last."""
    cuts = range((first // CHUNKS_PER_GROUP + 1) * CHUNKS_PER_GROUP, n_chunks, CHUNKS_PER_GROUP)
    edges = [first, *cuts, n_chunks]
    return [range(*pair) for pair in pairwise(edges)] if first < n_chunks else []


@dataclass(frozen=True)
class MergedChunks(Generic[M]):
    """The leading chunks, merged as far as the fixed tree goes whatever chunks are to come.

    Attributes
    ----------
    n_chunks
        How many they are.
    stack
        Merged groups, and the height of each in the tree.
    open
        Merged chunks of a group that is not full, or None.
    """

    n_chunks: int = 0
    stack: tuple[tuple[int, M], ...] = ()
    open_group: M | None = None

    def add_groups(self, parts: Iterable[tuple[range, M | None]]) -> MergedChunks[M]:
        """Add groups: their chunks, and what these sum to with `open` in it; None is nothing."""
        n_chunks, stack, still_open = self.n_chunks, list(self.stack), self.open_group
        for keys, part in parts:
            n_chunks = keys.stop
            is_full = n_chunks % CHUNKS_PER_GROUP == 0
            still_open = None if is_full else part
            if is_full and part is not None:
                _push_part(stack, part)
        return MergedChunks(n_chunks, tuple(stack), still_open)

    def merge_all(self) -> M | None:
        """Merge all; None where there is nothing."""
        stack = list(self.stack)
        if self.open_group is not None:
            _push_part(stack, self.open_group)
        return _merge_stack(stack) if stack else None


def tree_merge(parts: Iterable[M]) -> M:
    """Merge partial results in order along a fixed binary tree.

    Holds no more than log2(number of parts) of them at a time.

    Raises
    ------
    ValueError
        If there are none.
    """
    stack: list[tuple[int, M]] = []
    for part in parts:
        _push_part(stack, part)
    if not stack:
        raise ValueError("Expected at least one part, got none.")
    return _merge_stack(stack)


def _push_part(stack: list[tuple[int, M]], part: M) -> None:
    """Add a part, and merge what is of one height."""
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


S = TypeVar("S", bound=Statistics)
ReadBlocks = Callable[[], Iterator[BinaryBlock]]
"""Reads the blocks of a group that have rows, anew with every call."""
GroupReducer = Callable[[ReadBlocks, S | None], S | None]
"""Sums a group, given what comes before it in the group; None where there are no rows."""

TASK_MEMORY = 256 << 20
"""Bytes of statistics that one task may hold; wider data is counted in tiles of features."""
_MIN_TASKS = 8


@dataclass(frozen=True)
class KeptSums(Generic[S]):
    """Where sums over leading chunks are kept between fits, so that only new chunks are read.

    Attributes
    ----------
    load
        Gives what was kept of a tile, of leading chunks of the same rows; empty if nothing was.
    save
        Keeps what a tile sums to now.
    """

    load: Callable[[Tile | None], MergedChunks[S]] = lambda tile: MergedChunks()
    save: Callable[[Tile | None, MergedChunks[S]], None] = lambda tile, folded: None


NO_KEPT_SUMS: KeptSums[Any] = KeptSums()


class GroupTask(NamedTuple, Generic[S]):
    """Chunks to sum, and what comes before them in their group, if that was kept.

    From the block `part` of the group on, every `count_parts_per_group`-th is summed.
    """

    tile: Tile | None
    keys: range
    before: S | None = None
    part: int = 0
    n_parts: int = 1


def collect_statistics(
    summarize: Callable[[BinaryBlock], S],
    rows: RowSource,
    executor: Executor,
    label: str,
    tiles: Sequence[Tile | None] = (None,),
    progress: Progress = ignore_progress,
    kept: KeptSums[S] = NO_KEPT_SUMS,
) -> S:
    """Sum a statistic over all rows, block by block.

    Parameters
    ----------
    summarize
        Summarizes one block; it is sent to the workers.
    rows, executor, label, tiles, progress, kept
        As for `collect_groups`.

    Raises
    ------
    FitError
        If there are no rows.
    """
    fold = partial(sum_blocks, summarize)
    return collect_groups(fold, rows, executor, label, tiles, progress, kept)


def collect_groups(
    fold: GroupReducer[S],
    rows: RowSource,
    executor: Executor,
    label: str,
    tiles: Sequence[Tile | None] = (None,),
    progress: Progress = ignore_progress,
    kept: KeptSums[S] = NO_KEPT_SUMS,
    n_parts: int = 1,
) -> S:
    """Sum a statistic over all rows, group by group.

    Parameters
    ----------
    fold
        Sums one group of chunks; it is sent to the workers.
    rows
        The rows.
    executor
        Where tasks run.
    label
        What the pass is called.
    tiles
        Parts of the pairs of features, each a sweep of its own.
    progress
        Is told after every task.
    kept
        Sums over leading chunks.
    n_parts
        Tasks that the blocks of a group are dealt to, each of which reads all of its chunks.

    Raises
    ------
    FitError
        If there are no rows.
    """
    known = [kept.load(tile) for tile in tiles]
    by_tile = [
        _make_tasks(*pair, rows.n_chunks, n_parts) for pair in zip(tiles, known, strict=True)
    ]
    tasks = [task for of_tile in by_tile for task in of_tile]
    parts = []
    with closing(executor.map(partial(reduce_group, fold, rows.read), tasks)) as found:
        results = _merge_parts(_iter_with_progress(found, len(tasks), label, progress), n_parts)
        for tile, before, of_tile in zip(tiles, known, by_tile, strict=True):
            # The tasks come first: when they end no further result is taken.
            done = zip((task.keys for task in of_tile[::n_parts]), results, strict=False)
            folded = before.add_groups(done)
            kept.save(tile, folded)
            parts.append(_merge_all_chunks(folded))
    return type(parts[0]).stitch(parts)


def count_parts_per_group(n_chunks: int) -> int:
    """Divide groups so that there are tasks for some threads, whatever the number of threads."""
    return max(1, _MIN_TASKS // max(1, len(split_chunks_into_groups(n_chunks))))


def _make_tasks(
    tile: Tile | None, known: MergedChunks[S], n_chunks: int, n_parts: int
) -> list[GroupTask[S]]:
    cut = product(split_chunks_into_groups(n_chunks, known.n_chunks), range(n_parts))
    return [
        GroupTask(tile, keys, None if k else known.open_group, part, n_parts)
        for k, (keys, part) in enumerate(cut)
    ]


def _merge_parts(results: Iterator[S | None], n_parts: int) -> Iterator[S | None]:
    """Merge the parts of each group."""
    while parts := list(islice(results, n_parts)):
        found = [part for part in parts if part is not None]
        yield reduce(lambda sum, part: sum.merge(part), found) if found else None


def _merge_all_chunks(folded: MergedChunks[S]) -> S:
    merged = folded.merge_all()
    if merged is None:
        raise FitError("Expected at least one row, got none. Choose another --split.")
    return merged


def _iter_with_progress(
    results: Iterator[S | None], total: int, label: str, progress: Progress
) -> Iterator[S | None]:
    rows = 0
    progress(label, 0, total, rows)
    for done, part in enumerate(results, start=1):
        rows += 0 if part is None else part.n_samples
        progress(label, done, total, rows)
        yield part


def reduce_group(
    fold: GroupReducer[S], read: Callable[[int], PackedChunk], task: GroupTask[S]
) -> S | None:
    """Sum a group, its chunks read one by one; None when no row is of the chosen split."""

    def blocks() -> Iterator[BinaryBlock]:
        found = (replace(b, tile=task.tile) for key in task.keys for b in iter_blocks(read(key)))
        here = islice(found, task.part, None, task.n_parts)
        return (block for block in here if block.n_samples)

    return fold(blocks, task.before)


def sum_blocks(
    summarize: Callable[[BinaryBlock], S],
    blocks: ReadBlocks,
    before: S | None,
    add: Callable[[S, BinaryBlock], S] | None = None,
) -> S | None:
    """Summarize the blocks of a group one by one, and merge in their order.

    `add` adds a block to a sum that nobody else holds, where that is quicker than to merge.
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
