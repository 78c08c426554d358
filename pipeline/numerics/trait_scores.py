"""Scores and information of the latent-trait model, summed over rows.

With z = (x, 1) and η_i = (w_i, b_i)ᵀ z, score and information of row n about all (w_i, b_i) are

    s_n = E[s(x) | t_n],   s_i(x) = m_ni (t_ni − σ(η_i)) z,
    I_n = E[diag_i m_ni σ(η_i)(1 − σ(η_i)) z zᵀ | t_n] − Cov[s(x) | t_n]

(T. A. Louis, JRSS B 44 (1982), eq. 3.2). Of a fit on nodes the first expectation follows from the
mass of rows at each node. Expectations of scores are over the row's posterior, by a Gauss–Hermite
rule placed on its mean and covariance, of as few points as narrow posteriors need. A row costs
n_points (n_features (q + 1))² multiplications.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.latent_nodes import NodePosterior, Nodes, gauss_hermite
from pipeline.wanted import check_wanted

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

# Points an axis, by the number of components, for few features, some, and many.
_POINTS = {1: (11, 7, 5), 2: (7, 5, 4), 3: (5, 4, 3)}
_FEW, _SOME = 10, 50
_BATCH_ENTRIES = 2**20
_NARROWEST = 1e-6  # variance of a posterior that lies on one node


class TraitScores(NamedTuple):
    """Sums over rows; parameters are in the order of items, of each its weights, then its offset.

    Attributes
    ----------
    spread
        Σ_n E[s sᵀ], (p, p) with p = n_features (q + 1).
    products
        Σ_n s_n s_nᵀ, (p, p).
    """

    spread: Floats
    products: Floats


def trait_scores(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats, posterior: NodePosterior
) -> TraitScores:
    """Sum scores and information over rows.

    Parameters
    ----------
    X
        (n_samples, n_features) of 0 and 1.
    observed
        Same shape, 1 = observed; None when every value is there.
    weights, offsets
        The model, (n_features, q) and (n_features,).
    posterior
        Of each row; points are placed by its mean and covariance.
    """
    n, (n_features, q) = len(X), weights.shape
    size = n_features * (q + 1)
    found = TraitScores(np.zeros((size, size)), np.zeros((size, size)))
    rule = gauss_hermite(_points_an_axis(n_features, q), q)
    for rows in _batches(n, len(rule.points) * size):
        seen = np.ones(X[rows].shape) if observed is None else observed[rows].astype(np.float64)
        x = _placed(rule, posterior.mean[rows], posterior.covariance[rows])
        eta = x @ weights.T + offsets
        log_joint = (seen[:, None] * (X[rows][:, None] * eta - np.logaddexp(0, eta))).sum(axis=2)
        share = _shares(log_joint, x, rule)
        _add(found, X[rows], seen, x, scipy.special.expit(eta), share)
    return found


def n_points(n_features: int, q: int) -> int:
    """Points that stand for a row's posterior."""
    return int(_points_an_axis(n_features, q) ** q)


def _points_an_axis(n_features: int, q: int) -> int:
    return _POINTS[q][(n_features > _FEW) + (n_features > _SOME)]


def node_curvature(mass: Floats, weights: Floats, offsets: Floats, nodes: Nodes) -> Floats:
    """Give Σ_n E[diag_i m_ni σ(1 − σ) z zᵀ] by the mass at each node.

    Parameters
    ----------
    mass
        `latent_nodes.NodeStatistics.mass`, (n_features, n_nodes).
    weights, offsets, nodes
        The model.

    Returns
    -------
    curvature
        (n_features, q + 1, q + 1).
    """
    sigma = scipy.special.expit(weights @ nodes.points.T + offsets[:, None])
    z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    bends = mass * sigma * (1 - sigma)
    width = z.shape[1]
    products = (z[:, :, None] * z[:, None]).reshape(len(z), -1)
    return np.asarray((bends @ products).reshape(-1, width, width))


def _batches(n_rows: int, row_entries: int) -> Iterator[slice]:
    height = max(1, _BATCH_ENTRIES // row_entries)
    for start in range(0, n_rows, height):
        check_wanted()
        yield slice(start, start + height)


def _placed(rule: Nodes, mean: Floats, covariance: Floats) -> Floats:
    """Give points of each row, (n_rows, n_points, q)."""
    root = np.linalg.cholesky(covariance + _NARROWEST * np.eye(mean.shape[1]))
    points: Floats = mean[:, None] + rule.points @ np.swapaxes(root, 1, 2)
    return points


def _shares(log_joint: Floats, x: Floats, rule: Nodes) -> Floats:
    """Give each point's share of the row's posterior, (n_rows, n_points)."""
    log_shares = log_joint - 0.5 * (x**2).sum(axis=2)
    log_shares += rule.log_weights + 0.5 * (rule.points**2).sum(axis=1)
    shares: Floats = scipy.special.softmax(log_shares, axis=1)
    return shares


def _add(
    found: TraitScores, X: Bits, seen: Floats, x: Floats, sigma: Floats, share: Floats
) -> None:
    """Add rows; all arrays are (n_rows, n_points, …) but X and seen, (n_rows, n_features)."""
    n_rows, n_points, _ = x.shape
    z = np.concatenate([x, np.ones((n_rows, n_points, 1))], axis=2)
    left = seen[:, None] * (X[:, None] - sigma)
    scores = (left[:, :, :, None] * z[:, :, None]).reshape(n_rows, n_points, -1)
    mean = (share[:, None] @ scores)[:, 0]
    found.products[:] += mean.T @ mean
    scores *= np.sqrt(share)[:, :, None]
    weighted = scores.reshape(n_rows * n_points, -1)
    found.spread[:] += weighted.T @ weighted
