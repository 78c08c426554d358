"""Counting, packing and selecting rows of packed binary data.

`words` is feature-major: bit b (little bit order) of the uint64 `words[i, w]` is feature i of
sample 64 w + b. Bits after the last sample are 0, so counting needs no number of samples. Rows of a
larger array, such as a column slice of a chunk, are read in place; words are copied only if they
are not contiguous within a row. Pair counting copies strips of at most STRIP_WORDS words per
feature.

Pairs are counted by AND and population count. If the CPU has no population count of vectors, most
pairs are counted by looking up four samples at once. Weights of samples are split into bit planes:
the samples whose weight has bit b are counted by themselves, and their counts are multiplied by
2**b.

Every kernel is compiled for one set of types on its first call and cached on disk. All kernels
release the GIL and start no threads. Counts are exact.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.bits.lookups import (
    COUNT_BY_LOOKUP,
    LOOKUP_COLUMNS,
    LOOKUP_ROWS,
    Digits,
    count_by_lookup,
    make_lookup_table,
    split_left,
    split_right,
)
from pipeline.numerics.compilation import callee
from pipeline.numerics.intrinsics import allocate_aligned, popcount, wide_vectors

Words = NDArray[np.uint64]
Bits = NDArray[np.uint8]
Counts = NDArray[np.int64]
Memory = tuple[NDArray[Any], int]

TILE = 4  # features per side; the 16 counters of a tile stay in registers
BLOCK_FEATURES = 64  # with STRIP_WORDS: 256 KiB, which fit in the L2 cache
STRIP_WORDS = 512  # 8 rows of a tile: 32 KiB, which fit in the L1 cache
LOOKUP_WORDS = 128  # of a strip whose pairs are looked up; its digits take twice its memory
LOOKUP_FEATURES = 192  # with fewer features, splitting words into digits takes too long
PACK_FEATURES = 256
PACK_BYTES = 64  # with PACK_FEATURES: 16 KiB, which fit in the L1 cache

_kernel = njit(nogil=True, cache=True)
_callee = callee(nogil=True)


def popcounts(words: Words) -> Counts:
    """Count the ones of each feature, (n_features,), in packed bits, (n_features, n_words)."""
    counts = np.empty(len(words), np.int64)
    _popcounts(_memory(words), words.shape[1], counts)
    return counts


def joint_counts(left: Words, right: Words) -> Counts:
    """Count the samples in which feature i of `left` and feature j of `right` are both 1.

    The sides are packed bits of the same samples, (n_left, n_words) and (n_right, n_words). The
    result is (n_left, n_right).
    """
    counts = np.zeros((len(left), len(right)), np.int64)
    add_joint_counts(left, right, counts)
    return counts


def add_joint_counts(
    left: Words,
    right: Words,
    counts: NDArray[Any],
    planes: Words | None = None,
    *,
    is_strip: bool = False,
) -> None:
    """Add `joint_counts` to `counts`, (n_left, n_right), in C order, in place.

    `counts` are int64 or, if they can hold the sums, uint32. If both sides are the same array,
    counting takes half the time.

    With `planes`, the result of `split_into_bit_planes`, a sample counts as many times as its
    weight.

    `is_strip` states that `right` begins with the features of `left`, where one side may be masked.
    Each pair of these features is then counted once, and `counts` must be symmetric for them.
    """
    n_words = {words.shape[1] for words in (left, right, planes) if words is not None}
    if len(n_words) > 1:
        raise FitError(
            f"Left has {left.shape[1]} words per feature, but right has {right.shape[1]}"
            f"{'' if planes is None else f' and the weights have {planes.shape[1]}'}. Pass the "
            "same samples on both sides."
        )
    same = left is right
    symmetric = same or is_strip
    # Without a table, Numba compiles no lookups, which take as long to compile as all the rest.
    by_lookup = COUNT_BY_LOOKUP and min(4 * len(left), len(right)) >= LOOKUP_FEATURES
    table = make_lookup_table(False) if by_lookup else None
    sides = _memory(left), _memory(right), left.shape[1], same, symmetric, table
    if planes is None:
        _add_joint_counts(*sides, counts)
    else:
        _add_weighted_joint_counts(*sides, _memory(planes), len(planes), counts)


def symmetric_joint_counts(words: Words) -> Counts:
    """Return `joint_counts(words, words)`, (n_features, n_features), counting each pair once."""
    return joint_counts(words, words)


def split_into_bit_planes(weights: Counts) -> Words:
    """Split integers of at least 0, (n_samples,), into the words of each bit, (n_bits, n_words).

    Plane b holds the bits of 2**b; the last plane is the highest with a bit that is 1.
    """
    n_bits = int(weights.max(initial=0)).bit_length()
    planes = np.zeros((n_bits, 8 * -(-len(weights) // 64)), np.uint8)
    narrow = weights.astype(np.min_scalar_type((1 << n_bits) - 1))
    for b in range(n_bits):
        plane = np.packbits(narrow & narrow.dtype.type(1 << b), bitorder="little")
        planes[b, : len(plane)] = plane
    return planes.view(np.uint64)


def pack_rows(X: Bits) -> Words:
    """Pack samples in {0, 1}, (n_samples, n_features), into (n_features, ceil(n_samples / 64))."""
    if X.max(initial=0) > 1:
        row, column = np.unravel_index(X.argmax(), X.shape)
        raise FitError(
            f"X is {X[row, column]} at row {row}, column {column}. Binarize the data first."
        )
    words = np.zeros((X.shape[1], -(-len(X) // 64)), np.uint64)
    _pack(_memory(X), len(X), words.view(np.uint8))
    return words


def unpack_rows(words: Words, n_samples: int) -> Bits:
    """Unpack words, (n_features, n_words), into samples in {0, 1}, (n_samples, n_features)."""
    if not 0 <= n_samples <= 64 * words.shape[1]:
        raise FitError(
            f"`n_samples` is {n_samples}, but the words hold {64 * words.shape[1]} samples. Pass "
            "the number of samples of these words."
        )
    X = np.empty((n_samples, len(words)), np.uint8)
    memory, row_stride = _memory(words)
    _unpack((memory.view(np.uint8), 8 * row_stride), X)
    return X


def select_rows(words: Words, keep: NDArray[np.int64]) -> Words:
    """Gather samples into new words, (n_features, ceil(n_kept / 64)).

    `keep` are the positions of the samples in `words`, (n_kept,); sorted positions are fastest.
    """
    n_bits = 64 * words.shape[1]
    if keep.size and not 0 <= keep.min() <= keep.max() < n_bits:
        raise FitError(
            f"Row positions go from {keep.min()} to {keep.max()}, but the words hold {n_bits} "
            "rows. Pass positions within these words."
        )
    selected = np.empty((len(words), -(-len(keep) // 64)), np.uint64)
    _select(_memory(words), words.shape[1], keep.astype(np.uint64), selected)
    return selected


def _memory(rows: NDArray[Any]) -> Memory:
    """Return the memory of the rows as a flat read-only array, and the stride between rows."""
    # Numba compiles again for each layout and flag of an array; a flat array has only one.
    n_rows, n_columns = rows.shape
    in_order = rows.strides[1] == rows.itemsize and rows.strides[0] >= n_columns * rows.itemsize
    if not (in_order and rows.flags.aligned and rows.strides[0] % rows.itemsize == 0):
        rows = np.array(rows, order="C")
    row_stride = rows.strides[0] // rows.itemsize
    n_items = (n_rows - 1) * row_stride + n_columns if rows.size else 0
    return as_strided(rows, (n_items,), (rows.itemsize,), writeable=False), row_stride


@_callee
def _row(memory: Memory, i: int, start: int, stop: int) -> NDArray[Any]:
    """Return items start to stop of row i."""
    flat, row_stride = memory
    return flat[i * row_stride + start : i * row_stride + stop]


@_kernel
def _popcounts(words: Memory, n_words: int, counts: Counts) -> None:
    for i in range(len(counts)):
        feature = _row(words, i, 0, n_words)
        ones = np.uint64(0)
        for w in range(n_words):
            ones += popcount(feature[w])
        counts[i] = ones


@_kernel
def _add_joint_counts(
    left: Memory,
    right: Memory,
    n_words: int,
    same: bool,
    symmetric: bool,
    table: Bits | None,
    counts: Counts,
) -> None:
    """Add the joint counts of left and right, one strip of words at a time.

    If symmetric, each pair of the leading square is counted once. With a table, pairs are looked up
    in it.
    """
    n_left, n_right = counts.shape
    n_strips = max(1, -(-n_words // (STRIP_WORDS if table is None else LOOKUP_WORDS)))
    width = max(8, -(-n_words // (8 * n_strips)) * 8)  # equal strips of whole vectors
    left_strip = _empty_strip(n_left, width)
    right_strip = left_strip if same else _empty_strip(n_right, width)
    for start in range(0, n_words, width):
        stop = min(start + width, n_words)
        _copy_strip(left, n_left, start, stop, left_strip)
        if not same:
            _copy_strip(right, n_right, start, stop, right_strip)
        _add_strip(left_strip, right_strip, symmetric, table, 0, counts)
    if symmetric:
        _mirror(counts)


@_kernel
def _add_weighted_joint_counts(
    left: Memory,
    right: Memory,
    n_words: int,
    same: bool,
    symmetric: bool,
    table: Bits | None,
    planes: Memory,
    n_planes: int,
    counts: Counts,
) -> None:
    """Add the joint counts of left and right, one bit plane at a time.

    Words without any sample of the plane are left out; strips consist of the others.
    """
    n_left, n_right = counts.shape
    max_width = STRIP_WORDS if table is None else LOOKUP_WORDS
    left_memory = _empty_strip(n_left, max_width).reshape(-1)
    right_memory = left_memory if same else _empty_strip(n_right, max_width).reshape(-1)
    for b in range(n_planes):
        plane = _row(planes, b, 0, n_words)
        used = np.flatnonzero(plane)
        n_strips = max(1, -(-len(used) // max_width))
        width = max(8, -(-len(used) // (8 * n_strips)) * 8)  # equal strips of whole vectors
        for first in range(0, len(used), width):
            columns = used[first : first + width]
            left_strip = _select_strip(left, n_left, columns, plane, left_memory)
            right_strip = left_strip
            if not same:
                right_strip = _select_strip(right, n_right, columns, None, right_memory)
            _add_strip(left_strip, right_strip, symmetric, table, b, counts)
    if symmetric:
        _mirror(counts)


@_callee
def _mirror(counts: Counts) -> None:
    """Copy the upper triangle of the leading square to the lower one, in blocks for the cache."""
    n = len(counts)
    for first in range(0, n, BLOCK_FEATURES):
        for left in range(0, first + 1, BLOCK_FEATURES):
            for i in range(first, min(first + BLOCK_FEATURES, n)):
                for j in range(left, min(left + BLOCK_FEATURES, i)):
                    counts[i, j] = counts[j, i]


@_callee
def _empty_strip(n_features: int, width: int) -> Words:
    """Return memory for whole tiles of features, so that no tile needs a special case."""
    n_padded = -(-n_features // TILE) * TILE
    strip = allocate_aligned(n_padded * width).reshape(n_padded, width)
    strip[n_features:] = 0
    return strip


@_callee
def _copy_strip(words: Memory, n_features: int, start: int, stop: int, strip: Words) -> None:
    """Copy words start to stop: rows at a power-of-two stride would evict each other from cache."""
    for i in range(n_features):
        feature = _row(words, i, start, stop)
        for w in range(len(feature)):
            strip[i, w] = feature[w]
        strip[i, len(feature) :] = 0


@_callee
def _select_strip(
    words: Memory,
    n_features: int,
    columns: NDArray[np.int64],
    plane: Words | None,
    memory: Words,
) -> Words:
    """Copy some columns of words, masked by a plane if there is one, into whole tiles."""
    n_padded, width = -(-n_features // TILE) * TILE, -(-len(columns) // 8) * 8
    strip = memory[: n_padded * width].reshape(n_padded, width)
    start, stop = columns[0], columns[-1] + 1
    for i in range(n_features):
        feature = _row(words, i, start, stop)
        if len(feature) == len(columns):  # which the compiler turns into operations on vectors
            for w in range(len(feature)):
                strip[i, w] = feature[w] if plane is None else feature[w] & plane[start + w]
        else:
            for w in range(len(columns)):
                k = columns[w]
                strip[i, w] = feature[k - start] if plane is None else feature[k - start] & plane[k]
        strip[i, len(columns) :] = 0
    strip[n_features:] = 0
    return strip


@_callee
def _add_strip(
    left: Words, right: Words, symmetric: bool, table: Bits | None, shift: int, counts: Counts
) -> None:
    """Add one strip's joint counts times 2**shift.

    If symmetric, those on and above the diagonal are complete.
    """
    n_left, n_right = counts.shape
    if table is not None:  # Numba compiles no branch whose condition is always false
        digits = split_left(left)
    for block in range(0, n_right, BLOCK_FEATURES):
        stop = min(block + BLOCK_FEATURES, n_right)
        n_rows = min(stop, n_left) if symmetric else n_left
        # Narrow blocks are faster as tiles.
        if table is not None and stop - block >= BLOCK_FEATURES // 3:
            _look_up_block(table, digits, right[block:stop], n_rows, shift, counts[:, block:stop])
            continue
        for i in range(0, n_rows, TILE):
            for j in range(max(i, block) if symmetric else block, stop, TILE):
                tile = _count_tile(left[i : i + TILE], right[j : j + TILE])
                for a in range(min(TILE, n_left - i)):
                    for b in range(min(TILE, n_right - j)):
                        counts[i + a, j + b] += np.int64(tile[a][b]) << shift


@_callee
def _look_up_block(
    table: Bits, digits: Digits, right: Words, n_rows: int, shift: int, counts: Counts
) -> None:
    """Add the joint counts of `n_rows` left features with a block of right ones, by lookup."""
    others = split_right(right)
    tile = allocate_aligned(LOOKUP_ROWS * LOOKUP_COLUMNS // 4).view(np.uint16)
    tile = tile.reshape(LOOKUP_ROWS, LOOKUP_COLUMNS)
    for first in range(0, n_rows, LOOKUP_ROWS):
        count_by_lookup(table, digits, first, others, tile)
        for i in range(first, min(first + LOOKUP_ROWS, n_rows)):
            for j in range(counts.shape[1]):
                counts[i, j] += np.int64(tile[i - first, j]) << shift


@_callee
def _count_tile(left: Words, right: Words) -> Any:
    """Count the joint ones of 4 features with 4 others, the innermost loop of pair counting."""
    wide_vectors()
    zero = np.uint64(0)
    tile_0 = tile_1 = tile_2 = tile_3 = (zero, zero, zero, zero)
    for w in range(left.shape[1]):
        quad = (right[0, w], right[1, w], right[2, w], right[3, w])
        tile_0 = _count_quad(tile_0, left[0, w], quad)
        tile_1 = _count_quad(tile_1, left[1, w], quad)
        tile_2 = _count_quad(tile_2, left[2, w], quad)
        tile_3 = _count_quad(tile_3, left[3, w], quad)
    return tile_0, tile_1, tile_2, tile_3


@_callee
def _count_quad(counts: Any, word: Any, quad: Any) -> Any:
    """Add the joint ones of a word with each of 4 others."""
    return (
        counts[0] + popcount(word & quad[0]),
        counts[1] + popcount(word & quad[1]),
        counts[2] + popcount(word & quad[2]),
        counts[3] + popcount(word & quad[3]),
    )


@_kernel
def _pack(X: Memory, n_samples: int, packed: Bits) -> None:
    """Pack X into little-endian words, viewed as bytes, (n_features, 8 n_words)."""
    n_features, n_bytes = packed.shape
    block = np.empty((PACK_BYTES, PACK_FEATURES), np.uint8)
    for i in range(0, n_features, PACK_FEATURES):
        n_columns = min(PACK_FEATURES, n_features - i)
        for start in range(0, n_bytes, PACK_BYTES):
            stop = min(start + PACK_BYTES, n_bytes)
            block[:] = 0
            for n in range(8 * start, min(8 * stop, n_samples)):
                row = _row(X, n, i, i + n_columns)
                packed_row = block[n // 8 - start]
                for j in range(n_columns):
                    packed_row[j] |= row[j] << (n & 7)
            for j in range(n_columns):
                for b in range(stop - start):
                    packed[i + j, start + b] = block[b, j]


@_kernel
def _unpack(packed: Memory, X: Bits) -> None:
    """Unpack little-endian words, viewed as bytes, into X."""
    n_samples, n_features = X.shape
    n_bytes = -(-n_samples // 8)
    block = np.empty((PACK_BYTES, PACK_FEATURES), np.uint8)
    for i in range(0, n_features, PACK_FEATURES):
        n_columns = min(PACK_FEATURES, n_features - i)
        for start in range(0, n_bytes, PACK_BYTES):
            stop = min(start + PACK_BYTES, n_bytes)
            for j in range(n_columns):
                feature = _row(packed, i + j, start, stop)
                for b in range(stop - start):
                    block[b, j] = feature[b]
            for n in range(8 * start, min(8 * stop, n_samples)):
                packed_row = block[n // 8 - start]
                row = X[n, i : i + n_columns]
                mask = np.uint8(1 << (n & 7))
                for j in range(n_columns):
                    row[j] = packed_row[j] & mask != 0


@_kernel
def _select(words: Memory, n_words: int, keep: Words, selected: Words) -> None:
    for i in range(len(selected)):
        feature = _row(words, i, 0, n_words)
        for w in range(selected.shape[1]):
            word = np.uint64(0)
            rows = keep[64 * w : 64 * w + 64]
            for b in range(len(rows)):
                bit = feature[rows[b] >> np.uint64(6)] >> (rows[b] & np.uint64(63))
                word |= (bit & np.uint64(1)) << np.uint64(b)
            selected[i, w] = word
