"""Scores of rows under a probit factor model: log P(x) and its derivatives, row by row.

The model is u ~ N(0, I), P(x_i = 1 | u) = Φ(w_iᵀ u + b_i); models with other prior moments are
converted to units of the prior first. By Fisher's identity, with h_i = ±φ / Φ(±(w_iᵀ u + b_i)) and
the sign + where x_i is 1, − where it is 0,

    ∂ log P / ∂ b_i = E[h_i | x],    ∂ log P / ∂ w_i = E[h_i u | x].

`ep_scores` computes them by expectation propagation. At its fixed point, log P(x) by the sites does
not change with the sites to first order (Minka 2001; Seeger 2005, Expectation propagation for
exponential families), so that its derivatives are those of the sites alone: with the posterior's
mean m and covariance V, and the site exp(ν s − τ s² / 2) at s = w_iᵀ u,

    ∂ log P / ∂ b_i = ν_i − τ_i w_iᵀ m,    ∂ log P / ∂ w_i = (∂ log P / ∂ b_i) m − τ_i V w_i.

Cost per row: that of its rounds, and n K² more. `probit_quadrature` and `orthant_scores` are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from pipeline.numerics.probit.expectation_propagation import whiten_rows
from pipeline.numerics.probit.probit_sites import (
    MEAN,
    PRECISION,
    SHIFT,
    SITE_KERNEL_OPTIONS,
    Floats,
    ProbitRow,
    ProbitRows,
    allocate_workspace,
    combine_rows,
    find_fixed_point,
    kernel,
    site_log_evidence,
)
from pipeline.numerics.probit.skewness_correction import fill_skewness_terms

_MAX_ROUNDS = 200


class ProbitScores(NamedTuple):
    """Log P(x) of every row and its derivatives, which are 0 where a value is missing.

    Attributes
    ----------
    log_likelihood
        Nats, (n_samples,).
    error
        Estimated error of each, (n_samples,).
    offsets
        ∂ log P / ∂ b_i, (n_samples, n_features).
    weights
        ∂ log P / ∂ w_i, (n_samples, n_features, n_components).
    settled
        False if the approximation did not converge, (n_samples,).
    sampled
        Whether errors are random, so that errors of distinct rows average out.
    """

    log_likelihood: Floats
    error: Floats
    offsets: Floats
    weights: Floats
    settled: NDArray[np.bool_]
    sampled: bool = False


def ep_scores(
    X: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    observed: ArrayLike | None = None,
    tol: float = 1e-4,
) -> ProbitScores:
    """Compute scores by expectation propagation.

    Parameters
    ----------
    X
        (n_samples, n_features) of 0 and 1.
    weights, offsets
        w, (n_features, n_components), and b, (n_features,).
    observed
        Same shape as `X`; false where the value is missing and `X` is not read.
    tol
        Largest change of a moment of u in the last round. The derivatives have an error of about
        that size.

    Returns
    -------
    ProbitScores
        `error` is what the skewness correction of `expectation_propagation` would add.

    Raises
    ------
    FitError
        If shapes disagree, an observed value of `X` is not 0 or 1, a parameter is not finite, or
        `tol` is not positive.
    """
    rows = make_standard_rows(X, weights, offsets, observed, tol)
    scores = empty_scores(rows)
    _fill_scores(rows, scores)
    return scores


def make_standard_rows(
    X: ArrayLike, weights: ArrayLike, offsets: ArrayLike, observed: ArrayLike | None, tol: float
) -> ProbitRows:
    """Check rows and parameters of a standard normal u; raises the errors of `ep_scores`."""
    n_components = np.shape(weights)[-1]
    m, v = np.zeros(n_components), np.ones(n_components)
    return whiten_rows(X, weights, offsets, m, v, observed, tol, _MAX_ROUNDS)


def empty_scores(rows: ProbitRows) -> ProbitScores:
    """Allocate the scores of rows."""
    n_samples, n_features = rows.X.shape
    return ProbitScores(
        np.empty(n_samples),
        np.empty(n_samples),
        np.zeros((n_samples, n_features)),
        np.zeros((n_samples, n_features, len(rows.weights))),
        np.empty(n_samples, np.bool_),
    )


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_scores(rows: ProbitRows, scores: ProbitScores) -> None:
    """Fill in the scores row by row."""
    K, n_features = rows.weights.shape
    square, tensor = np.empty((K, K)), np.empty((K, K * (K + 1) // 2))
    features, row = np.empty(n_features, np.int64), allocate_workspace(K, n_features)
    for sample in range(len(rows.X)):
        row, _, change = find_fixed_point(rows, sample, row, square, features)
        scores.settled[sample], scores.log_likelihood[sample] = (
            change < rows.tol,
            site_log_evidence(row),
        )
        _fill_derivatives(
            row, rows.X[sample], features, scores.offsets[sample], scores.weights[sample]
        )
        gain = fill_skewness_terms(row.sites, row.directions, tensor, square, row.linear)
        scores.error[sample] = abs(gain)


@kernel
def _fill_derivatives(
    row: ProbitRow,
    x: NDArray[np.uint8],
    features: NDArray[np.int64],
    by_offset: Floats,
    by_weight: Floats,
) -> None:
    """Write the derivatives of a row, with the signs of the unmirrored features."""
    sites, image = row.sites, np.empty(row.sites.shape[1])
    for i in range(len(image)):
        sign = 2.0 * x[features[i]] - 1.0
        pull = sites[SHIFT, i] - sites[PRECISION, i] * sites[MEAN, i]
        by_offset[features[i]] = sign * pull
    for k in range(len(row.mean)):
        combine_rows(row.factor[k, k:], row.directions[k:], image)  # V w_i
        for i in range(len(image)):
            sign = 2.0 * x[features[i]] - 1.0
            drop = sign * sites[PRECISION, i] * image[i]
            by_weight[features[i], k] = by_offset[features[i]] * row.mean[k] - drop
