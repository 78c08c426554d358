"""The bounds of the levels of features, one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def place_bounds(
    thresholds: NDArray[np.float64], n_levels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Put the thresholds of each feature between −∞ and ∞.

    Parameters
    ----------
    thresholds
        Thresholds of all levels but the lowest, (..., n_planes).
    n_levels
        Number of levels of each feature, (n_features,).

    Returns
    -------
    first, bounds
        Level c of feature i lies between bounds[..., first[i] + c] and the next bound.
    """
    n_planes = n_levels - 1
    first = np.cumsum(n_levels + 1) - (n_levels + 1)
    places = np.arange(n_planes.sum()) + 2 * np.repeat(np.arange(len(n_levels)), n_planes) + 1
    bounds = np.full((*thresholds.shape[:-1], int((n_levels + 1).sum())), np.inf)
    bounds[..., first] = -np.inf
    bounds[..., places] = thresholds
    return first, bounds
