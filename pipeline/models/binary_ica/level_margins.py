"""Thresholds that all segments share, and each segment's location and scale, from the margins.

In segment u a feature has level p or higher iff m_u + s_u e > τ_p, with e standard normal, so its
standard thresholds are (τ_p − m_u) / s_u. The τ are common to all segments: how far apart the
standard thresholds of a segment lie measures s_u. The margins of all segments are fitted by maximum
likelihood, with Fisher scoring. The τ are eliminated from each step, so its cost is linear in the
number of segments.

Weak priors, log s_u ~ N(0, 1) and m_u ~ N(0, 10), fix the location and the scale of the τ, and keep
estimates finite in segments with rows at one or two levels only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.numerics.gaussian.level_bounds import share_between

_PRIOR = np.array([0.1, 1.0])  # precisions of m and log s
_MAX_STEPS, _MAX_HALVINGS, _TOLERANCE = 200, 40, 1e-9
_MIN_SHARE = 1e-300
_MAX_THRESHOLD = 9.5  # as tables of pairs allow at most 10


class LevelMargins(NamedTuple):
    """Fit to the margins of a feature.

    Attributes
    ----------
    thresholds
        (τ_p − m_u) / s_u, (n_segments, n_planes).
    centre_errors
        Standard errors of the mean of these, infinite without rows, (n_segments,).
    log_scales
        log s_u, up to a constant, (n_segments,).
    information
        Fisher information on log s_u, with m_u unknown and the τ known, (n_segments,).
    """

    thresholds: Array
    centre_errors: Array
    log_scales: Array
    information: Array


def fit_level_margins(level_rows: NDArray[np.int64]) -> LevelMargins:
    """Fit the rows of each segment at each level, (n_segments, n_levels).

    A level without any row gets half a row, spread over the segments.
    """
    by_segment = level_rows.sum(axis=1)
    is_empty = level_rows.sum(axis=0) == 0
    counts = level_rows + 0.5 * np.outer(by_segment / by_segment.sum(), is_empty)
    shares = np.cumsum(counts.sum(axis=0))[:-1] / counts.sum()
    cuts, places = scipy.special.ndtri(shares), np.zeros((len(counts), 2))
    value = _log_posterior(counts, cuts, places)
    for _ in range(_MAX_STEPS):
        cut_step, place_step = _find_step(counts, cuts, places)
        length = 1.0
        for _ in range(_MAX_HALVINGS):
            moved = cuts + length * cut_step, places + length * place_step
            if (new_value := _log_posterior(counts, *moved)) >= value:
                break
            length /= 2
        else:
            break
        (cuts, places), value = moved, new_value
        if length * max(np.abs(cut_step).max(), np.abs(place_step).max()) < _TOLERANCE:
            break
    (by_location, both), (_, by_scale) = _information(counts, cuts, places)[2].transpose(1, 2, 0)
    with np.errstate(divide="ignore"):
        errors = np.exp(-places[:, 1]) / np.sqrt(by_location)
    floor = np.finfo(np.float64).tiny
    return LevelMargins(
        np.clip(_standardize(cuts, places), -_MAX_THRESHOLD, _MAX_THRESHOLD),
        errors,
        places[:, 1],
        np.maximum(by_scale - both**2 / np.maximum(by_location, floor), 0.0),
    )


def _standardize(cuts: Array, places: Array) -> Array:
    return (cuts - places[:, :1]) * np.exp(-places[:, 1:])


def _level_shares(thresholds: Array) -> Array:
    """Return the probability of each level, precise in both tails, (n_segments, n_levels)."""
    edges = np.pad(thresholds, ((0, 0), (1, 1)), constant_values=np.inf)
    edges[:, 0] = -np.inf
    return share_between(edges[:, :-1], edges[:, 1:])


def _log_posterior(counts: Array, cuts: Array, places: Array) -> float:
    if (np.diff(cuts) <= 0).any():
        return -np.inf
    shares = np.maximum(_level_shares(_standardize(cuts, places)), _MIN_SHARE)
    return float((counts * np.log(shares)).sum() - 0.5 * (places**2 @ _PRIOR).sum())


def _information(counts: Array, cuts: Array, places: Array) -> tuple[Array, Array, Array]:
    """Return the information: of cuts, of cuts and places, and of places, by segment."""
    z = _standardize(cuts, places)
    n_planes, rows = z.shape[1], counts.sum(axis=1)
    shares = np.maximum(_level_shares(z), _MIN_SHARE)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    by_z = np.zeros((len(z), n_planes, n_planes))
    on, off = np.arange(n_planes), np.arange(n_planes - 1)
    by_z[:, on, on] = rows[:, None] * density**2 * (1 / shares[:, :-1] + 1 / shares[:, 1:])
    beside = -rows[:, None] * density[:, :-1] * density[:, 1:] / shares[:, 1:-1]
    by_z[:, off, off + 1] = by_z[:, off + 1, off] = beside
    slopes, jacobian = np.exp(-places[:, 1]), _jacobian(z, places)
    crossed = slopes[:, None, None] * (by_z @ jacobian)
    return (
        (slopes[:, None, None] ** 2 * by_z).sum(axis=0),
        crossed,
        (jacobian.transpose(0, 2, 1) @ by_z @ jacobian),
    )


def _jacobian(z: Array, places: Array) -> Array:
    """Return the derivatives of the standard thresholds by m and log s."""
    by_location = np.broadcast_to(-np.exp(-places[:, 1:]), z.shape)
    return np.stack([by_location, -z], axis=2)


def _find_step(counts: Array, cuts: Array, places: Array) -> tuple[Array, Array]:
    """Return the step of Fisher scoring."""
    z = _standardize(cuts, places)
    ratios = counts / np.maximum(_level_shares(z), _MIN_SHARE)
    by_z = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (ratios[:, :-1] - ratios[:, 1:])
    by_cut = (np.exp(-places[:, 1:]) * by_z).sum(axis=0)
    by_place = (by_z[:, None] @ _jacobian(z, places))[:, 0] - _PRIOR * places
    of_cuts, crossed, of_places = _information(counts, cuts, places)
    inverse = np.linalg.inv(of_places + np.diag(_PRIOR))
    eliminated = crossed @ inverse
    schur = of_cuts - (eliminated @ crossed.transpose(0, 2, 1)).sum(axis=0)
    cut_step = np.linalg.solve(
        schur, by_cut - (eliminated @ by_place[:, :, None]).sum(axis=0)[:, 0]
    )
    place_step = (inverse @ (by_place - cut_step @ crossed)[:, :, None])[:, :, 0]
    return cut_step, place_step
