"""Clipped PCA of wide data: correlations of all pairs in strips, and their spectrum by products.

No task and no central step holds a square of all features. Correlations are kept in float32: they
are rounded by 3e-8 at the most, far below their sampling errors, and leading eigenvalues by less
than 1e-8 of themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import Chunk
from pipeline.executors.base import Map
from pipeline.models.state import Arrays
from pipeline.numerics.spectra.leading_spectrum import (
    Product,
    Spectrum,
    columns_held,
    leading_spectrum,
)
from pipeline.passes.feature_strips import LEAST_HEIGHT, strip_memory
from pipeline.passes.row_ranges import ReadRun, Results
from pipeline.statistics.correlations import Estimate, PairKinds, mirror, pair_kinds
from pipeline.statistics.strips import count_strip, strip_table

Array = NDArray[np.float64]

MOST_AT_ONCE = 2000
"""Features that one square is made of; of more, strips are."""
_PARTS = 32


def strips_memory(n_features: int, n_leading: int, n_threads: int) -> int:
    """Bytes of the basis and what is made of it, and of the least strips that threads work on."""
    columns = 2 * columns_held(n_features, n_leading) + 8 * n_leading
    return 8 * n_features * columns + n_threads * strip_memory(LEAST_HEIGHT, n_features)


def correlation_strip(
    estimate: Estimate, margins: Arrays, features: slice, chunks: Iterable[Chunk]
) -> Mapping[str, NDArray[Any]]:
    """Count the pairs of a strip with all features from its first on, and estimate them.

    Returns
    -------
    Mapping
        `correlation` (float32), `status`, and the counts, each (n_strip, n_features − first).
    """
    n_samples, ones = int(margins["n_samples"]), margins["ones"]
    masked = bool((margins["observed"] < n_samples).any())
    counts = count_strip(features, len(ones), n_samples, masked, chunks)
    correlation, status = estimate(strip_table(counts, features, n_samples, ones))
    n_strip = len(status)
    mirror(correlation[:, :n_strip], status[:, :n_strip])
    return {"correlation": correlation.astype(np.float32), "status": status, **counts}


def strip_spectrum(
    results: Results, constant: NDArray[np.int64], n_features: int, n_leading: int, map_items: Map
) -> Spectrum:
    """Find the leading eigenpairs of the correlations, those of constant features taken as 0.

    Parameters
    ----------
    results
        Strips of `correlation`.
    constant
        Features that do not vary.
    n_features, n_leading
        Size of the square, and number of eigenpairs.
    map_items
        Where strips are multiplied; sums are in an order of their own, whatever it is.
    """
    times = _product_of(results, constant, map_items)
    # The start is always the same: it does not matter where eigenvectors are looked for.
    return leading_spectrum(times, n_features, n_leading, np.random.default_rng(0))


def lowest_of_strips(
    results: Results, constant: NDArray[np.int64], n_features: int, map_items: Map
) -> float:
    """Find the lowest eigenvalue, or 0, as constant features have it, if all others are above."""
    times = _product_of(results, constant, map_items)
    found = leading_spectrum(lambda v: -times(v), n_features, 1, np.random.default_rng(0))
    return -float(found.values[0] + found.residuals[0])


def _product_of(results: Results, constant: NDArray[np.int64], map_items: Map) -> Product:
    parts = _parts_of(results.n_runs)

    def times(vectors: Array) -> Array:
        multiply = partial(_times_strips, results.read, vectors)
        product: Array = reduce(np.add, map_items(multiply, parts))
        product[constant] -= vectors[constant]  # At 1 an axis could be taken for a component.
        return product

    return times


def kinds_of_strips(
    results: Results, left_out: NDArray[np.int64], n_features: int, map_items: Map
) -> PairKinds:
    """Count the statuses of all pairs."""
    count = partial(_kinds_of_strip, results.read, left_out, n_features)
    kinds: PairKinds = reduce(PairKinds.merge, map_items(count, range(results.n_runs)))
    return kinds


def _parts_of(n_strips: int) -> list[range]:
    """Deal strips to sums, so that each has long and short ones."""
    return [range(k, n_strips, _PARTS) for k in range(min(_PARTS, n_strips))]


def _times_strips(read: ReadRun, vectors: Array, keys: range) -> Array:
    """Multiply vectors by what some strips hold of the square, and by its mirror image."""
    product = np.zeros_like(vectors)
    for key in keys:
        strip = read(key, ["correlation"])["correlation"].astype(np.float64)
        n_strip, first = len(strip), len(vectors) - strip.shape[1]
        product[first : first + n_strip] += strip @ vectors[first:]
        product[first + n_strip :] += strip[:, n_strip:].T @ vectors[first : first + n_strip]
    return product


def _kinds_of_strip(
    read: ReadRun, left_out: NDArray[np.int64], n_features: int, key: int
) -> PairKinds:
    return pair_kinds(read(key, ["status"])["status"], left_out, n_features)
