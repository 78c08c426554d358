"""Sum statistics over all rows: map over pieces, then merge along a fixed tree.

A piece is a few chunks, or a part of one, see `task_sizes`. Neither pieces nor the tree depend on
the number of workers, so sums of floats have the same bytes everywhere. How many neighbouring
pieces a task works through may depend on it: their sum is a node of the same tree. On a cluster,
workers merge nodes, too, and only the sum of all rows reaches the process that started the pass.

`dask.array` and flox reduce along trees, too, but with one task per chunk, to arrays of known
shapes, and along a tree that changes with every appended chunk. Here sums have any shape, several
chunks share a task, and kept sums are nodes of a tree to which chunks can be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
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
from pipeline.executors.base import Executor, Node, Tree, push_node
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.passes.task_sizes import (
    CHUNKS_PER_GROUP,
    NO_WORK,
    WorkEstimate,
    choose_chunks_per_piece,
    choose_max_pieces,
    choose_rows_per_task,
    split_group,
)
from pipeline.statistics.sums import Statistics

_N_LATER = 32
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
GroupReducer = Callable[[ReadBlocks], S | None]
"""Sums a piece; None if there are no rows."""


def split_chunks_into_groups(
    n_chunks: int, first: int = 0, size: int = CHUNKS_PER_GROUP
) -> list[range]:
    """Split the chunks from `first` on into groups; appended chunks change only the last."""
    return [range(start, min(start + size, n_chunks)) for start in range(first, n_chunks, size)]


@dataclass(frozen=True)
class MergedChunks(Generic[S]):
    """The sum of the leading chunks, as a few nodes of the tree to which more can be added."""

    chunks_per_piece: int = 1
    nodes: tuple[Node[S | None], ...] = ()

    def list_ends(self) -> list[int]:
        """Return the number of leading chunks up to the end of each node."""
        return [*accumulate(self.chunks_per_piece << node.height for node in self.nodes)]

    @property
    def n_chunks(self) -> int:
        """Number of leading chunks."""
        return sum(self.chunks_per_piece << node.height for node in self.nodes)


def tree_merge(parts: Iterable[M]) -> M:
    """Merge partial results, at least one, in order along a fixed binary tree.

    At most log2(number of parts) partial results are held at the same time.
    """
    merged = _merge_in_tree(parts)
    if merged is None:
        raise ValueError("There are no parts to merge.")
    return merged


def _merge_in_tree(parts: Iterable[M | None]) -> M | None:
    nodes: list[Node[M | None]] = []
    merge: Callable[[M | None, M | None], M | None] = _merge_pair
    for part in parts:
        push_node(nodes, Node(0, part), merge)
    return _merge_nodes(nodes)


def _merge_pair(part: M | None, later: M | None) -> M | None:
    """Merge two partial results; None has no rows."""
    if part is None or later is None:
        return later if part is None else part
    return part.merge(later)


def _merge_nodes(nodes: Sequence[Node[M | None]]) -> M | None:
    """Merge the nodes of a tree, from the last to the first."""
    merged = None
    for node in reversed(nodes):
        merged = _merge_pair(node.value, merged)
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


class Piece(NamedTuple):
    """Neighbouring chunks to sum, or a part of one."""

    tile: Tile | None  # the pairs of features to count; None means all
    keys: range
    part: ChunkPart = WHOLE_CHUNK  # of each chunk
    later: tuple[int, ...] = ()  # chunks that the next pieces of the same process read


def collect_statistics(
    summarize: Callable[[BinaryBlock], S],
    rows: RowSource,
    executor: Executor,
    label: str,
    tiles: Sequence[Tile | None] = (None,),
    progress: Progress = ignore_progress,
    kept: KeptSums[S] = NO_KEPT_SUMS,
    work: WorkEstimate = NO_WORK,
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
    work: WorkEstimate = NO_WORK,
) -> S:
    """Sum a statistic over all rows, piece by piece.

    Parameters
    ----------
    fold
        Sums the rows of one piece; it is sent to the workers.
    rows, executor
        The rows, at least one, and where tasks run.
    label, progress
        Name of the pass, and a function that receives its progress after every task.
    tiles
        Sets of feature pairs, each summed in a separate sweep.
    kept
        Stored sums over leading chunks.
    work
        Estimate of the work, by which chunks are cut into pieces. Without work, a piece is a chunk.
    """
    trees = [_make_tree(tile, rows, kept, work) for tile in tiles]
    sum_pieces = partial(reduce_pieces, fold, rows.read)
    merge: Callable[[S | None, S | None], S | None] = _merge_pair
    report = _make_report([p for tree in trees for p in tree.items], rows, label, progress)
    max_pieces = choose_max_pieces(work)
    with closing(executor.reduce(sum_pieces, merge, trees, report, max_pieces)) as results:
        parts = [part for part in results if part is not None]
    if len(parts) < len(trees):
        raise FitError("There are no rows. Choose another {split}.", parameter="split")
    total: S = type(parts[0]).stitch(parts)
    return total


def _make_tree(
    tile: Tile | None, rows: RowSource, kept: KeptSums[S], work: WorkEstimate
) -> Tree[Piece, S | None, S | None]:
    """Cut the chunks whose sum is not stored into pieces."""
    size = choose_rows_per_task(work, rows.rows_per_chunk)
    n_chunks = choose_chunks_per_piece(work, rows)
    stored = kept.load(tile)
    if stored.chunks_per_piece != n_chunks:
        stored = MergedChunks(n_chunks)
    pieces = [
        Piece(tile, *piece)
        for keys in split_chunks_into_groups(rows.n_chunks, stored.n_chunks, n_chunks)
        for piece in split_group(keys, rows.rows_per_chunk, size)
    ]
    # Chunks that are appended later may belong to the last piece, so it is not kept.
    is_open = bool(pieces) and rows.n_chunks % n_chunks > 0 and work.nanoseconds == 0
    finish = partial(_finish_sum, partial(kept.save, tile), n_chunks)
    return Tree(pieces, stored.nodes, finish, is_open, _look_ahead)


def _finish_sum(
    save: Callable[[MergedChunks[S]], None], chunks_per_piece: int, nodes: list[Node[S | None]]
) -> S | None:
    """Keep the sums of whole pieces, and merge everything."""
    whole = tuple(node for node in nodes if node.height >= 0)
    save(MergedChunks(chunks_per_piece, whole))
    return _merge_nodes(nodes)


def _make_report(
    pieces: Sequence[Piece], rows: RowSource, label: str, progress: Progress
) -> Callable[[Sequence[Piece]], None]:
    """Return a function that reports progress, given the pieces of every task that is done."""
    n_done = n_rows = 0

    def report(done: Sequence[Piece]) -> None:
        nonlocal n_done, n_rows
        n_done += len(done)
        for piece in done:
            position, n_parts = piece.part
            total = sum(rows.rows_per_chunk[key] for key in piece.keys)
            n_rows += total * (position + 1) // n_parts - total * position // n_parts
        progress(label, n_done, len(pieces), n_rows)

    report([])
    return report


def reduce_pieces(
    fold: GroupReducer[S], read: Callable[[int], PackedChunk], pieces: Sequence[Piece]
) -> S | None:
    """Sum neighbouring pieces that are a node of the tree; None if they have no rows."""
    return _merge_in_tree(reduce_group(fold, read, piece) for piece in _list_later_chunks(pieces))


def _look_ahead(pieces: Sequence[Piece], following: Sequence[Piece]) -> list[Piece]:
    """Return the pieces, the last with the chunks that following pieces read."""
    later = tuple(dict.fromkeys(key for piece in following for key in piece.keys))[:_N_LATER]
    return [*pieces[:-1], pieces[-1]._replace(later=later)]


def _list_later_chunks(pieces: Sequence[Piece]) -> list[Piece]:
    """Add to each piece the chunks that the pieces after it read."""
    later = pieces[-1].later if pieces else ()
    listed = []
    for piece in reversed(pieces):
        listed.append(piece._replace(later=later))
        later = tuple(dict.fromkeys((*piece.keys, *later)))[:_N_LATER]
    return listed[::-1]


def reduce_group(
    fold: GroupReducer[S], read: Callable[[int], PackedChunk], piece: Piece
) -> S | None:
    """Sum the rows of a piece; None if it has none of the split.

    While one chunk is summed, the next ones are read.
    """

    def read_blocks() -> Iterator[BinaryBlock]:
        chunks = iter_chunks(read, piece.keys, piece.later)
        blocks = (block for chunk in chunks for block in iter_blocks(chunk, piece.part))
        return (replace(block, tile=piece.tile) for block in blocks if block.n_samples)

    return fold(read_blocks)


def sum_blocks(
    summarize: Callable[[BinaryBlock], S],
    blocks: ReadBlocks,
    add: Callable[[S, BinaryBlock], S] | None = None,
) -> S | None:
    """Summarize the blocks of a piece one by one, and merge them in order.

    `add` may change the sum in place.
    """
    total: S | None = None
    for block in blocks():
        check_cancelled()
        if add is not None and total is not None:
            total = add(total, block)
        else:
            part = summarize(block)
            total = part if total is None else total.merge(part)
    return total
