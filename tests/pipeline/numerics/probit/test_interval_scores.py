"""Scores of rows of levels and values: against SciPy, differences, and those of bits."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, norm

from pipeline.errors import FitError
from pipeline.numerics.probit.interval_scores import interval_ep_scores, interval_quadrature_scores
from pipeline.numerics.probit.probit_scores import ep_scores, quadrature_scores

Floats = NDArray[np.float64]

FINE = partial(interval_quadrature_scores, step=0.2, radius=9.0)
BOTH = pytest.mark.parametrize("score", [interval_ep_scores, FINE], ids=["ep", "quadrature"])
N_LEVELS = np.array([3, 2, 4])


class Problem(NamedTuple):
    """Rows of three features with levels and two continuous ones; the last row lacks values."""

    levels: NDArray[np.uint8]
    weights: Floats
    offsets: Floats
    n_levels: NDArray[np.int64]
    observed: NDArray[np.bool_]
    values: Floats


def make_problem(n_components: int = 2, steepness: float = 0.8, n_rows: int = 6) -> Problem:
    rng = np.random.default_rng(n_components)
    weights = steepness * rng.uniform(-1.5, 1.5, (5, n_components))
    observed, values = np.ones((n_rows, 3), np.bool_), rng.normal(size=(n_rows, 2))
    observed[-1, 1], values[-1, 0] = False, np.nan
    return Problem(
        rng.integers(0, N_LEVELS, (n_rows, 3)).astype(np.uint8),
        weights,
        np.array([0.6, -0.4, 0.3, 1.2, 0.1, -0.7]),
        N_LEVELS,
        observed,
        values,
    )


def integrate_by_scipy(problem: Problem) -> Floats:
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
    problem = make_problem(n_components)
    expected = integrate_by_scipy(problem)
    found = interval_quadrature_scores(*problem)
    assert_allclose(found.log_likelihood, expected, atol=1e-4)
    assert found.settled.all()
    assert (found.error < 1e-3).all()
    approximate = interval_ep_scores(*problem)
    off = np.abs(approximate.log_likelihood - expected)
    assert (off < 0.02).all()
    assert (off < 3 * approximate.error + 1e-4).all()
    assert approximate.settled.all()


def test_propagation_takes_more_components() -> None:
    problem = make_problem(4)
    found = interval_ep_scores(*problem).log_likelihood
    assert_allclose(found, integrate_by_scipy(problem), atol=0.02)


@BOTH
@pytest.mark.parametrize("n_components", [1, 2])
def test_scores_are_derivatives(score: Any, n_components: int) -> None:
    problem, eps = make_problem(n_components), 1e-4
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

    steps = eps * np.eye(n_weights + n_offsets + 2)
    slopes = np.array([(total(step) - total(-step)) / (2 * eps) for step in steps]).T
    own = np.hstack([found.weights.reshape(len(slopes), -1), found.offsets])
    assert_allclose(own, slopes, atol=3e-4 if score is interval_ep_scores else 1e-6)


@pytest.mark.parametrize(
    ("score", "expected"),
    [(interval_ep_scores, ep_scores), (interval_quadrature_scores, quadrature_scores)],
)
def test_two_levels_are_bits(score: Any, expected: Any) -> None:
    rng = np.random.default_rng(0)
    weights, offsets = rng.normal(size=(9, 2)), rng.normal(size=9)
    X = rng.integers(0, 2, (40, 9), dtype=np.uint8)
    observed = rng.random(X.shape) < 0.7
    observed[0] = False
    found = score(X, weights, offsets, np.full(9, 2), observed)
    bits = expected(X, weights, offsets, observed)
    for name in ("log_likelihood", "offsets", "weights"):
        assert_allclose(getattr(found, name), getattr(bits, name), atol=1e-4)
    assert found.log_likelihood[0] == pytest.approx(0, abs=1e-9)
    assert_array_equal(found.offsets[~observed], 0)


@BOTH
@pytest.mark.parametrize("bounds", [(30.0, 31.0), (-40.0, -30.0), (0.4, 0.4 + 1e-5), (5.0, 60.0)])
def test_one_feature_is_exact_in_the_tails(score: Any, bounds: tuple[float, float]) -> None:
    weights = np.array([[0.7]])
    found = score(np.array([[1]], np.uint8), weights, -np.array(bounds), np.array([3]))
    a, b = np.sort(np.abs(bounds)) / np.hypot(1, 0.7)
    log_mass = norm.logsf(a) + np.log1p(-np.exp(norm.logsf(b) - norm.logsf(a)))
    assert_allclose(found.log_likelihood, log_mass, rtol=1e-7)
    densities = np.exp(norm.logpdf(np.array(bounds), scale=np.hypot(1, 0.7)) - log_mass)
    assert_allclose(found.offsets[0], densities * [1, -1], rtol=1e-4, atol=1e-12)


def test_quadrature_refuses_many_components() -> None:
    with pytest.raises(FitError, match="at most 2 components, but there are 3"):
        interval_quadrature_scores(*make_problem(3))
