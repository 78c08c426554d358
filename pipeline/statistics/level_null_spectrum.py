"""Leading eigenvalues of the correlations of independent features, from their margins.

Features have levels or are continuous.

As in `null_spectrum`, features are grouped, and each pair of groups is described by three moments
of the estimate r. The tables of two features with levels are too many to enumerate, so moments are
those of random tables. A feature scores f(s), the mean of the latent normal at level s. To first
order, r is the covariance of f_i and f_j divided by their variances v_i v_j. Therefore

    u = Cov(f_i, f_j) √(n − 1) / √(v_i v_j)

takes the place of the standardized count: it has mean 0 and variance 1, and `linear` is the slope
of r by u. Two binary features have the same u as their joint count.

The values of a continuous feature are its scores, with v = 1. Pearson and polyserial correlations
are taken for linear: their only moment is 1 / √((n − 1) v_i v_j).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import label_map
from pipeline.numerics.spectra.noise_spectrum import GroupedNoise
from pipeline.statistics.correlations import draw_independent_levels, estimate_polychoric
from pipeline.statistics.counts import PairTable
from pipeline.statistics.null_spectrum import (
    draw_overlaps,
    find_null_quantiles,
    group_features,
    select_members,
)

EmptyCells = Literal["half", "none"]
_DRAWS = 2
"""Random tables of each pair of features. Groups have many pairs."""


class PlaneMargins(NamedTuple):
    """Margins of features with levels.

    Attributes
    ----------
    n_rows
        Number of rows.
    observed, ones
        Observed values, and ones among them, of each plane, (n_planes,).
    first_planes
        First plane of each feature, and the number of planes, (n_features + 1,).
    """

    n_rows: int
    observed: Counts
    ones: Counts
    first_planes: Counts

    def select(self, features: NDArray[np.intp]) -> PlaneMargins:
        """Return the margins of some features, in their order."""
        heights = np.diff(self.first_planes)[features]
        first_planes = np.concatenate([[0], np.cumsum(heights)])
        planes = np.repeat(self.first_planes[features] - first_planes[:-1], heights)
        planes += np.arange(len(planes))
        return PlaneMargins(self.n_rows, self.observed[planes], self.ones[planes], first_planes)

    def find_varying(self) -> NDArray[np.intp]:
        """Return the features with rows at several levels."""
        is_varying = (self.ones > 0) & (self.ones < self.observed)
        features = np.repeat(np.arange(len(self.first_planes) - 1), np.diff(self.first_planes))
        return np.unique(features[is_varying])


class LatentScores(NamedTuple):
    """The scores f of the levels of features.

    Attributes
    ----------
    steps
        How much f rises from the level below each plane to the level above it, (n_planes,).
    variances
        Variance of f, (n_features,).
    """

    steps: Array
    variances: Array


def estimate_level_null_quantiles(
    margins: PlaneMargins,
    numbers: Counts,
    empty_cells: EmptyCells,
    n_leading: int,
    map_items: MapFunction,
    rng: np.random.Generator,
    quantile: float = 0.95,
) -> Array:
    """Return a quantile of each leading eigenvalue for independent features with these margins.

    `numbers` are the observed values of continuous features, (n_continuous,), which must not be
    constant. `map_items` maps over groups of features. The result is as of
    `estimate_null_quantiles`.
    """
    margins = margins.select(margins.find_varying())
    n_features = len(margins.first_planes) - 1 + len(numbers)
    k = min(n_leading, n_features)
    if n_features < 2:
        return np.ones(k)
    noise = make_level_noise(margins, numbers, empty_cells, map_items, rng)
    return find_null_quantiles(noise, n_features, k, rng, quantile)


def make_level_noise(
    margins: PlaneMargins,
    numbers: Counts,
    empty_cells: EmptyCells,
    map_items: MapFunction,
    rng: np.random.Generator,
) -> GroupedNoise:
    """Describe the estimates for independent features by the moments of groups of features.

    Parameters are as for `estimate_level_null_quantiles`; no feature may be constant.
    """
    firsts = margins.first_planes[:-1]
    variances, observed = score_levels(margins).variances, margins.observed[firsts]
    groups, number_groups = [], []
    if len(observed):
        mean_ones = np.add.reduceat(margins.ones, firsts) / np.diff(margins.first_planes)
        shares = scipy.special.ndtri(mean_ones / observed)
        groups = group_features(np.array([shares, variances, np.log(observed)]))
    if len(numbers):
        number_groups = group_features(np.log(numbers)[None])
    sizes = np.array([len(group) for group in (*groups, *number_groups)], np.float64)
    # Features are observed independently, so each factor is a mean over the members of a group.
    factors = [1 / np.sqrt(variances[group] * observed[group]) for group in groups]
    factors += [1 / np.sqrt(numbers[group]) for group in number_groups]
    means = np.sqrt(margins.n_rows) * np.array([values.mean() for values in factors])
    moments = np.zeros((3, len(sizes), len(sizes)))
    moments[1] = np.outer(means, means) / np.sqrt(margins.n_rows - 1)
    if groups:
        members = select_members(groups)
        compute = partial(_compute_moments, margins, empty_cells, members)
        seeds = rng.integers(2**63, size=len(groups)).tolist()
        map_labelled = label_map(map_items, "null draws", len(groups))
        for a, part in enumerate(map_labelled(compute, enumerate(seeds))):
            own = slice(a, len(groups))
            moments[:, a, own] = moments[:, own, a] = part
    mean, linear, spread = moments
    return GroupedNoise(sizes, mean, linear, spread, margins.n_rows - 1)


def score_levels(margins: PlaneMargins) -> LatentScores:
    """Compute the mean of the latent normal at each level, given the shares of the levels.

    A level without rows has the mean that it would have with few: its threshold.
    """
    firsts = margins.first_planes[:-1]
    is_first = np.zeros(len(margins.ones), np.bool_)
    is_first[firsts] = True
    is_last = np.roll(is_first, -1)
    reached = margins.ones / margins.observed
    thresholds = np.clip(-scipy.special.ndtri(reached), -38.0, 38.0)
    density = np.exp(-0.5 * thresholds**2) / np.sqrt(2 * np.pi)
    # Shares and summed means of the levels next below and next above each plane.
    below = np.where(is_first, 1.0, np.roll(reached, 1)) - reached
    sum_below = density - np.where(is_first, 0.0, np.roll(density, 1))
    above, sum_above = np.roll(below, -1), np.roll(sum_below, -1)
    above[is_last], sum_above[is_last] = reached[is_last], -density[is_last]
    mean_below, mean_above = (
        np.divide(-sums, shares, out=thresholds.copy(), where=shares > 0)
        for sums, shares in ((sum_below, below), (sum_above, above))
    )
    squares = below * mean_below**2 + np.where(is_last, above * mean_above**2, 0.0)
    return LatentScores(mean_above - mean_below, np.add.reduceat(squares, firsts))


def _compute_moments(
    margins: PlaneMargins,
    empty_cells: EmptyCells,
    members: NDArray[np.intp],
    item: tuple[int, int],
) -> Array:
    """Return mean, linear part and variance of estimates between a group and itself or later ones.

    `members` are features of each group, (n_groups, n_members), and `item` is the group and a seed.
    The result has the shape (3, n_groups − group).
    """
    (a, seed), n_members = item, members.shape[1]
    rng, margins = np.random.default_rng(seed), margins.select(members[a:].ravel())
    firsts, scores = margins.first_planes, score_levels(margins)
    left, left_planes = firsts[:n_members], slice(firsts[n_members])
    deviations = np.sqrt(scores.variances)
    # A group with itself has each pair once.
    is_pair = np.arange(len(deviations)) > np.arange(n_members)[:, None]
    estimates, standard = np.zeros((2, _DRAWS, *is_pair.shape))
    for draw in range(_DRAWS):
        table = _draw_margins(margins, left_planes, rng)
        noise = rng.standard_normal((left_planes.stop, firsts[-1]))
        table = draw_independent_levels(table, firsts, noise)
        estimates[draw], _ = estimate_polychoric(empty_cells, firsts, table)
        n = np.maximum(table.n, 2.0)
        excess = scores.steps[left_planes, None] * (table.joint - table.ones_i * table.ones_j / n)
        excess *= scores.steps * np.sqrt(n - 1) / n
        by_level = np.add.reduceat(excess, firsts[:-1], axis=1)
        standard[draw] = np.add.reduceat(by_level, left, axis=0)
        standard[draw] /= deviations[:n_members, None] * deviations

    def average(values: Array) -> Array:
        """Average over the draws and the pairs of a group with each group."""
        sums = (values * is_pair).sum(axis=(0, 1)).reshape(-1, n_members).sum(axis=1)
        counts = is_pair.sum(axis=0).reshape(-1, n_members).sum(axis=1)
        means: Array = sums / (_DRAWS * counts)
        return means

    squares = average(standard**2)
    linear = np.divide(
        average(estimates * standard), squares, out=np.zeros_like(squares), where=squares > 0
    )
    remainder = estimates - np.repeat(linear, n_members) * standard
    mean = average(remainder)
    spread = average((remainder - np.repeat(mean, n_members)) ** 2)
    return np.array([mean, np.maximum(linear, 0.0), spread])


def _draw_margins(margins: PlaneMargins, left: slice, rng: np.random.Generator) -> PairTable:
    """Draw the margins of pairs of planes, whose values are missing independently.

    Planes in `left` are those of the first features. The joint counts are empty.
    """
    n_rows, observed, ones, first_planes = margins
    none = np.zeros(0)
    if (observed == n_rows).all():
        return PairTable(np.array(n_rows), ones[left, None], ones[None], none)
    firsts, heights = first_planes[:-1], np.diff(first_planes)
    n_left = int(np.searchsorted(firsts, left.stop))
    shape = n_left, len(firsts)
    n = draw_overlaps(
        np.full(shape, n_rows),
        np.broadcast_to(observed[firsts[:n_left], None], shape),
        np.broadcast_to(observed[firsts], shape),
        rng,
    )
    by_left = _draw_ones(margins, n, slice(n_left), rng)
    by_right = _draw_ones(margins, n.T, slice(None), rng).T
    return PairTable(
        n.repeat(heights[:n_left], axis=0).repeat(heights, axis=1),
        by_left.repeat(heights, axis=1),
        by_right.repeat(heights[:n_left], axis=0),
        none,
    )


def _draw_ones(margins: PlaneMargins, n: Array, features: slice, rng: np.random.Generator) -> Array:
    """Draw the ones of the planes of some features in random rows, (n_planes, n_others).

    `n` is the number of rows that observe the feature and another one, (n_features, n_others).
    """
    firsts, heights = margins.first_planes[:-1][features], np.diff(margins.first_planes)[features]
    drawn = np.zeros((heights.sum(), n.shape[1]))
    for c in range(heights.max()):
        own = heights > c
        planes = firsts[own] + c
        # Rows that reach the plane before, all of them and those drawn.
        before, drawn_before = margins.observed[planes], n[own]
        if c:
            before, drawn_before = margins.ones[planes - 1], drawn[planes - 1]
        shape = drawn_before.shape
        drawn[planes] = draw_overlaps(
            np.broadcast_to(before[:, None], shape),
            np.broadcast_to(margins.ones[planes, None], shape),
            drawn_before,
            rng,
        )
    return drawn
