"""Linking of two calibrations: put the items of a new one on the scale of an old one.

Fits to different rows measure the same trait with different origins and units. If some items are in
both, they determine A and B of x_old = A x_new + B. An item with the log-odds w x_new + b has, on
the old scale, the slope w / A and the offset b − w B / A.

A and B minimise the squared difference of the test characteristic curves of the common items,

    Σ_k φ(x_k) [Σ_i σ(w_i^old x_k + b_i^old) − σ(w_i (x_k − B) / A + b_i)]²,

over points of the old scale with standard normal weights (M. L. Stocking, F. M. Lord, "Developing a
common metric in item response theory", Applied Psychological Measurement 7, 1983).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from scipy.special import expit

from pipeline.arrays import Array
from pipeline.errors import FitError
from pipeline.models.known_items import KnownItems
from pipeline.numerics.logistic.information import find_reversed_items

_POINTS = np.linspace(-6.0, 6.0, 121)
_SHARES = np.exp(-0.5 * _POINTS**2) / np.exp(-0.5 * _POINTS**2).sum()
_MIN_COMMON = 2
_TOLERANCE = 1e-12


class ItemLink(NamedTuple):
    """The items of a new calibration on the scale of an old one.

    Attributes
    ----------
    A, B
        The constants of x_old = A x_new + B.
    slopes, offsets
        Of all new items on the old scale, (n_items,) each.
    common
        Names of the items in both calibrations.
    difference
        Root mean squared difference of the two test characteristic curves, in ones.
    """

    A: float
    B: float
    slopes: Array
    offsets: Array
    common: tuple[str, ...]
    difference: float


def compute_link(new: KnownItems, old: KnownItems) -> ItemLink:
    """Put the items of a calibration on the scale of an old one, by Stocking and Lord's method.

    Raises
    ------
    FitError
        If a calibration has several components, fewer than two items are common, or no common item
        depends on the trait.
    """
    for items in (new, old):
        if (q := items.weights.shape[1]) != 1:
            raise FitError(
                f"{items.source} has {q} components, but only fits with one can be linked. "
                "Fit again with {components=1}."
            )
        items.check_has_no_asymptotes("a link")
        items.check_is_binary("a link")
    common = tuple(name for name in new.features if name in set(old.features))
    if len(common) < _MIN_COMMON:
        names = f", {common[0]!r}" if common else ""
        raise FitError(
            f"{new.source} and {old.source} have {len(common)} common items{names}, but a link "
            f"needs at least {_MIN_COMMON}. Items are matched by name."
        )
    slopes, offsets = _select_items(new, common)
    old_slopes, old_offsets = _select_items(old, common)
    if not (slopes.any() and old_slopes.any()):
        raise FitError(f"The common items of {new.source} and {old.source} have slopes of 0.")
    # Items that point the other way count in reverse: otherwise the curves of a test may be flat.
    signs = np.where(find_reversed_items(old_slopes), -1.0, 1.0)
    old_curve = expit(np.outer(_POINTS, old_slopes) + old_offsets) @ signs

    # The parameters are a = 1 / A and c = B / A, of which the log-odds are linear functions.
    def compute_curves(values: Array) -> Array:
        curves: Array = expit(np.outer(values[0] * _POINTS - values[1], slopes) + offsets)
        return curves

    def compute_residuals(values: Array) -> Array:
        residuals: Array = np.sqrt(_SHARES) * (compute_curves(values) @ signs - old_curve)
        return residuals

    def differentiate(values: Array) -> Array:
        P = compute_curves(values)
        change = np.sqrt(_SHARES) * ((P * (1 - P)) @ (signs * slopes))
        return np.column_stack([change * _POINTS, -change])

    scale = np.linalg.norm(old_slopes) / np.linalg.norm(slopes)
    shift = slopes @ (offsets - old_offsets) / (slopes @ slopes)
    # The sign of a trait is arbitrary, so the new one may be reversed.
    fits = [
        scipy.optimize.least_squares(
            compute_residuals,
            np.array([start, shift]),
            differentiate,
            xtol=_TOLERANCE,
            ftol=_TOLERANCE,
            gtol=_TOLERANCE,
        )
        for start in (scale, -scale)
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    a, c = best.x.tolist()
    weights = new.weights[:, 0]
    return ItemLink(
        1 / a, c / a, a * weights, new.offsets - c * weights, common, math.sqrt(2 * best.cost)
    )


def _select_items(items: KnownItems, names: tuple[str, ...]) -> tuple[Array, Array]:
    places = [items.features.index(name) for name in names]
    return items.weights[places, 0], items.offsets[places]
