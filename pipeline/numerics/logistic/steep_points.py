"""Points for rows whose posterior has edges, as items far steeper than it is wide give it.

A Gauss–Hermite rule sees nothing of an edge between two of its nodes. Here a row's points lie on
axes of its own: the first across the edge of its steepest item, each further one across the
steepest edge that is left. Along an axis z = τ + c sinh y, y in equal steps: points lie close where
the edge is, at τ, and ever farther apart beside it. With c = 3 / β an edge of slope β looks the
same in y whatever β, and Gaussian tails stay smooth, so that the trapezoid rule converges like
exp(−const / step) (L. N. Trefethen, J. A. C. Weideman, SIAM Review 56 (2014)). Every second point
is a rule of twice the step, which tells the error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.logistic.centred_kernels import EDGE_REACH

Floats = NDArray[np.float64]

_POINT_SPREAD, _MAX_POINT_SPREAD = 3.0, 3.0  # c β and the largest c


class SteepPoints(NamedTuple):
    """Points of rows, in units of their Gaussians.

    Attributes
    ----------
    z
        (n_rows, n_points, q).
    log_volumes
        Log of the volume that each stands for, over (2π)^(q/2), (n_rows, n_points).
    """

    z: Floats
    log_volumes: Floats


def place_steep_points(
    slopes: Floats, offsets: Floats, reach: Floats, n_an_axis: tuple[int, ...]
) -> SteepPoints:
    """Lay points across the edges of rows.

    Parameters
    ----------
    slopes, offsets
        Of items in units of the row's Gaussian, (n_rows, n_features, q) and (n_rows, n_features);
        0 where a value is missing.
    reach
        How far points go, in units of the row's Gaussian, (n_rows,).
    n_an_axis
        Points of each axis, odd numbers.
    """
    frame, centres, widths = _find_axes(slopes, offsets)
    n_rows, q = centres.shape
    coordinates, log_lengths = [], []
    for k, n in enumerate(n_an_axis):
        at, log_length = _place_on_axis(centres[:, k], widths[:, k], reach, n)
        shape = [n_rows, *(n if j == k else 1 for j in range(q))]
        coordinates.append(at.reshape(shape))
        log_lengths.append(log_length.reshape(shape))
    turned = np.stack(np.broadcast_arrays(*coordinates), axis=-1).reshape(n_rows, -1, q)
    log_volumes = sum(log_lengths[1:], log_lengths[0]).reshape(n_rows, -1)
    return SteepPoints(turned @ frame, log_volumes)


def half_grid_weights(n_an_axis: tuple[int, ...]) -> Floats:
    """Give weights of the rule of twice the step, relative to the whole: 2^q or 0, (n_points,)."""
    shares = np.ones(1)
    for n in n_an_axis:
        shares = np.multiply.outer(shares, 2.0 * (np.arange(n) % 2 == 0)).ravel()
    return shares


def _find_axes(slopes: Floats, offsets: Floats) -> tuple[Floats, Floats, Floats]:
    """Find axes (n_rows, q, q), one a line; where the edge is on each, and c there, (n_rows, q)."""
    n_rows, _, q = slopes.shape
    frame, left, rows = np.zeros((n_rows, q, q)), slopes.copy(), np.arange(n_rows)
    centres, widths = np.zeros((2, n_rows, q))
    for k in range(q):
        size = np.sqrt((left**2).sum(axis=2))
        steepest = np.argmax(np.where(abs(offsets) <= EDGE_REACH * size, size, 0.0), axis=1)
        beta = np.maximum(size[rows, steepest], _POINT_SPREAD / _MAX_POINT_SPREAD)
        frame[:, k] = _unit_vectors(left[rows, steepest], frame[:, :k])
        centres[:, k] = np.clip(-offsets[rows, steepest] / beta, -EDGE_REACH, EDGE_REACH)
        widths[:, k] = _POINT_SPREAD / beta
        along = (left * frame[:, None, k]).sum(axis=2)
        left -= along[:, :, None] * frame[:, None, k]
    return frame, centres, widths


def _unit_vectors(wanted: Floats, others: Floats) -> Floats:
    """Give unit vectors (n_rows, q) along those wanted; any that is aside of the others where 0."""
    q = wanted.shape[1]
    candidates = np.concatenate([wanted[:, None], np.tile(np.eye(q), (len(wanted), 1, 1))], axis=1)
    for other in np.swapaxes(others, 0, 1):
        along = (candidates * other[:, None]).sum(axis=2)
        candidates -= along[:, :, None] * other[:, None]
    size = np.sqrt((candidates**2).sum(axis=2))
    size[:, 0] *= 1e9  # the wanted one, unless it is nothing but rounding
    best = np.argmax(size, axis=1)
    chosen = candidates[np.arange(len(wanted)), best]
    return np.asarray(chosen / np.sqrt((chosen**2).sum(axis=1, keepdims=True)))


def _place_on_axis(centre: Floats, width: Floats, reach: Floats, n: int) -> tuple[Floats, Floats]:
    """Place n points on an axis, and give log of the length of each over √(2π), (n_rows, n)."""
    low, high = (np.arcsinh((end - centre) / width) for end in (-reach, reach))
    step = (high - low) / (n - 1)
    y = low[:, None] + step[:, None] * np.arange(n)
    at = centre[:, None] + width[:, None] * np.sinh(y)
    length = (width * step)[:, None] * np.cosh(y) / np.sqrt(2 * np.pi)
    return at, np.log(length)
