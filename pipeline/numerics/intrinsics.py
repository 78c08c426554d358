"""LLVM instructions that Numba does not offer, and aligned memory for vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from pipeline.numerics.compilation import callee

LINE_WORDS = 8  # words of a cache line


def make_fma(kind: Any) -> Any:
    """Return an intrinsic for a b + c, rounded once, of numbers of type `kind`."""

    def define(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return kind(kind, kind, kind), generate

    return intrinsic(define)


def make_power_of_two(kind: Any, n_mantissa_bits: int, bias: int) -> Any:
    """Return an intrinsic for 2**k, where k is stored in the low bits of a number.

    `kind` is the Numba type of the numbers, `n_mantissa_bits` the number of bits below the
    exponent, and `bias` the bias of the exponent.
    """
    same_width = {types.float32: types.int32, types.float64: types.int64}[kind]

    def define(typing_context: Any, k: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integer, real = (
                context.get_value_type(number_type) for number_type in (same_width, kind)
            )
            exponent = builder.shl(builder.bitcast(arguments[0], integer), integer(n_mantissa_bits))
            return builder.bitcast(builder.add(exponent, integer(bias << n_mantissa_bits)), real)

        return kind(kind), generate

    return intrinsic(define)


def _generate_popcount(typing_context: Any, word: Any) -> Any:
    """Generate LLVM's population count, which is vectorized in loops."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


popcount: Any = intrinsic(_generate_popcount)
"""Counts the ones of a word."""


def _generate_wide_vectors(typing_context: Any) -> Any:
    """Generate no code, but set an attribute of the function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite itself adds only attributes that it knows.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), generate


wide_vectors: Any = intrinsic(_generate_wide_vectors)
"""Lets LLVM use the CPU's full vector width in a function, where it would choose half of it."""


def has_cpu_feature(name: str) -> bool:
    """Return whether Numba compiles for a CPU with this feature, named as by LLVM."""
    return f"+{name}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def _generate_comparison(
    typing_context: Any, keys: Any, row: Any, limit: Any, limits: Any, start: Any
) -> Any:
    """Generate a comparison of 64 short numbers."""
    shorts = ir.VectorType(ir.IntType(16), 64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def load(place: int, *indices: Any) -> Any:
            array_type = signature.args[place]
            array = context.make_array(array_type)(context, builder, arguments[place])
            item = cgutils.get_item_pointer(context, builder, array_type, array, indices)
            loaded = builder.load(builder.bitcast(item, shorts.as_pointer()))
            loaded.align = 2
            return loaded

        index = ir.IntType(32)
        unset = ir.Constant(shorts, ir.Undefined)
        own = builder.insert_element(unset, arguments[2], index(0))
        own = builder.shuffle_vector(own, unset, ir.Constant(ir.VectorType(index, 64), [0] * 64))
        others = load(3, arguments[4])
        higher = builder.select(builder.icmp_unsigned(">", own, others), own, others)
        below = builder.icmp_unsigned("<", load(0, arguments[1], ir.IntType(64)(0)), higher)
        return builder.bitcast(below, ir.IntType(64))

    return types.uint64(keys, types.int64, types.uint16, limits, types.int64), generate


mark_below: Any = intrinsic(_generate_comparison)
"""Return a word with one bit per key, 1 if the key is below `limit` or below its own of `limits`.

The keys are a row of `keys`, uint16, (n_rows, 64). Their own limits are 64 items of `limits`,
uint16, from `start` on.
"""


@callee(nogil=True)
def allocate_aligned(n_words: int) -> NDArray[np.uint64]:
    """Allocate memory that begins at a cache line: vectors that cross one load half as fast."""
    memory = np.empty(n_words + LINE_WORDS, np.uint64)
    start = -(memory.ctypes.data // 8) % LINE_WORDS
    return memory[start : start + n_words]
