"""Correlations of pairs with continuous features, from sums over rows.

`mixed` and `mixed_strips` share these steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, unpack_levels
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polyserial import (
    MAX_Z,
    NOT_OBSERVED,
    NewtonBounds,
    PolyserialPairs,
    start_polyserial,
    sum_polyserial_derivatives,
)
from pipeline.statistics.measurements import standardize_numbers

MAX_PASSES = 100
"""Maximum number of passes of Newton's method."""
_BEYOND = 1e6
_MIN_VARIANCE = 1e-12  # of standardized values; less is rounding


def _divide(a: Array, b: Array) -> Array:
    quotient: Array = np.divide(
        a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b > 0
    )
    return quotient


def _classify(rows: Array, is_constant: NDArray[np.bool_]) -> NDArray[np.uint8]:
    status = np.where(is_constant, PairStatus.CONSTANT_FEATURE, PairStatus.PLAIN)
    return np.where(rows > 0, status, PairStatus.NO_OBSERVATIONS).astype(np.uint8)


def estimate_pearson(
    sums: Mapping[str, Array], mirrored: Mapping[str, Array]
) -> tuple[Array, NDArray[np.uint8]]:
    """Return correlations of continuous features, over the rows where both are observed.

    `sums` are `rows`, `values`, `squares` and `products` of `sum_moments`, (n_left, n_right), and
    `mirrored` the same of the right features with the left ones, transposed.
    """
    rows = sums["rows"]
    means, other_means = (_divide(own["values"], rows) for own in (sums, mirrored))
    variances = _divide(sums["squares"], rows) - means**2
    other_variances = _divide(mirrored["squares"], rows) - other_means**2
    covariances = _divide(sums["products"], rows) - means * other_means
    is_constant = (variances <= _MIN_VARIANCE) | (other_variances <= _MIN_VARIANCE)
    spread = np.where(is_constant, 0.0, np.sqrt(np.maximum(variances * other_variances, 0.0)))
    correlation = np.clip(_divide(covariances, spread), -1.0, 1.0)
    return correlation, _classify(rows, is_constant)


def start_pairs(
    sums: Mapping[str, Array], ones: Array, first_planes: NDArray[np.int64]
) -> tuple[PolyserialPairs, NDArray[np.uint8]]:
    """Return the pairs of continuous features with levels, and their statuses.

    `sums` and `ones` are results of `sum_moments` with planes on the right, (n_continuous,
    n_planes).
    """
    firsts = first_planes[:-1]
    n_planes = np.diff(first_planes)
    rows, centers, squares = (sums[name][:, firsts] for name in ("rows", "values", "squares"))
    centers = _divide(centers, rows)
    variances = _divide(squares, rows) - centers**2
    rows_by_plane = sums["rows"]
    shares = _divide(ones, rows_by_plane)
    # A threshold that no row, or every row, exceeds is beyond all values.
    thresholds = np.clip(-scipy.special.ndtri(shares), -_BEYOND, _BEYOND)
    covariances = _divide(
        sums["products"] - np.repeat(centers, n_planes, axis=1) * ones, rows_by_plane
    )
    densities = np.exp(-0.5 * thresholds**2) / np.sqrt(2 * np.pi)
    covariance, density = (
        np.add.reduceat(values, firsts, axis=1) for values in (covariances, densities)
    )
    is_constant = (variances <= _MIN_VARIANCE) | (density <= 0)
    status = _classify(rows, is_constant)
    is_active = status == PairStatus.PLAIN
    scales = np.where(is_active, np.sqrt(np.maximum(variances, _MIN_VARIANCE)), 1.0)
    z = np.where(is_active, start_polyserial(covariance / scales, density), 0.0)
    return PolyserialPairs(thresholds, centers, scales, z, is_active), status


def make_bounds(pairs: PolyserialPairs) -> NewtonBounds:
    """Return the widest bounds of Newton's method."""
    bound = np.full(pairs.z.shape, MAX_Z)
    return NewtonBounds(-bound, bound)


def sum_derivatives(
    block: BinaryBlock,
    pairs: PolyserialPairs,
    means: Array,
    scales: Array,
    n_levels: NDArray[np.int64],
    left: slice = slice(None),
) -> Array:
    """Sum the derivatives of `sum_polyserial_derivatives` over the rows of a block.

    `means` and `scales` standardize all continuous features; `left` selects the features of the
    pairs among them. `n_levels` are the numbers of levels of the other features.
    """
    levels, observed = unpack_levels(block, n_levels - 1)
    if observed is not None:
        levels = np.where(observed.astype(np.bool_), levels, np.uint8(NOT_OBSERVED))
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    x = standardize_numbers(block, means, scales)[left]
    return sum_polyserial_derivatives(pairs, x, levels.T, weights, n_levels)
