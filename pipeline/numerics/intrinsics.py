"""LLVM instructions that Numba does not offer."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
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


def has_cpu_feature(name: str) -> bool:
    """Return whether Numba compiles for a CPU with this feature, named as by LLVM."""
    return f"+{name}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


COUNT_BY_LOOKUP = has_cpu_feature("avx2") and not has_cpu_feature("avx512vpopcntdq")
"""Whether `add_lookups` is the fastest way to count: no population count of vectors is there."""
LOOKUP_ROWS, LOOKUP_COLUMNS = 4, 64
"""Shape of the counts of `add_lookups`, whose sums of bytes stay in registers."""


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
    """Generate a loop over digits that adds bytes, and the addition of the sums to `counts`."""
    byte, short, word = (ir.IntType(n_bits) for n_bits in (8, 16, 64))
    width = 32
    byte_vector, short_vector = ir.VectorType(byte, width), ir.VectorType(short, width)
    places = [(row, v) for row in range(LOOKUP_ROWS) for v in range(LOOKUP_COLUMNS // width)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def find(place: int, kind: Any, *indices: Any) -> Any:
            array_type = signature.args[place]
            array = context.make_array(array_type)(context, builder, arguments[place])
            item = cgutils.get_item_pointer(context, builder, array_type, array, indices)
            return builder.bitcast(item, kind.as_pointer())

        def load(pointer: Any) -> Any:
            loaded = builder.load(pointer)
            loaded.align = width
            return loaded

        _, _, first, _, start, stop, _ = arguments
        shuffle = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(byte_vector, [byte_vector] * 2), "llvm.x86.avx2.pshuf.b"
        )
        zeros = ir.Constant(byte_vector, [0] * width)
        sums = {place: cgutils.alloca_once(builder, byte_vector) for place in places}
        for total in sums.values():
            builder.store(zeros, total)
        with cgutils.for_range_slice(builder, start, stop, word(1), word) as (digit, _):
            columns = [
                load(find(3, byte_vector, digit, word(v))) for v in range(0, LOOKUP_COLUMNS, width)
            ]
            entries = []
            for row in range(LOOKUP_ROWS):
                own = builder.load(find(1, byte, builder.add(first, word(row)), digit))
                entries.append(load(find(0, byte_vector, builder.zext(own, word))))
            for (row, v), total in sums.items():
                found = builder.call(shuffle, [entries[row], columns[v]])
                builder.store(builder.add(builder.load(total), found), total)
        for (row, v), total in sums.items():
            target = find(6, short_vector, word(row), word(width * v))
            added = builder.add(load(target), builder.zext(builder.load(total), short_vector))
            builder.store(added, target).align = width
        return context.get_dummy_value()

    integer = types.int64
    return types.none(table, left, integer, right, integer, integer, counts), generate


add_lookups: Any = intrinsic(_generate_lookups)
"""Look up pairs of 4-bit digits in a table, and add the entries to `counts`; for CPUs with AVX2.

The arguments are arrays in C order. All but `left` begin at a multiple of 32 bytes:

* `table`, uint16, (256,): for each left digit, the entries of all right digits as bytes, twice.
* `left`, uint8, (n_left, n_digits): digits times 16. `LOOKUP_ROWS` rows from `first` are used.
* `right`, uint8, (n_digits, `LOOKUP_COLUMNS`). Digits `start` to `stop` are used.
* `counts`, uint16, (`LOOKUP_ROWS`, `LOOKUP_COLUMNS`).
"""
MAX_LOOKUPS = 63
"""Entries of at most 4 that a byte can add up."""


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
