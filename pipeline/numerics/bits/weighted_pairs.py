"""Sums over rows, times their weights, of the products of all pairs of bits.

Weights that are small whole numbers are split into bit planes, and pairs are counted word by word.
For others, rows are sorted by eight features at a time. The weights of the rows with equal bits
there are summed for each other feature, and each sum is added to those of the features that are 1.
So each row is added once for eight features (V. L. Arlazarov et al., "On economical construction of
the transitive closure of a directed graph", Soviet Mathematics Doklady 11, 1970).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from pipeline.numerics.bits.kernels import add_joint_counts, split_into_bit_planes
from pipeline.numerics.bits.packed_rows import transpose_bits
from pipeline.numerics.compilation import callee
from pipeline.numerics.intrinsics import allocate_aligned, wide_vectors

Array = NDArray[np.float64]
Words = NDArray[np.uint64]

ROWS_AT_ONCE = 8192  # 32 rows with equal bits on average; their words are 64 KiB
MAX_PLANES = 7  # of weights; sorting rows is faster than counting more planes

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_callee = callee(nogil=True, error_model="numpy")


def add_weighted_pairs(words: Words, weights: Array, sums: Array) -> None:
    """Add Σ_n w_nk x_ni x_nj for all i ≤ j to `sums`, (n_weights, n_features, n_features).

    Parameters
    ----------
    words
        Packed bits of the rows, (n_features, n_words), as in `BinaryBlock`.
    weights
        Several weights of each row, at least 0, (n_samples, n_weights).
    sums
        To which sums are added in place at [k, i, j]; those with i > j stay as they are.
    """
    rows = None
    for own, total in zip(np.ascontiguousarray(weights.T), sums, strict=True):
        if is_whole(own):
            counts = np.zeros(total.shape, np.int64)
            add_joint_counts(words, words, counts, split_into_bit_planes(own.astype(np.int64)))
            total += np.triu(counts)
            continue
        if rows is None:
            rows = transpose_bits(words, len(own))
        kept = np.flatnonzero(own)
        _add_pairs(np.take(rows, kept, axis=1), own[kept], total)  # in C order


def is_whole(weights: Array) -> bool:
    """Return whether all weights are whole numbers of few bits."""
    is_small = weights.max(initial=0.0) < 1 << MAX_PLANES
    return bool(is_small and (weights == np.floor(weights)).all())


def _generate_sums(
    typing_context: Any, order: Any, start: Any, stop: Any, words: Any, weights: Any, sums: Any
) -> Any:
    """Generate sums that stay in registers, eight to a vector."""
    index = ir.IntType(32)
    vector, mask = (ir.VectorType(kind, 8) for kind in (ir.DoubleType(), ir.IntType(1)))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        order, words, weights, sums = (
            context.make_array(signature.args[k])(context, builder, arguments[k]).data
            for k in (0, 3, 4, 5)
        )
        zero = ir.Constant(vector, [0.0] * 8)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in range(8)]
        for total in totals:
            builder.store(zero, total)
        step = ir.IntType(64)(1)
        with cgutils.for_range_slice(builder, arguments[1], arguments[2], step) as (place, _):
            row = builder.zext(builder.load(builder.gep(order, [place])), ir.IntType(64))
            weight = builder.load(builder.gep(weights, [row]))
            unset = ir.Constant(vector, ir.Undefined)
            weight = builder.insert_element(unset, weight, index(0))
            everywhere = ir.Constant(ir.VectorType(index, 8), [0] * 8)
            weight = builder.shuffle_vector(weight, unset, everywhere)
            word = builder.bitcast(builder.gep(words, [row]), ir.IntType(8).as_pointer())
            for k, total in enumerate(totals):
                bits = builder.bitcast(builder.load(builder.gep(word, [index(k)])), mask)
                old = builder.load(total)
                builder.store(builder.select(bits, builder.fadd(old, weight), old), total)
        sums = builder.bitcast(sums, vector.as_pointer())
        for k, total in enumerate(totals):
            builder.store(builder.load(total), builder.gep(sums, [index(k)])).align = 8
        return context.get_dummy_value()

    return types.none(order, types.int64, types.int64, words, weights, sums), generate


_sum_weights: Any = intrinsic(_generate_sums)
"""Fill in the sums of the weights of the rows order[start:stop] by the bits of their words, (64,).
"""


@_kernel
def _add_pairs(rows: Words, weights: Array, sums: Array) -> None:
    """Add the sums of pairs, given rows with 64 features per word, (n_words, n_rows)."""
    order = np.empty(ROWS_AT_ONCE, np.uint16)
    ends = np.empty(257, np.int64)
    n_words, n_rows = rows.shape
    for first in range(0, n_rows, ROWS_AT_ONCE):
        own = weights[first : first + ROWS_AT_ONCE]
        for i in range(0, len(sums), 8):
            n_zero = _sort_rows(rows[i // 64, first : first + len(own)], i % 64, order, ends)
            if n_zero == len(own):
                continue
            for j in range(i // 64, n_words):
                words = rows[j, first : first + len(own)]
                _add_block(words, own, order, ends, i, sums, 64 * j)


@_callee
def _sort_rows(words: Words, shift: int, order: NDArray[np.uint16], ends: Any) -> int:
    """Sort rows by eight bits of their words; return the number of rows without any."""
    ends[:] = 0
    for row in range(len(words)):
        ends[np.int64(words[row] >> np.uint64(shift) & np.uint64(255)) + 1] += 1
    n_zero = int(ends[1])
    for k in range(256):
        ends[k + 1] += ends[k]
    for row in range(len(words)):
        code = np.int64(words[row] >> np.uint64(shift) & np.uint64(255))
        order[ends[code]] = row
        ends[code] += 1  # in the end, where the rows of the next code begin
    return n_zero


@_callee
def _add_block(
    words: Words,
    weights: Array,
    order: NDArray[np.uint16],
    ends: Any,
    i: int,
    sums: Array,
    j: int,
) -> None:
    """Add the sums of eight features from i on with the 64 features of `words`, from j on."""
    wide_vectors()
    by_code = allocate_aligned(64).view(np.float64)
    by_high = allocate_aligned(64).view(np.float64)
    by_feature = allocate_aligned(512).view(np.float64).reshape(8, 64)
    by_feature[:] = 0.0
    for high in range(16):
        by_high[:] = 0.0
        for low in range(1 if high == 0 else 0, 16):
            code = 16 * high + low
            if ends[code - 1] == ends[code]:
                continue
            _sum_weights(order, ends[code - 1], ends[code], words, weights, by_code)
            for k in range(4):
                if low >> k & 1:
                    _add(by_code, by_feature[k])
            _add(by_code, by_high)
        for k in range(4):
            if high >> k & 1:
                _add(by_high, by_feature[4 + k])
    for k in range(min(8, len(sums) - i)):
        for b in range(max(i + k - j, 0), min(64, len(sums) - j)):
            sums[i + k, j + b] += by_feature[k, b]


@_callee
def _add(numbers: Array, sums: Array) -> None:
    wide_vectors()
    for b in range(64):
        sums[b] += numbers[b]
