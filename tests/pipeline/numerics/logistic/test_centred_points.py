"""Quadrature and sampling around each row's posterior, against fine grids and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp

from pipeline.errors import FitError
from pipeline.numerics.logistic.centred_points import (
    TraitItems,
    find_posterior_modes,
    posterior_by_quadrature,
    posterior_by_sampling,
)
from pipeline.random import RowRandom

Floats = NDArray[np.float64]
Bits = NDArray[np.uint8]


def drawn(
    n_features: int, q: int, slope: float, n_rows: int = 60, seed: int = 0
) -> tuple[Bits, Bits, TraitItems]:
    """Rows of a model with slopes of this size, and a mask with a row that has no value."""
    rng = np.random.default_rng(seed)
    weights = slope * rng.standard_normal((n_features, q))
    offsets = rng.uniform(-1, 1, n_features)
    x = rng.standard_normal((n_rows, q))
    X = (rng.random((n_rows, n_features)) < expit(x @ weights.T + offsets)).astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    observed[0] = 0
    return X, observed, TraitItems(weights, offsets)


def log_joint(t: Bits, observed: Bits, items: TraitItems, x: Floats) -> Floats:
    eta = x @ items.weights.T + items.offsets
    terms = log_expit(np.where(t == 1, eta, -eta)) * observed
    return terms.sum(axis=-1) - 0.5 * (x**2 + np.log(2 * np.pi)).sum(axis=-1)


def on_grid(t: Bits, observed: Bits, items: TraitItems) -> tuple[Floats, Floats, float]:
    """Moments and log-likelihood by the trapezoid rule on a grid."""
    q = items.weights.shape[1]
    axis, step = np.linspace(-7, 7, {1: 20_001, 2: 201, 3: 61}[q], retstep=True)
    x = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    scores = log_joint(t, observed, items, x) + q * np.log(step)
    log_likelihood = float(logsumexp(scores))
    shares = np.exp(scores - log_likelihood)
    mean = shares @ x
    return mean, np.einsum("l,lk,lj->kj", shares, x - mean, x - mean), log_likelihood


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("n_features", "q", "slope", "within"),
    [
        (5, 1, 1.0, 1e-8),
        (200, 1, 2.0, 1e-8),
        (40, 1, 8.0, 1e-4),
        (12, 2, 1.5, 1e-4),
        (60, 2, 3.0, 1e-3),
        (10, 3, 1.0, 1e-4),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_quadrature_is_right_where_shared_nodes_are_not(
    n_features: int, q: int, slope: float, within: float, masked: bool
) -> None:
    X, observed, items = drawn(n_features, q, slope, n_rows=3)
    found = posterior_by_quadrature(X, observed if masked else None, items)
    for n, t in enumerate(X):
        seen = observed[n] if masked else np.ones_like(t)
        mean, covariance, log_likelihood = on_grid(t, seen, items)
        assert found.log_likelihood[n] == pytest.approx(log_likelihood, abs=within)
        np.testing.assert_allclose(found.mean[n], mean, atol=10 * within)
        np.testing.assert_allclose(found.covariance[n], covariance, atol=10 * within)
    assert (found.standard_error <= 1e-4).all()


def with_edges(
    n_features: int, q: int, steep: tuple[float, ...], seed: int = 1
) -> tuple[Bits, TraitItems]:
    """Rows of sparse items with slopes below 1, but for some."""
    rng = np.random.default_rng(seed)
    weights, offsets = 0.3 * rng.standard_normal((n_features, q)), rng.uniform(-4.5, -2, n_features)
    for k, slope in enumerate(steep):
        direction = rng.standard_normal(q)
        weights[k] = slope * direction / np.linalg.norm(direction)
        offsets[k] = -slope * rng.uniform(-0.8, 1.5)
    x = rng.standard_normal((12, q))
    X = (rng.random((12, n_features)) < expit(x @ weights.T + offsets)).astype(np.uint8)
    return X, TraitItems(weights, offsets)


def on_fine_grid(X: Bits, items: TraitItems, step: float) -> tuple[Floats, Floats]:
    """Means and log-likelihoods of rows, on one grid for all."""
    q = items.weights.shape[1]
    axis = np.arange(-6.5, 6.5 + step / 2, step)
    x = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    of_no_ones = -0.5 * (x**2 + np.log(2 * np.pi)).sum(axis=1) + q * np.log(step)
    for weight, offset in zip(*items, strict=True):
        of_no_ones += log_expit(-x @ weight - offset)
    means, log_likelihoods = [], []
    for t in X.astype(np.float64):
        scores = of_no_ones + x @ (t @ items.weights) + t @ items.offsets
        log_likelihoods.append(logsumexp(scores))
        means.append(np.exp(scores - log_likelihoods[-1]) @ x)
    return np.array(means), np.array(log_likelihoods)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("n_features", "q", "steep", "step"),
    [
        (35, 1, (50.0, 40.0, 30.0), 0.001),
        (135, 2, (23.0,), 0.025),
        (40, 2, (50.0, 30.0), 0.02),
    ],
)
def test_items_of_any_slope_are_integrated_rightly(
    n_features: int, q: int, steep: tuple[float, ...], step: float
) -> None:
    """A Gauss–Hermite rule around the posterior is off by up to 0.04 nats here."""
    X, items = with_edges(n_features, q, steep)
    mean, log_likelihood = on_fine_grid(X, items, step)
    found = posterior_by_quadrature(X, None, items)
    gaps = abs(found.log_likelihood - log_likelihood)
    assert gaps.max() < 3e-4
    assert gaps.mean() < 3 * found.standard_error.mean() + 1e-6
    assert found.standard_error.max() < 1e-3
    np.testing.assert_allclose(found.mean, mean, atol=3e-3)


def test_rows_with_edges_do_not_hang_on_their_neighbours_either() -> None:
    X, items = with_edges(40, 2, (50.0, 30.0))
    whole, some = posterior_by_quadrature(X, None, items), np.array([0, 5, 6, 11])
    part = posterior_by_quadrature(X[some], None, items)
    for expected, got in zip(whole.take_rows(some), part, strict=True):
        assert got.tobytes() == expected.tobytes()


@pytest.mark.matrix
def test_a_missing_value_has_no_edge() -> None:
    X, items = with_edges(20, 2, (50.0, 30.0))
    observed = np.ones_like(X)
    observed[:, :2] = 0
    found = posterior_by_quadrature(X, observed, items)
    rest = posterior_by_quadrature(X[:, 2:], None, TraitItems(items.weights[2:], items.offsets[2:]))
    np.testing.assert_allclose(found.log_likelihood, rest.log_likelihood, atol=1e-9)
    np.testing.assert_allclose(found.mean, rest.mean, atol=1e-9)


def test_a_row_without_values_has_the_prior() -> None:
    X, observed, items = drawn(8, 2, 1.0)
    found = posterior_by_quadrature(X, observed, items)
    assert found.log_likelihood[0] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(found.mean[0], 0, atol=1e-12)
    np.testing.assert_allclose(found.covariance[0], np.eye(2), atol=1e-9)


@pytest.mark.parametrize("q", [1, 2, 5])
def test_modes_are_those_that_scipy_finds(q: int) -> None:
    X, observed, items = drawn(20, q, 2.0, n_rows=10)
    found = find_posterior_modes(X, observed, items)
    for n in range(10):

        def cost(x: Floats, n: int = n) -> Any:
            return -log_joint(X[n], observed[n], items, x)

        best = minimize(cost, np.zeros(q), tol=1e-12)
        np.testing.assert_allclose(found.mean[n], best.x, atol=1e-3)
        p = expit(items.weights @ found.mean[n] + items.offsets)
        curvature = (items.weights.T * (p * (1 - p) * observed[n])) @ items.weights
        np.testing.assert_allclose(found.covariance[n], np.linalg.inv(curvature + np.eye(q)))


def test_sampling_agrees_with_quadrature_within_its_errors() -> None:
    X, observed, items = drawn(30, 2, 2.0, n_rows=400)
    exact = posterior_by_quadrature(X, observed, items)
    found = posterior_by_sampling(X, observed, items, RowRandom(1), np.arange(400))
    scaled = (found.log_likelihood - exact.log_likelihood) / found.standard_error
    assert 0.8 < scaled.std() < 1.2
    assert abs(scaled.mean()) < 0.25
    assert found.standard_error.max() < 0.05
    np.testing.assert_allclose(found.mean, exact.mean, atol=0.15)
    np.testing.assert_allclose(found.covariance, exact.covariance, atol=0.2)


def test_a_row_does_not_hang_on_its_neighbours() -> None:
    X, observed, items = drawn(20, 3, 2.0, n_rows=140)
    rows = 5 + np.arange(140)
    whole = [
        posterior_by_quadrature(X, observed, items),
        posterior_by_sampling(X, observed, items, RowRandom(1), rows),
    ]
    some = np.array([0, 7, 8, 131, 139])
    part = [
        posterior_by_quadrature(X[some], observed[some], items),
        posterior_by_sampling(X[some], observed[some], items, RowRandom(1), rows[some]),
    ]
    for all_of_them, a_few in zip(whole, part, strict=True):
        for expected, got in zip(all_of_them.take_rows(some), a_few, strict=True):
            assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("slope", [1e-8, 100.0, 1e5])
def test_no_slope_is_too_steep_to_be_finite(slope: float) -> None:
    X, observed, items = drawn(15, 2, slope, n_rows=50)
    quadrature = posterior_by_quadrature(X, observed, items)
    sampling = posterior_by_sampling(X, observed, items, RowRandom(0), np.arange(50))
    for found in (quadrature, sampling):
        assert all(np.isfinite(part).all() for part in found)
        assert (found.log_likelihood <= 1e-9 + 4 * found.standard_error).all()


def test_no_rows_have_no_posterior() -> None:
    X, _, items = drawn(4, 2, 1.0, n_rows=1)
    assert posterior_by_quadrature(X[:0], None, items).mean.shape == (0, 2)
    nothing = posterior_by_sampling(X[:0], None, items, RowRandom(0), np.arange(0))
    assert nothing.covariance.shape == (0, 2, 2)


def test_more_than_three_components_are_refused() -> None:
    X, _, items = drawn(6, 4, 1.0)
    with pytest.raises(FitError, match="components is 4, but quadrature takes at most 3"):
        posterior_by_quadrature(X, None, items)
