"""Exact nearest neighbours among binary rows, and the graphs that they form.

Distances are at least 0 and symmetric:

* `hamming`: the number of features that differ, ‖x − y‖². With missing values, the differing share
  of the features observed in both, times the number of features.
* `jaccard`: 1 − |x ∧ y| / |x ∨ y| over the features observed in both; 0 if neither has a one.

Rows without a common observed feature are infinitely far apart. Distances are quotients of counts,
rounded once, so that equal distances compare equal. Ties go to the earlier row.

The kernels compare each row in turn with a strip of other rows, which stays in the L1 cache. They
count by XOR and population count on packed bits, or, if the CPU has no population count for vectors
and no value is missing, by looking up four features at once. Rows that are compared with themselves
are counted once per pair.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import label_map
from pipeline.numerics.bits.lookups import (
    COUNT_BY_LOOKUP,
    LOOKUP_COLUMNS,
    LOOKUP_ROWS,
    count_by_lookup,
    make_lookup_table,
    split_left,
    split_right,
)
from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.intrinsics import allocate_aligned, mark_below, popcount, wide_vectors
from pipeline.numerics.spectra.lanczos import leading_eigenpairs_except
from pipeline.numerics.spectra.linalg import fix_signs

Words = NDArray[np.uint64]
Distances = NDArray[np.float64]

STRIP = 512
"""Rows of a strip: with 4 words each it takes 16 KiB, and its masks another 16 KiB."""
_GROUP = 64  # rows of a strip that are compared with a limit at once: one per bit of a word
_QUAD = 4  # words counted at once

_kernel = njit(nogil=True, cache=True)
Metric = Literal["hamming", "jaccard"]
"""Distance between two rows."""
Indices = NDArray[np.int64]
NO_ROW = np.iinfo(np.int64).max
"""Index that stands for a missing neighbour."""
_MAX_KEY = ~np.uint64(0)
_FAR = int(np.iinfo(np.uint16).max)  # count of a pair that must not enter a list
_ONE = np.uint64(1)
_TILE, _WIDTH = LOOKUP_ROWS, LOOKUP_COLUMNS
_BLOCK = 2048  # left rows of a block, a multiple of `_WIDTH`
_NUMBER_BITS = np.uint64(48)
_NUMBER_MASK = np.uint64((1 << 48) - 1)
_inlined = njit(nogil=True, cache=True, forceinline=True)  # a call counts references to its arrays
Array = NDArray[np.float64]
_ROWS_PER_TASK = 1024  # comparing them with 200,000 rows takes half a second


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
def count_differences(own: Words, i: int, strip: Words, differ: Words) -> None:
    """Count the features that differ between row i and each row of the strip."""
    wide_vectors()
    differ[:] = 0
    for w in range(0, len(strip), _QUAD):
        a, b, c, d = own[w, i], own[w + 1, i], own[w + 2, i], own[w + 3, i]
        for j in range(STRIP):
            count = popcount(a ^ strip[w, j]) + popcount(b ^ strip[w + 1, j])
            differ[j] += count + popcount(c ^ strip[w + 2, j]) + popcount(d ^ strip[w + 3, j])


@_kernel
def find_minima(keys: Words, minima: Words) -> np.uint64:
    """Set the minimum key of each group, and return the least."""
    wide_vectors()
    nearest = ~np.uint64(0)
    for group in range(len(minima)):
        least, members = ~np.uint64(0), keys[group * _GROUP : (group + 1) * _GROUP]
        for j in range(len(members)):  # LLVM does not vectorise a constant number of steps
            least = min(least, members[j])
        minima[group] = least
        nearest = min(nearest, least)
    return nearest


@_kernel
def count_observed(
    jaccard: bool,
    own: Words,
    own_mask: Words,
    i: int,
    strip: Words,
    strip_mask: Words,
    counts: Words,
) -> None:
    """Count features observed in both rows: `counts[0]` of them differ, `counts[1]` is the divisor.

    For Jaccard, the divisor is the number of features with a one in either row; otherwise it is the
    number of all of them. `counts[2]` is 0 if no feature is observed in both rows.
    """
    wide_vectors()
    counts[:] = 0
    for w in range(0, len(strip), 2):
        a, b, a_mask, b_mask = own[w, i], own[w + 1, i], own_mask[w, i], own_mask[w + 1, i]
        a_base, b_base = (a, b) if jaccard else (~np.uint64(0), ~np.uint64(0))
        for j in range(STRIP):
            p, q, p_mask, q_mask = (
                strip[w, j],
                strip[w + 1, j],
                strip_mask[w, j],
                strip_mask[w + 1, j],
            )
            p_mask, q_mask = a_mask & p_mask, b_mask & q_mask
            counts[0, j] += popcount((a ^ p) & p_mask) + popcount((b ^ q) & q_mask)
            counts[1, j] += popcount((a_base | p) & p_mask) + popcount((b_base | q) & q_mask)
            counts[2, j] |= p_mask | q_mask


@_kernel
def count_either(ones_of_row: np.uint64, ones: Words, counts: Words) -> None:
    """Count the features with a one in either row: |x ∨ y| = (|x| + |y| + |x ⊕ y|) / 2."""
    wide_vectors()
    for j in range(STRIP):
        counts[1, j] = (ones_of_row + ones[j] + counts[0, j]) >> np.uint64(1)


@_kernel
def can_be_near(times: float, counts: Words, distance: float) -> bool:
    """Check without division if a quotient may be at most `distance`; only False is certain."""
    wide_vectors()
    n, distance = 0, distance * (1 + 2.0**-50)  # the factor exceeds all rounding errors
    for j in range(STRIP):
        n += 1 if times * np.float64(counts[0, j]) <= distance * np.float64(counts[1, j]) else 0
    return n > 0


@_kernel
def divide_counts(times: float, counts: Words, distances: Distances) -> None:
    """Compute times · counts[0] / counts[1], infinite where counts[2] is 0."""
    wide_vectors()
    for j in range(STRIP):
        differ, divisor = np.float64(counts[0, j]), np.float64(max(counts[1, j], np.uint64(1)))
        distances[j] = times * differ / divisor if counts[2, j] else np.inf


class NumberedRows(NamedTuple):
    """Rows that may be neighbours."""

    bits: BitRows
    numbers: Indices  # number of each row, rising, (n_rows,)
    # Part that each row belongs to, (n_rows,). Rows of the same part are never neighbours.
    parts: Indices

    def take(self, places: Indices) -> NumberedRows:
        """Select rows."""
        return NumberedRows(self.bits.take(places), self.numbers[places], self.parts[places])


class NearestRows(NamedTuple):
    """Lists of nearest rows, by distance, then by number."""

    distances: Distances  # rising, infinite for missing neighbours, (n_rows, k)
    indices: Indices  # numbers of the rows, `NO_ROW` for missing neighbours, (n_rows, k)


def empty_nearest(n_rows: int, k: int) -> NearestRows:
    """Make lists of k missing neighbours for each row."""
    return NearestRows(np.full((n_rows, k), np.inf), np.full((n_rows, k), NO_ROW))


def merge_nearest(
    metric: Metric, left: NumberedRows, right: NumberedRows, nearest: NearestRows
) -> None:
    """Merge the right rows into `nearest`, the lists of each left row's nearest rows, in place.

    If both sides are the same object, counting takes half the time.
    """
    sides = left.bits, right.bits
    masked = any(side.observed is not None for side in sides)
    words = [np.ascontiguousarray(side.words) for side in sides]
    if metric == "hamming" and not masked and left.bits.n_features < _FAR - 1:
        own, others = (words[0], left.parts), (words[1], right.numbers, right.parts)
        _merge_by_counts(left is right, own, others, *nearest)
        return
    masks = [np.ascontiguousarray(side.mask) for side in sides] if masked else words
    _merge_by_quotients(
        metric == "jaccard",
        masked,
        left.bits.n_features,
        (words[0], masks[0], left.parts),
        (words[1], masks[1], right.numbers, right.parts),
        *nearest,
    )


@_kernel
def _copy_rows(words: Words, start: int, stop: int, n_words: int) -> Words:
    """Copy rows so that the words of a row are contiguous, zero-padded to whole tiles of rows."""
    rows = np.zeros((-(-(stop - start) // _TILE) * _TILE, n_words), np.uint64)
    for w in range(len(words)):
        for i in range(stop - start):
            rows[i, w] = words[w, start + i]
    return rows


@_kernel
def _copy_left(words: Words, start: int, stop: int) -> Any:
    """Copy rows for `_count_by_popcount`, zero-padded to whole quads of words."""
    return _copy_rows(words, start, stop, -(-len(words) // _QUAD) * _QUAD)


@_kernel
def _copy_right(words: Words, start: int, stop: int) -> Any:
    """Copy at most `_WIDTH` rows for `_count_by_popcount`."""
    return pad_rows(words[:, start:stop], _WIDTH)


@_inlined
def _count_by_popcount(left: Any, i: int, right: Any, counts: Any) -> None:
    """Count the features that differ between each of `_TILE` rows from i and all right rows."""
    wide_vectors()
    for t in range(_TILE):
        for w in range(0, len(right), _QUAD):
            a, b, c, d = left[i + t, w], left[i + t, w + 1], left[i + t, w + 2], left[i + t, w + 3]
            for j in range(_WIDTH):
                count = popcount(a ^ right[w, j]) + popcount(b ^ right[w + 1, j])
                count += popcount(c ^ right[w + 2, j]) + popcount(d ^ right[w + 3, j])
                counts[t, j] = np.uint16(count) if w == 0 else np.uint16(counts[t, j] + count)


@_kernel
def _split_left(words: Words, start: int, stop: int) -> Any:
    """Split rows into digits for `_count_by_lookup`; also return the table to look up."""
    return make_lookup_table(True), split_left(_copy_rows(words, start, stop, len(words)))


@_kernel
def _split_right(words: Words, start: int, stop: int) -> Any:
    """Split at most `_WIDTH` rows into digits for `_count_by_lookup`."""
    return split_right(_copy_rows(words, start, stop, len(words)))


@_inlined
def _count_by_lookup(left: Any, i: int, right: Any, counts: Any) -> None:
    """Count the features that differ between each of `_TILE` rows from i and all right rows."""
    count_by_lookup(left[0], left[1], i, right, counts)


_prepare_left, _prepare_right, _count_tile = (
    (_split_left, _split_right, _count_by_lookup)
    if COUNT_BY_LOOKUP
    else (_copy_left, _copy_right, _count_by_popcount)
)


@_kernel
def _merge_by_counts(
    symmetric: bool,
    left: tuple[Words, Indices],
    right: tuple[Words, Indices, Indices],
    distances: Distances,
    indices: Indices,
) -> None:
    """Compare blocks of left rows with one strip of right rows after the other.

    If symmetric, pairs are counted once and enter the lists of both rows. Every list meets rows in
    rising order, so that of equally distant rows only the first ones can enter.
    """
    wide_vectors()
    words, parts = left
    other_words, numbers, other_parts = right
    n_left, n_right, k = len(parts), len(numbers), distances.shape[1]
    if n_right == 0:
        return
    counts = allocate_aligned(_TILE * _WIDTH // 4).view(np.uint16).reshape(_TILE, _WIDTH)
    # Entries of new lists are counts and numbers in one word, so that their order is that of words.
    entries = np.full((n_left, k), _MAX_KEY)
    limits = np.zeros(-(-n_left // _WIDTH) * _WIDTH, np.uint16)
    for i in range(n_left):
        limits[i] = _count_limit(distances[i, k - 1], numbers[0] < indices[i, k - 1])
    other_limits = limits if symmetric else np.zeros(_WIDTH, np.uint16)
    for first in range(0, n_left, _BLOCK):
        end = min(first + _BLOCK, n_left)
        block = _prepare_left(words, first, end)
        lowest, highest = parts[first:end].min(), parts[first:end].max()
        for start in range(first if symmetric else 0, n_right, _WIDTH):
            stop = min(start + _WIDTH, n_right)
            strip, strip_parts = _prepare_right(other_words, start, stop), other_parts[start:stop]
            may_share = lowest <= strip_parts.max() and strip_parts.min() <= highest
            limits_start = start if symmetric else 0
            for i in range(first, min(end, stop) if symmetric else end, _TILE):
                _count_tile(block, i - first, strip, counts)
                for row in range(i, min(i + _TILE, end)):
                    if may_share or stop - start < _WIDTH:
                        _exclude_own_part(parts[row], strip_parts, counts[row - i])
                    if symmetric and row >= start:
                        counts[row - i, : row + 1 - start] = _FAR
                    marked = mark_below(counts, row - i, limits[row], other_limits, limits_start)
                    while marked:
                        j = int(popcount((marked - _ONE) & ~marked))
                        marked &= marked - _ONE
                        count = counts[row - i, j]
                        if count < limits[row]:
                            _enter(count, numbers[start + j], entries, limits, row)
                        if count < other_limits[limits_start + j]:
                            _enter(count, numbers[row], entries, limits, start + j)
    for i in range(n_left):
        for entry in entries[i]:
            distance, number = float(entry >> _NUMBER_BITS), int(entry & _NUMBER_MASK)
            if entry == _MAX_KEY or not _is_before(
                distance, number, distances[i, k - 1], indices[i, k - 1]
            ):
                break
            _insert_row(distance, number, distances, indices, i)


@_inlined
def _enter(count: Any, number: int, entries: Words, limits: Any, i: int) -> None:
    """Insert a row whose count is below the limit into list i, and update the limit."""
    entry = np.uint64(count) << _NUMBER_BITS | np.uint64(number)
    for place in range(entries.shape[1] - 1, 0, -1):  # no branch that is hard to predict
        entries[i, place] = max(entries[i, place - 1], min(entries[i, place], entry))
    entries[i, 0] = min(entries[i, 0], entry)
    limits[i] = min(limits[i], np.uint16(entries[i, -1] >> _NUMBER_BITS))


@_inlined
def _count_limit(distance: float, may_tie: bool) -> int:
    """Return the limit below which counts are at most, or if they may not tie, below a distance."""
    # A count is below a fraction iff it is below the next integer.
    return int(np.ceil(distance)) + may_tie if distance < np.inf else _FAR


@_kernel
def _merge_by_quotients(
    jaccard: bool,
    masked: bool,
    n_features: int,
    left: tuple[Words, Words, Indices],
    right: tuple[Words, Words, Indices, Indices],
    distances: Distances,
    indices: Indices,
) -> None:
    """Compare all left rows with one strip of right rows after the other, which stays in cache."""
    wide_vectors()
    own, own_mask, own_parts = left
    n_left, times = len(own_parts), np.float64(1 if jaccard else n_features)
    ones_of_own = count_row_ones(own)
    own, own_mask = pad_rows(own, n_left), pad_rows(own_mask, n_left)
    counts = allocate_aligned(3 * STRIP).reshape(3, STRIP)
    counts[1] = n_features
    counts[2] = 1  # without missing values, all rows have features in common
    strip_distances = allocate_aligned(STRIP).view(np.float64)
    # The bits of non-negative floats have the same order as the numbers.
    keys, minima = strip_distances.view(np.uint64), allocate_aligned(STRIP // _GROUP)
    bits, last = distances.view(np.uint64), distances.shape[1] - 1
    for start in range(0, len(right[2]), STRIP):
        span = slice(start, start + STRIP)
        strip, strip_mask = pad_rows(right[0][:, span], STRIP), pad_rows(right[1][:, span], STRIP)
        rows, parts = right[2][span], right[3][span]
        ones, lowest, highest = count_row_ones(strip), parts.min(), parts.max()
        for i in range(n_left):
            if masked:
                count_observed(jaccard, own, own_mask, i, strip, strip_mask, counts)
            else:
                count_differences(own, i, strip, counts[0])
            if jaccard and not masked:
                count_either(ones_of_own[i], ones, counts)
            if distances[i, last] < np.inf and not can_be_near(times, counts, distances[i, last]):
                continue
            divide_counts(times, counts, strip_distances)
            if lowest <= own_parts[i] <= highest or len(rows) < STRIP:
                _exclude_own_part(own_parts[i], parts, keys)
            nearest = find_minima(keys, minima)
            limit = bits[i, last] + np.uint64(rows[0] < indices[i, last])
            if nearest < limit:
                _insert_candidates(
                    keys, strip_distances, minima, rows, limit, distances, indices, i
                )


@_kernel
def _exclude_own_part(own_part: int, parts: Indices, keys: Any) -> None:
    """Set the keys of rows of the same part, and of the padding, above any distance."""
    wide_vectors()
    highest = keys.dtype.type(_MAX_KEY)
    for j in range(len(parts)):
        keys[j] = highest if parts[j] == own_part else keys[j]
    keys[len(parts) :] = highest


@_inlined
def _insert_candidates(
    keys: Words,
    strip_distances: Distances,
    minima: Words,
    rows: Indices,
    limit: np.uint64,
    distances: Distances,
    indices: Indices,
    i: int,
) -> None:
    """Insert the rows whose keys are below `limit` into the list of row i."""
    last = distances.shape[1] - 1
    for group in range(len(minima)):
        below = _below_mask(keys, group, limit) if minima[group] < limit else np.uint64(0)
        while below:
            j = group * _GROUP + np.int64(popcount((below - _ONE) & ~below))
            below &= below - _ONE
            if _is_before(strip_distances[j], rows[j], distances[i, last], indices[i, last]):
                _insert_row(strip_distances[j], rows[j], distances, indices, i)


@_inlined
def _below_mask(keys: Words, group: int, limit: np.uint64) -> np.uint64:
    """Return a word with one bit per row of a group, 1 if its key is below `limit`."""
    below = np.uint64(0)
    for j in range(_GROUP):
        below |= np.uint64(keys[group * _GROUP + j] < limit) << np.uint64(j)
    return below


@_inlined
def _insert_row(distance: float, row: int, distances: Distances, indices: Indices, i: int) -> None:
    """Insert a row that precedes the last one of the list."""
    place = distances.shape[1] - 1
    while place and _is_before(distance, row, distances[i, place - 1], indices[i, place - 1]):
        distances[i, place] = distances[i, place - 1]
        indices[i, place] = indices[i, place - 1]
        place -= 1
    distances[i, place], indices[i, place] = distance, row


@_inlined
def _is_before(distance: float, row: int, other_distance: float, other_row: int) -> bool:
    return distance < other_distance or (distance == other_distance and row < other_row)


class GraphEdges(NamedTuple):
    """Links of a graph, each once: their vertices, left < right, and their lengths, (n_links,)."""

    left: Indices
    right: Indices
    distances: Array


class GraphSpectrum(NamedTuple):
    """Solutions of L α = λ D α without the constant one: rising λ, and α signed by `fix_signs`.

    Eigenvalues are (n_components,), vectors (n_vertices, n_components). The mean squares of the
    vectors, weighted by degrees, are 1.
    """

    eigenvalues: Array
    vectors: Array


def find_nearest_vertices(
    vertices: NumberedRows, places: Indices, k: int, map_items: MapFunction
) -> NearestRows:
    """Find the k nearest vertices of other parts for each vertex in `places`."""
    n_tasks = -(-len(places) // _ROWS_PER_TASK)
    tasks = np.array_split(places, n_tasks)
    map_labelled = label_map(map_items, "neighbours", n_tasks)
    results = [*map_labelled(partial(_find_nearest_of_some, vertices, k), tasks)]
    return NearestRows(*(np.concatenate(parts) for parts in zip(*results, strict=True)))


def _find_nearest_of_some(vertices: NumberedRows, k: int, places: Indices) -> NearestRows:
    nearest = empty_nearest(len(places), k)
    merge_nearest("hamming", vertices.take(places), vertices, nearest)
    return nearest


def neighbour_edges(nearest: NearestRows) -> GraphEdges:
    """Link two vertices if either is a nearest neighbour of the other."""
    is_neighbour = np.isfinite(nearest.distances)
    left, _ = np.nonzero(is_neighbour)
    return _unique_edges(left, nearest.indices[is_neighbour], nearest.distances[is_neighbour])


def _unique_edges(left: Indices, right: Indices, distances: Array) -> GraphEdges:
    """Return each link once, the lower vertex on the left, in order."""
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, first = np.unique(low * (high.max(initial=0) + 1) + high, return_index=True)
    return GraphEdges(low[first], high[first], distances[first])


def label_connected_components(links: GraphEdges, n_vertices: int) -> Indices:
    """Number the connected components; return the component of each vertex, (n_vertices,)."""
    _, parts = scipy.sparse.csgraph.connected_components(
        _adjacency_matrix(links, np.ones(len(links.left)), n_vertices), directed=False
    )
    return parts.astype(np.int64)


def connect_components(
    links: GraphEdges, vertices: NumberedRows, map_items: MapFunction
) -> GraphEdges:
    """Join the components of a graph by the shortest links between them.

    Rounds of Borůvka's algorithm: every component except the largest is linked to the row nearest
    to it. A component that shares no observed feature with the rest is refused.
    """
    while (parts := label_connected_components(links, vertices.bits.n_rows)).any():
        places = np.flatnonzero(parts != np.bincount(parts).argmax())
        labelled = vertices._replace(parts=parts)
        (distances,), (neighbours,) = (
            a.T for a in find_nearest_vertices(labelled, places, 1, map_items)
        )
        order = np.lexsort((neighbours, distances, parts[places]))
        first = order[np.unique(parts[places][order], return_index=True)[1]]
        _check_reachable(distances[first], parts[places][first], parts)
        added = places[first], neighbours[first], distances[first]
        links = _unique_edges(*(np.concatenate(pair) for pair in zip(links, added, strict=True)))
    return links


def _check_reachable(distances: Array, part_labels: Indices, parts: Indices) -> None:
    if (unreachable := part_labels[np.isinf(distances)]).size:
        n_unreachable = int(np.isin(parts, unreachable).sum())
        raise FitError(
            f"{n_unreachable} distinct rows share no observed feature with the other "
            f"{len(parts) - n_unreachable}. Fit the two groups separately."
        )


def laplacian_eigenvectors(
    links: GraphEdges, weights: Array, n_vertices: int, n_components: int
) -> GraphSpectrum:
    """Solve L α = λ D α, L = D − W, for the smallest λ of a connected graph.

    With α = D^−½ v these are the largest eigenvalues 1 − λ of D^−½ W D^−½.

    Raises
    ------
    FitError
        If the iterations do not converge.
    """
    adjacency = _adjacency_matrix(links, weights, n_vertices)
    adjacency = adjacency + adjacency.T
    degrees = adjacency.sum(axis=1)
    root, total = np.sqrt(degrees), degrees.sum()
    scaling = scipy.sparse.diags_array(1 / root)
    scaled = (scaling @ adjacency @ scaling).tocsr()
    values, vectors = leading_eigenpairs_except(scaled, root / np.sqrt(total), n_components)
    return GraphSpectrum(1 - values, fix_signs(vectors * (np.sqrt(total) / root)[:, None]))


def _adjacency_matrix(links: GraphEdges, weights: Array, n_vertices: int) -> scipy.sparse.csr_array:
    entries = (weights, (links.left, links.right))
    return scipy.sparse.csr_array(entries, shape=(n_vertices, n_vertices))
