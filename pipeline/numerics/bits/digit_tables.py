"""Sums over the ones of packed rows by tables of digits, which have 1, 4 or 8 bits.

Each feature has terms, for instance one for each component of a mixture. A row has scores: the sum
of the terms of the features where it is 1. The features of a row are split into digits. Tables hold
the sum of terms for each value of a digit, and a row adds the entries of its digits. Conversely, to
sum shares of rows over the rows where a feature is 1, a row adds its shares to the entries of its
digits, which are finally divided among the features. Digits of 0 are left out, so sparse rows take
less time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from pipeline.arrays import Array, Words
from pipeline.numerics.bits.packed_rows import transpose_block
from pipeline.numerics.intrinsics import popcount

Places = NDArray[np.uint16]

BLOCK = 64
"""Rows per word, and features in a word of a transposed block."""
_LANES = 4  # neighbouring terms that vectors add at once
_MAX_BYTE_TERMS = 1 << 10  # with more, tables of digits of 8 bits leave the cache
_SPARSE = 0.1  # share of ones; single bits are better if there are fewer
_FEW_ONES = 128  # in a block of 64 rows of 64 features; they are faster moved one by one

_kernel = njit(nogil=True, cache=True, error_model="numpy")


class Digits(NamedTuple):
    """The digits of the 64 rows of a word that are not 0, by group of blocks of 64 features.

    `places` are their places in the tables of a group, (n_groups, 64, n_digits), of which each row
    has as many as `counts`, (n_groups, 64), says.
    """

    places: Places
    counts: NDArray[np.int64]


def choose_digit_bits(n_terms: int, density: float) -> int:
    """Return the number of bits per digit, given how many terms there are, and the share of ones.

    It changes the last bits of scores. So it must not depend on rows whose scores shall not depend
    on each other.
    """
    if n_terms <= _MAX_BYTE_TERMS:
        return 8
    return 4 if density > _SPARSE else 1


def _generate_count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Generate LLVM's count of trailing zeros, the position of the lowest set bit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


_count_trailing_zeros: Any = intrinsic(_generate_count_trailing_zeros)


def _generate_lanes(adds_entries: bool) -> Any:
    """Return the generator of a loop over places in tables, which LLVM would not vectorize.

    Its arguments are a table, (n_places, width), flat from a vector on, and `width`; places, and
    their number; and the vector of a row, (`_LANES`,). The entries at the places are added to the
    vector of the row if `adds_entries`, else this to each entry.
    """
    vector, word = ir.VectorType(ir.DoubleType(), _LANES), ir.IntType(64)

    def define(
        typing_context: Any, tables: Any, width: Any, places: Any, n_places: Any, row: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def find(argument: int, index: Any) -> Any:
                array_type = signature.args[argument]
                array = context.make_array(array_type)(context, builder, arguments[argument])
                return cgutils.get_item_pointer(context, builder, array_type, array, [index])

            def load(pointer: Any) -> Any:
                loaded = builder.load(pointer)
                loaded.align = 8
                return loaded

            own = builder.bitcast(find(4, word(0)), vector.as_pointer())
            total = cgutils.alloca_once_value(builder, load(own))
            with cgutils.for_range(builder, arguments[3]) as loop:
                place = builder.zext(builder.load(find(2, loop.index)), word)
                entry = find(0, builder.mul(place, arguments[1]))
                entry = builder.bitcast(entry, vector.as_pointer())
                changed = builder.fadd(load(entry), builder.load(total))
                builder.store(changed, total if adds_entries else entry).align = 8
            if adds_entries:
                builder.store(builder.load(total), own).align = 8
            return context.get_dummy_value()

        return types.none(tables, types.int64, places, types.int64, row), generate

    return define


_add_entries_to_row: Any = intrinsic(_generate_lanes(adds_entries=True))
_add_row_to_entries: Any = intrinsic(_generate_lanes(adds_entries=False))


@_kernel
def make_tables(terms: Array, n_bits: int) -> Array:
    """Sum the terms of features, (n_features, n_terms), for each value of each digit.

    The result is (n_digits 2**`n_bits`, width), where blocks of 64 features are filled up, and
    width is `n_terms` rounded up to a multiple of `_LANES`.
    """
    n_features, n_terms = terms.shape
    n_places = -(-n_features // BLOCK) * (BLOCK // n_bits << n_bits)
    tables = np.zeros((n_places, -(-n_terms // _LANES) * _LANES))
    for i in range(n_features):
        first, bit = i // n_bits << n_bits, 1 << i % n_bits
        for place in range(first, first + bit):
            for k in range(n_terms):
                tables[bit + place, k] = tables[place, k] + terms[i, k]
    return tables


@_kernel
def divide_tables(tables: Array, n_bits: int, totals: Array) -> None:
    """Add the entries of all values with a feature's bit to its totals, (n_features, n_terms).

    This is the transpose of `make_tables`. The tables are changed.
    """
    n_features, n_terms = totals.shape
    for i in range(n_features - 1, -1, -1):
        first, bit = i // n_bits << n_bits, 1 << i % n_bits
        for place in range(first, first + bit):
            for k in range(n_terms):
                totals[i, k] += tables[bit + place, k]
                tables[place, k] += tables[bit + place, k]


@_kernel
def _count_group_blocks(n_bits: int) -> int:
    """Return the number of blocks whose digits are listed together; their tables fit the cache."""
    return 1 if n_bits == 4 else 8


@_kernel
def make_digits(n_features: int, n_bits: int) -> Digits:
    """Return memory for the digits of 64 rows."""
    n_blocks, group_blocks = -(-n_features // BLOCK), _count_group_blocks(n_bits)
    n_groups = -(-n_blocks // group_blocks)
    n_digits = min(n_blocks, group_blocks) * BLOCK // n_bits
    return Digits(
        np.empty((n_groups, BLOCK, n_digits), np.uint16), np.empty((n_groups, BLOCK), np.int64)
    )


@_kernel
def list_digits(words: Words, w: int, n_missing: int, n_bits: int, digits: Digits) -> None:
    """List the digits of the rows of word w of (n_features, n_words).

    If `n_missing` is not 0, the words are a mask, and the ones are the missing values of so many
    rows.
    """
    block = np.empty(BLOCK, np.uint64)
    low, shift = np.uint64((1 << n_bits) - 1), np.uint64(n_bits)
    digits.counts[:] = 0
    for first in range(0, len(words), BLOCK):
        n_ones = 0
        for i in range(BLOCK):
            word = words[first + i, w] if first + i < len(words) else np.uint64(0)
            if n_missing and first + i < len(words):
                word = _mark_missing(word, n_missing)
            block[i] = word
            n_ones += int(popcount(word))
        if not n_ones:
            continue
        if n_ones > _FEW_ONES:
            transpose_block(block)
        else:
            _transpose_ones(block)
        group, b = divmod(first // BLOCK, _count_group_blocks(n_bits))
        base = np.uint64(b * BLOCK // n_bits)
        n_digits = -(-min(BLOCK, len(words) - first) // n_bits)
        for row in range(BLOCK):
            rest, n, places = block[row], digits.counts[group, row], digits.places[group, row]
            if popcount(rest) > np.uint64(n_digits // 3):
                for digit in range(n_digits):
                    value = rest & low
                    places[n] = (base + np.uint64(digit)) << shift | value
                    n += value != 0
                    rest >>= shift
            else:
                while rest:
                    digit = _count_trailing_zeros(rest) // shift
                    value = (rest >> digit * shift) & low
                    places[n] = (base + digit) << shift | value
                    rest ^= value << digit * shift
                    n += 1
            digits.counts[group, row] = n


@_kernel
def _transpose_ones(block: Words) -> None:
    """Transpose a block of few ones."""
    rows = np.zeros(BLOCK, np.uint64)
    for i in range(BLOCK):
        marked = block[i]
        while marked:
            rows[_count_trailing_zeros(marked)] |= np.uint64(1) << np.uint64(i)
            marked &= marked - np.uint64(1)
    for i in range(BLOCK):
        block[i] = rows[i]


@_kernel
def _mark_missing(observed: Any, n_rows: int) -> Any:
    """Return a word with the bits of missing values set, among the first `n_rows`."""
    every = np.uint64(0xFFFFFFFFFFFFFFFF)
    return ~observed & (every >> np.uint64(BLOCK - n_rows))


@_kernel
def add_digits(
    tables: Array, n_bits: int, digits: Digits, n_rows: int, scores: Array, adds_entries: bool
) -> None:
    """Add the entries of the digits of rows to their scores, (64, width), or these to the entries.

    `adds_entries` says which.
    """
    flat, width = tables.ravel(), tables.shape[1]
    for group in range(len(digits.counts)):
        first = group * _count_group_blocks(n_bits) * (BLOCK // n_bits << n_bits) * width
        for row in range(n_rows):
            places, n = digits.places[group, row], digits.counts[group, row]
            for k in range(0, width if n else 0, _LANES):
                entries, own = flat[first + k :], scores[row, k:]
                if adds_entries:
                    _add_entries_to_row(entries, width, places, n, own)
                else:
                    _add_row_to_entries(entries, width, places, n, own)
