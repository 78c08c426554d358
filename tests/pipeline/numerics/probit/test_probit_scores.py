"""Scores of a probit factor model, by propagation and by quadrature: bits, levels and values."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, norm

from pipeline.errors import FitError
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.probit_scores import ep_scores, quadrature_scores
from tests.support.derivatives import differentiate

Floats = NDArray[np.float64]
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

    found = differentiate(total, np.zeros(weights.size + offsets.size), eps)
    return found[: weights.size].reshape(weights.shape), found[weights.size :]


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


BOTH = pytest.mark.parametrize("score", [EXACT_PROPAGATION, FINE], ids=["ep", "quadrature"])
N_LEVELS = np.array([3, 2, 4])


class LevelProblem(NamedTuple):
    """Rows of three features with levels and two continuous ones; the last row lacks values."""

    levels: NDArray[np.uint8]
    weights: Floats
    offsets: Floats
    observed: NDArray[np.bool_]
    n_levels: NDArray[np.int64]
    values: Floats


def make_level_problem(n_components: int = 2, n_rows: int = 6) -> LevelProblem:
    rng = np.random.default_rng(n_components)
    weights = 0.8 * rng.uniform(-1.5, 1.5, (5, n_components))
    observed, values = np.ones((n_rows, 3), np.bool_), rng.normal(size=(n_rows, 2))
    observed[-1, 1], values[-1, 0] = False, np.nan
    return LevelProblem(
        rng.integers(0, N_LEVELS, (n_rows, 3)).astype(np.uint8),
        weights,
        np.array([0.6, -0.4, 0.3, 1.2, 0.1, -0.7]),
        observed,
        np.array([*N_LEVELS, 1, 1]),
        values,
    )


def integrate_by_scipy(problem: LevelProblem) -> Floats:
    """Log density of the values, plus log probability of the rectangle given them."""
    covariance = problem.weights @ problem.weights.T + np.eye(5)
    edges = [
        np.concatenate([[-20.0], -offsets, [20.0]])
        for offsets in np.split(problem.offsets, np.cumsum(N_LEVELS - 1)[:-1])
    ]
    nats = []
    for levels, observed, values in zip(
        problem.levels, problem.observed, problem.values, strict=True
    ):
        own, seen = np.flatnonzero(observed), np.flatnonzero(~np.isnan(values))
        v, C = values[seen], covariance[np.ix_(seen + 3, seen + 3)]
        slopes = np.linalg.solve(C, covariance[np.ix_(seen + 3, own)]).T
        rest = covariance[np.ix_(own, own)] - slopes @ covariance[np.ix_(seen + 3, own)]
        lower, upper = np.array([edges[i][levels[i] :][:2] for i in own]).T
        normal = multivariate_normal(slopes @ v, rest)
        share = normal.cdf(upper, lower_limit=lower, rng=np.random.default_rng(0))
        nats.append(np.log(share) + multivariate_normal(np.zeros(len(v)), C).logpdf(v))
    return np.array(nats)


@pytest.mark.parametrize("n_components", [1, 2])
def test_log_likelihoods_are_rectangle_probabilities(n_components: int) -> None:
    problem = make_level_problem(n_components)
    expected = integrate_by_scipy(problem)
    found = quadrature_scores(*problem)
    assert_allclose(found.log_likelihood, expected, atol=1e-4)
    assert found.settled.all()
    assert (found.error < 1e-3).all()
    approximate = ep_scores(*problem)
    off = np.abs(approximate.log_likelihood - expected)
    assert (off < 0.02).all()
    assert (off < 3 * approximate.error + 1e-4).all()
    assert approximate.settled.all()


def test_propagation_takes_more_components() -> None:
    problem = make_level_problem(4)
    found, exact = ep_scores(*problem).log_likelihood, integrate_by_scipy(problem)
    assert_allclose(found, exact, atol=0.02)
    corrected = probit_posterior(*problem).log_evidence
    assert np.abs(corrected - exact).mean() < 0.3 * np.abs(found - exact).mean()


@BOTH
@pytest.mark.parametrize("n_components", [1, 2])
def test_scores_of_levels_are_derivatives(score: Any, n_components: int) -> None:
    problem = make_level_problem(n_components)
    found = score(*problem)
    n_weights, n_offsets = problem.weights.size, len(problem.offsets)

    def total(change: Floats) -> Floats:
        moved = problem._replace(
            weights=problem.weights + change[:n_weights].reshape(problem.weights.shape),
            offsets=problem.offsets + change[n_weights : n_weights + n_offsets],
            values=problem.values - change[n_weights + n_offsets :],
        )
        result: Floats = score(*moved).log_likelihood
        return result

    slopes = differentiate(total, np.zeros(n_weights + n_offsets + 2), 1e-4)
    own = np.hstack([found.weights.reshape(len(slopes), -1), found.offsets])
    assert_allclose(own, slopes, atol=3e-4 if score is EXACT_PROPAGATION else 1e-6)


@BOTH
@pytest.mark.parametrize("bounds", [(30.0, 31.0), (-40.0, -30.0), (0.4, 0.4 + 1e-5), (5.0, 60.0)])
def test_one_feature_is_exact_in_the_tails(score: Any, bounds: tuple[float, float]) -> None:
    weights = np.array([[0.7]])
    found = score(np.array([[1]], np.uint8), weights, -np.array(bounds), n_levels=np.array([3]))
    a, b = np.sort(np.abs(bounds)) / np.hypot(1, 0.7)
    log_mass = norm.logsf(a) + np.log1p(-np.exp(norm.logsf(b) - norm.logsf(a)))
    assert_allclose(found.log_likelihood, log_mass, rtol=1e-7)
    densities = np.exp(norm.logpdf(np.array(bounds), scale=np.hypot(1, 0.7)) - log_mass)
    assert_allclose(found.offsets[0], densities * [1, -1], rtol=1e-4, atol=1e-12)
