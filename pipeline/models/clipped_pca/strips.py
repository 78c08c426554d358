"""Clipped PCA of wide data: correlations of all pairs in strips, and their spectrum by products.

No task and no central step holds a square of all features. Correlations are stored as float32: this
rounds them by at most 3e-8, far below their sampling errors, and changes leading eigenvalues by
less than a relative 1e-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk
from pipeline.executors.base import MapFunction
from pipeline.models.state import Arrays
from pipeline.numerics.spectra.lanczos import (
    LeadingSpectrum,
    Product,
    compute_leading_spectrum,
    max_basis_columns,
)
from pipeline.passes.feature_strips import MIN_STRIP_HEIGHT, estimate_strip_memory
from pipeline.passes.row_ranges import RangeResults, ReadRange
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    PairStatusCounts,
    count_pair_statuses,
    mirror_upper_triangle,
)
from pipeline.statistics.strips import count_strip, make_strip_table

Array = NDArray[np.float64]

MAX_SQUARE_FEATURES = 2000
"""Maximum number of features of one square matrix; wider data use strips."""
_MAX_PARTS = 32


def estimate_strips_memory(n_features: int, n_leading: int, n_threads: int) -> int:
    """Bytes of the basis, its images, and the smallest strips that the threads work on."""
    columns = 2 * max_basis_columns(n_features, n_leading) + 8 * n_leading
    return 8 * n_features * columns + n_threads * estimate_strip_memory(
        MIN_STRIP_HEIGHT, n_features
    )


def estimate_strip(
    estimate: CorrelationEstimator, margins: Arrays, features: slice, chunks: Iterable[PackedChunk]
) -> Mapping[str, NDArray[Any]]:
    """Count and estimate the pairs of a strip with all features from its first one on.

    Returns
    -------
    Mapping
        `correlation` (float32), `status`, and the counts, each (n_strip, n_features − first).
    """
    n_samples, ones = int(margins["n_samples"]), margins["ones"]
    masked = bool((margins["observed"] < n_samples).any())
    counts = count_strip(features, len(ones), n_samples, masked, chunks)
    correlation, status = estimate(make_strip_table(counts, features, n_samples, ones))
    n_strip = len(status)
    mirror_upper_triangle(correlation[:, :n_strip], status[:, :n_strip])
    return {"correlation": correlation.astype(np.float32), "status": status, **counts}


def find_strip_spectrum(
    results: RangeResults,
    constant: NDArray[np.int64],
    n_features: int,
    n_leading: int,
    map_items: MapFunction,
) -> LeadingSpectrum:
    """Find the leading eigenpairs of the correlations; those of constant features count as 0.

    Parameters
    ----------
    results
        Strips of `correlation`.
    constant
        Features that do not vary.
    n_features, n_leading
        Size of the square, and number of eigenpairs.
    map_items
        Map over strips. The order of sums does not depend on it.
    """
    times = _make_product(results, constant, map_items)
    # A fixed start makes the result reproducible; any start finds the same eigenvectors.
    return compute_leading_spectrum(times, n_features, n_leading, np.random.default_rng(0))


def find_lowest_eigenvalue(
    results: RangeResults, constant: NDArray[np.int64], n_features: int, map_items: MapFunction
) -> float:
    """Find the lowest eigenvalue; at most 0, the eigenvalue of constant features."""
    times = _make_product(results, constant, map_items)
    spectrum = compute_leading_spectrum(
        lambda v: -times(v), n_features, 1, np.random.default_rng(0)
    )
    return -float(spectrum.values[0] + spectrum.residuals[0])


def _make_product(
    results: RangeResults, constant: NDArray[np.int64], map_items: MapFunction
) -> Product:
    parts = _deal_strips(results.n_ranges)

    def times(vectors: Array) -> Array:
        multiply = partial(_multiply_strips, results.read, vectors)
        product: Array = reduce(np.add, map_items(multiply, parts))
        product[constant] -= vectors[constant]  # with 1, an axis could be taken for a component
        return product

    return times


def count_pair_kinds(
    results: RangeResults, excluded: NDArray[np.int64], n_features: int, map_items: MapFunction
) -> PairStatusCounts:
    """Count the statuses of all pairs."""
    count = partial(_count_strip_kinds, results.read, excluded, n_features)
    kinds: PairStatusCounts = reduce(
        PairStatusCounts.merge, map_items(count, range(results.n_ranges))
    )
    return kinds


def _deal_strips(n_strips: int) -> list[range]:
    """Deal strips to partial sums so that each has long and short ones."""
    return [range(k, n_strips, _MAX_PARTS) for k in range(min(_MAX_PARTS, n_strips))]


def _multiply_strips(read: ReadRange, vectors: Array, keys: range) -> Array:
    """Multiply vectors by some strips of the square and by their mirror image."""
    product = np.zeros_like(vectors)
    for key in keys:
        strip = read(key, ["correlation"])["correlation"].astype(np.float64)
        n_strip, first = len(strip), len(vectors) - strip.shape[1]
        product[first : first + n_strip] += strip @ vectors[first:]
        product[first + n_strip :] += strip[:, n_strip:].T @ vectors[first : first + n_strip]
    return product


def _count_strip_kinds(
    read: ReadRange, excluded: NDArray[np.int64], n_features: int, key: int
) -> PairStatusCounts:
    return count_pair_statuses(read(key, ["status"])["status"], excluded, n_features)
