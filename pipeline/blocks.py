"""Blocks: the packed rows of one segment within one chunk, as every model sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics import kernels

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

    def dense(self) -> NDArray[np.uint8]:
        """Unpack the values: (n_samples, n_features)."""
        return kernels.unpack_rows(self.words, self.n_samples)

    def observed(self) -> NDArray[np.uint8] | None:
        """Unpack the mask: (n_samples, n_features), 1 = observed; None when all are."""
        if self.observed_words is None:
            return None
        return kernels.unpack_rows(self.observed_words, self.n_samples)

    def column(self, name: str) -> NDArray[Any]:
        """Give a per-row column, (n_samples,)."""
        return self.columns[name]


def block_of(
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


class Chunk(Protocol):
    """What is read from storage: `storage.dataset.Chunk` is one."""

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
class Rows:
    """The rows a pass goes over: how to read a chunk, and the shape of the whole.

    Attributes
    ----------
    read
        Reads a chunk by its key, in any process.
    n_chunks, n_features, n_segments
        Shape of the dataset.
    """

    read: Callable[[int], Chunk]
    n_chunks: int
    n_features: int
    n_segments: int


def blocks_of(chunk: Chunk) -> Iterator[BinaryBlock]:
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
        yield block if chunk.keep is None else _kept(block, chunk.keep[rows])


def _kept(block: BinaryBlock, keep: NDArray[np.bool_]) -> BinaryBlock:
    at = np.flatnonzero(keep)
    observed = block.observed_words
    return BinaryBlock(
        kernels.select_rows(block.words, at),
        None if observed is None else kernels.select_rows(observed, at),
        len(at),
        block.segment,
        block.rows[at],
        {name: values[at] for name, values in block.columns.items()},
    )
