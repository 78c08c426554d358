"""Scores of a probit factor model, by propagation and by quadrature."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy

from pipeline.errors import FitError
from pipeline.numerics.probit.probit_scores import ep_scores, quadrature_scores

FINE = partial(quadrature_scores, step=0.2, radius=9.0)
EXACT_PROPAGATION = partial(ep_scores, tol=1e-10)


def problem(n_features=6, n_components=2, steepness=1.0, n_rows=30):
    """Rows, weights and offsets of which some are steep."""
    rng = np.random.default_rng(n_features + n_components)
    weights = steepness * rng.uniform(-2, 2, (n_features, n_components))
    offsets = rng.normal(size=n_features)
    z = rng.standard_normal((n_rows, n_components)) @ weights.T + offsets
    return (z + rng.standard_normal(z.shape) > 0).astype(np.uint8), weights, offsets


def dense_log_likelihood(X, weights, offsets):
    """By a fine grid over the prior."""
    n_components, axis = weights.shape[1], np.linspace(-9, 9, 1201)
    axes = np.meshgrid(*[axis] * n_components, indexing="ij")
    u = np.stack(axes, axis=-1).reshape(-1, n_components)
    z = u @ weights.T + offsets
    log_volume = n_components * np.log((axis[1] - axis[0]) / np.sqrt(2 * np.pi))
    prior = log_volume - 0.5 * (u**2).sum(axis=1)
    ones, zeros = scipy.special.log_ndtr(z), scipy.special.log_ndtr(-z)
    logs = [x @ ones.T + (1 - x) @ zeros.T + prior for x in X.astype(float)]
    return scipy.special.logsumexp(logs, axis=1)


def differences(score, X, weights, offsets, eps=1e-4):
    """Central differences of the summed log-likelihood by weights and offsets."""

    def total(change):
        moved = change[: weights.size].reshape(weights.shape)
        return score(X, weights + moved, offsets + change[weights.size :]).log_likelihood.sum()

    steps = eps * np.eye(weights.size + offsets.size)
    found = np.array([(total(step) - total(-step)) / (2 * eps) for step in steps])
    return found[: weights.size].reshape(weights.shape), found[weights.size :]


@pytest.mark.parametrize("score", [EXACT_PROPAGATION, FINE], ids=["propagation", "quadrature"])
@pytest.mark.parametrize("n_components", [1, 2])
def test_scores_are_derivatives(score, n_components):
    rows = problem(n_components=n_components, n_rows=8)
    found, expected = score(*rows), differences(score, *rows)
    for scores, slopes in zip((found.weights, found.offsets), expected, strict=True):
        scale = np.abs(slopes).max()
        np.testing.assert_allclose(scores.sum(axis=0), slopes, rtol=0, atol=1e-5 * scale)


@pytest.mark.few(3)
@pytest.mark.parametrize("steepness", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("n_components", [1, 2])
def test_quadrature_is_exact_and_its_error_covers_the_difference(n_components, steepness):
    X, weights, offsets = problem(n_components=n_components, steepness=steepness, n_rows=6)
    expected = dense_log_likelihood(X, weights, offsets)
    fine = FINE(X, weights, offsets)
    np.testing.assert_allclose(fine.log_likelihood, expected, rtol=0, atol=1e-6)
    found = quadrature_scores(X, weights, offsets)
    assert (np.abs(found.log_likelihood - expected) <= found.error + 1e-9).all()
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=0, atol=3e-3)
    assert found.settled.all()


def test_the_error_of_propagation_is_about_what_it_is_off_by():
    X, weights, offsets = problem(n_rows=200)
    exact = quadrature_scores(X, weights, offsets).log_likelihood
    found = ep_scores(X, weights, offsets)
    off = np.abs(found.log_likelihood - exact)
    assert 0.7 < found.error.mean() / off.mean() < 1.4


@pytest.mark.parametrize("score", [ep_scores, quadrature_scores])
def test_missing_values_leave_out_their_factors(score):
    X, weights, offsets = problem()
    observed = np.ones(X.shape, bool)
    observed[:, 2] = False
    X[:, 2] = 7
    found = score(X, weights, offsets, observed)
    rest = np.delete(np.arange(6), 2)
    without = score(X[:, rest], weights[rest], offsets[rest])
    np.testing.assert_array_equal(found.log_likelihood, without.log_likelihood)
    np.testing.assert_array_equal(found.weights[:, rest], without.weights)
    assert not found.weights[:, 2].any()
    assert not found.offsets[:, 2].any()


def test_quadrature_refuses_many_components():
    with pytest.raises(FitError, match="at most 2 components, but there are 3"):
        quadrature_scores(*problem(n_components=3))
