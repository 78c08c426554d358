"""Joint counts of all pairs of features: packed bits against float32 BLAS, on the same threads.

Run `python -m tests.benchmarks.pair_counts`. NumPy gives `X.T @ X` to BLAS's `syrk`, so both sides
compute each pair once. Which kernels OpenBLAS chose is printed: on a CPU it does not know it falls
back to older ones, and `OPENBLAS_CORETYPE=SkylakeX` asks for its AVX-512 ones.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from pipeline.numerics.bits.kernels import symmetric_joint_counts, unpack_rows

N_FEATURES = 512
N_SAMPLES = 2**18
REPEATS = 7


def count_packed(words: NDArray[np.uint64], n_threads: int) -> NDArray[np.int64]:
    """Count each thread's share of the words apart and add up."""
    shares = np.array_split(words, n_threads, axis=1)
    with ThreadPoolExecutor(n_threads) as threads:
        counts: NDArray[np.int64] = np.sum(
            list(threads.map(symmetric_joint_counts, shares)), axis=0
        )
    return counts


def alternate(*calls: Callable[[], object]) -> list[float]:
    """Return each call's median seconds; taking turns, they meet the same neighbours."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, own in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return [median(own) for own in seconds]


def main() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, (N_FEATURES, N_SAMPLES // 64), dtype=np.uint64)
    X = unpack_rows(words, N_SAMPLES).astype(np.float32)
    blas_kernels = {library.get("architecture", "?") for library in threadpool_info()}
    print(f"BLAS kernels: {', '.join(sorted(blas_kernels))}")
    n_pairs = N_FEATURES * (N_FEATURES + 1) // 2
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            np.testing.assert_array_equal(count_packed(words, n_threads), X.T @ X)
            packed, blas = alternate(partial(count_packed, words, n_threads), lambda: X.T @ X)
        print(
            f"{n_threads} thread(s), {N_FEATURES} features x {N_SAMPLES} rows: "
            f"packed {1e3 * packed:.1f} ms, float32 BLAS {1e3 * blas:.1f} ms, "
            f"ratio {blas / packed:.1f}, {n_pairs * N_SAMPLES / packed / 1e9:.0f} G pair-samples/s"
        )


if __name__ == "__main__":
    main()
