"""The M-step that takes one step of Newton for each item.

P(t_i = 1 | x) = σ(w_i·x + b_i), x̂ = (x, 1). The gradient of the log-likelihood in ŵ_i = (w_i, b_i)
is Σ_n ⟨(t_in − σ) x̂⟩, the mean over the posterior of x in row n. The curvature of the expected
complete log-likelihood is Σ_n ⟨σ (1 − σ) x̂ x̂ᵀ⟩ (K. Lange, "A gradient algorithm locally equivalent
to the EM algorithm", Journal of the Royal Statistical Society B 57, 1995).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Floats = NDArray[np.float64]

_LONGEST_STEP = 1e100
_NO_CODES = np.empty((0, 0))
_MAX_STEP_LENGTH = 1.0  # largest root mean square change of w·x + b over the prior


class NewtonStatistics(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    gradient
        Gradient in each ŵ_i, (n_features, q + 1).
    curvature
        Upper triangles, row by row, (n_features, (q + 1)(q + 2) / 2).
    moments
        Σ_n ⟨x̂ x̂ᵀ⟩, (q + 1, q + 1).
    log_likelihood, rounds
        Log-likelihood in nats, and number of rounds that the E-step used.
    codes
        ⟨x⟩ of each row, (n_samples, q), if rows have prior means of their own; else empty.
    """

    gradient: Floats
    curvature: Floats
    moments: Floats
    log_likelihood: float
    rounds: int
    codes: Floats = _NO_CODES


def take_newton_step(
    gradient: Floats,
    curvature: Floats,
    packed: Floats,
    prior_precision: Floats,
    equal_slopes: bool = False,
) -> Floats:
    """Take a Newton step for each item, shortened if it is long.

    `gradient` and `curvature` are as in `NewtonStatistics`, summed over all rows. `packed` are the
    weights and offsets of these sums, side by side, (n_features, q + 1). Each w_i has a normal
    prior with mean 0 and this precision, (q, q); offsets have none. With `equal_slopes` and one
    component, all weights make the same step. Return new weights and offsets, side by side.
    """
    q = packed.shape[1] - 1
    slope, matrices = gradient.copy(), unpack_triangles(curvature, q + 1)
    slope[:, :q] -= packed[:, :q] @ prior_precision
    matrices[:, :q, :q] += prior_precision
    # The ridge gives a solution to items with hardly any curvature, such as very steep ones.
    ridge = 1e-9 * np.trace(matrices, axis1=1, axis2=2)[:, None] + np.finfo(float).tiny
    matrices[:, range(q + 1), range(q + 1)] += ridge
    step = np.linalg.solve(matrices, slope[:, :, None])[:, :, 0]
    step = np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)  # so that its length does not overflow
    if equal_slopes:
        share = matrices[:, 0, 1] / matrices[:, 1, 1]  # of the slope's step in the offset's
        information = (matrices[:, 0, 0] - share * matrices[:, 0, 1]).sum()
        step[:, 0] = (slope[:, 0] - share * slope[:, 1]).sum() / information
        step[:, 1] = slope[:, 1] / matrices[:, 1, 1] - share * step[:, 0]
    length = np.linalg.norm(step, axis=1, keepdims=True)
    if equal_slopes:
        length[:] = length.max()
    scale = np.minimum(1.0, _MAX_STEP_LENGTH / np.maximum(length, _MAX_STEP_LENGTH))
    moved: Floats = packed + step * scale
    return moved


def unpack_triangles(triangles: Floats, size: int) -> Floats:
    """Return symmetric matrices, given their upper triangles row by row."""
    j, k = np.triu_indices(size)
    matrices = np.empty((len(triangles), size, size))
    matrices[:, j, k] = matrices[:, k, j] = triangles
    return matrices


def differentiate_on_nodes(
    points: Floats, ones: Floats, mass: Floats, weights: Floats, offsets: Floats
) -> tuple[Floats, Floats]:
    """Return gradient and curvature as in `NewtonStatistics`, given counts at nodes.

    Parameters
    ----------
    points
        Nodes, (n_nodes, q).
    ones, mass
        Expected number of ones and of values of each item at each node, (n_features, n_nodes).
    weights, offsets
        Weights, (n_features, q), and offsets, (n_features,).
    """
    extended = np.column_stack([points, np.ones(len(points))])
    P = expit(np.column_stack([weights, offsets]) @ extended.T)
    j, k = np.triu_indices(extended.shape[1])
    gradient: Floats = (ones - mass * P) @ extended
    curvature: Floats = (mass * P * (1 - P)) @ (extended[:, j] * extended[:, k])
    return gradient, curvature
