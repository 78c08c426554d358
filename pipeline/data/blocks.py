"""Blocks: the packed rows of one segment within one chunk, as every model sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.bits import kernels
from pipeline.numerics.bits.packed_rows import BitRows, transpose_bits

Words = NDArray[np.uint64]


class Tile(NamedTuple):
    """The pairs (i, j) of features that one task counts: left[0] <= i < left[1], j in right."""

    left: tuple[int, int]
    right: tuple[int, int]


@dataclass(frozen=True)
class BinaryBlock:
    """Packed rows of one segment.

    Attributes
    ----------
    words
        Values, (n_features, n_words), 64 rows a word, little bit order; 0 where not observed
        and in padding.
    observed_words
        Mask of the same shape, or None when every value is there.
    n_samples
        Number of rows.
    segment
        Index of the segment.
    rows
        Original row of each row, (n_samples,): the key of its random draws.
    columns
        Per-row columns, each (n_samples,).
    tile
        The pairs of features to count; None means all of them.
    """

    words: Words
    observed_words: Words | None
    n_samples: int
    segment: int = 0
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    tile: Tile | None = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.words)

    def unpack_values(self) -> NDArray[np.uint8]:
        """Unpack the values: (n_samples, n_features)."""
        return kernels.unpack_rows(self.words, self.n_samples)

    def unpack_mask(self) -> NDArray[np.uint8] | None:
        """Unpack the mask: (n_samples, n_features), 1 = observed; None when all are."""
        if self.observed_words is None:
            return None
        return kernels.unpack_rows(self.observed_words, self.n_samples)

    def to_packed_rows(self) -> BitRows:
        """Lay the bits of each row side by side."""
        mask, n = self.observed_words, self.n_samples
        observed = None if mask is None else transpose_bits(mask, n)
        return BitRows(self.n_features, transpose_bits(self.words, n), observed)

    def count_unobserved_rows(self) -> int:
        """Count rows of which nothing was observed."""
        observed = self.unpack_mask()
        return 0 if observed is None else int((~observed.any(axis=1)).sum())

    def column(self, name: str) -> NDArray[Any]:
        """Give a per-row column, (n_samples,)."""
        return self.columns[name]

    def take_rows(self, at: NDArray[np.int64]) -> BinaryBlock:
        """Take some of the rows, (n_taken,)."""
        return _take_rows(self, slice(0), at)

    def split_into_groups(self, n_groups: int) -> list[BinaryBlock]:
        """Deal the rows to groups of equal size, give or take one row.

        Whole words go round in turn, so that nothing is unpacked and neighbours stay together. The
        rows left over, fewer than 64 n_groups, are cut into one run for each group; which group
        has the first depends on the block's first row, or the same would be short in every block.

        Parameters
        ----------
        n_groups
            Number of groups.

        Returns
        -------
        list of BinaryBlock
            One block a group, without rows where there are fewer rows than groups.

        Raises
        ------
        FitError
            If there is no group.
        """
        if n_groups < 1:
            raise FitError(f"Expected n_groups of at least 1, got {n_groups}. Ask for one or more.")
        if n_groups == 1:
            return [self]
        # A word that is not full takes no turn: its padding would end up among the rows.
        n_turns = self.n_samples // (64 * n_groups)
        n_words = n_turns * n_groups
        left = self.n_samples - 64 * n_words
        cuts = [64 * n_words + left * g // n_groups for g in range(n_groups + 1)]
        first = int(self.rows[0]) % n_groups if self.n_samples else 0
        runs = np.roll(np.array([*pairwise(cuts)]), first, axis=0)
        return [
            _take_rows(self, slice(g, n_words, n_groups), np.arange(*run))
            for g, run in enumerate(runs)
        ]


def pack_block(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None = None,
    segment: int = 0,
    first_row: int = 0,
) -> BinaryBlock:
    """Pack a dense 0/1 matrix, (n_samples, n_features), into one block."""
    masked = X if observed is None else X & observed
    words = kernels.pack_rows(np.ascontiguousarray(masked))
    mask = None if observed is None else kernels.pack_rows(np.ascontiguousarray(observed))
    return BinaryBlock(words, mask, len(X), segment, first_row + np.arange(len(X)))


def concatenate_blocks(blocks: Sequence[BinaryBlock]) -> BinaryBlock:
    """Put the rows of blocks together in original order, whatever their segments: 0 is given."""
    if len(blocks) == 1:
        return replace(blocks[0], segment=0)
    rows = np.concatenate([block.rows for block in blocks])
    order = np.argsort(rows)
    starts = 64 * np.cumsum([0, *(block.words.shape[1] for block in blocks)])
    places = [start + np.arange(b.n_samples) for start, b in zip(starts, blocks, strict=False)]
    at = np.concatenate(places)[order]
    masked = any(block.observed_words is not None for block in blocks)
    return BinaryBlock(
        _gather_words([block.words for block in blocks], at),
        _gather_words([_make_full_mask(block) for block in blocks], at) if masked else None,
        len(rows),
        rows=rows[order],
        columns={
            name: np.concatenate([block.column(name) for block in blocks])[order]
            for name in blocks[0].columns
        },
    )


class PackedChunk(Protocol):
    """What is read from storage: `storage.dataset.dataset.Chunk` is one."""

    @property
    def words(self) -> Words:
        """Packed values, (n_features, n_words)."""

    @property
    def observed(self) -> Words | None:
        """Packed mask."""

    @property
    def blocks(self) -> NDArray[np.int64]:
        """(segment, first word, n_rows) of each block."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Original row of each stored row."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Per-row columns."""

    @property
    def keep(self) -> NDArray[np.bool_] | None:
        """Rows of the chosen split."""


@dataclass(frozen=True)
class RowSource:
    """The rows a pass goes over: how to read a chunk, and the shape of the whole.

    Attributes
    ----------
    read
        Reads a chunk by its key, in any process.
    n_chunks, n_features, n_segments
        Shape of the dataset.
    """

    read: Callable[[int], PackedChunk]
    n_chunks: int
    n_features: int
    n_segments: int


def iter_blocks(chunk: PackedChunk) -> Iterator[BinaryBlock]:
    """Cut a chunk into its blocks, leaving out rows of other splits."""
    last = 0
    for segment, first_word, n_rows in chunk.blocks:
        span = slice(int(first_word), int(first_word + -(-n_rows // 64)))
        rows = slice(last, last + int(n_rows))
        last = rows.stop
        block = BinaryBlock(
            chunk.words[:, span],
            None if chunk.observed is None else chunk.observed[:, span],
            int(n_rows),
            int(segment),
            chunk.rows[rows],
            {name: values[rows] for name, values in chunk.columns.items()},
        )
        kept = None if chunk.keep is None else np.flatnonzero(chunk.keep[rows])
        yield block if kept is None else _take_rows(block, slice(0), kept)


def _take_rows(block: BinaryBlock, whole: slice, single: NDArray[np.int64]) -> BinaryBlock:
    """Take whole words, all of them full, and behind them single rows."""
    first_rows = 64 * np.arange(block.words.shape[1])[whole]
    at = np.concatenate([np.add.outer(first_rows, np.arange(64)).ravel(), single])
    mask = block.observed_words
    return replace(
        block,
        words=_take_words(block.words, whole, single),
        observed_words=None if mask is None else _take_words(mask, whole, single),
        n_samples=len(at),
        rows=block.rows[at],
        columns={name: values[at] for name, values in block.columns.items()},
    )


def _take_words(words: Words, whole: slice, single: NDArray[np.int64]) -> Words:
    return np.concatenate([words[:, whole], kernels.select_rows(words, single)], axis=1)


def _gather_words(words: Sequence[Words], at: NDArray[np.int64]) -> Words:
    return kernels.select_rows(np.concatenate(words, axis=1), at)


def _make_full_mask(block: BinaryBlock) -> Words:
    """Give the mask, also where all is observed; what lies behind the last row may be 1."""
    full = np.full_like(block.words, ~np.uint64(0))
    return full if block.observed_words is None else block.observed_words
