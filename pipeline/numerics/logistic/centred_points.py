"""Integrals over the traits of each row, by points that lie where the row's posterior does.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_iᵀ x + b_i). Nodes that all rows share miss posteriors narrower
than the nodes lie apart. Here row n has points x_nl of its own around a Gaussian near its posterior
p(x | t_n), which is log-concave:

    P(t_n) ≈ Σ_l u_nl,   u_nl = v_l N(x_nl; 0, I) P(t_n | x_nl) / r_n(x_nl),

the v_l being weights of points that stand for the density r_n. Either a Gauss–Hermite rule
(adaptive quadrature: Naylor & Smith, Applied Statistics 1982), placed twice, the second time by the
moments that the first gave; or, where the posterior has edges, points across them
(`steep_points`); or draws (importance sampling). Moments of x are those of the u_nl. A row costs
n_points n_features q, about 10 ns each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.centred_kernels import climb, integrate, steepest_edges
from pipeline.numerics.logistic.latent_nodes import gauss_hermite
from pipeline.numerics.logistic.steep_points import every_second, steep_points
from pipeline.random import RowRandom

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

DRAWS = 1000
"""Draws of a row."""
_FIRST_NODES, _NODES = 7, {1: 31, 2: 15, 3: 11}  # an axis
_ACROSS = {
    1: ((193,), (385,), (1537,)),
    2: ((65, 33), (49, 25), (97, 49), (193, 97)),
    3: ((33, 25, 25), (49, 17, 17), (65, 25, 25)),
}
_FARTHEST = 10.0  # standard deviations that points across edges go to
_NEAR_ENOUGH = 1e-4  # nats of a row
_STEEPEST = 2.5 / math.pi  # slope that a Gauss–Hermite rule resolves, times the root of its nodes
# Two rules differ by the error of the coarser. That of the finer is at least this power of it, as
# both fall exponentially with the number of points (compare R. Piessens et al., QUADPACK, 1983).
_FASTER_HERMITE, _FASTER_TRAPEZOID = 2.0, 1.5
_STRETCH, _FROM_PRIOR = 1.2, 0.1  # of the Gaussian that draws come from; share of others
_BATCH_ENTRIES = 2**19  # coordinates of points: 4 MiB


class Gaussians(NamedTuple):
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


class Items(NamedTuple):
    """The model: w (n_features, q) and b (n_features,)."""

    weights: Floats
    offsets: Floats


class _Points(NamedTuple):
    """Points x_nl (n_rows, n_points, q), and log v_l N(x_nl) / r_n(x_nl) (n_rows, n_points)."""

    x: Floats
    log_weights: Floats


class _Rule(NamedTuple):
    """Points of rows, and weights of a second rule relative to them, none for draws."""

    points: Callable[[slice], _Points]
    n_points: int
    second: Floats


def posterior_by_quadrature(X: Bits, observed: Bits | None, items: Items) -> RowPosterior:
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
    near = modes(X, observed, items)
    around = _around(_on_rule(X, observed, items, near, _FIRST_NODES), near)
    found = _on_rule(X, observed, items, around, nodes_an_axis)
    found.standard_error[:] **= _FASTER_HERMITE
    # One that is misled by an edge may be too narrow to reach it; the other tells.
    edges = np.maximum(*(_edges(_mask(X, observed), items, those) for those in (near, around)))
    has_edge = edges > _STEEPEST * math.sqrt(nodes_an_axis)
    hard = np.flatnonzero(has_edge | (found.standard_error > _NEAR_ENOUGH))
    if hard.size:
        seen = None if observed is None else observed[hard]
        here = Gaussians(*(part[hard] for part in near))
        better = _posterior_with_edges(X[hard], seen, items, here)
        for whole, part in zip(found, better, strict=True):
            whole[hard] = part
    return found


def _posterior_with_edges(
    X: Bits, observed: Bits | None, items: Items, near: Gaussians
) -> RowPosterior:
    """Lay points across edges, the first as far as the prior goes, to find where the mass is."""
    first, *levels = _ACROSS[near.mean.shape[1]]
    found = _across_edges(X, observed, items, near, first, _reach(near))
    left = np.arange(len(X))
    for n_an_axis in levels:
        seen = None if observed is None else observed[left]
        here = Gaussians(*(part[left] for part in near))
        here = _around(RowPosterior(*(part[left] for part in found)), here)
        reach = np.full(len(left), _FARTHEST)
        better = _across_edges(X[left], seen, items, here, n_an_axis, reach)
        better.standard_error[:] **= _FASTER_TRAPEZOID
        for whole, part in zip(found, better, strict=True):
            whole[left] = part
        left = left[better.standard_error > _NEAR_ENOUGH]
    return found


def _reach(near: Gaussians) -> Floats:
    """How far the prior goes, in units of Gaussians that are narrower, (n_rows,)."""
    diagonals = np.diagonal(_root(near.covariance), axis1=1, axis2=2)
    return np.asarray(_FARTHEST / diagonals.min(axis=1))


def _around(found: RowPosterior, near: Gaussians) -> Gaussians:
    """Give the Gaussians with these moments; where one point has all weight no variance is left."""
    return Gaussians(found.mean, found.covariance + 1e-6 * near.covariance)


def _edges(mask: Bits, items: Items, near: Gaussians) -> Floats:
    """Find the steepest edge that every row's Gaussian reaches, (n_rows,)."""
    steepest = np.empty(len(mask))
    steepest_edges(mask, *items, near.mean, _root(near.covariance), steepest)
    return steepest


def posterior_by_sampling(
    X: Bits,
    observed: Bits | None,
    items: Items,
    rng: RowRandom,
    rows: NDArray[np.int64],
    n_draws: int = DRAWS,
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
    near, q = modes(X, observed, items), items.weights.shape[1]
    n_prior = round(_FROM_PRIOR * n_draws)

    def points(batch: slice) -> _Points:
        z = rng.normal(rows[batch], n_draws * q).reshape(-1, n_draws, q)
        mean, root = near.mean[batch], _STRETCH * _root(near.covariance[batch])
        x = z.copy()
        x[:, n_prior:] = _moved(z[:, n_prior:], mean, root)
        whitened = np.linalg.solve(root, np.swapaxes(x - mean[:, None], 1, 2))
        log_ratio = 0.5 * ((x**2).sum(axis=2) - (whitened**2).sum(axis=1)) - _log_det(root)
        log_mixture = np.logaddexp(math.log(_FROM_PRIOR), math.log1p(-_FROM_PRIOR) + log_ratio)
        return _Points(x, -log_mixture - math.log(n_draws))

    return _integrated(X, observed, items, _Rule(points, n_draws, np.empty(0)))


def modes(X: Bits, observed: Bits | None, items: Items) -> Gaussians:
    """Find each row's posterior mode, and the inverse curvature there, by Newton's method."""
    n, q = len(X), items.weights.shape[1]
    found = Gaussians(np.zeros((n, q)), np.empty((n, q, q)))
    climb(X, _mask(X, observed), *items, *found)
    return found


def _on_rule(
    X: Bits, observed: Bits | None, items: Items, near: Gaussians, nodes_an_axis: int
) -> RowPosterior:
    """Place a Gauss–Hermite rule on every row's Gaussian."""
    q = near.mean.shape[1]
    z, log_v = gauss_hermite(nodes_an_axis, q)
    log_v = log_v + 0.5 * (z**2).sum(axis=1)

    def points(batch: slice) -> _Points:
        root = _root(near.covariance[batch])
        x = _moved(z, near.mean[batch], root)
        return _Points(x, log_v - 0.5 * (x**2).sum(axis=2) + _log_det(root))

    return _integrated(X, observed, items, _Rule(points, len(z), _second_rule(nodes_an_axis, q)))


def _second_rule(nodes_an_axis: int, q: int) -> Floats:
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


def _across_edges(
    X: Bits,
    observed: Bits | None,
    items: Items,
    near: Gaussians,
    n_an_axis: tuple[int, ...],
    reach: Floats,
) -> RowPosterior:
    """Lay points across the edges of every row's posterior."""
    mask = _mask(X, observed)

    def points(batch: slice) -> _Points:
        mean, root, seen = near.mean[batch], _root(near.covariance[batch]), mask[batch]
        slopes = (items.weights @ root) * seen[:, :, None]
        eta = (items.weights * mean[:, None]).sum(axis=2) + items.offsets
        z, log_volumes = steep_points(slopes, eta * seen, reach[batch], n_an_axis)
        x = _moved(z, mean, root)
        return _Points(x, log_volumes - 0.5 * (x**2).sum(axis=2) + _log_det(root))

    rule = _Rule(points, math.prod(n_an_axis), every_second(n_an_axis))
    return _integrated(X, observed, items, rule)


def _root(covariance: Floats) -> Floats:
    """Lower triangles L with L Lᵀ = C, (n_rows, q, q)."""
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


def _moved(z: Floats, mean: Floats, root: Floats) -> Floats:
    return mean[:, None] + z @ np.swapaxes(root, 1, 2)


def _log_det(root: Floats) -> Floats:
    """Give log det L, (n_rows, 1)."""
    diagonals = np.diagonal(root, axis1=1, axis2=2)
    return np.asarray(np.log(diagonals).sum(axis=1, keepdims=True), np.float64)


def _integrated(
    X: Bits,
    observed: Bits | None,
    items: Items,
    rule: _Rule,
) -> RowPosterior:
    """Work in batches that stay in cache."""
    n, q = len(X), items.weights.shape[1]
    found = RowPosterior(np.empty((n, q)), np.empty((n, q, q)), np.empty(n), np.empty(n))
    mask = _mask(X, observed)
    height = max(1, _BATCH_ENTRIES // (rule.n_points * q))
    for start in range(0, n, height):
        batch = slice(start, start + height)
        out = RowPosterior(*(part[batch] for part in found))
        integrate(X[batch], mask[batch], *items, *rule.points(batch), rule.second, *out)
    return found


def _mask(X: Bits, observed: Bits | None) -> Bits:
    return np.ones_like(X) if observed is None else observed
