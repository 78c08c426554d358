"""Marginal likelihood of a probit factor model by expectation propagation, and its gradient.

The model is that of `expectation_propagation`: y ~ N(m, diag(v)), P(x_i = 1 | y) = Φ(w_iᵀ y + b_i).
At a fixed point log P(x) by the sites does not change with the sites to first order (Minka 2001;
Seeger 2005, Expectation propagation for exponential families). It changes with w_i and b_i as the
log of the site, ν_i s − τ_i s² / 2 at s = w_iᵀ u, does in the mean over the posterior, b_i being
added to s. With the posterior's mean E and covariance V in units of the prior, before the skewness
correction,

    ∂ log P / ∂ b_i = ν_i − τ_i w_iᵀ E,   ∂ log P / ∂ w_i = (∂ log P / ∂ b_i) E − τ_i V w_i.

m and v enter through b + W m and W √v. Cost a row: that of its rounds, and n K² more. What the
correction would add has no such gradient: `expectation_propagation` says how much it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError
from pipeline.numerics.expectation_propagation import whitened_rows
from pipeline.numerics.probit_rounds import Rows, allocate, evidence, settle
from pipeline.numerics.probit_sites import (
    MEAN,
    OPTIONS,
    PRECISION,
    SHIFT,
    Floats,
    Row,
    combine,
    kernel,
)


class ProbitLikelihood(NamedTuple):
    """Log P(x) of every row by expectation propagation, and the gradient of their weighted sum.

    Attributes
    ----------
    log_evidence
        Nats, without the skewness correction, (n_samples,).
    converged
        False where the rounds ran out, (n_samples,); the gradient is not that of such rows.
    weights, offsets
        Gradient by w, (n_features, n_components), and b, (n_features,).
    prior_mean, log_prior_variance
        Gradient by m and log v, (n_components,).
    """

    log_evidence: Floats
    converged: NDArray[np.bool_]
    weights: Floats
    offsets: Floats
    prior_mean: Floats
    log_prior_variance: Floats


def probit_likelihood(
    X: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    prior_mean: ArrayLike,
    prior_variance: ArrayLike,
    observed: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    tol: float = 1e-7,
    max_rounds: int = 200,
) -> ProbitLikelihood:
    """Log P(x) of rows, and the gradient of its sum over them.

    Parameters
    ----------
    X, weights, offsets, prior_mean, prior_variance, observed
        As for `probit_posterior`. Missing values leave out their factors.
    row_weights
        (n_samples,), what each row counts for in the gradient; 1 unless given.
    tol, max_rounds
        As for `probit_posterior`. The gradient is off by about as much as the moments.

    Raises
    ------
    FitError
        As `probit_posterior`, or if the row weights are not finite or not one a row.
    """
    m, v = np.asarray(prior_mean, np.float64), np.asarray(prior_variance, np.float64)
    rows = whitened_rows(X, weights, offsets, m, v, observed, tol, max_rounds)
    n_samples = len(rows.X)
    shares = _checked_row_weights(row_weights, n_samples)
    log_evidence, converged = np.empty(n_samples), np.empty(n_samples, np.bool_)
    by_whitened, by_offsets = np.zeros_like(rows.weights), np.zeros_like(rows.offsets)
    _sum_rows(rows, shares, log_evidence, converged, by_whitened, by_offsets)
    return ProbitLikelihood(
        log_evidence,
        converged,
        weights=by_whitened.T * np.sqrt(v) + np.outer(by_offsets, m),
        offsets=by_offsets,
        prior_mean=np.asarray(weights, np.float64).T @ by_offsets,
        log_prior_variance=0.5 * (rows.weights * by_whitened).sum(axis=1),
    )


def _checked_row_weights(row_weights: ArrayLike | None, n_samples: int) -> Floats:
    shares = np.ones(n_samples) if row_weights is None else np.asarray(row_weights, np.float64)
    if shares.shape != (n_samples,) or not np.isfinite(shares).all():
        raise FitError(
            f"Expected {n_samples} finite row weights, one a row, got shape {shares.shape}, "
            f"{int((~np.isfinite(shares)).sum())} of them not finite. Pass one number a row."
        )
    return shares


@njit(**OPTIONS, cache=True)
def _sum_rows(
    rows: Rows,
    shares: Floats,
    log_evidence: Floats,
    converged: NDArray[np.bool_],
    by_weights: Floats,
    by_offsets: Floats,
) -> None:
    """Fill `log_evidence` and `converged`, and add up the gradient in units of the prior."""
    K, n_features = rows.weights.shape
    features, row = np.empty(n_features, np.int64), allocate(K, n_features)
    square = np.empty((K, K))
    for sample in range(len(rows.X)):
        row, _, change = settle(rows, sample, row, square, features)
        converged[sample], log_evidence[sample] = change < rows.tol, evidence(row)
        _add(row, rows.X[sample], features, shares[sample], by_weights, by_offsets)


@kernel
def _add(
    row: Row,
    x: NDArray[np.uint8],
    features: NDArray[np.int64],
    share: float,
    by_weights: Floats,
    by_offsets: Floats,
) -> None:
    """Add a row's gradient; data were mirrored, the gradient is not."""
    sites, image = row.sites, np.empty(row.sites.shape[1])
    slope, pull = np.empty(len(image)), np.empty(len(image))
    for i in range(len(image)):
        sign = share * (2.0 * x[features[i]] - 1.0)
        slope[i] = sign * (sites[SHIFT, i] - sites[PRECISION, i] * sites[MEAN, i])
        pull[i] = sign * sites[PRECISION, i]
        by_offsets[features[i]] += slope[i]
    for k in range(len(row.mean)):
        combine(row.factor[k, k:], row.directions[k:], image)  # V w_i
        for i in range(len(image)):
            by_weights[k, features[i]] += slope[i] * row.mean[k] - pull[i] * image[i]
