"""Counting the ones of combined words by lookup, on CPUs without a population count of vectors.

Words are split into digits of 4 bits. An instruction of AVX2 looks up 32 digits of right rows in a
table of 16 bytes, which belongs to a pair of digits of two left rows: a byte of the table counts
the ones of a right digit combined with the first left digit, plus 16 times those with the second.
The entries of three digits are added before the two counts are separated, because their sums are
at most 12.

Neighbouring bytes of a vector belong to columns 16 apart. Let the three entries add up to a + 16 b
for one column and to c + 16 d for the next. As a 16-bit number, x = a + 16 b + 256 c + 4096 d. Two
sums of bytes, modulo 256, are kept: S of x, and T of x shifted to the right by 4 bits, which is
b + 16 c in its low byte and d in its high one. With capital letters for the totals of a, b, c and
d, all below 256,

    D = T_high,  C = S_high − 16 D,  B = T_low − 16 C,  A = S_low − 16 B  (mod 256).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from pipeline.numerics.intrinsics import allocate_aligned, has_cpu_feature, popcount

COUNT_BY_LOOKUP = has_cpu_feature("avx2") and not has_cpu_feature("avx512vpopcntdq")
"""Whether lookups are the fastest way to count: no population count of vectors is there."""
LOOKUP_ROWS, LOOKUP_COLUMNS = 4, 64
"""Shape of the counts of `count_by_lookup`, whose sums of bytes stay in registers."""

Words = NDArray[np.uint64]
Bits = NDArray[np.uint8]
Digits = NDArray[np.uint16]

_VECTOR_BYTES, _ENTRY_BYTES = 32, 16
_DIGITS_AT_ONCE = 3  # whose counts add up to at most 12, below 16
_DIGITS_PER_SUM = 63  # whose counts add up to at most 252, below 256
_LOW_DIGITS = np.uint64(0x0F0F0F0F0F0F0F0F)

_kernel = njit(nogil=True, cache=True)
_inlined = njit(nogil=True, cache=True, forceinline=True)  # a call counts references to its arrays


@_kernel
def make_lookup_table(exclusive: bool) -> Bits:
    """Return the table: of the ones of either word but not both if `exclusive`, else of both."""
    table = allocate_aligned(256 * _ENTRY_BYTES // 8).view(np.uint8)
    for pair in range(256):
        for right in range(_ENTRY_BYTES):
            first, second = pair & 15, pair >> 4
            first, second = (
                (first ^ right, second ^ right) if exclusive else (first & right, second & right)
            )
            count = popcount(np.uint64(first)) + (popcount(np.uint64(second)) << np.uint64(4))
            table[_ENTRY_BYTES * pair + right] = count
    return table


@_kernel
def _count_digits(n_words: int) -> int:
    """Return the number of digits of a row, with zeros up to a multiple of `_DIGITS_AT_ONCE`."""
    return -(-16 * n_words // _DIGITS_AT_ONCE) * _DIGITS_AT_ONCE


@_kernel
def split_left(rows: Words) -> Digits:
    """Split words, (n_rows, n_words), into pairs of digits, (n_rows / 2, n_digits).

    `n_rows` is a multiple of `LOOKUP_ROWS`. The result has the places of pairs in the table.
    """
    n_rows, n_words = rows.shape
    n_bytes, row_bytes = 8 * n_words, rows.view(np.uint8)
    digits = np.zeros((n_rows // 2, _count_digits(n_words)), np.uint16)
    for i in range(n_rows // 2):
        first, second = row_bytes[2 * i], row_bytes[2 * i + 1]
        for half in range(2):
            part, shift = digits[i, half * n_bytes :], 4 * half
            for b in range(n_bytes):
                pair = (first[b] >> shift) & 15 | ((second[b] >> shift) & 15) << 4
                part[b] = pair * _ENTRY_BYTES
    return digits


@_kernel
def split_right(rows: Words) -> Bits:
    """Split at most `LOOKUP_COLUMNS` rows of words into digits, (n_digits, `LOOKUP_COLUMNS`)."""
    n_rows, n_words = rows.shape
    n_bytes, n_columns = 8 * n_words, LOOKUP_COLUMNS // 8
    digits = allocate_aligned(_count_digits(n_words) * n_columns).reshape(-1, n_columns)
    digits[2 * n_bytes :] = 0
    words = np.zeros(8, np.uint64)
    for column in range(n_columns):
        start = column // 4 * _VECTOR_BYTES + column % 4 * 4
        for w in range(n_words):
            for i in range(8):
                row = start + i // 2 + i % 2 * (_VECTOR_BYTES // 2)
                words[i] = rows[row, w] if row < n_rows else np.uint64(0)
            _transpose_bytes(words)
            for b in range(8):
                digits[8 * w + b, column] = words[b] & _LOW_DIGITS
                digits[n_bytes + 8 * w + b, column] = (words[b] >> np.uint64(4)) & _LOW_DIGITS
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


@_inlined
def count_by_lookup(table: Bits, left: Digits, first: int, right: Bits, counts: Digits) -> None:
    """Count the ones of `LOOKUP_ROWS` left rows from `first` combined with all right rows.

    Parameters
    ----------
    table, left, right
        Results of `make_lookup_table`, `split_left` and `split_right`.
    first
        A multiple of `LOOKUP_ROWS`.
    counts
        Memory for the result, (`LOOKUP_ROWS`, `LOOKUP_COLUMNS`), at a multiple of 32 bytes.
    """
    counts[:] = 0
    for start in range(0, len(right), _DIGITS_PER_SUM):
        stop = min(start + _DIGITS_PER_SUM, len(right))
        _add_lookups(table, left, first // 2, right, start, stop, counts)


def _generate_lookups(
    typing_context: Any,
    table: Any,
    left: Any,
    first: Any,
    right: Any,
    start: Any,
    stop: Any,
    counts: Any,
) -> Any:
    """Generate a loop over digits that sums bytes, and the addition of the sums to `counts`."""
    byte, short, word, index = (ir.IntType(n_bits) for n_bits in (8, 16, 64, 32))
    bytes_, shorts = ir.VectorType(byte, _VECTOR_BYTES), ir.VectorType(short, _VECTOR_BYTES // 2)
    entry = ir.VectorType(byte, _ENTRY_BYTES)
    twice = ir.Constant(ir.VectorType(index, _VECTOR_BYTES), [*range(_ENTRY_BYTES)] * 2)
    zeros = ir.Constant(bytes_, [0] * _VECTOR_BYTES)
    four, eight, low_byte = (ir.Constant(shorts, [n] * shorts.count) for n in (4, 8, 255))
    vectors = range(LOOKUP_COLUMNS // _VECTOR_BYTES)
    places = [(pair, v) for pair in range(LOOKUP_ROWS // 2) for v in vectors]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def find(place: int, kind: Any, *indices: Any) -> Any:
            array_type = signature.args[place]
            array = context.make_array(array_type)(context, builder, arguments[place])
            item = cgutils.get_item_pointer(context, builder, array_type, array, indices)
            return builder.bitcast(item, kind.as_pointer())

        def load(pointer: Any, align: int = _VECTOR_BYTES) -> Any:
            loaded = builder.load(pointer)
            loaded.align = align
            return loaded

        def load_entry(pair: int, digit: Any) -> Any:
            place = builder.load(find(1, short, builder.add(first, word(pair)), digit))
            loaded = load(find(0, entry, builder.zext(place, word)), _ENTRY_BYTES)
            return builder.shuffle_vector(loaded, ir.Constant(entry, ir.Undefined), twice)

        def shift_right(vector: Any, n_bits: Any) -> Any:
            return builder.lshr(builder.bitcast(vector, shorts), n_bits)

        def subtract_16_times(left: Any, right: Any) -> Any:
            difference = builder.sub(builder.bitcast(left, shorts), builder.shl(right, four))
            return builder.and_(difference, low_byte)

        def add_to(total: Any, vector: Any) -> None:
            builder.store(builder.add(builder.load(total), vector), total)

        _, _, first, _, start, stop, _ = arguments
        look_up = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(bytes_, [bytes_] * 2), "llvm.x86.avx2.pshuf.b"
        )
        sums, shifted_sums = (
            {place: cgutils.alloca_once_value(builder, zeros) for place in places} for _ in range(2)
        )
        with cgutils.for_range_slice(builder, start, stop, word(_DIGITS_AT_ONCE), word) as (d, _):
            digits = [builder.add(d, word(k)) for k in range(_DIGITS_AT_ONCE)]
            columns = {
                v: [load(find(3, bytes_, digit, word(_VECTOR_BYTES * v))) for digit in digits]
                for v in vectors
            }
            entries = {pair: [load_entry(pair, digit) for digit in digits] for pair, _ in places}
            for pair, v in places:
                x, *others = (
                    builder.call(look_up, pair_and_column)
                    for pair_and_column in zip(entries[pair], columns[v], strict=True)
                )
                for other in others:
                    x = builder.add(x, other)
                add_to(sums[pair, v], x)
                add_to(shifted_sums[pair, v], builder.bitcast(shift_right(x, four), bytes_))
        for pair, v in places:
            s, t = builder.load(sums[pair, v]), builder.load(shifted_sums[pair, v])
            total_d = shift_right(t, eight)
            total_c = subtract_16_times(shift_right(s, eight), total_d)
            total_b = subtract_16_times(t, total_c)
            total_a = subtract_16_times(s, total_b)
            totals = ((0, 0, total_a), (1, 0, total_b), (0, 1, total_c), (1, 1, total_d))
            for row, half, total in totals:
                column = _VECTOR_BYTES * v + shorts.count * half
                target = find(6, shorts, word(2 * pair + row), word(column))
                builder.store(builder.add(load(target), total), target).align = _VECTOR_BYTES
        return context.get_dummy_value()

    integer = types.int64
    return types.none(table, left, integer, right, integer, integer, counts), generate


_add_lookups: Any = intrinsic(_generate_lookups)
"""Add the counts of the digits from `start` to `stop`; `first` is the first pair of left rows."""
