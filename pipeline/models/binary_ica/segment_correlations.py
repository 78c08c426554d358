"""Correlations of segments from pair counts, and which segments can be used.

`GroupSums` gives the counts of any weighted selection of row groups, one table at a time.

Counts are those of planes; `first_planes` has the first plane of each feature and the number of
planes, (n_features + 1,). If it is None, all features are binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.executors.base import MapFunction
from pipeline.models.binary_ica.gaussian_likelihood import ScaleMoments, SegmentMoments
from pipeline.models.binary_ica.level_margins import fit_level_margins
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.statistics.correlations import (
    PairTables,
    estimate_correlations,
    estimate_polychoric,
    estimate_tetrachoric,
)
from pipeline.statistics.counts import PairCounts, PairTable

MAX_UNDEFINED_SHARE = 0.1
"""Maximum share of undefined pairs; a segment with more is left out."""
_MIN_TASK_FEATURES = 300
_MAX_RHO = 0.999
_MAX_INFORMATION = 1.9  # per row; 2 without the coarseness of levels


class SegmentStatus(IntEnum):
    """Whether a segment was used, or why not."""

    USED = 0
    TOO_SMALL = 1
    CONSTANT = 2
    UNDEFINED_PAIRS = 3
    UNOBSERVED = 4


@dataclass(frozen=True)
class SegmentCorrelations:
    """Correlations of segments; each array has one entry per segment.

    Attributes
    ----------
    status
        `SegmentStatus`, (n_segments,).
    rows
        Number of rows, (n_segments,).
    pair_rows
        Rows with both features of a pair observed, mean over pairs of varying features,
        (n_segments,).
    varies
        Whether a feature has ones and zeros, (n_segments, n_features).
    thresholds
        −Φ⁻¹ of the share of ones; a count of 0 is replaced by ½, (n_segments, n_planes). Of a
        feature with several levels, see `level_margins`.
    threshold_errors
        Standard errors of each feature's mean threshold; infinite if it does not vary,
        (n_segments, n_features).
    correlation, pair_status
        Tetrachoric correlations and the `PairStatus` of each, (n_segments, n_features, n_features).
        Undefined correlations of features that vary are the mean over other segments; other
        undefined correlations are 0.
    extremes
        Smallest and largest eigenvalue of each correlation matrix, (n_segments, 2).
    scales
        Scales of the features with several levels in all segments; None if all are binary.
    """

    status: NDArray[np.uint8]
    rows: NDArray[np.int64]
    pair_rows: Array
    varies: NDArray[np.bool_]
    thresholds: Array
    threshold_errors: Array
    correlation: Array
    pair_status: NDArray[np.uint8]
    extremes: Array
    scales: ScaleMoments | None = None

    @property
    def is_used(self) -> NDArray[np.bool_]:
        """Whether each segment is used, (n_segments,)."""
        used: NDArray[np.bool_] = self.status == SegmentStatus.USED
        return used

    def find_undefined_pairs(self) -> NDArray[np.bool_]:
        """Mark pairs of varying features whose correlation is unknown."""
        return _find_undefined(self.varies, self.pair_status)

    def empty_cells(self) -> NDArray[np.bool_]:
        """Mark pairs whose table has an empty cell, among features that vary."""
        empty: NDArray[np.bool_] = self.pair_status == PairStatus.EMPTY_CELL
        return empty

    def estimate_correlation_errors(self, place: int) -> Array:
        """Return standard errors of the correlations of a segment, (n_features, n_features).

        √n s_i s_j, where s are the errors of the thresholds, is the error of a tetrachoric
        correlation of 0; K. Pearson's factor (Philosophical Transactions A 195, 1900) is for
        others. Errors are infinite where a correlation is undefined or its table has an empty cell.
        """
        rho = np.clip(self.correlation[place], -_MAX_RHO, _MAX_RHO)
        factor = (1 - rho**2) * (1 - (2 / np.pi * np.arcsin(rho)) ** 2)
        margins = np.outer(self.threshold_errors[place], self.threshold_errors[place])
        undefined = _find_undefined(self.varies[[place]], self.pair_status[[place]])[0]
        errors: Array = np.sqrt(self.pair_rows[place] * factor) * margins
        has_empty_cell = self.pair_status[place] == PairStatus.EMPTY_CELL
        return np.where(undefined | has_empty_cell, np.inf, errors)

    def moments(self, regularization: float) -> SegmentMoments:
        """Return the moments of the segments used, ridged to a condition number."""
        used = self.is_used
        weights, delta = self.pair_rows[used], find_ridge(self.extremes[used], regularization)
        return SegmentMoments(
            self.correlation,
            self.varies[used],
            weights / weights.sum(),
            delta,
            np.zeros_like(delta),
            None if used.all() else np.flatnonzero(used),
        )

    def with_correlation(self, correlation: Array, map_items: MapFunction) -> SegmentCorrelations:
        """Replace the correlations, (n_segments, n_features, n_features)."""
        extremes = find_extreme_eigenvalues(correlation, map_items)
        return replace(self, correlation=correlation, extremes=extremes)


def estimate_segments(
    counts: PairTables,
    min_rows: int,
    map_items: MapFunction,
    first_planes: Counts | None = None,
) -> SegmentCorrelations:
    """Estimate the correlations of every segment and decide which segments are used."""
    if first_planes is None:
        first_planes = np.arange(counts.n_features + 1)
    observed, ones = counts.margins()
    varies = mark_varying_features(observed, ones, first_planes)
    estimate = partial(estimate_tetrachoric, "half")  # faster if all features are binary
    if len(first_planes) <= counts.n_features:
        estimate = partial(estimate_polychoric, "half", first_planes)
    correlation, pair_status = estimate_correlations(counts, estimate, map_items, first_planes)
    is_empty = np.asarray((observed == 0).all(axis=1))
    status = _classify_segments(counts.rows, is_empty, varies, pair_status, min_rows)
    pair_rows = np.array(
        [_mean_pair_rows(counts, u, varies[u], first_planes) for u in range(len(varies))]
    )
    _fill_undefined(correlation, pair_status, varies, pair_rows * (status == SegmentStatus.USED))
    return SegmentCorrelations(
        status,
        counts.rows,
        pair_rows,
        varies,
        **_describe_margins(observed, ones, varies, first_planes),
        correlation=correlation,
        pair_status=pair_status,
        extremes=find_extreme_eigenvalues(correlation, map_items),
    )


def mark_varying_features(
    observed: Counts, ones: Counts, first_planes: Counts
) -> NDArray[np.bool_]:
    """Mark the features with rows at two or more levels, (n_segments, n_features)."""
    return np.logical_or.reduceat((ones > 0) & (ones < observed), first_planes[:-1], axis=1)


def _describe_margins(
    observed: Counts, ones: Counts, varies: NDArray[np.bool_], first_planes: Counts
) -> dict[str, Any]:
    """Return the fields of `SegmentCorrelations` that margins determine."""
    firsts, n_planes = first_planes[:-1], np.diff(first_planes)
    thresholds, _ = _estimate_thresholds(observed, ones, np.repeat(varies, n_planes, axis=1))
    _, errors = _estimate_thresholds(observed[:, firsts], ones[:, firsts], varies)
    log_scales, information = np.zeros((2, *varies.shape))
    for i in np.flatnonzero(n_planes > 1).tolist():
        planes, rows = slice(*first_planes[i : i + 2].tolist()), observed[:, firsts[i], None]
        reached = np.hstack([rows, ones[:, planes], np.zeros_like(rows)])
        margins = fit_level_margins(-np.diff(reached))
        thresholds[:, planes] = margins.thresholds
        errors[:, i] = np.where(varies[:, i], margins.centre_errors, np.inf)
        log_scales[:, i] = margins.log_scales
        per_row = np.minimum(margins.information / np.maximum(rows[:, 0], 1), _MAX_INFORMATION)
        # The likelihood of the correlations counts a variance of 1 / 2 per row already.
        information[:, i] = per_row / (1 - per_row / 2) * varies[:, i]
    scales = ScaleMoments(log_scales, information) if (n_planes > 1).any() else None
    return {"thresholds": thresholds, "threshold_errors": errors, "scales": scales}


def _estimate_thresholds(
    observed: Counts, ones: Counts, varies: NDArray[np.bool_]
) -> tuple[Array, Array]:
    n = np.maximum(observed, 1)
    share = np.where(observed > 0, np.clip(ones, 0.5, n - 0.5) / n, 0.5)
    thresholds: Array = -scipy.special.ndtri(share)
    density = np.exp(-0.5 * thresholds**2) / np.sqrt(2 * np.pi)
    errors: Array = np.where(varies, np.sqrt(share * (1 - share) / n) / density, np.inf)
    return thresholds, errors


def _fill_undefined(
    correlation: Array, pair_status: NDArray[np.uint8], varies: NDArray[np.bool_], weights: Array
) -> None:
    """Set undefined pairs to the weighted mean over the segments where they are defined."""
    missing = _find_undefined(varies, pair_status)
    if not missing.any():
        return
    is_known = (pair_status == PairStatus.PLAIN) | (pair_status == PairStatus.EMPTY_CELL)
    total = np.einsum("u,uij,uij->ij", weights, is_known, correlation)
    mass = np.einsum("u,uij->ij", weights, is_known)
    mean = np.divide(total, mass, out=np.zeros_like(total), where=mass > 0)
    for matrix, gaps in zip(correlation, missing, strict=True):
        matrix[gaps] = mean[gaps]


def _mean_pair_rows(
    counts: PairTables, segment: int, varies: NDArray[np.bool_], first_planes: Counts
) -> float:
    """Return the mean number of rows behind a correlation."""
    corner = slice(0, 1)
    if np.ndim(counts.table(segment, corner, corner).n) == 0:  # one number for all pairs
        return float(counts.rows[segment])
    n = np.broadcast_to(counts.table(segment).n, (counts.n_features, counts.n_features))
    if len(varies) < counts.n_features:
        n = n[np.ix_(first_planes[:-1], first_planes[:-1])]
    pairs = np.triu(varies & varies[:, None], 1)
    return float(n[pairs].mean()) if pairs.any() else 0.0


def _classify_segments(
    rows: NDArray[np.int64],
    is_empty: NDArray[np.bool_],
    varies: NDArray[np.bool_],
    pair_status: NDArray[np.uint8],
    min_rows: int,
) -> NDArray[np.uint8]:
    n_varying = varies.sum(axis=1)
    n_pairs = np.maximum(n_varying * (n_varying - 1), 1)
    undefined = _find_undefined(varies, pair_status).sum(axis=(1, 2)) / n_pairs
    status = np.select(
        [rows < min_rows, is_empty, n_varying < 2, undefined > MAX_UNDEFINED_SHARE],
        [
            SegmentStatus.TOO_SMALL,
            SegmentStatus.UNOBSERVED,
            SegmentStatus.CONSTANT,
            SegmentStatus.UNDEFINED_PAIRS,
        ],
        SegmentStatus.USED,
    )
    return status.astype(np.uint8)


def _find_undefined(varies: NDArray[np.bool_], pair_status: NDArray[np.uint8]) -> NDArray[np.bool_]:
    # In place: arrays of all pairs of all segments are large.
    unknown: NDArray[np.bool_] = pair_status == PairStatus.CONSTANT_FEATURE
    unknown |= pair_status == PairStatus.NO_OBSERVATIONS
    unknown &= varies[:, :, None]
    unknown &= varies[:, None, :]
    return unknown


def find_ridge(extremes: Array, regularization: float) -> Array:
    """Find the least δ ≥ 0 with which (C + δ I) / (1 + δ) has at most the condition number r > 1.

    `extremes` (n_segments, 2) has the smallest and largest eigenvalue of each C. Return δ,
    (n_segments,), by step 2 of algorithm 1 of Hyttinen et al. (2022): δ = (λ₁ − r λₙ) / (r − 1).
    """
    least, largest = extremes.T
    needed: Array = (largest - regularization * least) / (regularization - 1)
    return np.maximum(0.0, needed)


def _extreme_pair(correlation: Array) -> Array:
    values = np.linalg.eigvalsh(correlation)
    return np.array([values[0], values[-1]], np.float64)


def find_extreme_eigenvalues(correlation: Array, map_items: MapFunction) -> Array:
    """Find the smallest and largest eigenvalue of each matrix, (n_segments, 2)."""
    map_matrices = map_items if correlation.shape[1] >= _MIN_TASK_FEATURES else map
    return np.array(list(map_matrices(_extreme_pair, correlation))).reshape(-1, 2)


@dataclass(frozen=True)
class GroupSums:
    """Weighted sums of row groups, one table at a time: no sum of all pairs is stored.

    `PairCounts.sum_weighted_groups` computes the same sums at once.

    `counts` are by segment and group, see `PairCounts.from_groups`. `weights` (n_segments,
    n_groups) says how often each group counts, at least 0, in the order of `segments`.
    """

    counts: PairCounts
    n_groups: int
    weights: Counts

    @property
    def segments(self) -> Counts:
        """Segments that the groups belong to, sorted, (n_segments,)."""
        return self.counts.list_grouped_segments(self.n_groups)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.counts.n_features

    @property
    def rows(self) -> Counts:
        """Rows of each segment, (n_segments,)."""
        return self._sum_by_segment(self.counts.rows)

    def margins(self) -> tuple[Counts, Counts]:
        """Return observed values and ones of every feature, (n_segments, n_features) each."""
        observed, ones = self.counts.margins()
        return self._sum_by_segment(observed), self._sum_by_segment(ones)

    def table(
        self, segment: int, left: slice = slice(None), right: slice = slice(None)
    ) -> PairTable:
        """Return the tables of pairs (i in left, j in right) of the segment at this place."""
        place, times = self._find_rows()
        rows = np.flatnonzero(place == segment)
        weighted_rows = rows[times[rows] > 0]
        used_rows = weighted_rows if weighted_rows.size else rows[:1]
        tables = [self.counts.table(int(row), left, right) for row in used_rows]
        return PairTable(
            *(_sum_tables(times[used_rows], parts) for parts in zip(*tables, strict=True))
        )

    def _find_rows(self) -> tuple[Counts, Counts]:
        """Return the segment place of each row of the counts, and how often the row counts."""
        place = np.searchsorted(self.segments, self.counts.segments // self.n_groups)
        return place, self.weights[place, self.counts.segments % self.n_groups]

    def _sum_by_segment(self, values: Counts) -> Counts:
        """Sum the values of the rows of the counts by segment."""
        place, times = self._find_rows()
        sums = np.zeros((len(self.weights), *values.shape[1:]), np.int64)
        np.add.at(sums, place, (times * values.T).T)
        return sums


def _sum_tables(times: Counts, parts: Sequence[Counts]) -> Counts:
    """Sum one part of several tables, each multiplied by its weight."""
    total: Counts = times[0] * parts[0]
    for n_times, part in zip(times[1:], parts[1:], strict=True):
        total += n_times * part
    return total
