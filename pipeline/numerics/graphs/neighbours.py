"""Exact nearest neighbours among binary rows, and the graphs that they form.

Distances are at least 0 and symmetric:

* `hamming`: the number of features that differ, ‖x − y‖². With missing values, the differing share
  of the features observed in both, times the number of features.
* `jaccard`: 1 − |x ∧ y| / |x ∨ y| over the features observed in both; 0 if neither has a one.

Rows without a common observed feature are infinitely far apart. Distances are quotients of counts,
rounded once, so that equal distances compare equal. Ties go to the earlier row.

The kernels count by XOR and population count on packed bits. They compare each row in turn with a
strip of other rows, which stays in the L1 cache. Memory begins at a cache line, because vectors
that cross one take twice as long to load.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.progress import label_map
from pipeline.numerics.bits.kernels import allocate_aligned, popcount
from pipeline.numerics.bits.packed_rows import BitRows
from pipeline.numerics.intrinsics import wide_vectors
from pipeline.numerics.spectra.lanczos import leading_eigenpairs_except
from pipeline.numerics.spectra.linalg import fix_signs

Words = NDArray[np.uint64]
Distances = NDArray[np.float64]

STRIP = 512
"""Rows of a strip: with 4 words each it takes 16 KiB, and its masks another 16 KiB."""
GROUP = 64
"""Rows of a strip that share one minimum: one per bit of a word."""
_QUAD = 4  # words counted at once

_kernel = njit(nogil=True, cache=True)
Metric = Literal["hamming", "jaccard"]
"""Distance between two rows."""
Indices = NDArray[np.int64]
NO_ROW = np.iinfo(np.int64).max
"""Index that stands for a missing neighbour."""
_MAX_KEY = ~np.uint64(0)
_ONE = np.uint64(1)
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
def count_differences(own: Words, i: int, strip: Words, differ: Words, minima: Words) -> np.uint64:
    """Count the features that differ from row i; set each group's minimum, and return the least."""
    wide_vectors()
    last, nearest = len(strip) - _QUAD, ~np.uint64(0)
    if last:
        differ[:] = 0
    for w in range(0, last, _QUAD):
        a, b, c, d = own[w, i], own[w + 1, i], own[w + 2, i], own[w + 3, i]
        for j in range(STRIP):
            count = popcount(a ^ strip[w, j]) + popcount(b ^ strip[w + 1, j])
            differ[j] += count + popcount(c ^ strip[w + 2, j]) + popcount(d ^ strip[w + 3, j])
    a, b, c, d = own[last, i], own[last + 1, i], own[last + 2, i], own[last + 3, i]
    for group in range(STRIP // GROUP):
        least = ~np.uint64(0)
        for j in range(group * GROUP, (group + 1) * GROUP):
            count = popcount(a ^ strip[last, j]) + popcount(b ^ strip[last + 1, j])
            count += popcount(c ^ strip[last + 2, j]) + popcount(d ^ strip[last + 3, j])
            if last:
                count += differ[j]
            differ[j] = count
            least = min(least, count)
        minima[group] = least
        nearest = min(nearest, least)
    return nearest


@_kernel
def find_minima(keys: Words, minima: Words) -> np.uint64:
    """Set the minimum key of each group, and return the least."""
    wide_vectors()
    nearest = ~np.uint64(0)
    for group in range(len(minima)):
        least, members = ~np.uint64(0), keys[group * GROUP : (group + 1) * GROUP]
        for j in range(len(members)):  # LLVM does not vectorise a constant number of steps
            least = min(least, members[j])
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
    """Merge the right rows into `nearest`, the lists of each left row's nearest rows, in place."""
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
        *nearest,
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
    """Compare all left rows with one strip of right rows after the other, which stays in cache."""
    wide_vectors()
    own, own_mask, own_parts = left
    n_left, times = len(own_parts), np.float64(1 if jaccard else n_features)
    ones_of_own = count_row_ones(own)
    own, own_mask = pad_rows(own, n_left), pad_rows(own_mask, n_left)
    # Integers are faster to compare than fractions; the bits of non-negative floats have the same
    # order as the numbers.
    is_integer = not (jaccard or masked)
    counts = allocate_aligned(3 * STRIP).reshape(3, STRIP)
    strip_distances = allocate_aligned(STRIP).view(np.float64)
    keys, minima = (
        counts[0] if is_integer else strip_distances.view(np.uint64),
        allocate_aligned(STRIP // GROUP),
    )
    counts[2] = 1  # without missing values, all rows have features in common
    bits, k = distances.view(np.uint64), distances.shape[1]
    for start in range(0, len(right[2]), STRIP):
        span = slice(start, start + STRIP)
        strip, strip_mask = pad_rows(right[0][:, span], STRIP), pad_rows(right[1][:, span], STRIP)
        rows, parts = right[2][span], right[3][span]
        ones, lowest, highest = count_row_ones(strip), parts.min(), parts.max()
        for i in range(n_left):
            if masked:
                count_observed(jaccard, own, own_mask, i, strip, strip_mask, counts)
            else:
                nearest = count_differences(own, i, strip, counts[0], minima)
            if jaccard and not masked:
                count_either(ones_of_own[i], ones, counts)
            if not is_integer:
                last = distances[i, k - 1]
                if last < np.inf and not can_be_near(times, counts, last):
                    continue
                divide_counts(times, counts, strip_distances)
            has_excluded = lowest <= own_parts[i] <= highest or len(rows) < STRIP
            if has_excluded:
                _exclude_own_part(own_parts[i], parts, keys)
            if has_excluded or not is_integer:
                nearest = find_minima(keys, minima)
            limit = _candidate_limit(is_integer, rows[0], distances, bits, indices, i)
            if nearest < limit and distances[i, k - 1] == np.inf:
                limit = min(limit, _kth_key_limit(k, keys, nearest))
            if nearest < limit:
                _insert_candidates(
                    is_integer, keys, strip_distances, minima, rows, limit, distances, indices, i
                )


@_kernel
def _exclude_own_part(own_part: int, parts: Indices, keys: Words) -> None:
    """Set the keys of rows of the same part, and of the padding, above any distance."""
    wide_vectors()
    for j in range(len(parts)):
        keys[j] = _MAX_KEY if parts[j] == own_part else keys[j]
    keys[len(parts) :] = _MAX_KEY


@_inlined
def _insert_candidates(
    is_integer: bool,
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
            j = group * GROUP + np.int64(popcount((below - _ONE) & ~below))
            below &= below - _ONE
            distance = np.float64(keys[j]) if is_integer else strip_distances[j]
            if _is_before(distance, rows[j], distances[i, last], indices[i, last]):
                _insert_row(distance, rows[j], distances, indices, i)


@_inlined
def _candidate_limit(
    is_integer: bool, row: int, distances: Distances, bits: Words, indices: Indices, i: int
) -> np.uint64:
    """Return the limit below which keys may enter the list, if `row` is the earliest row."""
    last = distances.shape[1] - 1
    if is_integer:
        # An integer is below a fraction iff it is below the next integer.
        last_distance = distances[i, last]
        key = np.uint64(np.ceil(last_distance)) if last_distance < np.inf else _MAX_KEY - _ONE
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
def _below_mask(keys: Words, group: int, limit: np.uint64) -> np.uint64:
    """Return a word with one bit per row of a group, 1 if its key is below `limit`."""
    below = np.uint64(0)
    for j in range(GROUP):
        below |= np.uint64(keys[group * GROUP + j] < limit) << np.uint64(j)
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
