"""Sums of statistics that have a row for each segment seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def sum_by_segment(a: Any, b: Any, names: Sequence[str]) -> dict[str, Any]:
    """Sum the named arrays of two statistics, a row for each of their `segments`, by segment."""
    segments = np.union1d(a.segments, b.segments)
    return {"segments": segments, **{name: _sum_array(segments, a, b, name) for name in names}}


def _sum_array(segments: Counts, a: Any, b: Any, name: str) -> NDArray[Any] | None:
    parts = [(s.segments, getattr(s, name)) for s in (a, b) if getattr(s, name) is not None]
    if not parts:
        return None
    if len(parts) == 2 and len(segments) == len(parts[0][0]) == len(parts[1][0]):
        total: NDArray[Any] = parts[0][1] + parts[1][1]
        return total
    total = np.zeros((len(segments), *parts[0][1].shape[1:]), parts[0][1].dtype)
    for seen, counts in parts:
        total[np.searchsorted(segments, seen)] += counts
    return total


def sum_weighted_rows(counts: Counts, place: Counts, times: Counts, n_places: int) -> Counts:
    """Add row r of the counts, times[r] times, to row place[r] of the sum."""
    total = np.zeros((n_places, *counts.shape[1:]), np.int64)
    for row in np.flatnonzero(times):
        total[place[row]] += times[row] * counts[row]
    return total
