"""Blocks, the packed rows of one segment within one chunk: the input of every model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.bits import kernels
from pipeline.numerics.bits.packed_rows import BitRows, transpose_bits

Words = NDArray[np.uint64]
RowNumbers = NDArray[np.int64] | range


class Tile(NamedTuple):
    """The feature pairs (i, j) that one task counts: i in range `left`, j in range `right`."""

    left: tuple[int, int]
    right: tuple[int, int]


def number_rows(numbers: RowNumbers) -> NDArray[np.int64]:
    """Return row numbers as an array."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step)
    return numbers


@dataclass(frozen=True)
class BinaryBlock:
    """Packed rows of one segment.

    Attributes
    ----------
    words
        Values, (n_features, n_words), with 64 rows per word in little bit order; unobserved values
        and padding are 0. A feature with several levels has several planes, which count as
        features here; see `pipeline.data.features`.
    observed_words
        Mask of the same shape; None if all values are observed. All planes of a feature have the
        same mask.
    n_samples
        Number of rows.
    segment
        Index of the segment.
    row_numbers
        Original index of each row, (n_samples,), which keys its random draws; a range if possible,
        as few passes need it.
    columns
        Per-row columns, each (n_samples,).
    tile
        The pairs of features to count; None means all of them.
    weights
        Weight of each row in units of `weight_unit`, (n_samples,); None if every weight is 1.
        Integers keep weighted counts exact.
    weight_unit
        Weight of a row whose entry in `weights` is 1.
    has_sampling_weights
        Whether the weights are those of a survey, see `pipeline.data.weights`.
    clusters
        Index of each row's cluster of a survey, (n_samples,); None if rows were drawn one by one.
    covariates
        Coded covariates of each row, (n_samples, n_covariates), or its member and time, see
        `pipeline.data.periods`; None if the fit has neither.
    numbers
        Values of the continuous features, (n_continuous, n_samples), NaN where not observed; None
        if there is no continuous feature.
    """

    words: Words
    observed_words: Words | None
    n_samples: int
    segment: int = 0
    row_numbers: RowNumbers = range(0)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    tile: Tile | None = None
    weights: NDArray[np.int64] | None = None
    weight_unit: float = 1.0
    has_sampling_weights: bool = False
    clusters: NDArray[np.int64] | None = None
    covariates: NDArray[np.float64] | None = None
    numbers: NDArray[np.float32] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Original index of each row, (n_samples,)."""
        return number_rows(self.row_numbers)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.words)

    @property
    def row_weights(self) -> NDArray[np.float64] | None:
        """Weight of each row, (n_samples,); None if every weight is 1."""
        if self.weights is None:
            return None
        return self.weights.astype(np.float64) * self.weight_unit

    @property
    def weight(self) -> float:
        """Sum of the weights of all rows."""
        if self.weights is None:
            return float(self.n_samples)
        return self.weight_unit * int(self.weights.sum())

    def split_weights(self) -> Words | None:
        """Return the bit planes of the weights, (n_bits, n_words); None if every weight is 1."""
        return None if self.weights is None else kernels.split_into_bit_planes(self.weights)

    def unpack_values(self) -> NDArray[np.uint8]:
        """Unpack the values, (n_samples, n_features)."""
        return kernels.unpack_rows(self.words, self.n_samples)

    def unpack_mask(self) -> NDArray[np.uint8] | None:
        """Unpack the mask, (n_samples, n_features), 1 = observed; None if all are observed."""
        if self.observed_words is None:
            return None
        return kernels.unpack_rows(self.observed_words, self.n_samples)

    def to_packed_rows(self) -> BitRows:
        """Transpose the block, so that the bits of each row are contiguous."""
        mask, n = self.observed_words, self.n_samples
        observed = None if mask is None else transpose_bits(mask, n)
        return BitRows(self.n_features, transpose_bits(self.words, n), observed)

    def count_unobserved_rows(self) -> int:
        """Return the number of rows without any observed value."""
        has_values = np.full(self.n_samples, len(self.words) > 0)
        if self.observed_words is not None:
            words = np.bitwise_or.reduce(self.observed_words, axis=0, keepdims=True)
            has_values = kernels.unpack_rows(words, self.n_samples)[:, 0] > 0
        if self.numbers is not None:
            has_values |= ~np.isnan(self.numbers).all(axis=0)
        return int(self.n_samples - has_values.sum())

    def column(self, name: str) -> NDArray[Any]:
        """Return a per-row column, (n_samples,)."""
        return self.columns[name]

    def take_rows(self, indices: RowNumbers) -> BinaryBlock:
        """Return the rows with these indices within the block, (n_taken,)."""
        if not isinstance(indices, range):
            return _take_rows(self, slice(0), indices)
        mask = self.observed_words
        return replace(
            self,
            words=_cut_words(self.words, indices),
            observed_words=None if mask is None else _cut_words(mask, indices),
            n_samples=len(indices),
            **_take_per_row(self, slice(indices.start, indices.stop)),
        )

    def take_features(
        self, planes: slice | NDArray[np.intp], numbers: slice = slice(None)
    ) -> BinaryBlock:
        """Return the block with some planes and some continuous features."""
        return replace(
            self,
            words=self.words[planes],
            observed_words=None if self.observed_words is None else self.observed_words[planes],
            numbers=None if self.numbers is None else self.numbers[numbers],
        )

    def split_into_groups(self, n_groups: int) -> list[BinaryBlock]:
        """Split the rows into groups whose sizes differ by at most one row.

        Full words go to the groups in turn, so that nothing is unpacked and neighbouring rows stay
        together. The remaining rows, fewer than 64 n_groups, are cut into one range per group. The
        block's first row determines the group that gets the first range; otherwise the same group
        would be short in every block. Groups are empty if there are fewer rows than groups.
        """
        if n_groups < 1:
            raise FitError(f"`n_groups` is {n_groups}. Choose at least 1.")
        if n_groups == 1:
            return [self]
        # A word that is not full must not go to a group as a whole: its padding would become rows.
        n_words = self.n_samples // (64 * n_groups) * n_groups
        n_remaining = self.n_samples - 64 * n_words
        cuts = [64 * n_words + n_remaining * g // n_groups for g in range(n_groups + 1)]
        first = int(self.row_numbers[0]) % n_groups if self.n_samples else 0
        ranges = np.roll(np.array([*pairwise(cuts)]), first, axis=0)
        return [
            _take_rows(self, slice(g, n_words, n_groups), np.arange(*row_range))
            for g, row_range in enumerate(ranges)
        ]


def iter_word_ranges(block: BinaryBlock, n_words: int) -> Iterator[BinaryBlock]:
    """Cut a block into parts of whole words; a block without rows is its only part."""
    for first in range(0, max(block.words.shape[1], 1), n_words):
        words = slice(first, first + n_words)
        rows = slice(64 * first, min(64 * (first + n_words), block.n_samples))
        mask = block.observed_words
        yield replace(
            block,
            words=block.words[:, words],
            observed_words=None if mask is None else mask[:, words],
            n_samples=rows.stop - rows.start,
            **_take_per_row(block, rows),
        )


def pack_block(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None = None,
    segment: int = 0,
    first_row: int = 0,
    numbers: NDArray[np.float32] | None = None,
) -> BinaryBlock:
    """Pack a dense 0/1 matrix, (n_samples, n_features), into one block.

    `numbers` are the values of continuous features; see `BinaryBlock`.
    """
    masked = X if observed is None else X & observed
    words = kernels.pack_rows(np.ascontiguousarray(masked))
    mask = None if observed is None else kernels.pack_rows(np.ascontiguousarray(observed))
    rows = range(first_row, first_row + len(X))
    return BinaryBlock(words, mask, len(X), segment, rows, numbers=numbers)


def concatenate_blocks(blocks: Sequence[BinaryBlock]) -> BinaryBlock:
    """Join blocks in the original order of their rows; the result has segment 0."""
    if len(blocks) == 1:
        return replace(blocks[0], segment=0)
    rows = np.concatenate([block.rows for block in blocks])
    order = np.argsort(rows)
    starts = 64 * np.cumsum([0, *(block.words.shape[1] for block in blocks)])
    positions = [start + np.arange(b.n_samples) for start, b in zip(starts, blocks, strict=False)]
    indices = np.concatenate(positions)[order]
    is_masked = any(block.observed_words is not None for block in blocks)
    return BinaryBlock(
        _gather_words([block.words for block in blocks], indices),
        _gather_words([_make_full_mask(block) for block in blocks], indices) if is_masked else None,
        len(rows),
        row_numbers=rows[order],
        columns={
            name: np.concatenate([block.column(name) for block in blocks])[order]
            for name in blocks[0].columns
        },
        weights=_concatenate([block.weights for block in blocks], order),
        weight_unit=blocks[0].weight_unit,
        has_sampling_weights=blocks[0].has_sampling_weights,
        clusters=_concatenate([block.clusters for block in blocks], order),
        covariates=_concatenate([block.covariates for block in blocks], order),
        numbers=_concatenate([block.numbers for block in blocks], order, axis=1),
    )


def _concatenate(
    parts: Sequence[NDArray[Any] | None], order: NDArray[np.intp], axis: int = 0
) -> NDArray[Any] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present, axis=axis)[(slice(None),) * axis + (order,)] if present else None


def join_segments(blocks: Sequence[BinaryBlock]) -> AnnotatedChunk:
    """Return a chunk with these blocks, at least one, each of another segment."""
    first, edges = blocks[0], np.cumsum([0, *(block.words.shape[1] for block in blocks)])
    is_masked = any(block.observed_words is not None for block in blocks)
    table = [(b.segment, edge, b.n_samples) for b, edge in zip(blocks, edges, strict=False)]
    per_row = {
        name: None if first_values is None else np.concatenate([getattr(b, name) for b in blocks])
        for name in ("weights", "clusters", "covariates")
        for first_values in [getattr(first, name)]
    }
    is_continuous = first.numbers is not None
    return AnnotatedChunk(
        np.concatenate([block.words for block in blocks], axis=1),
        np.concatenate([make_mask(block) for block in blocks], axis=1) if is_masked else None,
        np.array(table, np.int64),
        np.concatenate([block.rows for block in blocks]),
        {name: np.concatenate([b.column(name) for b in blocks]) for name in first.columns},
        weight_unit=first.weight_unit,
        has_sampling_weights=first.has_sampling_weights,
        numbers=np.concatenate([b.numbers for b in blocks], axis=1) if is_continuous else None,
        **per_row,
    )


def make_mask(block: BinaryBlock) -> Words:
    """Return the mask, with all values observed if the block has none; padding is 0."""
    if block.observed_words is not None:
        return block.observed_words
    return kernels.select_rows(_make_full_mask(block), np.arange(block.n_samples))


class PackedChunk(Protocol):
    """A chunk as read from storage; `storage.dataset.dataset.Chunk` implements it."""

    @property
    def words(self) -> Words:
        """Packed values, (n_features, n_words)."""

    @property
    def observed(self) -> Words | None:
        """Packed mask of the same shape; None if all values are observed."""

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Segment, first word and number of rows of each block, (n_blocks, 3)."""

    @property
    def row_numbers(self) -> RowNumbers:
        """Original index of each stored row, (n_rows,)."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Per-row columns, (n_rows,) each."""

    @property
    def keep(self) -> NDArray[np.bool_] | None:
        """Mask of the rows of the chosen split, (n_rows,); None takes all rows."""

    @property
    def numbers(self) -> NDArray[np.float32] | None:
        """Values of continuous features, (n_continuous, n_rows), NaN if missing; None if none."""


@dataclass(frozen=True)
class AnnotatedChunk:
    """A chunk in memory, which may have weights and covariates of its rows; see `BinaryBlock`.

    If rows have weights, those of weight 0 are not kept.
    """

    words: Words
    observed: Words | None
    blocks: NDArray[np.int64]
    row_numbers: RowNumbers
    columns: Mapping[str, NDArray[Any]]
    keep: NDArray[np.bool_] | None = None
    weights: NDArray[np.int64] | None = None
    weight_unit: float = 1.0
    has_sampling_weights: bool = False
    clusters: NDArray[np.int64] | None = None
    covariates: NDArray[np.float64] | None = None
    numbers: NDArray[np.float32] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Original index of each stored row, (n_rows,)."""
        return number_rows(self.row_numbers)


def annotate_chunk(chunk: PackedChunk) -> AnnotatedChunk:
    """Return the chunk, without weights and covariates if it has none yet."""
    if isinstance(chunk, AnnotatedChunk):
        return chunk
    return AnnotatedChunk(
        chunk.words,
        chunk.observed,
        chunk.blocks,
        chunk.row_numbers,
        chunk.columns,
        chunk.keep,
        numbers=chunk.numbers,
    )


@runtime_checkable
class CanReadAhead(Protocol):
    """A function that reads chunks, some of them before they are asked for."""

    def read_ahead(self, keys: Iterable[int]) -> None:
        """Start to read the chunk that the calling thread asks for next, and some after it."""


@runtime_checkable
class CanCountOnes(Protocol):
    """A function that reads chunks, and knows how many ones all of them have."""

    def count_ones(self) -> tuple[int, NDArray[np.int64]] | None:
        """Return the numbers of rows and of ones per plane; None if not every row counts alike.

        That is so if a value is missing, or if a split or segments are read.
        """


@dataclass(frozen=True)
class RowSource:
    """The rows of a pass: a function that reads chunks, and the shape of the dataset.

    `read` reads a chunk by its key and works in any process.
    """

    read: Callable[[int], PackedChunk]
    # Rows of each chunk, (n_chunks,), also of those that are not in the chosen split. `n_features`
    # counts rows of bits, so a feature with several levels counts as often as it has planes.
    rows_per_chunk: Sequence[int]
    n_features: int
    n_segments: int

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.rows_per_chunk)


def iter_chunks(
    read: Callable[[int], PackedChunk], keys: Sequence[int], later: Sequence[int] = ()
) -> Iterator[PackedChunk]:
    """Yield chunks; the next ones, and those that other work needs later, are read meanwhile."""
    for position, key in enumerate(keys):
        start_reading(read, chain(keys[position:], later))
        yield read(key)


def start_reading(read: Callable[[int], PackedChunk], keys: Iterable[int]) -> None:
    """Let a function that can read ahead start with the chunks that are needed next."""
    if isinstance(read, CanReadAhead):
        read.read_ahead(keys)


class ChunkPart(NamedTuple):
    """One of `n_parts` parts of a chunk, nearly equal in words.

    Blocks that are smaller than a part are not cut.
    """

    position: int = 0
    n_parts: int = 1

    def select_rows(self, first_word: int, n_rows: int, n_words: int) -> slice:
        """Return the part's rows of a block; the chunk has `n_words` words."""
        size = -(-n_rows // 64)
        if size * self.n_parts <= n_words:
            is_own = (2 * first_word + size) * self.n_parts // (2 * n_words) == self.position
            return slice(0, n_rows if is_own else 0)
        edges = (
            n_words * k // self.n_parts - first_word for k in (self.position, self.position + 1)
        )
        first, last = (64 * min(max(edge, 0), size) for edge in edges)
        return slice(first, max(first, min(last, n_rows)))


WHOLE_CHUNK = ChunkPart()


def iter_blocks(chunk: PackedChunk, part: ChunkPart = WHOLE_CHUNK) -> Iterator[BinaryBlock]:
    """Yield the blocks of a chunk or of a part of it, limited to the rows of the chosen split."""
    chunk, n_words, start = annotate_chunk(chunk), chunk.words.shape[1], 0
    for segment, first_word, n_block_rows in chunk.blocks.tolist():
        own = part.select_rows(first_word, n_block_rows, n_words)
        rows, n_rows = slice(start + own.start, start + own.stop), own.stop - own.start
        start += n_block_rows
        if not n_rows:
            continue
        first = first_word + own.start // 64
        span = slice(first, first + -(-n_rows // 64))
        block = BinaryBlock(
            chunk.words[:, span],
            None if chunk.observed is None else chunk.observed[:, span],
            n_rows,
            segment,
            weight_unit=chunk.weight_unit,
            has_sampling_weights=chunk.has_sampling_weights,
            **_take_per_row(chunk, rows),
        )
        yield block if chunk.keep is None else block.take_rows(np.flatnonzero(chunk.keep[rows]))


def _take_rows(block: BinaryBlock, full_words: slice, single: NDArray[np.int64]) -> BinaryBlock:
    """Return the rows of some full words, followed by single rows."""
    first_rows = 64 * np.arange(block.words.shape[1])[full_words]
    indices = np.concatenate([np.add.outer(first_rows, np.arange(64)).ravel(), single])
    mask = block.observed_words
    return replace(
        block,
        words=_take_words(block.words, full_words, single),
        observed_words=None if mask is None else _take_words(mask, full_words, single),
        n_samples=len(indices),
        **_take_per_row(block, indices),
    )


def _take_per_row(
    source: BinaryBlock | AnnotatedChunk, rows: slice | NDArray[np.int64]
) -> dict[str, Any]:
    """Return everything about some rows besides their bits, by the name of the field."""
    parts = {name: getattr(source, name) for name in ("weights", "clusters", "covariates")}
    return {
        "row_numbers": _take_numbers(source.row_numbers, rows),
        **{name: None if values is None else values[rows] for name, values in parts.items()},
        "columns": {name: values[rows] for name, values in source.columns.items()},
        "numbers": None if source.numbers is None else source.numbers[:, rows],
    }


def _take_numbers(numbers: RowNumbers, rows: slice | NDArray[np.int64]) -> RowNumbers:
    if not isinstance(numbers, range):
        return numbers[rows]
    return numbers[rows] if isinstance(rows, slice) else numbers.start + rows


def _cut_words(words: Words, rows: range) -> Words:
    """Return the bits of neighbouring rows; padding is 0 if it is in `words`."""
    first, shift = divmod(rows.start, 64)
    n_words = -(-len(rows) // 64)
    cut = words[:, first : first + n_words]
    if shift:
        cut = cut >> np.uint64(shift)
        rest = words[:, first + 1 : first + 1 + n_words]
        cut[:, : rest.shape[1]] |= rest << np.uint64(64 - shift)
    if n_padding := 64 * n_words - len(rows):
        cut = cut if shift else cut.copy()
        cut[:, -1] &= ~np.uint64(0) >> np.uint64(n_padding)
    return cut


def _take_words(words: Words, full_words: slice, single: NDArray[np.int64]) -> Words:
    return np.concatenate([words[:, full_words], kernels.select_rows(words, single)], axis=1)


def _gather_words(words: Sequence[Words], indices: NDArray[np.int64]) -> Words:
    return kernels.select_rows(np.concatenate(words, axis=1), indices)


def _make_full_mask(block: BinaryBlock) -> Words:
    """Return the mask, all ones if every value is observed; padding may be 1."""
    full = np.full_like(block.words, ~np.uint64(0))
    return full if block.observed_words is None else block.observed_words


def unpack_levels(
    block: BinaryBlock, n_planes: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Return levels counted from 0 and their mask, (n_samples, n_features) each.

    `n_planes`, (n_features,), are the numbers of planes, at least 1.
    """
    bits, mask = block.unpack_values(), block.unpack_mask()
    if (n_planes == 1).all():  # faster by itself
        return bits, mask
    firsts = np.cumsum(n_planes) - n_planes
    levels = np.add.reduceat(bits, firsts, axis=1, dtype=np.uint8)
    return levels, None if mask is None else mask[:, firsts]
