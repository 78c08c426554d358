"""The expanded model has the same likelihood, and its M-step is a maximum."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pipeline.numerics.logistic.parameter_expansion import (
    TraitGaussian,
    estimate_trait_gaussian,
    sum_trait_moments,
)


def draw_rows(q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw means and covariances of 50 rows, and weights of 7 items."""
    rng = np.random.default_rng(q)
    roots = rng.standard_normal((50, q, q))
    mean = 0.3 + rng.standard_normal((50, q)) @ rng.standard_normal((q, q))
    return mean, roots @ np.swapaxes(roots, 1, 2), rng.standard_normal((7, q))


def test_absorbed_traits_have_the_same_log_odds():
    mean, _, weights = draw_rows(3)
    offsets = np.arange(7.0)
    traits = TraitGaussian(np.array([1.0, -2, 0.5]), np.array([[2.0, 1, 0], [1, 3, 0], [0, 0, 1]]))
    absorbed, moved = traits.absorb(weights, offsets)
    expected = mean @ weights.T + offsets
    np.testing.assert_allclose(traits.standardize(mean) @ absorbed.T + moved, expected, rtol=1e-12)


@pytest.mark.parametrize("q", [1, 3])
def test_without_a_prior_it_has_the_moments_of_the_rows(q):
    mean, covariance, weights = draw_rows(q)
    traits = estimate_trait_gaussian(sum_trait_moments(mean, covariance), weights)
    np.testing.assert_allclose(traits.mean, mean.mean(axis=0), rtol=1e-12)
    expected = np.cov(mean.T, bias=True).reshape(q, q) + covariance.mean(axis=0)
    np.testing.assert_allclose(traits.covariance, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("q", [1, 3])
def test_with_a_prior_no_other_covariance_is_better(q):
    mean, covariance, weights = draw_rows(q)
    moments, precision = sum_trait_moments(mean, covariance), 4.0
    n_rows = moments[-1, -1]
    scatter = moments[:-1, :-1] - n_rows * np.outer(moments[:-1, -1], moments[:-1, -1]) / n_rows**2
    form = weights.T @ weights

    def cost(free: np.ndarray) -> float:
        root = np.zeros((q, q))
        root[np.tril_indices(q)] = free
        S = root @ root.T
        fit = n_rows * np.linalg.slogdet(S)[1] + np.trace(np.linalg.solve(S, scatter))
        return float(fit + precision * np.trace(S @ form))

    found = estimate_trait_gaussian(moments, weights, precision).covariance
    start = np.linalg.cholesky(found)[np.tril_indices(q)]
    best = scipy.optimize.minimize(cost, start + 0.1, method="BFGS", options={"gtol": 1e-9})
    assert cost(start) <= best.fun + 1e-9 * abs(best.fun)
