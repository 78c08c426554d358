"""Strips of wide data: their correlations, the spectrum of all strips, and statuses of pairs.

With continuous features, the pairs of a strip with all features from its first one on have two
sides: the strip's continuous features with all others, and all later continuous features with the
strip's features. Both are summed in the same passes over the chunks: one for moments, and one per
step of Newton's method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Indices
from pipeline.data.blocks import BinaryBlock, PackedChunk, iter_blocks, iter_word_ranges
from pipeline.executors.base import MapFunction
from pipeline.models.clipped_pca.mixed_pairs import (
    MAX_PASSES,
    estimate_pearson,
    make_bounds,
    start_pairs,
    sum_derivatives,
)
from pipeline.models.state import Arrays
from pipeline.numerics.gaussian.polyserial import PolyserialPairs, step_polyserial
from pipeline.numerics.spectra.lanczos import LeadingSpectrum, Product, compute_leading_spectrum
from pipeline.passes.row_ranges import RangeResults, ReadRange
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    PairStatusCounts,
    count_pair_statuses,
    mirror_upper_triangle,
)
from pipeline.statistics.counts import StripCounts, count_strip, make_strip_table
from pipeline.statistics.measurements import sum_moments

Statuses = NDArray[np.uint8]

_MAX_PARTS = 32
_ROWS_AT_ONCE = 64  # of a strip, so that arrays of float64 stay small
_VALUES_AT_ONCE = 1 << 21


class _Side(NamedTuple):
    """Continuous features on the left of pairs, and features on their right.

    Attributes
    ----------
    left, right
        Places of continuous features among those from the strip on.
    first_planes
        First plane of each right feature with levels, and the number of planes, (n_levels + 1,).
    """

    left: slice
    right: slice
    first_planes: Indices

    def select(self, block: BinaryBlock) -> BinaryBlock:
        """Return the block with the planes of the right features."""
        return block.take_features(slice(int(self.first_planes[-1])))


class _StripRows(NamedTuple):
    """The rows of all chunks, with the features from the strip on.

    `means` and `scales` standardize their continuous features.
    """

    chunks: Iterable[PackedChunk]
    first_plane: int
    first_number: int
    means: Array
    scales: Array

    def iter_blocks(self) -> Iterator[BinaryBlock]:
        """Read the rows, a few words at a time."""
        features = slice(self.first_plane, None), slice(self.first_number, None)
        for chunk in self.chunks:
            for block in iter_blocks(chunk):
                own = block.take_features(*features)
                n_columns = own.n_features + len(self.means)
                yield from iter_word_ranges(own, max(1, _VALUES_AT_ONCE // (64 * n_columns)))

    def sum_moments(self, sides: Sequence[_Side]) -> list[dict[str, Array]]:
        """Return the sums of `measurements.sum_moments` for each side."""
        totals: list[dict[str, Array]] = [{} for _ in sides]
        for block in self.iter_blocks():
            for side, total in zip(sides, totals, strict=True):
                own = side.select(block)
                sums = sum_moments(own, self.means, self.scales, side.left, side.right)
                for name, values in sums.items():
                    total[name] = np.add(values, total.get(name, 0.0), out=values)
        return totals

    def fit_polyserial(
        self, sides: Sequence[_Side], pairs_by_side: Sequence[PolyserialPairs]
    ) -> list[PolyserialPairs]:
        """Maximize the likelihood of each pair."""
        fitted = [*pairs_by_side]
        bounds = [make_bounds(pairs) for pairs in fitted]
        for _ in range(MAX_PASSES):
            active = [k for k, pairs in enumerate(fitted) if pairs.is_active.any()]
            if not active:
                break
            sums = {k: np.zeros((3, *fitted[k].z.shape)) for k in active}
            for block in self.iter_blocks():
                for k in active:
                    left, n_levels = sides[k].left, np.diff(sides[k].first_planes) + 1
                    sums[k] += sum_derivatives(
                        sides[k].select(block), fitted[k], self.means, self.scales, n_levels, left
                    )
            for k in active:
                fitted[k], bounds[k] = step_polyserial(fitted[k], bounds[k], sums[k])
        return fitted


def estimate_mixed_strip(
    estimate: CorrelationEstimator,
    first_planes: Indices,
    continuous: Indices,
    working: Arrays,
    features: slice,
    chunks: Iterable[PackedChunk],
) -> tuple[NDArray[np.float32], Statuses]:
    """Estimate the pairs of a strip with all features from its first one on.

    Parameters
    ----------
    estimate, first_planes
        Estimator of the correlations of features with levels, and their first planes.
    continuous
        Indices of the continuous features.
    working
        The working state of a `ClippedPCA` with continuous features.
    features, chunks
        The strip and the rows.

    Returns
    -------
    correlation, status
        (n_strip, n_features − first) each.
    """
    n_features = len(continuous) + len(first_planes) - 1
    ordinal = np.setdiff1d(np.arange(n_features), continuous)
    n_strip, shape = features.stop - features.start, n_features - features.start
    correlation = np.zeros((n_strip, shape), np.float32)
    status = np.zeros(correlation.shape, np.uint8)
    own_numbers, own_levels = (
        slice(*np.searchsorted(kind, [features.start, features.stop]).tolist())
        for kind in (continuous, ordinal)
    )
    # Places of both kinds from the strip on; the first n and m of them are in the strip.
    numbers = continuous[own_numbers.start :] - features.start
    levels = ordinal[own_levels.start :] - features.start
    n, m = own_numbers.stop - own_numbers.start, own_levels.stop - own_levels.start
    if m:
        pairs = np.ix_(levels[:m], levels)
        correlation[pairs], status[pairs], _ = estimate_strip(
            estimate, first_planes, working, own_levels, chunks
        )
    if n_strip and len(numbers):
        firsts = first_planes[own_levels.start :] - first_planes[own_levels.start]
        sides = (
            _Side(slice(n), slice(None), firsts),
            _Side(slice(n, None), slice(n), firsts[: m + 1]),
        )
        means, scales = (
            working[name][own_numbers.start :] for name in ("number_means", "number_scales")
        )
        first_plane = int(first_planes[own_levels.start])
        rows = _StripRows(chunks, first_plane, own_numbers.start, means, scales)
        sums = rows.sum_moments(sides)
        pairs = np.ix_(numbers[:n], numbers)
        correlation[pairs], status[pairs] = _estimate_numbers(*sums)
        if len(levels):
            before, after = _estimate_polyserial(rows, sides, sums)
            pairs = np.ix_(numbers[:n], levels)
            correlation[pairs], status[pairs] = before
            pairs = np.ix_(levels[:m], numbers)
            correlation[pairs] = np.vstack([before[0][:, :m], after[0]]).T
            status[pairs] = np.vstack([before[1][:, :m], after[1]]).T
    mirror_upper_triangle(correlation[:, :n_strip], status[:, :n_strip])
    return correlation, status


def _estimate_numbers(
    sums: Mapping[str, Array], sums_after: Mapping[str, Array]
) -> tuple[Array, Statuses]:
    """Estimate the Pearson correlations of the continuous features of a strip with all others."""
    names, n = ("rows", "values", "squares", "products"), len(sums["rows"])
    n_right = n + len(sums_after["rows"])
    return estimate_pearson(
        {name: sums[name][:, :n_right] for name in names},
        {name: np.vstack([sums[name][:, :n], sums_after[name][:, :n]]).T for name in names},
    )


def _estimate_polyserial(
    rows: _StripRows, sides: Sequence[_Side], sums: Sequence[Mapping[str, Array]]
) -> list[tuple[Array, Statuses]]:
    """Estimate the polyserial correlations and statuses of each side, (n_left, n_levels) each."""
    n_right = [len(rows.means[side.right]) for side in sides]
    starts = [
        start_pairs(
            {name: values[:, k:] for name, values in own.items() if name != "ones"},
            own["ones"],
            side.first_planes,
        )
        for side, own, k in zip(sides, sums, n_right, strict=True)
    ]
    fitted = rows.fit_polyserial(sides, [pairs for pairs, _ in starts])
    return [(np.tanh(pairs.z), status) for pairs, (_, status) in zip(fitted, starts, strict=True)]


def estimate_strip(
    estimate: CorrelationEstimator,
    first_planes: NDArray[np.int64] | None,
    margins: Arrays,
    features: slice,
    chunks: Iterable[PackedChunk],
    earlier: StripCounts | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.uint8], StripCounts]:
    """Count and estimate the pairs of a strip with all features from its first one on.

    `first_planes` is None if all features are binary. `earlier` are the counts of rows that are not
    in `chunks`.

    Returns
    -------
    correlation, status
        Of the pairs of features, (n_strip, n_features − first).
    counts
        Of the pairs of their planes.
    """
    total, unit, ones = int(margins["total"]), float(margins["weight_unit"]), margins["ones"]
    masked = bool((margins["observed"] < total).any())
    firsts = np.arange(len(ones) + 1) if first_planes is None else first_planes
    strip = slice(*firsts[[features.start, features.stop]].tolist())
    counts = count_strip(strip, len(ones), total, masked, chunks, earlier)
    n_strip = features.stop - features.start
    shape = n_strip, len(firsts) - 1 - features.start
    correlation, status = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    n_at_once = max(1, _ROWS_AT_ONCE // int(np.diff(firsts).max(initial=1)))
    for first in range(0, n_strip, n_at_once):
        pairs = slice(first, first + n_at_once), slice(first, None)
        own = features.start + first, min(features.start + pairs[0].stop, features.stop)
        planes = slice(*firsts[[*own]].tolist())
        places = slice(planes.start - strip.start, planes.stop - strip.start)
        part = {name: values[places, places.start :] for name, values in counts.items()}
        table = make_strip_table(part, planes, total, ones).scale(unit)
        correlation[pairs], status[pairs] = estimate(table)
    mirror_upper_triangle(correlation[:, :n_strip], status[:, :n_strip])
    return correlation, status, counts


def find_strip_spectrum(
    results: RangeResults,
    constant: NDArray[np.int64],
    n_features: int,
    n_leading: int,
    map_items: MapFunction,
    noise: Array | None = None,
) -> LeadingSpectrum:
    """Find the `n_leading` leading eigenpairs of the correlations in `results`.

    The eigenvalues of `constant` features count as 0. `map_items` maps over strips; the order of
    sums does not depend on it. `noise` are eigenvalues of independent features, where eigenpairs
    need less accuracy; see `compute_leading_spectrum`.
    """
    multiply = _make_product(results, constant, map_items)
    # A fixed start makes the result reproducible; any start finds the same eigenvectors.
    rng = np.random.default_rng(0)
    return compute_leading_spectrum(multiply, n_features, n_leading, rng, noise)


def find_lowest_eigenvalue(
    results: RangeResults, constant: NDArray[np.int64], n_features: int, map_items: MapFunction
) -> float:
    """Find the lowest eigenvalue; at most 0, the eigenvalue of constant features."""
    multiply = _make_product(results, constant, map_items)
    spectrum = compute_leading_spectrum(
        lambda v: -multiply(v), n_features, 1, np.random.default_rng(0)
    )
    return -float(spectrum.values[0] + spectrum.residuals[0])


def _make_product(
    results: RangeResults, constant: NDArray[np.int64], map_items: MapFunction
) -> Product:
    parts = _deal_strips(results.n_ranges)

    def multiply(vectors: Array) -> Array:
        product = np.zeros_like(vectors)
        for part in map_items(partial(_multiply_strips, results.read, vectors), parts):
            product[len(product) - len(part) :] += part
        product[constant] -= vectors[constant]  # with 1, a feature could appear as a component
        return product

    return multiply


def count_all_pair_statuses(
    results: RangeResults, excluded: NDArray[np.int64], n_features: int, map_items: MapFunction
) -> PairStatusCounts:
    """Count the statuses of all pairs."""
    count = partial(_count_strip_statuses, results.read, excluded, n_features)
    pair_statuses: PairStatusCounts = reduce(
        PairStatusCounts.merge, map_items(count, range(results.n_ranges))
    )
    return pair_statuses


def _deal_strips(n_strips: int) -> list[range]:
    """Deal strips to partial sums so that each sum has long and short strips."""
    return [range(k, n_strips, _MAX_PARTS) for k in range(min(_MAX_PARTS, n_strips))]


def _multiply_strips(read: ReadRange, vectors: Array, keys: range) -> Array:
    """Multiply vectors by some strips of the square and by their mirror image.

    Return the product from the first row of the first strip on; rows before it are zero.
    """
    product, n_rows = np.zeros_like(vectors), 0
    for key in keys:
        strip = read(key, ["correlation"])["correlation"]
        n_strip, n_right = strip.shape
        n_rows, first = max(n_rows, n_right), len(vectors) - n_right
        for row in range(0, n_strip, _ROWS_AT_ONCE):
            part = strip[row : row + _ROWS_AT_ONCE].astype(np.float64)
            own = slice(first + row, first + row + len(part))
            product[own] += part @ vectors[first:]
            product[first + n_strip :] += part[:, n_strip:].T @ vectors[own]
    return product[len(product) - n_rows :]


def _count_strip_statuses(
    read: ReadRange, excluded: NDArray[np.int64], n_features: int, key: int
) -> PairStatusCounts:
    return count_pair_statuses(read(key, ["status"])["status"], excluded, n_features)
