"""The plane of two latent dimensions on a fine grid: likelihoods and posteriors of rows.

Gauss–Hermite nodes, 41 an axis, lie half a unit apart. Posteriors of rows of hundreds of features
are narrower than that, and a fit by quadrature puts steep items between nodes, where the rule does
not see them. Points around each row's posterior see both, but a steep item costs them some 0.005
nats a row. A grid of one twentieth has errors of 1e-5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.executors.base import limit_blas_threads
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import Nodes, node_posterior

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

_STEP, _REACH = 0.05, 6.0
_N_PIECES = 16  # of the grid: memory is for one
_REACH_IN_DEVIATIONS, _POINTS_PER_AXIS = 6.0, 161


class FinePosterior(NamedTuple):
    """E(x | t) of each row, (n_rows, 2), and log P(t) in nats, (n_rows,)."""

    mean: Array
    log_likelihood: Array


class PlanePosterior(NamedTuple):
    """Posterior of x given one row, where it is not negligible.

    Attributes
    ----------
    x, y
        Coordinates of the grid, (n_x,) and (n_y,).
    density
        p(x | t), (n_y, n_x); its integral is 1.
    mean, covariance
        (2,) and (2, 2).
    """

    x: Array
    y: Array
    density: Array
    mean: Array
    covariance: Array


def make_fine_nodes() -> Nodes:
    """Place nodes from −6 to 6 along both axes, weighted by the density of N(0, I)."""
    axis = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
    points = _grid_points(axis, axis)
    log_weights = -(points**2).sum(axis=1) / 2
    return Nodes(points, log_weights - scipy.special.logsumexp(log_weights))


def fine_posterior(block: BinaryBlock, weights: Array, offsets: Array) -> FinePosterior:
    """Integrate over the fine grid, for each row.

    Parameters
    ----------
    block
        The rows.
    weights, offsets
        w (n_features, 2) and b (n_features,).
    """
    X, observed, nodes = block.unpack_values(), block.unpack_mask(), make_fine_nodes()
    pieces = map(Nodes, *(np.array_split(array, _N_PIECES) for array in nodes))
    with limit_blas_threads():
        found = [node_posterior(X, observed, weights, offsets, piece) for piece in pieces]
    logs = np.array([part.log_likelihood for part in found])
    total = scipy.special.logsumexp(logs, axis=0)
    means = np.array([part.mean for part in found])
    return FinePosterior((np.exp(logs - total)[:, :, None] * means).sum(axis=0), total)


def plane_posterior(
    row: Bits, observed: Bits | None, weights: Array, offsets: Array
) -> PlanePosterior:
    """Compute the posterior of x under P(t_i = 1 | x) = σ(w_i·x + b_i) and x ~ N(0, I).

    Parameters
    ----------
    row, observed
        Values and mask, 1 = observed, (n_features,); None when every value is there.
    weights, offsets
        w (n_features, 2) and b (n_features,).

    Raises
    ------
    FitError
        If there are not two latent dimensions.
    """
    if weights.ndim != 2 or weights.shape[1] != 2:
        raise FitError(
            f"Expected weights (n_features, 2), got {weights.shape}. Fit two components."
        )
    mask = None if observed is None else observed[None]
    near = posterior_by_quadrature(row[None], mask, TraitItems(weights, offsets))
    reach = _REACH_IN_DEVIATIONS * np.sqrt(np.diagonal(near.covariance[0]))
    x, y = np.linspace(near.mean[0] - reach, near.mean[0] + reach, _POINTS_PER_AXIS).T
    points = _grid_points(x, y)
    seen = np.ones(len(row)) if observed is None else observed
    eta = points @ weights.T + offsets
    logs = scipy.special.log_expit((2.0 * row - 1) * eta) @ seen - (points**2).sum(axis=1) / 2
    shares = np.exp(logs - scipy.special.logsumexp(logs))
    mean = shares @ points
    covariance = (points - mean).T @ (shares[:, None] * (points - mean))
    density = shares.reshape(_POINTS_PER_AXIS, _POINTS_PER_AXIS).T / ((x[1] - x[0]) * (y[1] - y[0]))
    return PlanePosterior(x, y, density, mean, covariance)


def _grid_points(x: Array, y: Array) -> Array:
    """Give all points of a grid, x slowest: (n_x n_y, 2)."""
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
