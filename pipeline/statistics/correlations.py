"""Correlations of the Gaussians behind binary or ordinal features, from pair counts.

If features have several levels, pair counts are those of planes, and `first_planes` has the first
plane of each feature and the number of planes, (n_features + 1,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import label_map, make_local_map
from pipeline.numerics.gaussian.pair_tables import (
    PairStatus,
    arcsine_correlation,
    joint_count_quantiles,
    tetrachoric,
)
from pipeline.numerics.gaussian.polychoric import polychoric
from pipeline.numerics.spectra.linalg import leading_eigenvalues
from pipeline.statistics.counts import PairCounts, PairTable

Statuses = NDArray[np.uint8]
CorrelationEstimator = Callable[[PairTable], tuple[Array, Statuses]]
"""Returns each pair's correlation, 0 where it is undefined, and its `PairStatus`."""

_PAIRS_PER_TASK = 1 << 18
_MAX_SENT_BYTES = 8 << 20
_MAX_ROW_SETS, _MAX_SQUARES = 64, 4  # of the rows that couple pairs in null draws
_MAX_MISFIT = 2.0  # χ² per pair of the numbers of rows, above which values are missing by design
NULL_LEVEL = 0.05
"""Probability that the leading eigenvalue of independent features exceeds its null threshold."""


def draw_independent_pairs(table: PairTable, rng: np.random.Generator) -> PairTable:
    """Draw joint counts as if the features were independent.

    Each count follows its exact law given the margins (hypergeometric; normal for large counts).
    Pairs are coupled as they are in real data: their normal scores are the entries of the sample
    correlation matrix of independent Gaussians, see `draw_scores`. If scores were drawn
    pair by pair, the leading null eigenvalue would be too low by about n_features / n_samples.

    `table` has the margins of all pairs, broadcastable to (n_features, n_features), each feature
    with itself on the diagonal; `joint` is not used. The result has the pairs i < j in the order of
    `numpy.triu_indices(n_features, 1)`, flat.
    """
    n_features = table.ones_i.shape[0]
    upper = np.triu_indices(n_features, 1)
    margins = (np.broadcast_to(a, (n_features, n_features))[upper] for a in table[:3])
    n, ones_i, ones_j = (np.ascontiguousarray(a, dtype=np.float64) for a in margins)
    scores = draw_scores(np.asarray(table.n), np.arange(n_features), rng)[upper]
    return PairTable(n, ones_i, ones_j, joint_count_quantiles(n, ones_i, ones_j, scores))


def draw_independent_levels(table: PairTable, first_planes: Counts, scores: Array) -> PairTable:
    """Draw joint counts of planes as if the features were independent.

    Among the rows where both features reach the planes before planes c and d, the joint count of c
    and d has the law that `draw_independent_pairs` describes, given the margins of these rows.
    Scores are coupled alike, as if plane c, where it is reached, were a feature of its own.

    `table` is that of `draw_independent_pairs`, for planes, and `scores` are those of
    `draw_scores`, (n_planes, n_planes). Both may also have only the planes of the first features as
    rows. The result has the pairs of planes of features i < j; other joint counts are 0.
    """
    shape, firsts, heights = scores.shape, first_planes[:-1], np.diff(first_planes)
    n, ones_i, ones_j = (np.broadcast_to(a, shape).astype(np.float64) for a in table[:3])
    joint = np.zeros(shape)
    i, j = np.triu_indices(int(np.searchsorted(firsts, shape[0])), 1, len(heights))
    for c in range(heights.max(initial=0)):
        for d in range(heights.max(initial=0)):
            has_both = (heights[i] > c) & (heights[j] > d)
            p, q = firsts[i[has_both]] + c, firsts[j[has_both]] + d
            # Rows that reach both planes, and those among them with a 1 in plane c, or in d.
            if c and d:
                rows = joint[p - 1, q - 1]
            elif c or d:
                rows = ones_i[p - 1, q] if c else ones_j[p, q - 1]
            else:
                rows = n[p, q]
            left = joint[p, q - 1] if d else ones_i[p, q]
            right = joint[p - 1, q] if c else ones_j[p, q]
            joint[p, q] = joint_count_quantiles(rows, left, right, scores[p, q])
    return PairTable(n, ones_i, ones_j, joint)


def draw_scores(
    n: NDArray[np.int64], features: NDArray[np.intp], rng: np.random.Generator
) -> Array:
    """Draw normal scores of all pairs of planes or continuous features, (n_scored, n_scored).

    `n` is the number of rows that observe both features, for all pairs or for each; `features` are
    the features that the scored columns belong to, (n_scored,).

    Scores are √(n − 1) times the sample correlations of independent normals. Pairs are coupled by
    the rows that they have in common: all rows, if values are missing at random, which gives
    triples of features as many common rows as pairs on the scale of scores. Values missing by
    design, as in test forms, leave other common rows, which `find_common_rows` finds.
    """
    n_rows = _count_coupling_rows(n)
    if n_rows is not None:
        scores: Array = _draw_correlation(len(features), n_rows, rng) * np.sqrt(max(n_rows - 1, 1))
        return scores
    row_sets, remaining = find_common_rows(n)
    rows = remaining[np.ix_(features, features)].astype(np.float64)
    products, squares = np.sqrt(rows) * _draw_symmetric_normals(len(rows), rng), rows
    for n_own, members in row_sets:
        columns = np.flatnonzero(np.isin(features, members))
        pairs = np.ix_(columns, columns)
        own = _draw_products(len(columns), n_own, rng)
        products[pairs] += own
        squares[pairs] += own.diagonal()[:, None]
    spread = np.sqrt(squares * squares.T)
    scores = np.divide(products, spread, out=np.zeros_like(products), where=spread > 0)
    scores *= np.sqrt(np.maximum(n - 1, 1))[np.ix_(features, features)]
    return scores


def _count_coupling_rows(n: NDArray[np.int64]) -> int | None:
    """Estimate how many rows couple the pairs: all rows, if values are missing at random, or None.

    The numbers of rows of pairs are then those of independent features, up to chance.
    """
    if n.ndim == 0:
        return int(n)
    i, j = np.nonzero(np.triu(n, 1))
    observed = n.diagonal().astype(np.float64)
    if not len(i):
        return 1
    n_rows = float((observed[i] * observed[j]).sum() / n[i, j].sum())
    i, j = np.triu_indices(len(n), 1)
    expected = observed[i] * observed[j] / n_rows
    misfit = np.divide((n[i, j] - expected) ** 2, expected, where=expected > 0, out=0 * expected)
    return round(n_rows) if misfit.mean() < _MAX_MISFIT else None


class RowSet(NamedTuple):
    """Rows that observe the same features."""

    n_rows: int
    features: NDArray[np.intp]


def find_common_rows(n: NDArray[np.int64]) -> tuple[list[RowSet], NDArray[np.int64]]:
    """Find sets of rows that explain most of the rows of pairs, (n_features, n_features).

    Rows of test forms are found one after the other: the pair with the fewest rows shares them with
    all features that have rows with both, and with each other.

    Returns
    -------
    row_sets
        Sets of rows. There are at most 64, and no more than cost as much as a few full squares.
    remaining
        Rows of each pair that are in no set.
    """
    remaining, n_features = n.astype(np.int64), len(n)
    row_sets: list[RowSet] = []
    upper, cost = np.triu(np.ones(n.shape, np.bool_), 1), 0
    while len(row_sets) < _MAX_ROW_SETS and cost < _MAX_SQUARES * n_features**3:
        counts = np.where(upper & (remaining > 0), remaining, np.iinfo(np.int64).max)
        i, j = np.unravel_index(int(counts.argmin()), counts.shape)
        n_rows = int(counts[i, j])
        if n_rows == np.iinfo(np.int64).max:
            break
        members, is_candidate = [int(i), int(j)], (remaining[i] > 0) & (remaining[j] > 0)
        is_candidate[members] = False
        while is_candidate.any():
            members.append(int(is_candidate.argmax()))
            is_candidate &= remaining[members[-1]] > 0
            is_candidate[members[-1]] = False
        row_sets.append(RowSet(n_rows, np.sort(np.array(members, np.intp))))
        remaining[np.ix_(members, members)] -= n_rows
        cost += len(members) ** 3
    return row_sets, np.maximum(remaining, 0)


def _draw_symmetric_normals(n_features: int, rng: np.random.Generator) -> Array:
    normals = np.triu(rng.standard_normal((n_features, n_features)))
    return normals + np.triu(normals, 1).T


def _draw_products(n_features: int, n_rows: int, rng: np.random.Generator) -> Array:
    """Draw the sums of products of independent normals, less their means."""
    degrees = max(n_rows - 1, 1)
    if degrees >= n_features:  # Bartlett's decomposition, which does not draw every row
        factor = np.tril(rng.standard_normal((n_features, n_features)), -1)
        np.fill_diagonal(factor, np.sqrt(rng.chisquare(degrees - np.arange(n_features))))
    else:
        factor = rng.standard_normal((n_features, degrees))
    products: Array = factor @ factor.T
    return products


def _draw_correlation(n_features: int, n_rows: int, rng: np.random.Generator) -> Array:
    """Draw the sample correlation matrix of independent normals."""
    products = _draw_products(n_features, n_rows, rng)
    lengths = np.sqrt(products.diagonal())
    correlation: Array = products / np.outer(lengths, lengths)
    return correlation


class PairTables(Protocol):
    """Tables of all pairs of features by segment, stored or computed on demand."""

    @property
    def segments(self) -> Counts:
        """Indices of the segments, (n_seen,)."""

    @property
    def rows(self) -> Counts:
        """Number of rows of each segment, (n_seen,)."""

    @property
    def n_features(self) -> int:
        """Number of features."""

    def margins(self) -> tuple[Counts, Counts]:
        """Return the numbers of observed values and ones, (n_seen, n_features) each."""

    def table(self, segment: int, left: slice = ..., right: slice = ...) -> PairTable:
        """Return the tables of pairs (i in left, j in right) for `segments[segment]`."""


def estimate_tetrachoric(
    empty_cells: Literal["half", "none"], table: PairTable
) -> tuple[Array, Statuses]:
    """Estimate correlations by pairwise maximum likelihood, with the thresholds of each table."""
    result = tetrachoric(*table, empty_cells=empty_cells)
    return np.nan_to_num(result.correlation, copy=False, nan=0.0), result.status


def estimate_polychoric(
    empty_cells: Literal["half", "none"], first_planes: Counts, table: PairTable
) -> tuple[Array, Statuses]:
    """Estimate correlations by maximum likelihood, given the thresholds of each table's margins.

    The right planes of `table` are those of all features from some feature on, and its left planes
    those of the first of these features.
    """
    n_left, n_right = table.joint.shape[-2:]
    right = first_planes[first_planes >= first_planes[-1] - n_right]
    right = right - right[0]
    left = right[right <= n_left]
    result = polychoric(*table, left, right, empty_cells=empty_cells)
    return np.nan_to_num(result.correlation, copy=False, nan=0.0), result.status


def estimate_arcsine(table: PairTable) -> tuple[Array, Statuses]:
    """Estimate by sin(π c / 2), c the correlation of the bits; exact if half of them are 1."""
    n, ones_i, ones_j, joint = (np.asarray(a, np.float64) for a in table)
    spread = np.sqrt(ones_i * (n - ones_i)) * np.sqrt(ones_j * (n - ones_j))
    clipped = np.divide(n * joint - ones_i * ones_j, spread, out=0.0 * joint, where=spread > 0)
    status = np.where(n == 0, PairStatus.NO_OBSERVATIONS, PairStatus.CONSTANT_FEATURE)
    status = np.where(spread > 0, PairStatus.PLAIN, status)
    return arcsine_correlation(np.clip(clipped, -1.0, 1.0)), status.astype(np.uint8)


def estimate_correlations(
    counts: PairTables,
    estimate: CorrelationEstimator,
    map_items: MapFunction,
    first_planes: Counts | None = None,
) -> tuple[Array, Statuses]:
    """Estimate the correlations of all pairs in every segment.

    A task of `map_items` is a few segments, or a strip of the pairs of one segment. `first_planes`
    is None if all features are binary.

    Returns
    -------
    correlation, status
        Symmetric, (n_seen, n_features, n_features) each; undefined correlations are 0.
    """
    planes = np.arange(counts.n_features + 1) if first_planes is None else first_planes
    n_features = len(planes) - 1
    shape = (len(counts.segments), n_features, n_features)
    correlation, status = np.zeros(shape), np.zeros(shape, np.uint8)
    parts = list(_iter_parts(*shape[:2]))
    tables = (
        _copy_tables(counts, segments, slice(*planes[[rows.start, rows.stop]].tolist()))
        for segments, rows in parts
    )
    for (segments, rows), result in zip(parts, map_items(estimate, tables), strict=True):
        correlation[segments, rows, rows.start :], status[segments, rows, rows.start :] = result
    for matrix, codes in zip(correlation, status, strict=True):
        mirror_upper_triangle(matrix, codes)
    return correlation, status


def draw_null_spectra(
    counts: PairCounts,
    segment: int,
    estimate: CorrelationEstimator,
    seeds: NDArray[np.int64],
    n_leading: int,
    map_items: MapFunction,
    first_planes: Counts | None = None,
) -> Array:
    """Compute leading eigenvalues for independent features with the same margins.

    `first_planes` is None if all features are binary. The result is (n_seeds, k), where k is the
    number that `leading_eigenvalues` returns.
    """
    margins = counts.table(segment)._replace(joint=np.zeros(0))
    # With missing values, the margins of many features' pairs are too large to send with each draw.
    is_small = sum(np.size(a) * 8 for a in margins) < _MAX_SENT_BYTES
    map_draws = label_map(
        map_items if is_small else make_local_map(map_items), "null draws", len(seeds)
    )
    draw = partial(_draw_null_spectrum, estimate, margins, n_leading, first_planes)
    return np.array(list(map_draws(draw, seeds)))


def find_null_thresholds(spectra: Array) -> Array:
    """Return the threshold of each eigenvalue, (k,), given those of null draws, (n_draws, k).

    An eigenvalue of independent features is above it with a probability of 5 %, or as close below
    as so many draws allow: it and the draws are equally likely to have any rank among each other
    (A. C. A. Hope, Journal of the Royal Statistical Society B 30, 1968). A quantile of few draws
    would be exceeded too often.
    """
    rank = max(1, int(NULL_LEVEL * (len(spectra) + 1) + 1e-9))
    thresholds: Array = np.sort(spectra, axis=0)[-rank]
    return thresholds


class PairStatusCounts(NamedTuple):
    """Counts of the pairs i < j by `PairStatus`.

    Attributes
    ----------
    n_pairs
        Number of pairs, (n_statuses,).
    n_remaining
        Number of pairs without the features that are left out, (n_statuses,).
    involved
        Whether a feature is in one of these remaining pairs, (n_statuses, n_features).
    """

    n_pairs: NDArray[np.int64]
    n_remaining: NDArray[np.int64]
    involved: NDArray[np.bool_]

    def count_by_status(self) -> dict[str, int]:
        """Count the pairs of each status, by name."""
        return {f"pairs_{code.name.lower()}": int(self.n_pairs[code]) for code in PairStatus}

    def merge(self, other: PairStatusCounts) -> PairStatusCounts:
        """Add further pairs."""
        n_pairs, n_remaining = self.n_pairs + other.n_pairs, self.n_remaining + other.n_remaining
        return PairStatusCounts(n_pairs, n_remaining, self.involved | other.involved)


def count_pair_statuses(
    status: Statuses, left_out: NDArray[np.int64], n_features: int
) -> PairStatusCounts:
    """Count the statuses of the pairs of a strip, with and without the features in `left_out`.

    `status` has the statuses of the strip's features with all features from the strip's first one
    on, (n_strip, n_features − first). A strip may consist of all features.
    """
    n_strip, n_right = status.shape
    first = n_features - n_right
    pairs = np.arange(n_right) > np.arange(n_strip)[:, None]
    n_pairs = np.bincount(status[pairs], minlength=len(PairStatus))
    columns = left_out[left_out >= first] - first
    pairs[:, columns] = False
    pairs[columns[columns < n_strip]] = False
    n_remaining = np.zeros(len(PairStatus), np.int64)
    involved = np.zeros((len(PairStatus), n_features), np.bool_)
    for code in PairStatus:
        matches = (status == code) & pairs
        n_remaining[code], involved[code, first:] = matches.sum(), matches.any(axis=0)
        involved[code, first : first + n_strip] |= matches.any(axis=1)
    return PairStatusCounts(n_pairs, n_remaining, involved)


def _draw_null_spectrum(
    estimate: CorrelationEstimator,
    margins: PairTable,
    n_leading: int,
    first_planes: Counts | None,
    seed: int,
) -> Array:
    rng = np.random.default_rng(seed)
    if first_planes is not None:
        n, firsts = np.asarray(margins.n), first_planes[:-1]
        n = n if n.ndim == 0 else n[np.ix_(firsts, firsts)]
        scores = draw_scores(n, np.repeat(np.arange(len(firsts)), np.diff(first_planes)), rng)
        correlation, status = estimate(draw_independent_levels(margins, first_planes, scores))
        mirror_upper_triangle(correlation, status)
        return leading_eigenvalues(correlation, n_leading)
    pairs = draw_independent_pairs(margins, rng)
    n_features = margins.ones_i.shape[0]
    correlation = np.eye(n_features)
    upper = np.triu_indices(n_features, 1)
    correlation[upper], _ = estimate(pairs)
    correlation.T[upper] = correlation[upper]
    return leading_eigenvalues(correlation, n_leading)


def _iter_parts(n_segments: int, n_features: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of segments and of rows, so that all tasks estimate about as many pairs."""
    if not n_features:
        return
    n_together = max(1, _PAIRS_PER_TASK // n_features**2)
    height = max(1, min(n_features, _PAIRS_PER_TASK // n_features))
    for segment in range(0, n_segments, n_together):
        for row in range(0, n_features, height):
            yield (
                slice(segment, min(segment + n_together, n_segments)),
                slice(row, min(row + height, n_features)),
            )


def _copy_tables(counts: PairTables, segments: slice, rows: slice) -> PairTable:
    """Copy the tables of some segments, so that not all counts are sent with them."""
    right = slice(rows.start, counts.n_features)
    tables = (counts.table(u, rows, right) for u in range(segments.start, segments.stop))
    stacks = (np.stack([*map(np.atleast_2d, parts)]) for parts in zip(*tables, strict=True))
    return PairTable(*stacks)


def mirror_upper_triangle(correlation: NDArray[np.floating[Any]], status: Statuses) -> None:
    """Copy the upper triangle to the lower one, in place; set the diagonal to 1 and `PLAIN`."""
    lower = np.tri(len(correlation), k=-1, dtype=np.bool_)
    np.copyto(correlation, correlation.T, where=lower)
    np.copyto(status, status.T, where=lower)
    np.fill_diagonal(correlation, 1.0)
    np.fill_diagonal(status, PairStatus.PLAIN)
