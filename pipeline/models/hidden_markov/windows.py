"""Windows of neighbouring rows, and starts from clusters of them.

Neighbouring rows tend to be in the same state, so means over a few of them show the states much
better than single rows do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Bits, Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.models.state import Arrays
from pipeline.random import RowRandom
from pipeline.statistics.counts import CountsAndMore, FeatureCounts
from pipeline.statistics.measurements import MeasuredCounts

_WINDOW = 8  # rows
_MAX_WINDOWS, _MIN_WINDOWS, _MAX_CELLS = 1000, 64, 1 << 23
_ROUNDS, _N_CLUSTERINGS = 10, 10
_PRIOR_ROWS = 4.0  # with the means of all rows, for each cluster
_PER_WINDOW = ("draws", "windows", "ones", "observed", "totals", "numbers")


@dataclass(frozen=True)
class RowWindows(CountsAndMore):
    """Counts of features, and those in some windows of neighbouring rows.

    Attributes
    ----------
    draws, windows
        Keyed draws of the windows, rising, the smallest of all, and their numbers, (n_windows,).
    ones, observed
        Ones and observed values of planes, (n_windows, n_planes).
    totals, numbers
        Sums of the observed values of continuous features, and their numbers,
        (n_windows, n_continuous).
    """

    label: ClassVar[str] = "feature counts"
    counts: FeatureCounts | MeasuredCounts
    draws: Array
    windows: Counts
    ones: Bits
    observed: Bits
    totals: Array
    numbers: Bits

    @property
    def is_complete(self) -> bool:
        """Whether no value is missing."""
        return self.counts.is_complete

    @classmethod
    def from_block(cls, block: BinaryBlock, rng: RowRandom, *, is_measured: bool) -> Self:
        """Count one block, and draw windows by the random stream `windows`."""
        counts = (MeasuredCounts if is_measured else FeatureCounts).from_block(block)
        own, size = block.rows // _WINDOW, _count_windows(block.n_features)
        windows = np.unique(own)
        draws = rng.stream("windows").uniform(windows, 1)[:, 0]
        kept = np.argsort(draws, kind="stable")[:size]
        rows = block.take_rows(np.flatnonzero(np.isin(own, windows[kept])))
        X, mask = rows.unpack_values(), rows.unpack_mask()
        values = np.empty((len(X), 0)) if rows.numbers is None else rows.numbers.T
        parts = (
            X,
            np.ones_like(X) if mask is None else mask,
            np.nan_to_num(values).astype(np.float64),
            (~np.isnan(values)).astype(np.uint8),
        )
        places = np.argsort(windows[kept])
        found = np.searchsorted(windows[kept][places], rows.rows // _WINDOW)
        sums = [_sum_rows(part, places[found], len(kept)) for part in parts]
        return cls(counts, draws[kept], windows[kept], *sums)

    def merge(self, other: Self) -> Self:
        """Keep the smallest draws, and add up windows that both have."""
        joined = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in _PER_WINDOW}
        windows, first, places = np.unique(
            joined["windows"], return_index=True, return_inverse=True
        )
        kept = np.argsort(joined["draws"][first], kind="stable")
        kept = kept[: _count_windows(self.ones.shape[1])]
        sums = {n: _sum_rows(joined[n], places, len(windows))[kept] for n in _PER_WINDOW[2:]}
        own = {"draws": joined["draws"][first][kept], "windows": windows[kept], **sums}
        counts: Any = self.counts  # of the same kind as the other
        return type(self)(counts.merge(other.counts), **own)

    def list_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `draw_clusters` needs, by name."""
        return {f"window_{name}": getattr(self, name) for name in _PER_WINDOW[2:]}


def _count_windows(n_planes: int) -> int:
    return min(_MAX_WINDOWS, max(_MIN_WINDOWS, _MAX_CELLS // max(n_planes, 1)))


def _sum_rows(values: NDArray[Any], places: NDArray[np.intp], n: int) -> NDArray[Any]:
    sums = np.zeros((n, values.shape[1]), values.dtype)
    np.add.at(sums, places, values)
    return sums


def draw_clusters(
    auxiliary: Arrays,
    margins: Array,
    measured: tuple[Array, Array],
    n_clusters: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Cluster windows by k-means, from drawn centres that are far apart (k-means++).

    Parameters
    ----------
    auxiliary
        The arrays of `RowWindows.list_arrays`.
    margins
        P(plane = 1) in all rows, (n_planes,).
    measured
        Means and standard deviations of continuous features in all rows, (n_continuous,) each.
    n_clusters, rng
        Number of clusters, and the generator that draws them.

    Returns
    -------
    tuple
        P(plane = 1) and means of continuous features in each cluster, drawn towards those of all
        rows: (n_clusters, n_planes) and (n_clusters, n_continuous).
    """
    ones, observed, totals, numbers = (
        auxiliary[f"window_{name}"].astype(np.float64) for name in _PER_WINDOW[2:]
    )
    means, deviations = measured
    totals = (totals - numbers * means) / deviations
    points = np.hstack([(ones + margins) / (observed + 1), totals / (numbers + 1) / 2])
    distances = min(
        (_cluster_points(points, n_clusters, rng) for _ in range(_N_CLUSTERINGS)),
        key=lambda own: float(own.min(axis=1).sum()),
    )
    labels = distances.argmin(axis=1)
    ones, observed, totals, numbers = (
        _sum_rows(own, labels, n_clusters) for own in (ones, observed, totals, numbers)
    )
    shares = (ones + _PRIOR_ROWS * margins) / (observed + _PRIOR_ROWS)
    return shares, means + deviations * totals / (numbers + _PRIOR_ROWS)


def _cluster_points(points: Array, n_clusters: int, rng: np.random.Generator) -> Array:
    """Return squared distances from the centres of one clustering, (n_points, n_clusters)."""
    centres = points[rng.integers(len(points))][None]
    while len(centres) < n_clusters:
        gaps = _square_distances(points, centres).min(axis=1)
        chances = gaps + 1e-12 * max(gaps.max(), 1e-300)  # also if all windows are equal
        centres = np.vstack([centres, points[rng.choice(len(points), p=chances / chances.sum())]])
    for _ in range(_ROUNDS):
        labels = _square_distances(points, centres).argmin(axis=1)
        sums, sizes = _sum_rows(points, labels, n_clusters), np.bincount(labels, None, n_clusters)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return _square_distances(points, centres)


def _square_distances(points: Array, centres: Array) -> Array:
    """Return squared distances, (n_points, n_centres)."""
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.asarray(np.maximum(squares, 0.0))
