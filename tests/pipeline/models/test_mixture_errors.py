"""The information of a mixture against second derivatives of its log-likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logit, logsumexp, softmax

from pipeline.models.bernoulli_mixture.model import (
    compute_mixture_errors,
    sum_mixture_information,
)

Floats = NDArray[np.float64]
STEP = 1e-3


@pytest.mark.parametrize("masked", [False, True])
def test_errors_are_those_of_the_hessian(masked: bool) -> None:
    rng = np.random.default_rng(masked)
    P, weights, smoothing = np.full((2, 5), 0.25), np.array([0.6, 0.4]), 0.3
    P[1] = rng.uniform(0.6, 0.9, 5)
    X = (rng.random((900, 5)) < P[rng.choice(2, 900, p=weights)]).astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8) if masked else None
    seen = np.ones(X.shape) if observed is None else observed.astype(float)

    def joint(at: Floats) -> Floats:
        log_odds, alpha = at[:10].reshape(2, 5), np.append(at[10:], 0.0)
        each = X[:, None] * log_odds - np.logaddexp(0, log_odds)
        return (seen[:, None] * each).sum(axis=2) + log_softmax(alpha)

    def log_posterior(at: Floats) -> float:
        p, alpha = expit(at[:10]), np.append(at[10:], 0.0)
        prior = np.log(p).sum() + np.log1p(-p).sum() + log_softmax(alpha).sum()
        return float(logsumexp(joint(at), axis=1).sum() + smoothing * prior)

    at = np.append(logit(P).ravel(), np.log(weights[0] / weights[1]))
    steps = STEP * np.eye(11)
    hessian = [
        [
            sum(s * t * log_posterior(at + s * a + t * b) for s in (1, -1) for t in (1, -1))
            for b in steps
        ]
        for a in steps
    ]
    covariance = np.linalg.inv(-np.array(hessian) / (2 * STEP) ** 2)
    sums = sum_mixture_information(X, observed, P, softmax(joint(at), axis=1))
    found = compute_mixture_errors(P, weights, sums, len(X), smoothing)
    deviations = np.sqrt(np.diag(covariance))
    expected = (P * (1 - P)) * deviations[:10].reshape(2, 5)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-4)
    np.testing.assert_allclose(found.weights, weights.prod() * deviations[10], rtol=1e-4)
    low, high = logit(found.interval)
    np.testing.assert_allclose((high - low).ravel() / 2, 1.959964 * deviations[:10], rtol=1e-4)
