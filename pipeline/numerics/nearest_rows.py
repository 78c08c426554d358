"""Exact nearest neighbours among binary rows, from packed bits by XOR and population count.

Distances are 0 or more, and the same whichever way two rows are taken:

* `hamming`: the number of features that differ, ‖x − y‖²; with missing values the share of those
  observed in both, times the number of features.
* `jaccard`: 1 − |x ∧ y| / |x ∨ y| over the features observed in both; 0 where both have no one.

Rows that have no observed feature in common are infinitely far from each other. Distances are
quotients of counts, rounded once, so that equal ones are equal; ties go to the earlier row.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.kernels import popcount

Metric = Literal["hamming", "jaccard"]
"""How far apart two rows are."""
Words = NDArray[np.uint64]
Indices = NDArray[np.int64]
Distances = NDArray[np.float64]

NO_ROW = np.iinfo(np.int64).max
"""In the place of a neighbour that there is not."""
ROWS_AT_ONCE = 1024  # 4 words each: 32 KiB, in the L1 cache while all rows on the left pass
ROWS_LOOKED_AT = 128  # one by one, where the nearest of them is near enough

_kernel = njit(nogil=True, cache=True)


class RowBits(NamedTuple):
    """Rows with the bits of each side by side, 64 features a word.

    Attributes
    ----------
    words
        Values, (ceil(n_features / 64), n_rows), little bit order; 0 where not observed.
    observed
        Mask of the same shape; None where all is observed.
    rows
        The number of each row, rising, (n_rows,).
    parts
        What each row is part of, (n_rows,): rows of one part are no neighbours of each other.
    """

    words: Words
    observed: Words | None
    rows: Indices
    parts: Indices


class Nearest(NamedTuple):
    """The nearest rows found so far: by distance, then by number.

    Attributes
    ----------
    distances
        Rising, infinite where there is none, (n_rows, k).
    indices
        Numbers of the rows, `NO_ROW` where there is none, (n_rows, k).
    """

    distances: Distances
    indices: Indices


def transposed(words: Words, n_rows: int) -> Words:
    """Transpose a matrix of bits.

    Parameters
    ----------
    words
        Packed bits, 64 rows a word, (n_features, n_words).
    n_rows
        Rows to give, from the first.

    Returns
    -------
    Packed bits, 64 features a word, 0 behind the last, (ceil(n_features / 64), n_rows).
    """
    rows = np.empty((-(-len(words) // 64), 64 * words.shape[1]), np.uint64)
    _transpose(np.ascontiguousarray(words), rows)
    return np.ascontiguousarray(rows[:, :n_rows])


def none_found(n_rows: int, k: int) -> Nearest:
    """Begin with no neighbour of any row."""
    return Nearest(np.full((n_rows, k), np.inf), np.full((n_rows, k), NO_ROW))


def take_nearer(
    metric: Metric, n_features: int, left: RowBits, right: RowBits, found: Nearest
) -> None:
    """Put those rows on the right that are nearer among the neighbours of each on the left.

    Parameters
    ----------
    metric
        How far apart two rows are.
    n_features
        Number of features.
    left, right
        The rows.
    found
        The nearest so far of the rows on the left; they are changed in place.
    """
    masked = left.observed is not None or right.observed is not None
    masks = [observed_words(side, n_features) if masked else side.words for side in (left, right)]
    _take_nearer(
        metric == "jaccard",
        masked,
        n_features,
        (left.words, masks[0], left.parts),
        (right.words, masks[1], right.rows, right.parts),
        *found,
    )


def observed_words(side: RowBits, n_features: int) -> Words:
    """Give the mask of rows, also where all is observed."""
    if side.observed is not None:
        return side.observed
    mask = np.full(side.words.shape, ~np.uint64(0))
    if n_features % 64:
        mask[-1] >>= np.uint64(64 - n_features % 64)
    return mask


@_kernel
def _transpose(words: Words, rows: Words) -> None:
    block = np.empty(64, np.uint64)
    n_features, n_words = words.shape
    for first in range(0, n_features, 64):
        n_here = min(64, n_features - first)
        for w in range(n_words):
            for i in range(n_here):
                block[i] = words[first + i, w]
            block[n_here:] = 0
            _transpose_block(block)
            rows[first // 64, 64 * w : 64 * w + 64] = block


@_kernel
def _transpose_block(block: Words) -> None:
    """Transpose 64 × 64 bits by halves [Warren, Hacker's Delight, 2nd ed., section 7-3]."""
    mask, width = np.uint64(0xFFFFFFFF), 32
    while width:
        shift = np.uint64(width)
        for first in range(0, 64, 2 * width):
            for i in range(first, first + width):
                change = ((block[i] >> shift) ^ block[i + width]) & mask
                block[i] ^= change << shift
                block[i + width] ^= change
        width //= 2
        mask ^= mask << np.uint64(width)


@_kernel
def _take_nearer(
    jaccard: bool,
    masked: bool,
    n_features: int,
    left: tuple[Words, Words, Indices],
    right: tuple[Words, Words, Indices, Indices],
    distances: Distances,
    indices: Indices,
) -> None:
    """Go over the right strip by strip, so that it stays in cache while all on the left pass."""
    own, own_seen, own_parts = left
    counts = np.empty((3, ROWS_AT_ONCE), np.uint64)
    far = np.empty(ROWS_AT_ONCE)
    # Whole numbers are quicker to compare than fractions, and the bits of those of 0 or more are
    # in the same order.
    whole = not (jaccard or masked)
    keys = (counts[0] if whole else far.view(np.uint64)).reshape(-1, ROWS_LOOKED_AT)
    ones_of_own = _ones(own)
    for start in range(0, len(right[2]), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        strip, seen = right[0][:, some].copy(), right[1][:, some].copy()
        rows, parts = right[2][some], right[3][some]
        ones = _ones(strip)
        for i in range(len(own_parts)):
            if masked:
                _count_observed(own, own_seen, i, strip, seen, counts)
            else:
                _count_differing(own, i, strip, counts[0])
            if jaccard and not masked:
                _count_either(ones_of_own[i], ones, counts)
            if not whole:
                _divide(jaccard, masked, n_features, counts, far)
            _insert(whole, keys, far, rows, parts, own_parts[i], distances, indices, i)


@_kernel
def _ones(strip: Words) -> Words:
    """Count the ones of each row."""
    ones = np.zeros(strip.shape[1], np.uint64)
    for w in range(len(strip)):
        for j in range(strip.shape[1]):
            ones[j] += popcount(strip[w, j])
    return ones


@_kernel
def _count_differing(own: Words, i: int, strip: Words, differ: Words) -> None:
    """Count the features that differ from those of a row, four words at a time."""
    n_words, n_rows = strip.shape
    n_fours = n_words // 4 * 4
    differ[:] = 0
    for w in range(0, n_fours, 4):
        a, b, c, d = own[w, i], own[w + 1, i], own[w + 2, i], own[w + 3, i]
        p, q, r, s = strip[w], strip[w + 1], strip[w + 2], strip[w + 3]
        for j in range(n_rows):
            here = popcount(a ^ p[j]) + popcount(b ^ q[j])
            differ[j] += here + popcount(c ^ r[j]) + popcount(d ^ s[j])
    for w in range(n_fours, n_words):
        a, p = own[w, i], strip[w]
        for j in range(n_rows):
            differ[j] += popcount(a ^ p[j])


@_kernel
def _count_either(ones_of_row: int, ones: Words, counts: Words) -> None:
    """Count the features that are one in either: |x ∨ y| = (|x| + |y| + |x ⊕ y|) / 2."""
    for j in range(len(ones)):
        counts[1, j] = (ones_of_row + ones[j] + counts[0, j]) >> np.uint64(1)


@_kernel
def _count_observed(
    own: Words, own_seen: Words, i: int, strip: Words, seen: Words, counts: Words
) -> None:
    """Count among the features observed in both those that differ, are one in either, and all."""
    n_words, n_rows = strip.shape
    counts[:] = 0
    for w in range(n_words):
        a, a_seen = own[w, i], own_seen[w, i]
        for j in range(n_rows):
            both = a_seen & seen[w, j]
            counts[0, j] += popcount((a ^ strip[w, j]) & both)
            counts[1, j] += popcount((a | strip[w, j]) & both)
            counts[2, j] += popcount(both)


@_kernel
def _divide(jaccard: bool, masked: bool, n_features: int, counts: Words, far: Distances) -> None:
    """Make quotients of counts."""
    one = np.uint64(1)
    if jaccard:
        for j in range(len(far)):
            far[j] = np.float64(counts[0, j]) / np.float64(max(counts[1, j], one))
    else:
        for j in range(len(far)):
            differ = np.float64(n_features) * np.float64(counts[0, j])
            far[j] = differ / np.float64(max(counts[2, j], one))
    if masked:
        for j in range(len(far)):
            far[j] = far[j] if counts[2, j] else np.inf


@_kernel
def _insert(
    whole: bool,
    keys: Words,
    far: Distances,
    rows: Indices,
    parts: Indices,
    own_part: int,
    distances: Distances,
    indices: Indices,
    i: int,
) -> None:
    """Insert the rows that are nearer than the last into a row's list of the nearest."""
    last = distances.shape[1] - 1
    bits = distances.view(np.uint64)
    for group in range(-(-len(rows) // ROWS_LOOKED_AT)):
        least = ~np.uint64(0)
        for j in range(ROWS_LOOKED_AT):
            least = min(least, keys[group, j])
        limit = _whole_key(distances[i, last]) if whole else bits[i, last]
        first = group * ROWS_LOOKED_AT
        if least < limit or (least == limit and rows[first] < indices[i, last]):
            for j in range(min(ROWS_LOOKED_AT, len(rows) - first)):
                if keys[group, j] <= limit and parts[first + j] != own_part:
                    distance = np.float64(keys[group, j]) if whole else far[first + j]
                    _insert_row(distance, rows[first + j], distances, indices, i)


@_kernel
def _whole_key(distance: float) -> np.uint64:
    """Round up, as a whole number is below a fraction if it is below the next whole one."""
    return np.uint64(np.ceil(distance)) if distance < np.inf else ~np.uint64(0)


@_kernel
def _insert_row(far: float, row: int, distances: Distances, indices: Indices, i: int) -> None:
    """Insert a row unless it comes behind the last."""
    place = distances.shape[1]
    while place and _is_before(far, row, distances[i, place - 1], indices[i, place - 1]):
        place -= 1
        if place + 1 < distances.shape[1]:
            distances[i, place + 1] = distances[i, place]
            indices[i, place + 1] = indices[i, place]
    if place < distances.shape[1]:
        distances[i, place], indices[i, place] = far, row


@_kernel
def _is_before(far: float, row: int, other_far: float, other: int) -> bool:
    return far < other_far or (far == other_far and row < other)
