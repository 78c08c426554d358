"""How strongly two features depend on each other, from the joint probabilities of their levels."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def compute_table_information(joint: Array) -> Array:
    """Return the mutual information of each table, nats.

    Parameters
    ----------
    joint
        Joint probabilities of the levels of two features, (…, n_levels, n_levels); each table sums
        to 1, and entries beyond a feature's levels are 0.

    Returns
    -------
    ndarray
        (…,); at least 0.
    """
    independent = joint.sum(axis=-1, keepdims=True) * joint.sum(axis=-2, keepdims=True)
    information: Array = scipy.special.rel_entr(joint, independent).sum(axis=(-2, -1))
    return np.maximum(information, 0.0)  # rounding may leave less


def compute_table_correlation(joint: Array) -> Array:
    """Return the correlation of the scores 0, 1, 2, … of levels in each table, (…,).

    It is phi if both features are binary, and NaN if one is constant. `joint` is as for
    `compute_table_information`.
    """
    above, below = joint.sum(axis=-1), joint.sum(axis=-2)
    scores = [
        np.arange(size) - (margin * np.arange(size)).sum(-1, keepdims=True)
        for size, margin in ((above.shape[-1], above), (below.shape[-1], below))
    ]
    covariance = np.einsum("...ba,...b,...a->...", joint, *scores)
    variances = [
        (margin * score**2).sum(axis=-1)
        for margin, score in zip((above, below), scores, strict=True)
    ]
    scale = np.sqrt(variances[0] * variances[1])
    correlation: Array = np.divide(
        covariance, scale, out=np.full_like(scale, np.nan), where=scale > 0
    )
    return np.clip(correlation, -1.0, 1.0)


def sum_information(cells: Array, left: Counts, right: Counts) -> Array:
    """Return the mutual information of pairs of features times their rows, nats, (n_left, n_right).

    `cells` are counts of pairs of levels, those of a feature next to each other, and `left` and
    `right` the numbers of levels of the features. Levels that no row has may be 0.

    Σ_ab n_ab log n_ab − Σ_a n_a log n_a − Σ_b n_b log n_b + n log n (Chow & Liu 1968, equation 5).
    """
    rows, columns = (np.cumsum(own) - own for own in (left, right))
    above = np.add.reduceat(cells, columns, axis=1)
    below = np.add.reduceat(cells, rows, axis=0)
    totals = np.add.reduceat(above, rows, axis=0)
    by_cell = np.add.reduceat(_xlogx(cells), rows, axis=0)
    information: Array = np.add.reduceat(by_cell, columns, axis=1) + _xlogx(totals)
    information -= np.add.reduceat(_xlogx(above), rows, axis=0)
    information -= np.add.reduceat(_xlogx(below), columns, axis=1)
    return np.maximum(information, 0.0)


def _xlogx(counts: Array) -> Array:
    return np.asarray(scipy.special.xlogy(counts, counts), np.float64)
