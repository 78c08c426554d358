"""Low-rank approximation of pairwise correlations, weighted by how well each is known.

The loss Σ_ij n_ij (c_ij − Σ_kl l_ik ρ_kl l_jl)² over pairs i ≠ j, with n_ij the number of rows in
which both features were observed, is nearly twice the negative logarithm of the likelihood of
correlations c_ij with variance 1 / n_ij. A small multiple of Σ_ik l_ik² keeps loadings finite that
hardly any rows determine. Where few pairs link two parts of the features, the loss has several
minima, which differ in the signs or the rotation of a part.

With many features, c_ij is only given for pairs of some features, the anchors, with all features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MAX_ROUNDS = 500
_START_SPREAD = 0.5
_LARGEST_WEIGHT = 1000.0  # to which weights are scaled, beside 1 for Σ l²
_MAX_CORRELATION = 0.9  # of two components
_SAME_SHARE = 1e-2  # of the squares of fitted correlations, by which different minima differ


class LowRankFit(NamedTuple):
    """A minimum of the loss.

    Attributes
    ----------
    loss
        The loss.
    loadings
        l, (n_features, n_components).
    correlation
        ρ, the correlations of the components, (n_components, n_components).
    """

    loss: float
    loadings: Array
    correlation: Array


def find_low_rank_fits(
    values: Array,
    weights: Array,
    anchors: NDArray[np.int64],
    loads: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    n_starts: int = 8,
    are_correlated: bool = False,
) -> list[LowRankFit]:
    """Find the minima of the loss that random starts reach, the lowest first.

    Parameters
    ----------
    values, weights
        c and n of the pairs of anchors with all features, (n_anchors, n_features). Pairs with a
        weight of 0, and pairs of a feature with itself, do not count.
    anchors
        Indices of the anchors, (n_anchors,).
    loads
        Which loadings are not 0, (n_features, n_components).
    rng
        Generator of the starts.
    n_starts
        Number of random starts.
    are_correlated
        Whether the correlations of the components are estimated, else they are 0.
    """
    n_features, q = loads.shape
    is_anchor = np.zeros(n_features, np.bool_)
    is_anchor[anchors] = True
    # Pairs of anchors occur twice.
    weights = np.where(is_anchor, 0.5, 1.0) * weights
    weights[np.arange(len(anchors)), anchors] = 0.0
    scale = max(float(weights.max(initial=0.0)) / _LARGEST_WEIGHT, 1e-300)
    weights /= scale
    pairs = np.triu_indices(q, 1) if are_correlated else (np.zeros(0, np.intp),) * 2
    n_loadings = int(loads.sum())

    def unpack(free: Array) -> LowRankFit:
        loadings, correlation = np.zeros(loads.shape), np.eye(q)
        loadings[loads] = free[:n_loadings]
        correlation[pairs] = _MAX_CORRELATION * np.tanh(free[n_loadings:])
        return LowRankFit(0.0, loadings, correlation + np.triu(correlation, 1).T)

    def compute_loss(free: Array) -> tuple[float, Array]:
        _, loadings, correlation = unpack(free)
        left = loadings[anchors] @ correlation
        residuals = left @ loadings.T - values
        weighted = weights * residuals
        gradient = 2.0 * (weighted.T @ left)
        gradient[anchors] += 2.0 * (weighted @ loadings @ correlation)
        by_pair = 2.0 * (loadings[anchors].T @ weighted @ loadings)
        slope = _MAX_CORRELATION / np.cosh(free[n_loadings:]) ** 2
        by_correlation = (by_pair + by_pair.T)[pairs] * slope
        loss = float((weighted * residuals).sum() + (free**2).sum())
        return loss, np.append(gradient[loads], by_correlation) + 2.0 * free

    fits: list[LowRankFit] = []
    for _ in range(n_starts):
        start = _START_SPREAD * rng.standard_normal(n_loadings + len(pairs[0]))
        start[n_loadings:] = 0.0
        options: Any = {"maxiter": _MAX_ROUNDS, "ftol": 1e-9, "gtol": 1e-4}
        found = scipy.optimize.minimize(
            compute_loss, start, jac=True, method="L-BFGS-B", options=options
        )
        fits.append(unpack(found.x)._replace(loss=scale * float(found.fun)))
    return _drop_equal_fits(sorted(fits, key=lambda fit: fit.loss), anchors)


def _drop_equal_fits(fits: list[LowRankFit], anchors: NDArray[np.int64]) -> list[LowRankFit]:
    """Keep the first of several fits with the same correlations, observed or not."""
    kept: list[LowRankFit] = []
    fitted: list[Array] = []
    for fit in fits:
        product = fit.loadings[anchors] @ fit.correlation @ fit.loadings.T
        limit = _SAME_SHARE * float((product**2).sum())
        if all(float(((product - other) ** 2).sum()) > limit for other in fitted):
            kept.append(fit)
            fitted.append(product)
    return kept
