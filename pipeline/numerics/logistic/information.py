"""Information that items give about a single trait, and what follows from it.

The information of an item with the curve P(θ) is I(θ) = P′(θ)² / (P(θ) (1 − P(θ))), which is
w² P(θ) (1 − P(θ)) if P(θ) = σ(w θ + b); `asymptotes` has other curves. The information of a test is
the sum over its items; 1 / √I is the standard error of the maximum likelihood estimate of θ (F. M.
Lord, "Applications of item response theory to practical testing problems", 1980). With a standard
normal trait, the marginal reliability is the mean of I / (I + 1) over θ (B. F. Green et al.,
Journal of Educational Measurement 21, 1984).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_REACH, _N_POINTS = 8.0, 1601  # of the integrals over the trait


def average_reliability(compute_information: Callable[[Floats], Floats]) -> float:
    """Return the mean of I / (I + 1) over a standard normal trait, given I at points."""
    points, shares = _make_trait_grid()
    information = compute_information(points)
    return float(shares @ (information / (information + 1)))


def find_reversed_items(weights: Floats) -> NDArray[np.bool_]:
    """Return the items that sum scores count in reverse, (n_features,), given weights of items.

    These are the items of one trait whose slopes have the other sign than most; slopes that are NaN
    have no sign. Of several traits, (n_features, q), there are none.
    """
    if weights.ndim == 2 and weights.shape[1] != 1:
        return np.zeros(len(weights), np.bool_)
    slopes = weights.ravel()
    return np.asarray(slopes * np.nansum(slopes) < 0)


def choose_short_test(
    compute_information: Callable[[Floats], Floats], n_items: int
) -> tuple[NDArray[np.intp], Floats]:
    """Choose items for the most reliable test of `n_items`, one after the other.

    Every step adds the item that raises the marginal reliability most. `compute_information`
    returns the information of each item at points of the trait, (n_points, n_features).

    Returns
    -------
    tuple
        The items in the order in which they are added, and the reliability with each, (n_items,).
    """
    points, shares = _make_trait_grid()
    by_item = compute_information(points)
    total, chosen, reliabilities = np.zeros(len(points)), [], []
    is_left = np.ones(by_item.shape[1], np.bool_)
    for _ in range(n_items):
        with_item = by_item + total[:, None]
        reliability = np.where(is_left, shares @ (with_item / (with_item + 1)), -np.inf)
        best = int(np.argmax(reliability))
        is_left[best], total = False, with_item[:, best]
        chosen.append(best)
        reliabilities.append(float(reliability[best]))
    return np.array(chosen), np.array(reliabilities)


def _make_trait_grid() -> tuple[Floats, Floats]:
    """Return points of a standard normal trait, and their shares, (n_points,) each."""
    points = np.linspace(-_REACH, _REACH, _N_POINTS)
    density = np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    return points, density / density.sum()
