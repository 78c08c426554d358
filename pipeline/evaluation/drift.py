"""How rows that came after a fit differ from those before, and how far a new fit has moved.

Correlations of two samples are compared in standard errors. With p11, p1 and p2 the shares of
(1, 1) and of ones, t = −Φ⁻¹(p) and φ2 the density of two normals, a tetrachoric correlation r
solves p11 = Φ2(−t1, −t2; r), so that by the delta method n Var r = Var(x1 x2 − a x1 − b x2) / φ2²
with a = P(y2 > t2 | y1 = t1), b = P(y1 > t1 | y2 = t2) (M. A. Hamdan, "The equivalence of
tetrachoric and maximum likelihood estimates of ρ in 2 × 2 tables", Biometrika 57, 1970). It is
evaluated once, for all rows together: were nothing changed, both samples would have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk, RowSource
from pipeline.evaluation.calibration import ShareComparison
from pipeline.executors.base import MapFunction
from pipeline.numerics.gaussian.tetrachoric import PairStatus
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from pipeline.statistics.correlations import estimate_correlations, estimate_tetrachoric
from pipeline.statistics.counts import PairCounts, PairTable

Array = NDArray[np.float64]

DRIFT_DRAWS_PASS = (1 << 32) + 1
"""Number of a pass that never comes: its draws choose rows."""
MIN_CELL_ROWS = 5
"""Rows that either sample should have in each cell of a pair's table for it to be compared."""


@dataclass(frozen=True)
class AppendedChunkReader:
    """Reads the chunks from `first` on, or a share of their rows, in any process."""

    read: Callable[[int], PackedChunk]
    first: int
    share: float
    seed: int

    def __call__(self, key: int) -> PackedChunk:
        """Read a chunk by its place among these."""
        chunk: Any = self.read(self.first + key)
        if self.share >= 1:
            return chunk  # type: ignore[no-any-return]
        chosen = RowRandom(self.seed, DRIFT_DRAWS_PASS).uniform(chunk.rows, 1)[:, 0] < self.share
        return replace(chunk, keep=chosen if chunk.keep is None else chosen & chunk.keep)  # type: ignore[no-any-return]


def select_appended_rows(
    rows: RowSource, first: int, share: float = 1.0, seed: int = 0
) -> RowSource:
    """Take the chunks from the first on; of their rows a share, chosen by the seed."""
    read = AppendedChunkReader(rows.read, first, share, seed)
    return replace(rows, read=read, n_chunks=rows.n_chunks - first)


class LargestMove(NamedTuple):
    """A value of a feature before and now."""

    array: str
    feature: int
    before: float
    now: float


def compare_loadings(before: Any, now: Any) -> tuple[str, float] | None:
    """Compare the first array by features and components of two fits' parameters.

    Returns
    -------
    tuple or None
        Its name and the mean cosine similarity of its columns; None where there is no such array,
        or no component.
    """
    earlier = get_named_arrays(before)
    for name, (dims, values) in get_named_arrays(now).items():
        if set(dims) == {"feature", "component"} and len(dims) == 2:
            pair = [earlier[name][1], values]
            oriented = [a if dims[0] == "feature" else a.T for a in pair]
            if all(a.size for a in oriented):
                return name, mean_cosine_similarity(oriented[1], oriented[0])
    return None


def find_largest_move(before: Any, now: Any) -> LargestMove | None:
    """Find the feature whose threshold or offset, the first array by features, moved most."""
    for name, (dims, values) in get_named_arrays(now).items():
        if dims == ("feature",):
            earlier = get_named_arrays(before)[name][1]
            at = int(np.argmax(np.abs(values - earlier)))
            return LargestMove(name, at, float(earlier[at]), float(values[at]))
    return None


def pool_counts(counts: PairCounts) -> PairCounts:
    """Sum the counts of all segments and groups."""
    n_groups = int(counts.segments.max()) + 1
    return counts.sum_weighted_groups(n_groups, np.ones((1, n_groups), np.int64))


def subtract_counts(whole: PairCounts, part: PairCounts) -> PairCounts:
    """Take the counts of some rows, pooled, from those of all rows, pooled."""
    left = dict(whole.to_arrays())
    for name, counts in part.to_arrays().items():
        if name != "segments":
            left[name] = left[name] - counts
    return PairCounts.from_arrays(left)


def compare_correlations(
    whole: PairCounts, new: PairCounts, map_items: MapFunction
) -> ShareComparison:
    """Compare tetrachoric correlations of new rows with those of the rows before.

    Parameters
    ----------
    whole, new
        Pooled counts of all rows, and of the new ones among them.
    map_items
        Where pairs are estimated.

    Returns
    -------
    Comparison
        `observed` in the new rows, `implied` by those before; pairs alone of which either sample
        should have 5 rows in each cell, and whose correlation is defined in both.
    """
    before, estimate = subtract_counts(whole, new), partial(estimate_tetrachoric, "half")
    upper = np.triu_indices(whole.n_features, 1)
    tables = [_select_pair_tables(counts, upper) for counts in (whole, before, new)]
    found = [estimate_correlations(counts, estimate, map_items) for counts in (whole, before, new)]
    together, then, now = (correlation[0][upper] for correlation, _ in found)
    n, n_then, n_now = (table.n for table in tables)
    usable = _smallest_cell_counts(tables[0]) * np.minimum(n_then, n_now) >= MIN_CELL_ROWS * n
    for _, (status,) in found:
        usable &= np.isin(status[upper], (PairStatus.PLAIN, PairStatus.EMPTY_CELL))
    table = PairTable(*(column[usable] for column in tables[0]))
    spread = tetrachoric_variance(table, together[usable])
    error = np.sqrt(spread * (1 / n_then[usable] + 1 / n_now[usable]))
    return ShareComparison(np.column_stack(upper)[usable], now[usable], then[usable], error)


def tetrachoric_variance(table: PairTable, correlation: Array) -> Array:
    """Return the asymptotic variance of tetrachoric correlations of such pairs, times their rows.

    Parameters
    ----------
    table
        Of pairs without an empty cell.
    correlation
        Their tetrachoric correlations, of the same shape.
    """
    n = np.asarray(table.n, np.float64)
    p_i, p_j, p_ij = table.ones_i / n, table.ones_j / n, table.joint / n
    t_i, t_j, r = -scipy.special.ndtri(p_i), -scipy.special.ndtri(p_j), correlation
    root = np.sqrt(1 - r**2)
    a, b = scipy.special.ndtr((r * t_i - t_j) / root), scipy.special.ndtr((r * t_j - t_i) / root)
    density = np.exp(-(t_i**2 - 2 * r * t_i * t_j + t_j**2) / (2 * root**2)) / (2 * np.pi * root)
    mean = p_ij - a * p_i - b * p_j
    second = p_ij * (1 - a - b) ** 2 + (p_i - p_ij) * a**2 + (p_j - p_ij) * b**2
    variance: Array = (second - mean**2) / density**2
    return variance


def _select_pair_tables(
    counts: PairCounts, at: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> PairTable:
    """Return the tables of some pairs."""
    table = counts.table(0)
    return PairTable(*(np.broadcast_to(a, table.joint.shape)[at].astype(float) for a in table))


def _smallest_cell_counts(table: PairTable) -> Array:
    n, ones_i, ones_j, joint = table
    cells = (joint, ones_i - joint, ones_j - joint, n - ones_i - ones_j + joint)
    least: Array = np.minimum.reduce(cells)
    return least
