"""Weighted sums of the groups that rows were dealt to, made when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.statistics.counts import PairCounts, PairTable

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class GroupSums:
    """What `PairCounts.sum_weighted_groups` gives, a table at a time: no sum of all pairs is held.

    Attributes
    ----------
    counts
        Counts by segment and group, see `PairCounts.from_groups`.
    n_groups
        Groups a segment.
    weights
        How often each group counts, at least 0: (n_segments, n_groups), a row for each of
        `segments`.
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
        """Give observed values and ones of every feature, (n_segments, n_features) each."""
        observed, ones = self.counts.margins()
        return self._sum_by_segment(observed), self._sum_by_segment(ones)

    def table(
        self, segment: int, left: slice = slice(None), right: slice = slice(None)
    ) -> PairTable:
        """Give the tables of pairs (i in left, j in right) of the segment at this place."""
        place, times = self._find_rows()
        rows = np.flatnonzero(place == segment)
        counted = rows[times[rows] > 0]
        kept = counted if counted.size else rows[:1]
        tables = [self.counts.table(int(row), left, right) for row in kept]
        return PairTable(*(_sum_tables(times[kept], parts) for parts in zip(*tables, strict=True)))

    def _find_rows(self) -> tuple[Counts, Counts]:
        """Place of the segment of each row of the counts, and how often the row counts."""
        place = np.searchsorted(self.segments, self.counts.segments // self.n_groups)
        return place, self.weights[place, self.counts.segments % self.n_groups]

    def _sum_by_segment(self, values: Counts) -> Counts:
        """Sum what each row of the counts has, by segment."""
        place, times = self._find_rows()
        sums = np.zeros((len(self.weights), *values.shape[1:]), np.int64)
        np.add.at(sums, place, (times * values.T).T)
        return sums


def _sum_tables(times: Counts, parts: Sequence[Counts]) -> Counts:
    """Sum one part of tables, each so many times."""
    total: Counts = times[0] * parts[0]
    for often, part in zip(times[1:], parts[1:], strict=True):
        total += often * part
    return total
