from itertools import product

import numpy as np
import pytest

from pipeline.errors import FitError
from pipeline.numerics.expectation_propagation import probit_posterior
from pipeline.numerics.probit_gradient import probit_likelihood
from tests.pipeline.numerics.test_expectation_propagation import (
    integrate_on_grid,
    low_rank_model,
    random_problem,
    rows_of,
    standard,
)


@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_is_that_of_the_sum(seed):
    X, weights, offsets, mean, variance, observed = random_problem(seed)
    counts = np.random.default_rng(seed).uniform(0, 2, len(X))

    def likelihood(weights, offsets, mean, log_variance):
        v = np.exp(log_variance)
        return probit_likelihood(X, weights, offsets, mean, v, observed, counts, tol=1e-11)

    at = [weights, offsets, mean, np.log(variance)]
    found = likelihood(*at)
    assert found.converged.all()
    gradient = found.weights, found.offsets, found.prior_mean, found.log_prior_variance
    for k, part in enumerate(gradient):
        numeric = np.empty_like(part)
        for entry in np.ndindex(part.shape):
            step = np.zeros_like(part)
            step[entry] = 1e-4
            above, below = (
                counts @ likelihood(*at[:k], at[k] + s * step, *at[k + 1 :]).log_evidence
                for s in (1, -1)
            )
            numeric[entry] = (above - below) / 2e-4
        np.testing.assert_allclose(part, numeric, rtol=1e-5, atol=1e-6)


def test_evidence_and_gradient_are_near_integration():
    rng = np.random.default_rng(2)
    weights, offsets = low_rank_model(rng, 6, 2, (0.1, 0.5))
    X = rows_of(rng, weights, offsets, 12)
    found = probit_likelihood(X, weights, offsets, *standard(2))
    step = 1e-3 * np.eye(6)[2]
    below, exact, above = (
        integrate_on_grid(X, weights, offsets + s * step, n_points=101)[2] for s in (-1, 0, 1)
    )
    np.testing.assert_allclose(found.log_evidence, exact, atol=4e-3)
    assert found.offsets[2] == pytest.approx((above - below).sum() / 2e-3, rel=0.01)


def test_gradient_of_the_mean_log_likelihood_vanishes_at_the_model_itself():
    weights, offsets = low_rank_model(np.random.default_rng(4), 6, 2)
    X = np.array(list(product([0, 1], repeat=6)))
    prior = np.array([0.3, -0.2]), np.array([0.8, 1.5])
    shares = np.exp(probit_posterior(X, weights, offsets, *prior).log_evidence)
    found = probit_likelihood(X, weights, offsets, *prior, row_weights=shares)
    for part in found[2:]:
        np.testing.assert_allclose(part, 0, atol=5e-3)


def test_what_is_not_observed_has_no_gradient_and_spoils_none():
    X, *parameters, observed = random_problem(5)
    observed[:, 3], observed[1] = False, False
    found = probit_likelihood(np.where(observed, X, np.nan), *parameters, observed)
    assert (found.weights[3] == 0).all()
    assert found.offsets[3] == found.log_evidence[1] == 0
    whole = np.delete(np.arange(len(X)), 1)
    rest = probit_likelihood(X[whole], *parameters, observed[whole])
    np.testing.assert_allclose(found.weights, rest.weights, rtol=1e-12)


def test_rows_out_of_rounds_are_told():
    X, *parameters, _ = random_problem(7)
    assert not probit_likelihood(X, *parameters, max_rounds=2).converged.any()


@pytest.mark.parametrize("row_weights", [np.ones(5), [1, 1, 1, 1, 1, np.nan]])
def test_row_weights_that_are_refused(row_weights):
    X, *parameters, observed = random_problem(0)
    with pytest.raises(FitError, match="Expected 6 finite row weights"):
        probit_likelihood(X, *parameters, observed, row_weights)
