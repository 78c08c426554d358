"""Drift: how appended rows differ from earlier rows, and how far a new fit has moved.

The correlations of old and new rows are compared in standard errors. A tetrachoric correlation r
solves p11 = Φ2(−t1, −t2; r), where p11, p1 and p2 are the shares of (1, 1) and of ones, and
t = −Φ⁻¹(p). By the delta method, n Var r = Var(x1 x2 − a x1 − b x2) / φ2², where φ2 is the
bivariate normal density, a = P(y2 > t2 | y1 = t1) and b = P(y1 > t1 | y2 = t2) (M. A. Hamdan, "The
equivalence of tetrachoric and maximum likelihood estimates of ρ in 2 × 2 tables", Biometrika 57,
1970). This variance is computed from old and new rows together, which share it without drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import PackedChunk, RowSource, number_rows
from pipeline.data.features import Feature, find_first_planes
from pipeline.evaluation.calibration import ShareComparison
from pipeline.executors.base import MapFunction
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import NamedArrays
from pipeline.random import RowRandom
from pipeline.statistics.correlations import estimate_correlations, estimate_tetrachoric
from pipeline.statistics.counts import PairCounts, PairTable

DRIFT_DRAWS_PASS = (1 << 32) + 1
"""Pass number for the draws that choose rows; no fit reaches it."""
_CONSTANT_LEVEL = 1e-3  # chance that any feature is found to be constant without drift
MIN_CELL_ROWS = 5
"""Pairs are compared if both samples have this many expected rows in every cell of the table."""


@dataclass(frozen=True)
class AppendedChunkReader:
    """Reads the chunks from `first` on, or a random share of their rows, in any process."""

    read: Callable[[int], PackedChunk]
    first: int
    share: float
    seed: int

    def __call__(self, key: int) -> PackedChunk:
        """Read a chunk; `key` counts from `first`."""
        chunk: Any = self.read(self.first + key)
        if self.share >= 1:
            return chunk  # type: ignore[no-any-return]
        draws = RowRandom(self.seed, DRIFT_DRAWS_PASS).uniform(number_rows(chunk.row_numbers), 1)
        chosen = draws[:, 0] < self.share
        return replace(chunk, keep=chosen if chunk.keep is None else chosen & chunk.keep)  # type: ignore[no-any-return]


def select_appended_rows(
    rows: RowSource, first: int, share: float = 1.0, seed: int = 0
) -> RowSource:
    """Return the rows of the chunks from `first` on, or a random share of them."""
    read = AppendedChunkReader(rows.read, first, share, seed)
    return replace(rows, read=read, rows_per_chunk=rows.rows_per_chunk[first:])


class SharedFeatures(NamedTuple):
    """The features that two fits share: those with the same name and levels.

    Attributes
    ----------
    old, new
        Their indices in each fit along the dimensions `feature` and `plane`, in the order of the
        new fit.
    new_names, absent_names
        Names of the features that only the new fit has, and of those that only the old one has.
    """

    old: Mapping[str, NDArray[np.intp]]
    new: Mapping[str, NDArray[np.intp]]
    new_names: list[str]
    absent_names: list[str]


def match_features(old: Sequence[Feature], new: Sequence[Feature]) -> SharedFeatures:
    """Find the features that two fits share."""
    places, own = {feature: place for place, feature in enumerate(old)}, {*new}
    shared = [place for place, feature in enumerate(new) if feature in places]
    return SharedFeatures(
        _find_places(old, [places[new[place]] for place in shared]),
        _find_places(new, shared),
        [feature.name for feature in new if feature not in places],
        [feature.name for feature in old if feature not in own],
    )


def _find_places(features: Sequence[Feature], shared: list[int]) -> dict[str, NDArray[np.intp]]:
    firsts = find_first_planes(features)
    planes = [plane for place in shared for plane in range(firsts[place], firsts[place + 1])]
    return {"feature": np.array(shared, np.intp), "plane": np.array(planes, np.intp)}


def select_features(arrays: NamedArrays, places: Mapping[str, NDArray[np.intp]]) -> NamedArrays:
    """Return the parts of a fit's arrays that belong to some features."""
    parts: NamedArrays = {}
    for name, (dims, values) in arrays.items():
        for axis, dim in enumerate(dims):
            if dim in places:
                values = values.take(places[dim], axis)
        parts[name] = (dims, values)
    return parts


class LargestMove(NamedTuple):
    """The parameter of a feature, or of a plane, before and after."""

    array: str
    feature: int
    before: float
    now: float


def compare_loadings(old: NamedArrays, new: NamedArrays) -> tuple[str, float] | None:
    """Compare the loadings of two fits: their first array over features and components.

    Return its name and the mean cosine similarity of its columns; None without such an array or
    without components.
    """
    for name, (dims, values) in new.items():
        if set(dims) == {"feature", "component"} and len(dims) == 2:
            pair = [old[name][1], values]
            oriented = [a if dims[0] == "feature" else a.T for a in pair]
            if all(a.size for a in oriented):
                return name, mean_cosine_similarity(oriented[1], oriented[0])
    return None


def find_largest_move(old: NamedArrays, new: NamedArrays) -> LargestMove | None:
    """Find the feature or plane whose threshold or offset (first such array) moved most."""
    for name, (dims, values) in new.items():
        if dims in (("feature",), ("plane",)) and values.dtype.kind == "f" and values.size:
            old_values = old[name][1]
            i = int(np.argmax(np.abs(values - old_values)))
            return LargestMove(name, i, float(old_values[i]), float(values[i]))
    return None


def pool_counts(counts: PairCounts) -> PairCounts:
    """Sum the counts of all segments and groups."""
    n_groups = int(counts.segments.max()) + 1
    return counts.sum_weighted_groups(n_groups, np.ones((1, n_groups), np.int64))


def subtract_counts(total: PairCounts, subset: PairCounts) -> PairCounts:
    """Subtract the pooled counts of some rows from the pooled counts of all rows."""
    difference = dict(total.to_arrays())
    for name, counts in subset.to_arrays().items():
        if name not in ("segments", "weight_unit"):
            difference[name] = difference[name] - counts
    return PairCounts.from_arrays(difference)


def find_new_constants(total: PairCounts, new: PairCounts) -> NDArray[np.intp]:
    """Find the features that vary in the old rows but not in the new ones, other than by chance.

    The arguments are those of `compare_correlations`.
    """
    (old_observed,), (old_ones,) = subtract_counts(total, new).margins()
    (observed,), (ones,) = new.margins()
    shares = old_ones / np.maximum(old_observed, 1)
    shares_of_value = np.where(ones > 0, shares, 1 - shares)
    is_constant = (observed > 0) & ((ones == 0) | (ones == observed)) & (shares_of_value < 1)
    chance = shares_of_value ** observed.astype(np.float64)
    level = _CONSTANT_LEVEL / max(len(ones), 1)
    return np.flatnonzero(is_constant & (shares_of_value > 0) & (chance < level))


def compare_correlations(
    total: PairCounts,
    new: PairCounts,
    map_items: MapFunction,
    planes: NDArray[np.intp] | None = None,
) -> ShareComparison:
    """Compare the tetrachoric correlations of new and old rows.

    `total` and `new` are the pooled counts of all rows, and of the new rows among them. `planes`
    are the features to compare, or their planes; all if None.

    Returns
    -------
    ShareComparison
        `observed` correlations in the new rows and `implied` ones in the old rows. Pairs are left
        out if a correlation is undefined, or if either sample has fewer than 5 expected rows in a
        cell.
    """
    old, estimate = subtract_counts(total, new), partial(estimate_tetrachoric, "half")
    upper = np.triu_indices(total.n_features, 1)
    tables = [_select_pair_tables(counts, upper) for counts in (total, old, new)]
    results = [estimate_correlations(counts, estimate, map_items) for counts in (total, old, new)]
    r, r_old, r_new = (correlation[0][upper] for correlation, _ in results)
    n, n_old, n_new = (table.n for table in tables)
    usable = _smallest_cell_counts(tables[0]) * np.minimum(n_old, n_new) >= MIN_CELL_ROWS * n
    if planes is not None:
        usable &= np.isin(upper, planes).all(0)
    for _, (status,) in results:
        usable &= np.isin(status[upper], (PairStatus.PLAIN, PairStatus.EMPTY_CELL))
    table = PairTable(*(column[usable] for column in tables[0]))
    variance = tetrachoric_variance(table, r[usable])
    error = np.sqrt(variance * (1 / n_old[usable] + 1 / n_new[usable]))
    return ShareComparison(np.column_stack(upper)[usable], r_new[usable], r_old[usable], error)


def tetrachoric_variance(table: PairTable, correlation: Array) -> Array:
    """Return the asymptotic variance of tetrachoric correlations, times the number of rows.

    `table` has the counts of pairs without an empty cell, and `correlation` their correlations.
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
    counts: PairCounts, pairs: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> PairTable:
    table = counts.table(0)
    return PairTable(*(np.broadcast_to(a, table.joint.shape)[pairs].astype(float) for a in table))


def _smallest_cell_counts(table: PairTable) -> Array:
    n, ones_i, ones_j, joint = table
    cells = (joint, ones_i - joint, ones_j - joint, n - ones_i - ones_j + joint)
    smallest: Array = np.minimum.reduce(cells)
    return smallest
