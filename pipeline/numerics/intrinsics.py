"""LLVM instructions that Numba does not offer, in single and double precision."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


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


def _generate_wide_vectors(typing_context: Any) -> Any:
    """Generate no code, but set an attribute of the function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite itself adds only attributes that it knows.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), generate


wide_vectors: Any = intrinsic(_generate_wide_vectors)
"""Lets LLVM use the CPU's full vector width in a function, where it would choose half of it."""
