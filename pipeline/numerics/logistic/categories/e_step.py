"""The sums of an EM pass for items with several levels, or continuous items.

Rows share nodes, or have points of their own, or are integrated exactly; see `row_posteriors`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.logistic.categories.curves import (
    Answers,
    LevelItems,
    compute_expected_curvature,
    compute_log_probabilities,
    differentiate_levels,
    iter_alike,
)
from pipeline.numerics.logistic.categories.gaussian_items import (
    ConditionalGaussians,
    GaussianSums,
    sum_gaussian_moments,
)
from pipeline.numerics.logistic.categories.row_posteriors import (
    OwnPoints,
    SharedNodes,
    condition_on_numbers,
    find_level_rows,
    find_own_rows,
    iter_own_points,
    sum_common_terms,
    take_rows,
)
from pipeline.numerics.logistic.categories.scores import LevelSums, extend_points
from pipeline.numerics.logistic.latent_nodes import node_statistics
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_SMALL_ETA = 1e-4


class LevelStatistics(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    sums
        Those of the M-step for items.
    moments
        Σ_n r_n ⟨x̂ x̂ᵀ⟩, (q + 1, q + 1).
    log_likelihood, error
        Σ_n r_n log P(t_n), nats, and the sum of the estimated errors of integrals.
    peak
        As in `NodeStatistics`, of the rows that share nodes.
    codes
        ⟨x⟩ of each row, (n_samples, q).
    far
        Rows whose prior means are far from 0. `moments` do not have them.
    """

    sums: LevelSums
    moments: Floats
    log_likelihood: float
    error: float
    peak: float
    codes: Floats
    far: FarRows


class FarRows(NamedTuple):
    """Rows whose prior means m_n are far from 0.

    Attributes
    ----------
    rows
        Which rows they are.
    distance, covariance
        ⟨x_n⟩ − m_n, (n_rows, q), and the covariance of x_n, (n_rows, q, q).
    """

    rows: NDArray[np.intp]
    distance: Floats
    covariance: Floats


def sum_level_statistics(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    nodes: SharedNodes,
    row_weights: Floats | None = None,
    row_means: Floats | None = None,
) -> LevelStatistics:
    """Run the E-step.

    Parameters
    ----------
    X, observed, items, row_means
        As for `compute_row_posterior`.
    nodes
        The nodes of rows that they suit.
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    """
    (n, q), n_planes = (len(X), items.weights.shape[1]), len(items.offsets)
    weights = np.ones(n) if row_weights is None else row_weights
    near = condition_on_numbers(X, observed, items, row_means)
    is_own = find_own_rows(observed, items, near, nodes.spacing)
    is_far = np.zeros(n, np.bool_)
    if row_means is not None:
        is_far |= (np.abs(row_means) > MAX_MEAN_REACH).any(axis=1)
    is_own |= is_far
    shared = np.flatnonzero(~is_own)
    codes, extended = np.zeros((n, q)), extend_points(nodes.nodes.points)
    squares = extended[:, :, None] * extended[:, None]
    own_X, own_mask = (
        (X, observed) if shared.size == n else take_rows(shared, X, observed, items, near)[:2]
    )
    counts = node_statistics(
        own_X,
        own_mask,
        items,
        nodes.nodes,
        weights[shared],
        None if row_means is None else row_means[shared],
        nodes.checks,
    )
    is_own[shared] = counts.is_outside
    common = weights[shared] * sum_common_terms(own_X, own_mask, items)
    log_likelihood = counts.log_likelihood + float(common[~counts.is_outside].sum())
    if row_means is not None:
        codes[shared] = counts.codes
    moments = np.tensordot(counts.rows, squares, 1)
    sums = LevelSums(
        counts.ones[:n_planes],
        counts.mass[:n_planes],
        np.zeros((n_planes, q + 1)),
        np.zeros((n_planes, q + 1, q + 1)),
        counts.ones[n_planes:] @ extended,
        np.tensordot(counts.mass[n_planes:], squares, 1),
        weights @ np.asarray(X[:, n_planes:], np.float64) ** 2,
    )
    far = FarRows(np.flatnonzero(is_far), np.empty((0, q)), np.empty((0, q, q)))
    if (rows := np.flatnonzero(is_own)).size:
        taken = take_rows(rows, X, observed, items, near)
        own = _sum_own_rows(*taken, weights[rows])
        codes[rows] = own.mean
        log_likelihood += float(weights[rows] @ own.log_likelihood)
        is_near = ~is_far[rows]
        moments = moments + sum_trait_moments(
            own.mean[is_near], own.covariance[is_near], weights[rows][is_near]
        )
        if row_means is not None:
            distance = own.distance + (near.mean[rows] - row_means[rows])
            far = FarRows(far.rows, distance[~is_near], own.covariance[~is_near])
        sums = sums._replace(
            linear=own.linear,
            curvatures=own.curvatures,
            number_codes=sums.number_codes + own.numbers.codes,
            number_products=sums.number_products + own.numbers.products,
        )
    return LevelStatistics(sums, moments, log_likelihood, counts.error, counts.peak, codes, far)


class _OwnSums(NamedTuple):
    """Moments and log-likelihoods of rows that do not share nodes, and their sums.

    `distance` is that of the mean from the mean given priors and continuous values.
    """

    mean: Floats
    distance: Floats
    covariance: Floats
    log_likelihood: Floats
    linear: Floats
    curvatures: Floats
    numbers: GaussianSums


def _sum_own_rows(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    near: ConditionalGaussians,
    row_weights: Floats,
) -> _OwnSums:
    distance: Floats = np.zeros(near.mean.shape)
    covariance = np.linalg.inv(near.precision).astype(np.float64)
    log_likelihood, n = near.log_density.copy(), len(items.offsets)
    width = distance.shape[1] + 1
    linear, curvatures = np.zeros((n, width)), np.zeros((n, width, width))
    mask = np.ones(X.shape, np.uint8) if observed is None else observed
    rows = find_level_rows(X, observed, items)
    for points in iter_own_points(*take_rows(rows, X, observed, items, near)):
        places = rows[points.rows]
        distance[places], covariance[places] = points.compute_moments()
        log_likelihood[places] = points.log_likelihood
        own_mask = mask[places, :n].astype(np.float64)
        _add_plane_sums(points, own_mask, items, row_weights[places], linear, curvatures)
    forms = np.column_stack([items.weights, items.offsets])
    linear += np.einsum("jab,jb->ja", curvatures, forms)
    mean = near.mean + distance
    numbers = sum_gaussian_moments(
        X[:, n:].astype(np.float64), mask[:, n:].astype(np.float64), mean, covariance, row_weights
    )
    return _OwnSums(mean, distance, covariance, log_likelihood, linear, curvatures, numbers)


def _add_plane_sums(
    points: OwnPoints,
    mask: Floats,
    items: LevelItems,
    row_weights: Floats,
    linear: Floats,
    curvatures: Floats,
) -> None:
    """Add gradients in the forms of planes, and curvatures that are large enough for long steps.

    The curvature of log σ(η) in the bound of T. S. Jaakkola and M. I. Jordan holds everywhere. That
    of several planes of an item is at most twice its blocks on the diagonal.
    """
    _, n_points, q = points.x.shape
    extended, shares = points.extend().reshape(-1, q + 1), points.shares * row_weights[:, None]
    gradient = (points.derivatives * shares[:, None]).transpose(1, 0, 2).reshape(len(linear), -1)
    linear += gradient @ extended
    eta = items.compute_forms(extended[:, :-1])
    size = np.maximum(np.abs(eta), _SMALL_ETA)
    curvature = np.tanh(size / 2) / (2 * size)
    for alike in iter_alike(items.n_planes):
        own = eta[alike.planes]
        log_p = compute_log_probabilities(own, items.is_cumulative)
        first = differentiate_levels(own, items.is_cumulative)
        expected = np.einsum("ijjl->ijl", compute_expected_curvature(log_p, first))
        n_alike = 1 if alike.planes.shape[1] == 1 else 2
        curvature[alike.planes] = np.maximum(curvature[alike.planes], n_alike * expected)
    present = np.repeat(mask.T, n_points, axis=1) * shares.reshape(-1)
    products = (extended[:, :, None] * extended[:, None]).reshape(len(extended), -1)
    curvatures += ((curvature * present) @ products).reshape(curvatures.shape)
