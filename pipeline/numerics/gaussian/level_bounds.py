"""The bounds of the levels of features, and the normal probability between two bounds."""

from __future__ import annotations

import numpy as np
import scipy
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


def share_between(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of a standard normal between bounds, precise in both tails."""
    is_above = lower + upper > 0  # in the upper tail, differences of Φ lose their digits
    lower, upper = np.where(is_above, -upper, lower), np.where(is_above, -lower, upper)
    return np.asarray(scipy.special.ndtr(upper) - scipy.special.ndtr(lower))
