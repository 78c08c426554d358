"""Pair counts of weighted rows against those of rows without weights.

python -m tests.benchmarks weighted_counts [ROWS]

Prints the CPU seconds of `PairCounts.from_block` on one core without weights, with 8-bit weights,
and with weights of up to 20 bits of which 99 % are 1. Ratios are medians over runs that alternate.
Default: 1,000,000 rows.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from statistics import median

import numpy as np

from pipeline.data.blocks import BinaryBlock
from pipeline.statistics.counts import PairCounts

REPEATS = 5
TARGET = 9


def measure_seconds(block: BinaryBlock) -> float:
    """Return the CPU seconds that counting the pairs of a block takes."""
    start = time.thread_time()
    PairCounts.from_block(block, pooled=True)
    return time.thread_time() - start


def main(n_rows: int = 1_000_000) -> None:
    """Print the seconds and ratios for 256 and 1,000 features."""
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(n_rows) < 0.01, rng.integers(1, 1 << 20, n_rows), 1)
    weights_by_name = {"8-bit weights": rng.integers(0, 256, n_rows), "1 % above 1": rare}
    for n_features in (256, 1000):
        words = rng.integers(0, 2**64, (n_features, -(-n_rows // 64)), np.uint64)
        words[:, -1] &= np.uint64((1 << (n_rows - 1) % 64 + 1) - 1)
        plain = BinaryBlock(words, None, n_rows, row_numbers=np.arange(n_rows))
        blocks = [plain, *(replace(plain, weights=w) for w in weights_by_name.values())]
        for block in blocks:  # compile the kernels
            measure_seconds(block.take_rows(np.arange(64)))
        seconds = np.array([[measure_seconds(b) for b in blocks] for _ in range(REPEATS)])
        size = f"{n_features:,} features x {n_rows:,} rows"
        print(f"{size}: {median(seconds[:, 0]):.3f} s without weights")
        for name, column in zip(weights_by_name, seconds.T[1:], strict=True):
            ratio = median(column / seconds[:, 0])
            target = f", target at most {TARGET}" if name == "8-bit weights" else ""
            print(f"{size}, {name}: {median(column):.3f} s, ratio {ratio:.2f}{target}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
