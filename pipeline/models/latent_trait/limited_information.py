"""How well a model of independent bits given nodes fits margins and pairs: M₂ and what follows.

With p the shares of ones of all features and pairs of them, π those of the model and N rows,

    M₂ = N eᵀ C e,   e = p − π,   C = Ξ⁻¹ − Ξ⁻¹ Δ (Δᵀ Ξ⁻¹ Δ)⁻¹ Δᵀ Ξ⁻¹,

where Ξ is the covariance of one row's bits and their products, and Δ holds the derivatives of π
(A. Maydeu-Olivares, H. Joe, JASA 100 (2005), eq. 3.10). It is the largest value of 2 xᵀe − xᵀΞx
with Δᵀx = 0, found by conjugate gradients, so that no matrix of pairs by pairs is made: given a
node bits are independent, and Ξ times a vector costs n_features² a node. M₂ of every consistent
estimator is distributed as χ².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.latent_nodes import Nodes

Array = NDArray[np.float64]

_MAX_STEPS = 2000
_RESIDUAL_TOLERANCE = (
    1e-6  # residual of the gradients, of its first; the statistic is off by its square
)
_RANK_TOLERANCE = 1e-12  # square of the relative size of derivatives that are none


class LimitedInformationFit(NamedTuple):
    """What the statistic is made of.

    Attributes
    ----------
    m2
        N eᵀ C e.
    df
        Shares compared, less the rank of Δ.
    srmsr
        Root mean square of the residual correlations of pairs.
    """

    m2: float
    df: int
    srmsr: float


class _Curves(NamedTuple):
    """P(x_i = 1 | node), (n_nodes, n_features), its slope σ', and the nodes' shares, (n_nodes,)."""

    P: Array
    slope: Array
    share: Array


class _Slopes(NamedTuple):
    """dπ_ij / d(w_i, b_i), and an orthonormal basis of the directions that shares tell apart."""

    values: Array
    basis: Array


def compute_m2_fit(
    both: NDArray[np.int64], n_rows: int, weights: Array, offsets: Array, nodes: Nodes, rank: int
) -> LimitedInformationFit:
    """Compare counts with a logistic model on nodes.

    Parameters
    ----------
    both
        Rows in which two features are 1; on the diagonal, one: (n_features, n_features).
    n_rows
        Rows counted.
    weights, offsets
        (n_features, q) and (n_features,).
    nodes
        They stand for the prior.
    rank
        Number of parameters that the data tell.
    """
    P = scipy.special.expit(nodes.points @ weights.T + offsets)
    curves = _Curves(P, P * (1 - P), np.exp(nodes.log_weights))
    expected = (P.T * curves.share) @ P
    margins = curves.share @ P
    np.fill_diagonal(expected, margins)
    shares = both / n_rows
    told = _Slopes(_share_derivatives(curves, nodes), _find_identifiable_directions(weights))
    m2 = n_rows * _maximize_quadratic(shares - expected, expected, curves, told)
    n_features = len(offsets)
    return LimitedInformationFit(
        m2, n_features * (n_features + 1) // 2 - rank, _srmsr(shares, expected)
    )


def compute_independence_fit(both: NDArray[np.int64], n_rows: int) -> LimitedInformationFit:
    """Compare counts with independent features of the same margins."""
    shares = both / n_rows
    margins = np.diag(shares)
    expected = np.outer(margins, margins)
    left = (shares - expected) / np.sqrt(np.outer(margins * (1 - margins), margins * (1 - margins)))
    above = np.triu_indices(len(margins), 1)
    m2 = n_rows * float((left[above] ** 2).sum())
    np.fill_diagonal(expected, margins)
    return LimitedInformationFit(m2, len(above[0]), _srmsr(shares, expected))


def _srmsr(shares: Array, expected: Array) -> float:
    above = np.triu_indices(len(shares), 1)
    return float(
        np.sqrt(((_phi_correlations(shares) - _phi_correlations(expected))[above] ** 2).mean())
    )


def _phi_correlations(shares: Array) -> Array:
    """Give correlations of bits."""
    p = np.diag(shares)
    scale = np.sqrt(p * (1 - p))
    correlations: Array = (shares - np.outer(p, p)) / np.outer(scale, scale)
    return correlations


def _share_derivatives(curves: _Curves, nodes: Nodes) -> Array:
    """Give dπ_ij / d(w_i, b_i), (n_features, n_features, q + 1); of π_i on the diagonal."""
    z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    columns = []
    for column in z.T:
        weighted = curves.slope.T * (curves.share * column)
        moved = weighted @ curves.P
        np.fill_diagonal(moved, weighted.sum(axis=1))
        columns.append(moved)
    return np.stack(columns, axis=2)


def _find_identifiable_directions(weights: Array) -> Array:
    """Leave out rotations of the components, (n_features (q + 1), n_directions)."""
    n_features, q = weights.shape
    turns = np.zeros((math.comb(q, 2), n_features, q + 1))
    for turn, (a, b) in zip(turns, combinations(range(q), 2), strict=True):
        turn[:, a], turn[:, b] = weights[:, b], -weights[:, a]
    if not len(turns):
        return np.eye(n_features * (q + 1))
    return np.asarray(scipy.linalg.null_space(turns.reshape(len(turns), -1)))


# A vector over features and pairs is a symmetric matrix: features on the diagonal, pairs twice.


def _maximize_quadratic(e: Array, expected: Array, curves: _Curves, slopes: _Slopes) -> float:
    """Give max 2 xᵀe − xᵀΞx with Δᵀx = 0, by conjugate gradients on x scaled by Ξ's diagonal."""
    deviations = np.sqrt(expected * (1 - expected))
    outside = _make_projection(slopes.values / deviations[:, :, None], slopes.basis)
    left = outside(e / deviations)
    x, way = np.zeros_like(left), left
    first = before = _pair_dot(left, left)
    for _ in range(_MAX_STEPS):
        if before <= _RESIDUAL_TOLERANCE**2 * first:
            break
        check_cancelled()
        turned = outside(_multiply_covariance(way / deviations, expected, curves) / deviations)
        step = before / _pair_dot(way, turned)
        x, left = x + step * way, left - step * turned
        now = _pair_dot(left, left)
        way, before = left + now / before * way, now
    return _pair_dot(x, outside(e / deviations))


def _pair_dot(a: Array, b: Array) -> float:
    """Give the product of two vectors over features and pairs."""
    return 0.5 * float(np.vdot(a, b) + np.diag(a) @ np.diag(b))


def _make_projection(slopes: Array, basis: Array) -> Callable[[Array], Array]:
    """Give the projection on Δᵀx = 0; `slopes` are (n_features, n_features, q + 1).

    Column (i, c) of Δ has the slope of every pair of i, and of i itself.
    """
    n, _, width = slopes.shape
    gram = np.einsum("ijc,jid->icjd", slopes, slopes)  # pair ij is in columns of both its items
    own = np.einsum("ijc,ijd->icd", slopes, slopes)
    gram[np.arange(n), :, np.arange(n)] = own
    along = basis.T @ gram.reshape(n * width, -1) @ basis
    inverse = basis @ scipy.linalg.pinvh(along, rtol=_RANK_TOLERANCE) @ basis.T

    def projected(x: Array) -> Array:
        shares = (inverse @ np.einsum("ijc,ij->ic", slopes, x).ravel()).reshape(n, width)
        inside = np.einsum("ijc,ic->ij", slopes, shares)
        both = inside + inside.T
        np.fill_diagonal(both, np.diag(inside))
        return np.asarray(x - both)

    return projected


def _multiply_covariance(x: Array, expected: Array, curves: _Curves) -> Array:
    """Give Ξx.

    Given a node the bits less their means, y_i, and products y_i y_j are uncorrelated, of variances
    s_i and s_i s_j; what a vector gives for x_i and x_i x_j is turned to these and back.
    """
    singles, pairs = np.diag(x), x - np.diag(np.diag(x))
    s = curves.slope
    slopes = s * (singles + curves.P @ pairs)  # (n_nodes, n_features)
    weighted = curves.P.T * curves.share
    crossed = weighted @ slopes
    found: Array = crossed + crossed.T + pairs * ((s.T * curves.share) @ s)
    np.fill_diagonal(found, curves.share @ slopes)
    means = curves.P @ singles + 0.5 * ((curves.P @ pairs) * curves.P).sum(axis=1)
    between = curves.share * (means - curves.share @ means)
    shifted = (curves.P.T * between) @ curves.P
    np.fill_diagonal(shifted, between @ curves.P)
    return np.asarray(found + shifted)
