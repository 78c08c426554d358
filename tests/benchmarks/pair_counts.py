"""Pair counts from packed bits against float32 BLAS and the CPU's limit.

python -m tests.benchmarks pair_counts

The first line compares speeds on one core, in billions of pair-samples per CPU second, with a loop
that does the same operations (AND, population count, addition) on vectors that stay in registers.
That is the limit of counting word by word; the lookup tables used on CPUs without a vector
population count may exceed it. The following lines compare median wall milliseconds with NumPy's
`X.T @ X`, which calls BLAS's `syrk`, so both compute each pair once.

The OpenBLAS kernels in use are printed first. On a CPU that OpenBLAS does not know it falls back to
older kernels; `OPENBLAS_CORETYPE=SkylakeX` selects those for AVX-512.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from pipeline.numerics.bits.kernels import symmetric_joint_counts, unpack_rows
from tests.benchmarks._measure import alternate

N_FEATURES = 512
N_SAMPLES = 2**18
REPEATS = 7
LOOP_STEPS, LOOP_COUNTERS = 1_000_000, 8
WORDS_PER_VECTOR = 8 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 4


def generate_register_loop(typing_context: Any, n_steps: Any) -> Any:
    """Generate a loop that adds the joint ones of two vectors to each of `LOOP_COUNTERS` vectors.

    Empty inline assembly keeps the compiler from noticing that the vectors do not change.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        vector = ir.VectorType(word, WORDS_PER_VECTOR)
        unary = ir.FunctionType(vector, [vector])
        count = cgutils.get_or_insert_function(
            builder.module, unary, f"llvm.ctpop.v{WORDS_PER_VECTOR}i64"
        )
        hide = ir.InlineAsm(unary, "", "=v,0", side_effect=True)
        zeros = ir.Constant(vector, [0] * WORDS_PER_VECTOR)
        counters = [cgutils.alloca_once_value(builder, zeros) for _ in range(LOOP_COUNTERS)]
        left, right = builder.call(hide, [zeros]), builder.call(hide, [zeros])
        with cgutils.for_range(builder, arguments[0]):
            for counter in counters:
                ones = builder.call(count, [builder.and_(builder.call(hide, [left]), right)])
                builder.store(builder.add(builder.load(counter), ones), counter)
        total = zeros
        for counter in counters:
            total = builder.add(total, builder.load(counter))
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.uint64(types.int64), generate


_register_loop: Any = intrinsic(generate_register_loop)


@njit(nogil=True)
def run_register_loop(n_steps: int) -> int:
    """Count the joint ones of `n_steps` times `LOOP_COUNTERS` pairs of vectors."""
    return _register_loop(n_steps)


def count_packed(words: NDArray[np.uint64], n_threads: int) -> NDArray[np.int64]:
    """Split the words among threads, count each share and add up the counts."""
    shares = np.array_split(words, n_threads, axis=1)
    with ThreadPoolExecutor(n_threads) as threads:
        counts: NDArray[np.int64] = np.sum(
            list(threads.map(symmetric_joint_counts, shares)), axis=0
        )
    return counts


def compare_with_register_loop(words: NDArray[np.uint64]) -> None:
    """Print the speeds of pair counting and of the register loop on one core."""
    n_pairs = N_FEATURES * (N_FEATURES + 1) // 2
    calls: list[tuple[Callable[[], object], float]] = [
        (
            partial(run_register_loop, LOOP_STEPS),
            LOOP_STEPS * LOOP_COUNTERS * 64 * WORDS_PER_VECTOR,
        ),
        (partial(symmetric_joint_counts, words), n_pairs * N_SAMPLES),
    ]
    speeds: list[list[float]] = []
    for _ in range(3 * REPEATS):
        speeds.append([])
        for call, work in calls:
            start = time.thread_time()
            call()
            speeds[-1].append(1e-9 * work / (time.thread_time() - start))
    loop, packed = (median(column) for column in zip(*speeds, strict=True))
    ratio = median(pair[1] / pair[0] for pair in speeds)
    print(
        f"1 core: packed {packed:.0f} G pair-samples/s, register loop with "
        f"{64 * WORDS_PER_VECTOR}-bit vectors {loop:.0f} G pair-samples/s, ratio {ratio:.2f}"
    )


def main() -> None:
    """Print the comparisons with the register loop and with BLAS."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, (N_FEATURES, N_SAMPLES // 64), dtype=np.uint64)
    X = unpack_rows(words, N_SAMPLES).astype(np.float32)
    blas_kernels = {library.get("architecture", "?") for library in threadpool_info()}
    print(f"BLAS kernels: {', '.join(sorted(blas_kernels))}")
    n_pairs = N_FEATURES * (N_FEATURES + 1) // 2
    run_register_loop(1)
    symmetric_joint_counts(words)
    compare_with_register_loop(words)
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            np.testing.assert_array_equal(count_packed(words, n_threads), X.T @ X)
            calls = {"packed": partial(count_packed, words, n_threads), "BLAS": lambda: X.T @ X}
            packed, blas = map(median, alternate(calls, REPEATS).values())
        print(
            f"{n_threads} thread(s), {N_FEATURES} features x {N_SAMPLES:,} rows: "
            f"packed {1e3 * packed:.1f} ms, float32 BLAS {1e3 * blas:.1f} ms, "
            f"ratio {blas / packed:.1f}, {n_pairs * N_SAMPLES / packed / 1e9:.0f} G pair-samples/s"
        )


if __name__ == "__main__":
    main()
