"""The sums of an EM pass on Gauss–Hermite nodes centred at the posterior of each row.

With many items, posteriors are narrow and nearly Gaussian. Nodes shared by all rows then lie too
far apart, while a few nodes x_nl = μ_n + L_n z_l around Laplace's approximation N(μ_n, L_n L_nᵀ)
give nearly exact integrals (adaptive quadrature: J. C. Naylor, A. F. M. Smith, Applied Statistics
31 (1982)):

    P(t_n) ≈ Σ_l u_nl,   u_nl = v_l det L_n exp(½ z_l² − ½ x_nl²) P(t_n | x_nl),

with the weights v_l of the rule. The sums of the M-step are those over nodes with the weights
u_nl / P(t_n).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.logistic.latent_nodes import gauss_hermite
from pipeline.numerics.logistic.logistic_sites import (
    fill_logistic_parts,
    gaussians_from_sites,
    iter_sign_batches,
    laplace_sites,
    make_item_forms,
)
from pipeline.numerics.logistic.newton_step import NewtonStatistics

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_BATCH_ENTRIES = 2**22  # items, rows and nodes: 32 MiB per array
_MAX_DISTANCE = 1.0  # of the mean of the sites from the mode, in standard deviations
CENTRED_NODES_PER_AXIS = {1: 7, 2: 5, 3: 5}
"""Number of nodes per axis, by the number of components."""


def centred_e_step(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats
) -> NewtonStatistics:
    """E-step on nodes centred at each row's posterior.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    weights, offsets
        w, (n_features, q), for 1 to 3 components, and b, (n_features,).
    """
    items, (n_features, q) = make_item_forms(weights, offsets), weights.shape
    z, log_v = gauss_hermite(CENTRED_NODES_PER_AXIS[q], q)
    log_v = log_v + 0.5 * (z**2).sum(axis=1)
    gradient = np.zeros((n_features, q + 1))
    curvature = np.zeros((n_features, (q + 1) * (q + 2) // 2))
    moments, log_likelihood = np.zeros((q + 1, q + 1)), 0.0
    j, k = np.triu_indices(q + 1)
    max_rows = max(_BATCH_ENTRIES // (len(z) * n_features), 1)
    for rows, signs in iter_sign_batches(X, observed, max_rows):
        sites, mode = laplace_sites(signs, items)
        mean, covariance, _ = gaussians_from_sites(sites, items)
        root = np.linalg.cholesky(covariance)
        distance = np.linalg.norm(np.linalg.solve(root, (mean - mode)[:, :, None])[:, :, 0], axis=1)
        mean = np.where(distance[:, None] < _MAX_DISTANCE, mean, mode)
        log_det = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        n_rows = signs.shape[1]
        residuals, slopes = np.empty((2, len(z), n_features, n_rows))
        extended, log_mass = np.ones((len(z), n_rows, q + 1)), np.empty((len(z), n_rows))
        for node in range(len(z)):
            x = mean + root @ z[node]
            extended[node, :, :q] = x
            residuals[node] = weights @ x.T + offsets[:, None]
            fill_logistic_parts(signs, residuals[node], slopes[node], log_mass[node])
            log_mass[node] += log_v[node] - 0.5 * (x**2).sum(axis=1) + log_det
        largest = log_mass.max(axis=0)
        mass = np.exp(log_mass - largest)
        totals = mass.sum(axis=0)
        is_row = np.arange(n_rows) < rows.stop - rows.start
        log_likelihood += float((largest + np.log(totals))[is_row].sum())
        mass *= is_row / totals
        for node in range(len(z)):
            weighted = mass[node][:, None] * extended[node]
            gradient += residuals[node] @ weighted
            products = weighted[:, :, None] * extended[node][:, None, :]
            curvature += slopes[node] @ products[:, j, k]
            moments += products.sum(axis=0)
    return NewtonStatistics(gradient, curvature, moments, log_likelihood, 0)
