"""Leading eigenvalues of the correlations of independent features, from their margins alone.

`draw_null_spectra` draws whole matrices of estimates, which do not fit in memory if there are many
features. Here features are grouped by their margins. Given the margins, the joint count c of two
independent features is hypergeometric. Each pair of groups is described by three moments of the
estimate r(c): its mean; Cov(r, c) / sd(c), the part of r that is linear in the sample correlation
of the two features and therefore dependent between pairs; and the remaining variance, which is
independent between pairs. `noise_spectrum` computes the eigenvalues of such a matrix of many
features, and how they vary. The cost hardly depends on the number of features.

If few joint ones are expected, the result is closer to real data than `draw_null_spectra`, which
couples pairs by the normal scores of their counts instead of by the counts themselves.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.numerics.gaussian.pair_tables import joint_count_quantiles
from pipeline.numerics.spectra.noise_spectrum import (
    GroupedNoise,
    draw_edge_points,
    find_edge,
    find_spikes,
    noise_eigenvalues,
)
from pipeline.statistics.correlations import CorrelationEstimator
from pipeline.statistics.counts import PairTable

_MAX_GROUPS = 96
_MIN_GROUP_SIZE = 4
_TABLES_PER_GROUP = 16
_DRAWS = 400
_NODES = 64
_MIN_PROBABILITY = 1e-14


def estimate_null_quantiles(
    n_rows: int,
    observed: Counts,
    ones: Counts,
    estimate: CorrelationEstimator,
    n_leading: int,
    rng: np.random.Generator,
    quantile: float = 0.95,
) -> Array:
    """Return a quantile of each leading eigenvalue for independent features with these margins.

    `observed` counts the observed values and `ones` the ones among them, (n_features,) each. Values
    are assumed to be missing completely at random. `n_leading` must be small compared to the number
    of features.

    Returns
    -------
    ndarray
        Quantiles, descending, (k,), where k is n_leading or, if smaller, the number of features
        that vary. Constant features have eigenvalues of exactly 1, which are left out.
    """
    order = np.lexsort((observed, ones))
    observed, ones = observed[order], ones[order]
    varying = (ones > 0) & (ones < observed)
    n_varying = int(varying.sum())
    k = min(n_leading, n_varying)
    if n_varying < 2:
        return np.ones(k)
    noise = make_grouped_noise(n_rows, observed[varying], ones[varying], estimate, rng)
    return find_null_quantiles(noise, n_varying, k, rng, quantile)


def find_null_quantiles(
    noise: GroupedNoise, n_features: int, k: int, rng: np.random.Generator, quantile: float
) -> Array:
    """Return a quantile of each of the k leading eigenvalues of noise with so many features."""
    if not noise.variance().any():
        return np.full(k, noise.diagonal_without_mean.max())
    edge = find_edge(noise)
    values = noise_eigenvalues(noise, edge, draw_edge_points(n_features, k, _DRAWS, rng))
    positions, deviations = find_spikes(noise, edge)
    spikes = positions + deviations * rng.standard_normal((_DRAWS, len(positions)))
    leading = np.sort(np.hstack([spikes, values]), axis=1)[:, ::-1][:, :k]
    quantiles: Array = np.quantile(leading, quantile, axis=0)
    return quantiles


def make_grouped_noise(
    n_rows: int,
    observed: Counts,
    ones: Counts,
    estimate: CorrelationEstimator,
    rng: np.random.Generator,
) -> GroupedNoise:
    """Describe the estimates for independent features by the moments of groups of features.

    Parameters are as for `estimate_null_quantiles`; no feature may be constant.
    """
    groups = group_features(np.array([scipy.special.ndtri(ones / observed), np.log(observed)]))
    members = select_members(groups)
    moments = np.zeros((3, len(groups), len(groups)))
    for a, left in enumerate(members):
        right = rng.permuted(members[a:], axis=1)
        tables = _draw_margins(
            n_rows, observed, ones, np.broadcast_to(left, right.shape), right, rng
        )
        moments[:, a, a:] = moments[:, a:, a] = _compute_moments(*tables, estimate).mean(axis=2)
    mean, linear, variance = moments
    sizes = np.array([len(group) for group in groups], np.float64)
    spread = np.maximum(variance - linear**2, 0.0)
    return GroupedNoise(sizes, mean, np.maximum(linear, 0.0), spread, n_rows - 1)


def group_features(coordinates: Array) -> list[NDArray[np.intp]]:
    """Halve groups of features, the widest and largest first, along their widest coordinate."""

    def make_entry(features: NDArray[np.intp]) -> tuple[float, int, int, NDArray[np.intp]]:
        spans = np.ptp(coordinates[:, features], axis=1)
        can_split = len(features) >= 2 * _MIN_GROUP_SIZE
        weight = float(spans.max()) ** 2 * len(features) if can_split else 0.0
        return -weight, int(features[0]), int(spans.argmax()), features

    heap = [make_entry(np.arange(coordinates.shape[1]))]
    while len(heap) < _MAX_GROUPS and heap[0][0] < 0:
        _, _, axis, features = heapq.heappop(heap)
        ordered = features[np.argsort(coordinates[axis, features], kind="stable")]
        for half in np.array_split(ordered, 2):
            heapq.heappush(heap, make_entry(half))
    return [features for *_, features in heap]


def select_members(groups: list[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Select features of each group, evenly spaced, (n_groups, _TABLES_PER_GROUP)."""
    shares = (np.arange(_TABLES_PER_GROUP) + 0.5) / _TABLES_PER_GROUP
    return np.array([group[(shares * len(group)).astype(np.intp)] for group in groups])


def _draw_margins(
    n_rows: int,
    observed: Counts,
    ones: Counts,
    i: NDArray[np.intp],
    j: NDArray[np.intp],
    rng: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """Draw rows and ones of tables of features i and j, whose values are missing independently."""
    n = draw_overlaps(np.full(i.shape, n_rows), observed[i], observed[j], rng)
    return (
        n,
        draw_overlaps(observed[i], ones[i], n, rng),
        draw_overlaps(observed[j], ones[j], n, rng),
    )


def draw_overlaps(
    n: NDArray[Any], left: Counts, right: NDArray[Any], rng: np.random.Generator
) -> Array:
    """Draw the number of common rows of two random sets of `left` and `right` of n rows."""
    rows, a, b = (np.ravel(x).astype(np.float64) for x in (n, left, right))
    return joint_count_quantiles(rows, a, b, rng.standard_normal(n.size)).reshape(n.shape)


def _compute_moments(
    n: Array, ones_i: Array, ones_j: Array, estimate: CorrelationEstimator
) -> Array:
    """Return mean, linear part and variance of the estimate from each table, (3, *shape)."""
    joint, chance = _compute_joint_law(n, ones_i, ones_j)
    is_likely = chance > _MIN_PROBABILITY
    tables = np.broadcast_arrays(n[..., None], ones_i[..., None], ones_j[..., None], joint)
    values = np.zeros(joint.shape)
    values[is_likely], _ = estimate(PairTable(*(a[is_likely] for a in tables)))
    mean = (chance * values).sum(axis=-1)
    count = joint - (chance * joint).sum(axis=-1, keepdims=True)
    deviation = np.sqrt((chance * count**2).sum(axis=-1))
    covariance = (chance * values * count).sum(axis=-1)
    linear = np.divide(covariance, deviation, out=np.zeros_like(mean), where=deviation > 0)
    variance = (chance * (values - mean[..., None]) ** 2).sum(axis=-1)
    return np.array([mean, linear, variance])


def _compute_joint_law(n: Array, ones_i: Array, ones_j: Array) -> tuple[Array, Array]:
    """Return joint counts and their probabilities, with one more axis of length `_NODES`.

    If more counts are possible, the ones returned are evenly spaced.
    """
    rows = np.maximum(n, 2.0)
    mean = ones_i * ones_j / rows
    deviation = np.sqrt(mean * (rows - ones_i) * (rows - ones_j) / (rows * (rows - 1)))
    low = np.maximum(np.maximum(0.0, ones_i + ones_j - n), np.floor(mean - 7 * deviation - 2))
    high = np.minimum(np.minimum(ones_i, ones_j), np.ceil(mean + 7 * deviation + 12))
    spacing = np.maximum(1.0, np.ceil((high - low) / (_NODES - 1)))
    joint = low[..., None] + spacing[..., None] * np.arange(_NODES)
    n, ones_i, ones_j = n[..., None], ones_i[..., None], ones_j[..., None]
    possible = joint <= high[..., None]
    joint = np.where(possible, joint, low[..., None])
    cells = (joint, ones_i - joint, ones_j - joint, n - ones_i - ones_j + joint)
    log_chance = -sum(scipy.special.gammaln(cell + 1.0) for cell in cells)
    chance = np.where(possible, np.exp(log_chance - log_chance.max(axis=-1, keepdims=True)), 0.0)
    return joint, chance / chance.sum(axis=-1, keepdims=True)
