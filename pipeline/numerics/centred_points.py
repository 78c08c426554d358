"""Integrals over the traits of each row, by points that lie where the row's posterior does.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_iᵀ x + b_i). Nodes that all rows share miss posteriors narrower
than the nodes lie apart. Here row n has points x_nl of its own around a Gaussian near its posterior
p(x | t_n), which is log-concave:

    P(t_n) ≈ Σ_l u_nl,   u_nl = v_l N(x_nl; 0, I) P(t_n | x_nl) / r_n(x_nl),

the v_l being weights of points that stand for the density r_n. Either a Gauss–Hermite rule
(adaptive quadrature: Naylor & Smith, Applied Statistics 1982), placed twice, the second time by the
moments that the first gave; or draws (importance sampling). Moments of x are those of the u_nl.
A row costs n_points n_features q, about 10 ns each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.centred_kernels import climb, integrate
from pipeline.numerics.latent_nodes import gauss_hermite
from pipeline.random import RowRandom

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

DRAWS = 1000
"""Draws of a row."""
_FIRST_NODES, _NODES = 7, {1: 31, 2: 15, 3: 11}  # an axis
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
        (n_samples,); the error is 0 by quadrature.
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


def posterior_by_quadrature(X: Bits, observed: Bits | None, items: Items) -> RowPosterior:
    """Integrate over x by quadrature, for up to 3 components.

    A row's result depends on that row alone. With 16 to 256 items the log-likelihood of a row is
    right to 1e-4 nats with slopes up to 3, to a few 1e-3 up to 5, and to 0.02 up to 28.

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
    first = _on_rule(X, observed, items, near, _FIRST_NODES)
    # Where one node has all weight there is no covariance.
    moments = Gaussians(first.mean, first.covariance + 1e-6 * near.covariance)
    found = _on_rule(X, observed, items, moments, nodes_an_axis)
    return found._replace(standard_error=np.zeros(len(X)))


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

    return _integrated(X, observed, items, points, n_draws)


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
    z, log_v = gauss_hermite(nodes_an_axis, near.mean.shape[1])
    log_v = log_v + 0.5 * (z**2).sum(axis=1)

    def points(batch: slice) -> _Points:
        root = _root(near.covariance[batch])
        x = _moved(z, near.mean[batch], root)
        return _Points(x, log_v - 0.5 * (x**2).sum(axis=2) + _log_det(root))

    return _integrated(X, observed, items, points, len(z))


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
    points: Callable[[slice], _Points],
    n_points: int,
) -> RowPosterior:
    """Work in batches that stay in cache."""
    n, q = len(X), items.weights.shape[1]
    found = RowPosterior(np.empty((n, q)), np.empty((n, q, q)), np.empty(n), np.empty(n))
    mask = _mask(X, observed)
    height = max(1, _BATCH_ENTRIES // (n_points * q))
    for start in range(0, n, height):
        batch = slice(start, start + height)
        out = RowPosterior(*(part[batch] for part in found))
        integrate(X[batch], mask[batch], *items, *points(batch), *out)
    return found


def _mask(X: Bits, observed: Bits | None) -> Bits:
    return np.ones_like(X) if observed is None else observed
