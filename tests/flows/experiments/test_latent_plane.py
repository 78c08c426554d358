"""The fine grid over two latent dimensions, and posteriors on it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.optimize import minimize
from scipy.special import expit

from flows.experiments.tipping_trial import fine_posterior, make_fine_nodes, plane_posterior
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError

RNG = np.random.default_rng(4)
WEIGHTS, OFFSETS = RNG.normal(0, 2, (12, 2)), RNG.normal(0, 1, 12)
ROW = RNG.integers(2, size=12, dtype=np.uint8)
SEEN = np.array([1, 0] * 6, np.uint8)


def density(x: float, y: float, row: np.ndarray, seen: np.ndarray) -> float:
    """Prior times likelihood at a point."""
    p = expit(WEIGHTS @ [x, y] + OFFSETS)
    likelihood = np.where(row == 1, p, 1 - p)[seen == 1].prod()
    return float(np.exp(-(x * x + y * y) / 2) / (2 * np.pi) * likelihood)


def test_the_grid_has_the_moments_of_the_prior():
    nodes = make_fine_nodes()
    weights = np.exp(nodes.log_weights)
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(weights @ nodes.points, 0, atol=1e-12)
    np.testing.assert_allclose((nodes.points.T * weights) @ nodes.points, np.eye(2), atol=1e-6)


@pytest.mark.parametrize("seen", [np.ones_like(SEEN), SEEN], ids=["whole", "holed"])
def test_a_posterior_is_that_of_adaptive_integration(seen):
    total, _ = dblquad(lambda y, x: density(x, y, ROW, seen), -6, 6, -6, 6, epsabs=1e-9)
    mean, square = (
        dblquad(lambda y, x, k=k: x**k * density(x, y, ROW, seen), -6, 6, -6, 6, epsabs=1e-9)[0]
        / total
        for k in (1, 2)
    )
    found = plane_posterior(ROW, None if seen.all() else seen, WEIGHTS, OFFSETS)
    assert found.mean[0] == pytest.approx(mean, abs=1e-5)
    assert found.covariance[0, 0] == pytest.approx(square - mean**2, abs=1e-5)
    i, j = 70, 85
    expected = density(found.x[j], found.y[i], ROW, seen) / total
    assert found.density[i, j] == pytest.approx(expected, rel=1e-5)
    cell = (found.x[1] - found.x[0]) * (found.y[1] - found.y[0])
    assert found.density.sum() * cell == pytest.approx(1)
    whole = fine_posterior(pack_block(ROW[None], seen[None]), WEIGHTS, OFFSETS)
    assert whole.log_likelihood[0] == pytest.approx(np.log(total), abs=1e-6)
    np.testing.assert_allclose(whole.mean[0], found.mean, atol=1e-5)


def test_the_densest_point_is_the_mode():
    def cost(x: np.ndarray) -> float:
        return -np.log(density(*x, ROW, np.ones_like(ROW)))

    found = plane_posterior(ROW, None, WEIGHTS, OFFSETS)
    i, j = np.unravel_index(found.density.argmax(), found.density.shape)
    mode = minimize(cost, found.mean).x
    assert abs(found.x[j] - mode[0]) <= found.x[1] - found.x[0]
    assert abs(found.y[i] - mode[1]) <= found.y[1] - found.y[0]


def test_a_posterior_narrower_than_the_grid_has_its_own_width():
    weights, offsets = RNG.normal(0, 3, (600, 2)), np.zeros(600)
    x = np.array([0.31, -0.27])
    row = (RNG.random(600) < expit(weights @ x)).astype(np.uint8)
    found = plane_posterior(row, None, weights, offsets)
    p = expit(weights @ found.mean)
    precision = np.eye(2) + (weights.T * (p * (1 - p))) @ weights
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=0.1, atol=2e-4)
    assert np.sqrt(found.covariance[0, 0]) < 0.08


def test_without_any_value_the_posterior_is_the_prior():
    found = plane_posterior(ROW, np.zeros_like(ROW), WEIGHTS, OFFSETS)
    np.testing.assert_allclose(found.mean, 0, atol=1e-6)
    np.testing.assert_allclose(found.covariance, np.eye(2), atol=1e-6)


def test_other_dimensions_are_refused():
    with pytest.raises(FitError, match=r"weights have shape \(12, 3\), not \(n_features, 2\)"):
        plane_posterior(ROW, None, np.ones((12, 3)), OFFSETS)
