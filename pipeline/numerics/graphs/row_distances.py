"""Distances of one row to a strip of others, rows side by side: counts, then quotients of counts.

The strip stays in the L1 cache while row after row comes by. Memory begins at a cache line, as
vectors that lie across two take twice as long to load.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.bits.kernels import popcount
from pipeline.numerics.intrinsics import wide_vectors

Words = NDArray[np.uint64]
Distances = NDArray[np.float64]

STRIP = 512
"""Rows of a strip: 4 words each are 16 KiB, and masks as many."""
GROUP = 64
"""Rows of a strip whose minimum is found, a word of bits."""
_LINE = 64
_QUAD = 4  # words counted at once

_kernel = njit(nogil=True, cache=True)


@_kernel
def allocate_aligned(n_words: int) -> Words:
    """Give memory that begins at a cache line."""
    memory = np.empty(n_words + _LINE // 8, np.uint64)
    start = -(memory.ctypes.data // 8) % (_LINE // 8)
    return memory[start : start + n_words]


@_kernel
def pad_rows(words: Words, n_rows: int) -> Words:
    """Copy rows, (n_words, at most n_rows), with zeros behind and below, for whole quads."""
    n_words = max(_QUAD, -(-len(words) // _QUAD) * _QUAD)
    copied = allocate_aligned(n_words * n_rows).reshape(n_words, n_rows)
    copied[:] = 0
    copied[: len(words), : words.shape[1]] = words
    return copied


@_kernel
def count_row_ones(words: Words) -> Words:
    """Count the ones of each row."""
    ones = np.zeros(words.shape[1], np.uint64)
    for w in range(len(words)):
        for j in range(words.shape[1]):
            ones[j] += popcount(words[w, j])
    return ones


@_kernel
def count_differences(own: Words, i: int, strip: Words, differ: Words, minima: Words) -> np.uint64:
    """Count the features that differ from those of a row; find the least, also of each group."""
    wide_vectors()
    last, nearest = len(strip) - _QUAD, ~np.uint64(0)
    if last:
        differ[:] = 0
    for w in range(0, last, _QUAD):
        a, b, c, d = own[w, i], own[w + 1, i], own[w + 2, i], own[w + 3, i]
        for j in range(STRIP):
            here = popcount(a ^ strip[w, j]) + popcount(b ^ strip[w + 1, j])
            differ[j] += here + popcount(c ^ strip[w + 2, j]) + popcount(d ^ strip[w + 3, j])
    a, b, c, d = own[last, i], own[last + 1, i], own[last + 2, i], own[last + 3, i]
    for group in range(STRIP // GROUP):
        least = ~np.uint64(0)
        for j in range(group * GROUP, (group + 1) * GROUP):
            here = popcount(a ^ strip[last, j]) + popcount(b ^ strip[last + 1, j])
            here += popcount(c ^ strip[last + 2, j]) + popcount(d ^ strip[last + 3, j])
            if last:
                here += differ[j]
            differ[j] = here
            least = min(least, here)
        minima[group] = least
        nearest = min(nearest, least)
    return nearest


@_kernel
def find_minima(keys: Words, minima: Words) -> np.uint64:
    """Find the least, also of each group."""
    wide_vectors()
    nearest = ~np.uint64(0)
    for group in range(len(minima)):
        least, some = ~np.uint64(0), keys[group * GROUP : (group + 1) * GROUP]
        for j in range(len(some)):  # of a constant number LLVM makes no vectors
            least = min(least, some[j])
        minima[group] = least
        nearest = min(nearest, least)
    return nearest


@_kernel
def count_below(keys: Words, key: np.uint64) -> int:
    """Count the keys below one."""
    wide_vectors()
    n = 0
    for j in range(len(keys)):
        n += keys[j] < key
    return n


@_kernel
def count_observed(
    jaccard: bool, own: Words, own_seen: Words, i: int, strip: Words, seen: Words, counts: Words
) -> None:
    """Count among the features observed in both those that differ, and those to divide by.

    These are the ones in either, or all; what comes third is 0 where no feature is.
    """
    wide_vectors()
    counts[:] = 0
    for w in range(0, len(strip), 2):
        a, b, a_seen, b_seen = own[w, i], own[w + 1, i], own_seen[w, i], own_seen[w + 1, i]
        a_of, b_of = (a, b) if jaccard else (~np.uint64(0), ~np.uint64(0))
        for j in range(STRIP):
            p, q, p_both, q_both = strip[w, j], strip[w + 1, j], seen[w, j], seen[w + 1, j]
            p_both, q_both = a_seen & p_both, b_seen & q_both
            counts[0, j] += popcount((a ^ p) & p_both) + popcount((b ^ q) & q_both)
            counts[1, j] += popcount((a_of | p) & p_both) + popcount((b_of | q) & q_both)
            counts[2, j] |= p_both | q_both


@_kernel
def count_either(ones_of_row: np.uint64, ones: Words, counts: Words) -> None:
    """Count the features that are one in either: |x ∨ y| = (|x| + |y| + |x ⊕ y|) / 2."""
    wide_vectors()
    for j in range(STRIP):
        counts[1, j] = (ones_of_row + ones[j] + counts[0, j]) >> np.uint64(1)


@_kernel
def can_be_near(times: float, counts: Words, distance: float) -> bool:
    """Tell without dividing whether a quotient may be at most this; that none is, is certain."""
    wide_vectors()
    n, distance = 0, distance * (1 + 2.0**-50)  # more than all that is rounded
    for j in range(STRIP):
        n += 1 if times * np.float64(counts[0, j]) <= distance * np.float64(counts[1, j]) else 0
    return n > 0


@_kernel
def divide_counts(times: float, counts: Words, far: Distances) -> None:
    """Divide the first counts, times a number, by the second; infinite where the third is 0."""
    wide_vectors()
    for j in range(STRIP):
        differ, of = np.float64(counts[0, j]), np.float64(max(counts[1, j], np.uint64(1)))
        far[j] = times * differ / of if counts[2, j] else np.inf
