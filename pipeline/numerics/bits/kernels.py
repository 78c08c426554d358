"""Counting, packing and selecting rows of packed binary data.

`words` is feature-major: bit b (little bit order) of the uint64 `words[i, w]` is feature i of
sample 64 w + b. Bits after the last sample are 0, so counting needs no number of samples. Rows of a
larger array, such as a column slice of a chunk, are read in place; words are copied only if they
are not contiguous within a row. Pair counting copies strips of at most STRIP_WORDS words per
feature.

Pairs are counted by AND and population count. If the CPU has no population count of vectors, most
pairs are counted by looking up four samples at once.

Every kernel is compiled for one set of types on its first call and cached on disk. All kernels
release the GIL and start no threads. Counts are exact.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.intrinsics import (
    COUNT_BY_LOOKUP,
    LOOKUP_COLUMNS,
    LOOKUP_ROWS,
    MAX_LOOKUPS,
    add_lookups,
    wide_vectors,
)

Words = NDArray[np.uint64]
Bits = NDArray[np.uint8]
Counts = NDArray[np.int64]
Memory = tuple[NDArray[Any], int]

TILE = 4  # features per side; the 16 counters of a tile stay in registers
BLOCK_FEATURES = 64  # with STRIP_WORDS: 256 KiB, which fit in the L2 cache
STRIP_WORDS = 512  # 8 rows of a tile: 32 KiB, which fit in the L1 cache
LOOKUP_WORDS = 128  # of a strip whose pairs are looked up; its digits take twice its memory
LOOKUP_FEATURES = 256  # with fewer features, splitting words into digits takes too long
LOW_DIGITS = np.uint64(0x0F0F0F0F0F0F0F0F)
LINE_WORDS = 8  # words of a cache line
PACK_FEATURES = 256
PACK_BYTES = 64  # with PACK_FEATURES: 16 KiB, which fit in the L1 cache

_kernel = njit(nogil=True, cache=True)
_inlined = njit(nogil=True, cache=True, forceinline=True)  # a call counts references to its arrays


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


def add_joint_counts(left: Words, right: Words, counts: NDArray[Any]) -> None:
    """Add `joint_counts` to `counts`, (n_left, n_right), in C order, in place.

    `counts` are int64 or, if they can hold the sums, uint32. If both sides are the same array,
    counting takes half the time.
    """
    if left.shape[1] != right.shape[1]:
        raise FitError(
            f"Left has {left.shape[1]} words per feature, but right has {right.shape[1]}. Pass the "
            "same samples on both sides."
        )
    _add_joint_counts(_memory(left), _memory(right), left.shape[1], left is right, counts)


def symmetric_joint_counts(words: Words) -> Counts:
    """Return `joint_counts(words, words)`, (n_features, n_features), counting each pair once."""
    return joint_counts(words, words)


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


@_kernel
def _row(memory: Memory, i: int, start: int, stop: int) -> NDArray[Any]:
    """Return items start to stop of row i."""
    flat, row_stride = memory
    return flat[i * row_stride + start : i * row_stride + stop]


def _generate_popcount(typing_context: Any, word: Any) -> Any:
    """Generate LLVM's population count, which is vectorized in loops."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


popcount: Any = intrinsic(_generate_popcount)
"""Counts the ones of a word."""


@_kernel
def allocate_aligned(n_words: int) -> Words:
    """Allocate memory that begins at a cache line: vectors that cross one load half as fast."""
    memory = np.empty(n_words + LINE_WORDS, np.uint64)
    start = -(memory.ctypes.data // 8) % LINE_WORDS
    return memory[start : start + n_words]


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
    left: Memory, right: Memory, n_words: int, symmetric: bool, counts: Counts
) -> None:
    """Add the joint counts of left and right, one strip of words at a time."""
    n_left, n_right = counts.shape
    by_lookup = COUNT_BY_LOOKUP and min(4 * n_left, n_right) >= LOOKUP_FEATURES
    n_strips = max(1, -(-n_words // (LOOKUP_WORDS if by_lookup else STRIP_WORDS)))
    width = max(8, -(-n_words // (8 * n_strips)) * 8)  # equal strips of whole vectors
    left_strip = _empty_strip(n_left, width)
    right_strip = left_strip if symmetric else _empty_strip(n_right, width)
    for start in range(0, n_words, width):
        stop = min(start + width, n_words)
        _copy_strip(left, n_left, start, stop, left_strip)
        if not symmetric:
            _copy_strip(right, n_right, start, stop, right_strip)
        _add_strip(left_strip, right_strip, symmetric, by_lookup, counts)
    if symmetric:
        _mirror(counts)


@_kernel
def _mirror(counts: Counts) -> None:
    """Copy the upper triangle to the lower one, in blocks that fit in the cache."""
    n = len(counts)
    for first in range(0, n, BLOCK_FEATURES):
        for left in range(0, first + 1, BLOCK_FEATURES):
            for i in range(first, min(first + BLOCK_FEATURES, n)):
                for j in range(left, min(left + BLOCK_FEATURES, i)):
                    counts[i, j] = counts[j, i]


@_kernel
def _empty_strip(n_features: int, width: int) -> Words:
    """Return memory for whole tiles of features, so that no tile needs a special case."""
    n_padded = -(-n_features // TILE) * TILE
    strip = allocate_aligned(n_padded * width).reshape(n_padded, width)
    strip[n_features:] = 0
    return strip


@_kernel
def _copy_strip(words: Memory, n_features: int, start: int, stop: int, strip: Words) -> None:
    """Copy words start to stop: rows at a power-of-two stride would evict each other from cache."""
    for i in range(n_features):
        feature = _row(words, i, start, stop)
        for w in range(len(feature)):
            strip[i, w] = feature[w]
        strip[i, len(feature) :] = 0


@_kernel
def _split_left(strip: Words) -> Any:
    """Split words into 4-bit digits for `_look_up_block`; also return the table to look up."""
    table = allocate_aligned(64).view(np.uint8)
    for left in range(16):
        for right in range(32):
            table[32 * left + right] = popcount(np.uint64(left & right & 15))
    n_rows, n_words = strip.shape
    digits = np.empty((n_rows, 2 * n_words), np.uint64)  # low ones, high ones
    for i in range(n_rows):
        for w in range(n_words):
            digits[i, w] = (strip[i, w] & LOW_DIGITS) << np.uint64(4)
            digits[i, n_words + w] = strip[i, w] & ~LOW_DIGITS
    return table.view(np.uint16), digits.view(np.uint8)


@_kernel
def _split_right(block: Words) -> Bits:
    """Split at most `LOOKUP_COLUMNS` rows of words into digits, (n_digits, `LOOKUP_COLUMNS`)."""
    n_rows, n_words = block.shape
    n_bytes, n_columns = 8 * n_words, LOOKUP_COLUMNS // 8
    digits = allocate_aligned(2 * n_bytes * n_columns).reshape(2 * n_bytes, n_columns)
    bytes_of_rows = np.zeros(8, np.uint64)
    for column in range(n_columns):
        for w in range(n_words):
            for i in range(8):
                row = 8 * column + i
                bytes_of_rows[i] = block[row, w] if row < n_rows else np.uint64(0)
            _transpose_bytes(bytes_of_rows)
            for b in range(8):
                digits[8 * w + b, column] = bytes_of_rows[b] & LOW_DIGITS
                digits[n_bytes + 8 * w + b, column] = (
                    bytes_of_rows[b] >> np.uint64(4)
                ) & LOW_DIGITS
    return digits.view(np.uint8)


@_inlined
def _transpose_bytes(words: Words) -> None:
    """Transpose 8 × 8 bytes by halves, as `packed_rows` transposes bits."""
    for half, mask in ((4, 0x00000000FFFFFFFF), (2, 0x0000FFFF0000FFFF), (1, 0x00FF00FF00FF00FF)):
        shift = np.uint64(8 * half)
        for i in range(8):
            if i & half == 0:
                change = ((words[i] >> shift) ^ words[i + half]) & np.uint64(mask)
                words[i] ^= change << shift
                words[i + half] ^= change


@_kernel
def _look_up_block(prepared: Any, right: Words, block: int, n_rows: int, counts: Counts) -> None:
    """Add the joint counts of a block of right features with `n_rows` left ones, by lookup."""
    table, digits = prepared
    others = _split_right(right[block : block + LOOKUP_COLUMNS])
    n_columns = min(LOOKUP_COLUMNS, counts.shape[1] - block)
    sums = allocate_aligned(LOOKUP_ROWS * LOOKUP_COLUMNS // 4).view(np.uint16)
    sums_by_row = sums.reshape(LOOKUP_ROWS, LOOKUP_COLUMNS)
    for first in range(0, n_rows, LOOKUP_ROWS):
        sums[:] = 0
        for start in range(0, len(others), MAX_LOOKUPS):
            stop = min(start + MAX_LOOKUPS, len(others))
            add_lookups(table, digits, first, others, start, stop, sums_by_row)
        for i in range(first, min(first + LOOKUP_ROWS, n_rows)):
            for j in range(n_columns):
                counts[i, block + j] += np.int64(sums_by_row[i - first, j])


@_kernel
def _cannot_prepare(strip: Words) -> Words:
    """Stand for `_split_left` where lookups cannot be compiled."""
    return strip


@_kernel
def _cannot_look_up(prepared: Any, right: Words, block: int, n_rows: int, counts: Counts) -> None:
    """Stand for `_look_up_block` where lookups cannot be compiled."""


_prepare_left, _add_block = (
    (_split_left, _look_up_block) if COUNT_BY_LOOKUP else (_cannot_prepare, _cannot_look_up)
)


@_kernel
def _add_strip(left: Words, right: Words, symmetric: bool, by_lookup: bool, counts: Counts) -> None:
    """Add one strip's joint counts; if symmetric, those on and above the diagonal are complete."""
    n_left, n_right = counts.shape
    prepared = _prepare_left(left if by_lookup else left[:0])
    for block in range(0, n_right, BLOCK_FEATURES):
        stop = min(block + BLOCK_FEATURES, n_right)
        n_rows = stop if symmetric else n_left
        if by_lookup and stop - block >= BLOCK_FEATURES // 3:  # narrow ones are faster as tiles
            _add_block(prepared, right, block, n_rows, counts)
            continue
        for i in range(0, n_rows, TILE):
            for j in range(max(i, block) if symmetric else block, stop, TILE):
                tile = _count_tile(left[i : i + TILE], right[j : j + TILE])
                for a in range(min(TILE, n_left - i)):
                    for b in range(min(TILE, n_right - j)):
                        counts[i + a, j + b] += np.int64(tile[a][b])


@_kernel
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


@_kernel
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
