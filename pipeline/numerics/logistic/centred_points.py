"""Integrals over the traits of each row, by points that lie where the row's posterior does.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_iᵀ x + b_i). Nodes that all rows share miss posteriors narrower
than the nodes lie apart. Here row n has points x_nl of its own around a Gaussian near its posterior
p(x | t_n), which is log-concave:

    P(t_n) ≈ Σ_l u_nl,   u_nl = v_l N(x_nl; 0, I) P(t_n | x_nl) / r_n(x_nl),

the v_l being weights of points that stand for the density r_n. Either a Gauss–Hermite rule
(adaptive quadrature: Naylor & Smith, Applied Statistics 1982), placed twice, the second time by the
moments that the first gave; or, where the posterior has edges, points across them
(`place_steep_points`); or draws (importance sampling). Moments of x are those of the u_nl. A row
costs n_points n_features q, about 10 ns each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.centred_kernels import (
    fill_modes,
    fill_steepest_edges,
    integrate_rows,
)
from pipeline.numerics.logistic.latent_nodes import gauss_hermite
from pipeline.numerics.logistic.steep_points import half_grid_weights, place_steep_points
from pipeline.random import RowRandom

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

DRAWS_PER_ROW = 1000
"""Draws of a row."""
_FIRST_NODES, _NODES = 7, {1: 31, 2: 15, 3: 11}  # an axis
_EDGE_POINTS_PER_AXIS = {
    1: ((193,), (385,), (1537,)),
    2: ((65, 33), (49, 25), (97, 49), (193, 97)),
    3: ((33, 25, 25), (49, 17, 17), (65, 25, 25)),
}
_PRIOR_REACH = 10.0  # standard deviations that points across edges go to
_ERROR_TOLERANCE = 1e-4  # nats of a row
_MAX_STEEPNESS = (
    2.5 / math.pi
)  # slope that a Gauss–Hermite rule resolves, times the root of its nodes
# Two rules differ by the error of the coarser. That of the finer is at least this power of it, as
# both fall exponentially with the number of points (compare R. Piessens et al., QUADPACK, 1983).
_HERMITE_ERROR_POWER, _TRAPEZOID_ERROR_POWER = 2.0, 1.5
_PROPOSAL_STRETCH, _PRIOR_SHARE = 1.2, 0.1  # of the Gaussian that draws come from; share of others
_BATCH_ENTRIES = 2**19  # coordinates of points: 4 MiB


class RowGaussians(NamedTuple):
    """One for each row: means (n_samples, q), covariances (n_samples, q, q)."""

    mean: Floats
    covariance: Floats


class RowPosterior(NamedTuple):
    """Moments of x given each row, and log P(t_n) in nats.

    Attributes
    ----------
    mean
        (n_samples, q).
    covariance
        (n_samples, q, q).
    log_likelihood, standard_error
        (n_samples,); by quadrature the error is that which two rules let expect, of any sign.
    """

    mean: Floats
    covariance: Floats
    log_likelihood: Floats
    standard_error: Floats


class TraitItems(NamedTuple):
    """The model: w (n_features, q) and b (n_features,)."""

    weights: Floats
    offsets: Floats


class _WeightedPoints(NamedTuple):
    """Points x_nl (n_rows, n_points, q), and log v_l N(x_nl) / r_n(x_nl) (n_rows, n_points)."""

    x: Floats
    log_weights: Floats


class _PointRule(NamedTuple):
    """Points of rows, and weights of a second rule relative to them, none for draws."""

    points: Callable[[slice], _WeightedPoints]
    n_points: int
    second: Floats


def posterior_by_quadrature(X: Bits, observed: Bits | None, items: TraitItems) -> RowPosterior:
    """Integrate over x by quadrature, for up to 3 components.

    A row's result depends on that row alone. Its error is estimated by a second rule on some of the
    points. Where that is above 1e-4 nats, or an item is so steep that the posterior has an edge,
    other points are laid across the edges, up to 90 times as many.

    Parameters
    ----------
    X
        (n_samples, n_features) of 0 and 1.
    observed
        Same shape, 1 = observed; None when every value is there.
    items
        The model.

    Raises
    ------
    FitError
        If there are more than 3 components.
    """
    nodes_an_axis = _NODES.get(items.weights.shape[1], 2)
    near = find_posterior_modes(X, observed, items)
    around = _gaussians_from_moments(
        _integrate_on_gaussians(X, observed, items, near, _FIRST_NODES), near
    )
    found = _integrate_on_gaussians(X, observed, items, around, nodes_an_axis)
    found.standard_error[:] **= _HERMITE_ERROR_POWER
    # One that is misled by an edge may be too narrow to reach it; the other tells.
    edges = np.maximum(
        *(_find_steepest_edges(_full_mask(X, observed), items, those) for those in (near, around))
    )
    has_edge = edges > _MAX_STEEPNESS * math.sqrt(nodes_an_axis)
    hard = np.flatnonzero(has_edge | (found.standard_error > _ERROR_TOLERANCE))
    if hard.size:
        seen = None if observed is None else observed[hard]
        here = RowGaussians(*(part[hard] for part in near))
        better = _posterior_with_edges(X[hard], seen, items, here)
        for whole, part in zip(found, better, strict=True):
            whole[hard] = part
    return found


def _posterior_with_edges(
    X: Bits, observed: Bits | None, items: TraitItems, near: RowGaussians
) -> RowPosterior:
    """Lay points across edges, the first as far as the prior goes, to find where the mass is."""
    first, *levels = _EDGE_POINTS_PER_AXIS[near.mean.shape[1]]
    found = _integrate_across_edges(X, observed, items, near, first, _prior_reach(near))
    left = np.arange(len(X))
    for n_an_axis in levels:
        seen = None if observed is None else observed[left]
        here = RowGaussians(*(part[left] for part in near))
        here = _gaussians_from_moments(RowPosterior(*(part[left] for part in found)), here)
        reach = np.full(len(left), _PRIOR_REACH)
        better = _integrate_across_edges(X[left], seen, items, here, n_an_axis, reach)
        better.standard_error[:] **= _TRAPEZOID_ERROR_POWER
        for whole, part in zip(found, better, strict=True):
            whole[left] = part
        left = left[better.standard_error > _ERROR_TOLERANCE]
    return found


def _prior_reach(near: RowGaussians) -> Floats:
    """How far the prior goes, in units of Gaussians that are narrower, (n_rows,)."""
    diagonals = np.diagonal(_cholesky_roots(near.covariance), axis1=1, axis2=2)
    return np.asarray(_PRIOR_REACH / diagonals.min(axis=1))


def _gaussians_from_moments(found: RowPosterior, near: RowGaussians) -> RowGaussians:
    """Give the Gaussians with these moments; where one point has all weight no variance is left."""
    return RowGaussians(found.mean, found.covariance + 1e-6 * near.covariance)


def _find_steepest_edges(mask: Bits, items: TraitItems, near: RowGaussians) -> Floats:
    """Find the steepest edge that every row's Gaussian reaches, (n_rows,)."""
    steepest = np.empty(len(mask))
    fill_steepest_edges(mask, *items, near.mean, _cholesky_roots(near.covariance), steepest)
    return steepest


def posterior_by_sampling(
    X: Bits,
    observed: Bits | None,
    items: TraitItems,
    rng: RowRandom,
    rows: NDArray[np.int64],
    n_draws: int = DRAWS_PER_ROW,
) -> RowPosterior:
    """Integrate over x by importance sampling, for any number of components.

    Draws come from a Gaussian at the mode, a little wider than the curvature there says; with the
    variational posterior, which is too narrow, errors are up to thirty times larger. A tenth of the
    draws comes from the prior, so that no draw can outweigh all others.

    Parameters
    ----------
    X, observed, items
        As for `posterior_by_quadrature`.
    rng, rows
        Source of the draws, and the keys of the rows, (n_samples,).
    n_draws
        Draws of a row.
    """
    near, q = find_posterior_modes(X, observed, items), items.weights.shape[1]
    n_prior = round(_PRIOR_SHARE * n_draws)

    def points(batch: slice) -> _WeightedPoints:
        z = rng.normal(rows[batch], n_draws * q).reshape(-1, n_draws, q)
        mean, root = near.mean[batch], _PROPOSAL_STRETCH * _cholesky_roots(near.covariance[batch])
        x = z.copy()
        x[:, n_prior:] = _place_points(z[:, n_prior:], mean, root)
        whitened = np.linalg.solve(root, np.swapaxes(x - mean[:, None], 1, 2))
        log_ratio = 0.5 * ((x**2).sum(axis=2) - (whitened**2).sum(axis=1)) - _log_det(root)
        log_mixture = np.logaddexp(math.log(_PRIOR_SHARE), math.log1p(-_PRIOR_SHARE) + log_ratio)
        return _WeightedPoints(x, -log_mixture - math.log(n_draws))

    return _integrate_in_batches(X, observed, items, _PointRule(points, n_draws, np.empty(0)))


def find_posterior_modes(X: Bits, observed: Bits | None, items: TraitItems) -> RowGaussians:
    """Find each row's posterior mode, and the inverse curvature there, by Newton's method."""
    n, q = len(X), items.weights.shape[1]
    found = RowGaussians(np.zeros((n, q)), np.empty((n, q, q)))
    fill_modes(X, _full_mask(X, observed), *items, *found)
    return found


def _integrate_on_gaussians(
    X: Bits, observed: Bits | None, items: TraitItems, near: RowGaussians, nodes_an_axis: int
) -> RowPosterior:
    """Place a Gauss–Hermite rule on every row's Gaussian."""
    q = near.mean.shape[1]
    z, log_v = gauss_hermite(nodes_an_axis, q)
    log_v = log_v + 0.5 * (z**2).sum(axis=1)

    def points(batch: slice) -> _WeightedPoints:
        root = _cholesky_roots(near.covariance[batch])
        x = _place_points(z, near.mean[batch], root)
        return _WeightedPoints(x, log_v - 0.5 * (x**2).sum(axis=2) + _log_det(root))

    return _integrate_in_batches(
        X, observed, items, _PointRule(points, len(z), _half_rule_weights(nodes_an_axis, q))
    )


def _half_rule_weights(nodes_an_axis: int, q: int) -> Floats:
    """Weights on every second node of an axis, relative to those of the rule: (n_points,).

    They integrate polynomials of as high a degree as there are such nodes.
    """
    z, log_v = gauss_hermite(nodes_an_axis, 1)
    some = z[1::2, 0]
    degree = len(some)
    values = scipy.special.eval_hermitenorm(np.arange(degree)[:, None], some)
    ratio = np.zeros(nodes_an_axis)
    ratio[1::2] = np.linalg.solve(values, np.eye(degree)[0]) / np.exp(log_v[1::2])
    return reduce(np.multiply.outer, [ratio] * q).ravel()


def _integrate_across_edges(
    X: Bits,
    observed: Bits | None,
    items: TraitItems,
    near: RowGaussians,
    n_an_axis: tuple[int, ...],
    reach: Floats,
) -> RowPosterior:
    """Lay points across the edges of every row's posterior."""
    mask = _full_mask(X, observed)

    def points(batch: slice) -> _WeightedPoints:
        mean, root, seen = near.mean[batch], _cholesky_roots(near.covariance[batch]), mask[batch]
        slopes = (items.weights @ root) * seen[:, :, None]
        eta = (items.weights * mean[:, None]).sum(axis=2) + items.offsets
        z, log_volumes = place_steep_points(slopes, eta * seen, reach[batch], n_an_axis)
        x = _place_points(z, mean, root)
        return _WeightedPoints(x, log_volumes - 0.5 * (x**2).sum(axis=2) + _log_det(root))

    rule = _PointRule(points, math.prod(n_an_axis), half_grid_weights(n_an_axis))
    return _integrate_in_batches(X, observed, items, rule)


def _cholesky_roots(covariance: Floats) -> Floats:
    """Lower triangles L with L Lᵀ = C, (n_rows, q, q)."""
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


def _place_points(z: Floats, mean: Floats, root: Floats) -> Floats:
    return mean[:, None] + z @ np.swapaxes(root, 1, 2)


def _log_det(root: Floats) -> Floats:
    """Give log det L, (n_rows, 1)."""
    diagonals = np.diagonal(root, axis1=1, axis2=2)
    return np.asarray(np.log(diagonals).sum(axis=1, keepdims=True), np.float64)


def _integrate_in_batches(
    X: Bits,
    observed: Bits | None,
    items: TraitItems,
    rule: _PointRule,
) -> RowPosterior:
    """Work in batches that stay in cache."""
    n, q = len(X), items.weights.shape[1]
    found = RowPosterior(np.empty((n, q)), np.empty((n, q, q)), np.empty(n), np.empty(n))
    mask = _full_mask(X, observed)
    height = max(1, _BATCH_ENTRIES // (rule.n_points * q))
    for start in range(0, n, height):
        batch = slice(start, start + height)
        out = RowPosterior(*(part[batch] for part in found))
        integrate_rows(X[batch], mask[batch], *items, *rule.points(batch), rule.second, *out)
    return found


def _full_mask(X: Bits, observed: Bits | None) -> Bits:
    return np.ones_like(X) if observed is None else observed
