"""Sums for a step of Newton for each item.

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

_NO_CODES = np.empty((0, 0))


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
    variances
        Variances of x in each row, (n_samples, q), if rows also have prior variances; else empty.
    row_log_likelihoods
        log P(t_n), (n_samples,), whatever the weights of the rows; empty if not computed.
    """

    gradient: Floats
    curvature: Floats
    moments: Floats
    log_likelihood: float
    rounds: int
    codes: Floats = _NO_CODES
    variances: Floats = _NO_CODES
    row_log_likelihoods: Floats = _NO_CODES


def unpack_triangles(triangles: Floats, size: int) -> Floats:
    """Return symmetric matrices, given their upper triangles row by row."""
    j, k = np.triu_indices(size)
    matrices = np.empty((len(triangles), size, size))
    matrices[:, j, k] = matrices[:, k, j] = triangles
    return matrices


def differentiate_on_nodes(
    points: Floats, ones: Floats, mass: Floats, forms: Floats
) -> tuple[Floats, Floats]:
    """Return the gradient of each item, (n_features, q + 1), and minus its second derivatives.

    Parameters
    ----------
    points
        Nodes, (n_nodes, q).
    ones, mass
        Expected number of ones and of values of each item at each node, (n_features, n_nodes).
    forms
        Weights and offsets side by side, (n_features, q + 1).
    """
    extended = np.column_stack([points, np.ones(len(points))])
    P = expit(forms @ extended.T)
    j, k = np.triu_indices(extended.shape[1])
    gradient: Floats = (ones - mass * P) @ extended
    triangles = (mass * P * (1 - P)) @ (extended[:, j] * extended[:, k])
    return gradient, unpack_triangles(triangles, extended.shape[1])
