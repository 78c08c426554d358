"""Instructions that Numba has no name for, of single and of double precision."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def make_fma(kind: Any) -> Any:
    """Give a b + c, rounded once, for numbers of this kind."""

    def typed(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return kind(kind, kind, kind), generate

    return intrinsic(typed)


def make_power_of_two(kind: Any, n_bits_of_share: int, bias: int) -> Any:
    """Give 2**k for k whose low bits hold it, which become the exponent.

    Parameters
    ----------
    kind
        Numba's type of the numbers.
    n_bits_of_share
        Bits below the exponent.
    bias
        Of the exponent.
    """
    same_width = {types.float32: types.int32, types.float64: types.int64}[kind]

    def typed(typing_context: Any, k: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integer, real = (context.get_value_type(of) for of in (same_width, kind))
            exponent = builder.shl(builder.bitcast(arguments[0], integer), integer(n_bits_of_share))
            return builder.bitcast(builder.add(exponent, integer(bias << n_bits_of_share)), real)

        return kind(kind), generate

    return intrinsic(typed)


def _generate_wide_vectors(typing_context: Any) -> Any:
    """Generate nothing, but mark the function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite adds no attribute but those that it lists.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), generate


wide_vectors: Any = intrinsic(_generate_wide_vectors)
"""Lets the loops of a function have vectors as wide as the CPU's, where LLVM chooses half of it."""
