"""Offsets of levels as a mean per feature and the log gaps between neighbours.

Feature i has offsets c_i1 > c_i2 > …, one for each plane. Their mean is c_i, and the logs of the
gaps c_ip − c_i,p+1 are free, so that steps of an optimiser keep the order. Continuous features,
which have one level, have no planes.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array

_MIN_GAP = 1e-4  # between levels without rows, whose offsets may be equal


def split_level_offsets(level_offsets: Array, n_levels: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the means, and the log gaps, (n_gaps,), of offsets, (n_planes,).

    Only features with planes have a mean, (n_ordinal,).
    """
    n_planes = n_levels[n_levels > 1] - 1
    firsts = np.cumsum(n_planes) - n_planes
    means = np.add.reduceat(level_offsets, firsts) / n_planes
    is_within = np.ones(len(level_offsets), np.bool_)
    is_within[firsts] = False
    gaps = level_offsets[:-1] - level_offsets[1:]
    return means, np.log(np.maximum(gaps[is_within[1:]], _MIN_GAP))


def join_level_offsets(means: Array, log_gaps: Array, n_levels: NDArray[np.int64]) -> Array:
    """Invert `split_level_offsets`, given the means of all features, (n_features,)."""
    offsets: Array = np.repeat(means, n_levels - 1) + make_gap_matrix(n_levels) @ np.exp(log_gaps)
    return offsets


def make_gap_matrix(n_levels: NDArray[np.int64]) -> Array:
    """Return the derivatives of offsets by gaps, (n_planes, n_gaps)."""
    blocks = []
    for n_planes in (n_levels[n_levels > 1] - 1).tolist():
        is_below = np.tri(n_planes, n_planes - 1, -1)
        blocks.append(is_below.mean(axis=0) - is_below)
    matrix: Array = scipy.linalg.block_diag(*blocks)
    return matrix
