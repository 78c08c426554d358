"""Exact nearest neighbours among binary rows, from packed bits by XOR and population count.

Distances are at least 0 and symmetric:

* `hamming`: the number of features that differ, ‖x − y‖². With missing values, the differing share
  of the features observed in both, times the number of features.
* `jaccard`: 1 − |x ∧ y| / |x ∨ y| over the features observed in both; 0 if neither has a one.

Rows without a common observed feature are infinitely far apart. Distances are quotients of counts,
rounded once, so that equal distances compare equal. Ties go to the earlier row.

The kernels compare rows with a strip of other rows, which stays in the L1 cache while row after row
passes. Memory begins at a cache line, because vectors that cross one take twice as long to load.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.bits.kernels import popcount
from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.intrinsics import wide_vectors

Words = NDArray[np.uint64]
Distances = NDArray[np.float64]

STRIP = 512
"""Rows of a strip: with 4 words each it takes 16 KiB, and its masks as much."""
GROUP = 64
"""Rows of a strip that share one minimum: as many as a word has bits."""
_LINE = 64
_QUAD = 4  # words counted at once

_kernel = njit(nogil=True, cache=True)


@_kernel
def allocate_aligned(n_words: int) -> Words:
    """Allocate memory that begins at a cache line."""
    memory = np.empty(n_words + _LINE // 8, np.uint64)
    start = -(memory.ctypes.data // 8) % (_LINE // 8)
    return memory[start : start + n_words]


@_kernel
def pad_rows(words: Words, n_rows: int) -> Words:
    """Copy rows, (n_words, at most n_rows), zero-padded to n_rows and to whole quads of words."""
    n_words = max(_QUAD, -(-len(words) // _QUAD) * _QUAD)
    copied = allocate_aligned(n_words * n_rows).reshape(n_words, n_rows)
    copied[:] = 0
    for w in range(len(words)):  # Numba takes seconds to compile an assignment of arrays
        for j in range(words.shape[1]):
            copied[w, j] = words[w, j]
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
    """Count the features that differ from row i; return the minimum, and set that of each group."""
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
    """Return the minimum key, and set that of each group."""
    wide_vectors()
    nearest = ~np.uint64(0)
    for group in range(len(minima)):
        least, some = ~np.uint64(0), keys[group * GROUP : (group + 1) * GROUP]
        for j in range(len(some)):  # LLVM does not vectorise a constant number of steps
            least = min(least, some[j])
        minima[group] = least
        nearest = min(nearest, least)
    return nearest


@_kernel
def count_below(keys: Words, key: np.uint64) -> int:
    """Count the keys below a key."""
    wide_vectors()
    n = 0
    for j in range(len(keys)):
        n += keys[j] < key
    return n


@_kernel
def count_observed(
    jaccard: bool, own: Words, own_seen: Words, i: int, strip: Words, seen: Words, counts: Words
) -> None:
    """Count, among the features observed in both rows, those that differ and those to divide by.

    The divisor counts the features with a one in either row for Jaccard, and all of them otherwise.
    `counts[2]` is 0 if no feature is observed in both.
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
    """Count the features with a one in either row: |x ∨ y| = (|x| + |y| + |x ⊕ y|) / 2."""
    wide_vectors()
    for j in range(STRIP):
        counts[1, j] = (ones_of_row + ones[j] + counts[0, j]) >> np.uint64(1)


@_kernel
def can_be_near(times: float, counts: Words, distance: float) -> bool:
    """Check without division whether a quotient may be at most `distance`; False is certain."""
    wide_vectors()
    n, distance = 0, distance * (1 + 2.0**-50)  # the factor exceeds all rounding errors
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


Metric = Literal["hamming", "jaccard"]
"""Distance between two rows."""
Indices = NDArray[np.int64]

NO_ROW = np.iinfo(np.int64).max
"""Index that stands for a missing neighbour."""

_MAX_KEY = ~np.uint64(0)
_ONE = np.uint64(1)

_inlined = njit(nogil=True, cache=True, forceinline=True)  # a call counts references to its arrays


class NumberedRows(NamedTuple):
    """Rows that may be neighbours.

    Attributes
    ----------
    bits
        Their bits.
    numbers
        The number of each, rising, (n_rows,).
    parts
        The part each row belongs to, (n_rows,): rows of one part are no neighbours of each other.
    """

    bits: BitRows
    numbers: Indices
    parts: Indices

    def take(self, places: Indices) -> NumberedRows:
        """Select rows."""
        return NumberedRows(self.bits.take(places), self.numbers[places], self.parts[places])


class NearestRows(NamedTuple):
    """The nearest rows so far: by distance, then by number.

    Attributes
    ----------
    distances
        Rising, infinite for missing neighbours, (n_rows, k).
    indices
        Numbers of the rows, `NO_ROW` for missing neighbours, (n_rows, k).
    """

    distances: Distances
    indices: Indices


def empty_nearest(n_rows: int, k: int) -> NearestRows:
    """Make lists of k missing neighbours for each row."""
    return NearestRows(np.full((n_rows, k), np.inf), np.full((n_rows, k), NO_ROW))


def merge_nearest(
    metric: Metric, left: NumberedRows, right: NumberedRows, found: NearestRows
) -> None:
    """Merge the rows on the right into the lists of nearest rows on the left.

    Parameters
    ----------
    metric
        Distance between two rows.
    left, right
        The rows.
    found
        The nearest rows so far of the rows on the left; changed in place.
    """
    sides = left.bits, right.bits
    masked = any(side.observed is not None for side in sides)
    words = [np.ascontiguousarray(side.words) for side in sides]
    masks = [np.ascontiguousarray(side.mask) for side in sides] if masked else words
    _merge_nearest(
        metric == "jaccard",
        masked,
        left.bits.n_features,
        (words[0], masks[0], left.parts),
        (words[1], masks[1], right.numbers, right.parts),
        *found,
    )


@_kernel
def _merge_nearest(
    jaccard: bool,
    masked: bool,
    n_features: int,
    left: tuple[Words, Words, Indices],
    right: tuple[Words, Words, Indices, Indices],
    distances: Distances,
    indices: Indices,
) -> None:
    """Visit the right strip by strip, so that a strip stays in cache while all left rows pass."""
    wide_vectors()
    own, own_seen, own_parts = left
    n_left, times = len(own_parts), np.float64(1 if jaccard else n_features)
    own, own_seen, ones_of_own = (
        pad_rows(own, n_left),
        pad_rows(own_seen, n_left),
        count_row_ones(own),
    )
    # Whole numbers are faster to compare than fractions; the bits of non-negative floats have the
    # same order as the numbers.
    whole = not (jaccard or masked)
    counts, far = (
        allocate_aligned(3 * STRIP).reshape(3, STRIP),
        allocate_aligned(STRIP).view(np.float64),
    )
    keys, minima = counts[0] if whole else far.view(np.uint64), allocate_aligned(STRIP // GROUP)
    counts[2] = 1  # without missing values, all rows have features in common
    bits, k = distances.view(np.uint64), distances.shape[1]
    for start in range(0, len(right[2]), STRIP):
        some = slice(start, start + STRIP)
        strip, seen = pad_rows(right[0][:, some], STRIP), pad_rows(right[1][:, some], STRIP)
        rows, parts = right[2][some], right[3][some]
        ones, lowest, highest = count_row_ones(strip), parts.min(), parts.max()
        for i in range(n_left):
            if masked:
                count_observed(jaccard, own, own_seen, i, strip, seen, counts)
            else:
                nearest = count_differences(own, i, strip, counts[0], minima)
            if jaccard and not masked:
                count_either(ones_of_own[i], ones, counts)
            if not whole:
                last = distances[i, k - 1]
                if last < np.inf and not can_be_near(times, counts, last):
                    continue
                divide_counts(times, counts, far)
            some_left_out = lowest <= own_parts[i] <= highest or len(rows) < STRIP
            if some_left_out:
                _exclude_own_part(own_parts[i], parts, keys)
            if some_left_out or not whole:
                nearest = find_minima(keys, minima)
            reach = _candidate_limit(whole, rows[0], distances, bits, indices, i)
            if nearest < reach and distances[i, k - 1] == np.inf:
                reach = min(reach, _kth_key_limit(k, keys, nearest))
            if nearest < reach:
                _insert_candidates(whole, keys, far, minima, rows, reach, distances, indices, i)


@_kernel
def _exclude_own_part(own_part: int, parts: Indices, keys: Words) -> None:
    """Set the keys of rows of the same part, and of the padding, above any distance."""
    wide_vectors()
    for j in range(len(parts)):
        keys[j] = _MAX_KEY if parts[j] == own_part else keys[j]
    keys[len(parts) :] = _MAX_KEY


@_inlined
def _insert_candidates(
    whole: bool,
    keys: Words,
    far: Distances,
    minima: Words,
    rows: Indices,
    reach: np.uint64,
    distances: Distances,
    indices: Indices,
    i: int,
) -> None:
    """Insert the rows whose keys are below `reach` into a row's list of nearest rows."""
    last = distances.shape[1] - 1
    for group in range(len(minima)):
        near = _below_mask(keys, group, reach) if minima[group] < reach else np.uint64(0)
        while near:
            j = group * GROUP + np.int64(popcount((near - _ONE) & ~near))
            near &= near - _ONE
            distance = np.float64(keys[j]) if whole else far[j]
            if _is_before(distance, rows[j], distances[i, last], indices[i, last]):
                _insert_row(distance, rows[j], distances, indices, i)


@_inlined
def _candidate_limit(
    whole: bool, row: int, distances: Distances, bits: Words, indices: Indices, i: int
) -> np.uint64:
    """Return the key that rows to insert must be below, if none is earlier than `row`."""
    last = distances.shape[1] - 1
    if whole:
        # A whole number is below a fraction iff it is below the next whole number.
        far = distances[i, last]
        key = np.uint64(np.ceil(far)) if far < np.inf else _MAX_KEY - _ONE
    else:
        key = bits[i, last]
    return key + np.uint64(row < indices[i, last])


@_kernel
def _kth_key_limit(k: int, keys: Words, low: np.uint64) -> np.uint64:
    """Find a limit with at least k keys below it, and not many more; no key is below `low`."""
    high = np.uint64(keys[:k].max())
    if k > len(keys) or high == _MAX_KEY:
        return _MAX_KEY
    high += _ONE
    while high - low > _ONE:
        middle = low + ((high - low) >> _ONE)
        n = count_below(keys, middle)
        if n < k:
            low = middle
        else:
            high = middle
        if k <= n <= 2 * k:
            break
    return high


@_inlined
def _below_mask(keys: Words, group: int, reach: np.uint64) -> np.uint64:
    """Return a word with one bit per row of a group, 1 if its key is below `reach`."""
    below = np.uint64(0)
    for j in range(GROUP):
        below |= np.uint64(keys[group * GROUP + j] < reach) << np.uint64(j)
    return below


@_inlined
def _insert_row(far: float, row: int, distances: Distances, indices: Indices, i: int) -> None:
    """Insert a row that precedes the last one of the list."""
    place = distances.shape[1] - 1
    while place and _is_before(far, row, distances[i, place - 1], indices[i, place - 1]):
        distances[i, place] = distances[i, place - 1]
        indices[i, place] = indices[i, place - 1]
        place -= 1
    distances[i, place], indices[i, place] = far, row


@_inlined
def _is_before(far: float, row: int, other_far: float, other: int) -> bool:
    return far < other_far or (far == other_far and row < other)
