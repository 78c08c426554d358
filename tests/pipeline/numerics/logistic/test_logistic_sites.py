"""Expectation propagation over logistic items against integration and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.logistic.centred_points import (
    TraitItems,
    posterior_by_quadrature,
)
from pipeline.numerics.logistic.latent_nodes import RowPosterior
from pipeline.numerics.logistic.logistic_sites import ep_e_step, ep_posterior
from pipeline.numerics.logistic.newton_step import NewtonStatistics, unpack_triangles

Floats = NDArray[np.float64]
Bits = NDArray[np.uint8]


def drawn(
    n_items: int, q: int, slope: float, base: float, n: int = 200
) -> tuple[Bits, Bits, Floats, Floats]:
    """Rows with a tenth of the values missing, one row with none, and the model they are of."""
    rng = np.random.default_rng(0)
    weights = slope / np.sqrt(q) * rng.standard_normal((n_items, q))
    offsets = base + rng.standard_normal(n_items)
    p = expit(rng.standard_normal((n, q)) @ weights.T + offsets)
    observed = (rng.random(p.shape) < 0.9).astype(np.uint8)
    observed[7] = 0
    return (rng.random(p.shape) < p).astype(np.uint8), observed, weights, offsets


def exact(X: Bits, observed: Bits, weights: Floats, offsets: Floats) -> RowPosterior:
    return posterior_by_quadrature(X, observed, TraitItems(weights, offsets))


@pytest.mark.parametrize(
    ("n_items", "q", "slope", "base", "nats", "deviations"),
    [
        (12, 1, 2.0, -4.0, 0.01, 0.01),
        (12, 2, 2.0, -4.0, 0.015, 0.01),
        (60, 3, 2.0, -1.0, 0.03, 0.01),
    ],
)
def test_posteriors_are_near_the_exact_ones(
    n_items: int, q: int, slope: float, base: float, nats: float, deviations: float
) -> None:
    model = drawn(n_items, q, slope, base)
    found, truth = ep_posterior(*model), exact(*model)
    assert np.abs(found.log_likelihood - truth.log_likelihood).max() < nats
    assert np.abs(found.mean - truth.mean).max() < deviations
    np.testing.assert_allclose(
        np.diagonal(found.covariance, axis1=1, axis2=2),
        np.diagonal(truth.covariance, axis1=1, axis2=2),
        rtol=0.1,
    )
    np.testing.assert_allclose(found.mean[7], 0, atol=1e-12)
    np.testing.assert_allclose(found.covariance[7], np.eye(q), atol=1e-12)
    assert found.log_likelihood[7] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("entry", [(0, 0), (3, 1), (5, 2)])
def test_the_gradient_is_that_of_the_log_likelihood(entry: tuple[int, int]) -> None:
    X, observed, weights, offsets = drawn(12, 2, 1.5, -1.0)
    packed, reached = np.column_stack([weights, offsets]), []
    for change in (1e-3, -1e-3):
        moved = packed.copy()
        moved[entry] += change
        found = ep_e_step(X, observed, moved[:, :2].copy(), moved[:, 2].copy())
        reached.append(found.log_likelihood)
    gradient = ep_e_step(X, observed, weights, offsets).gradient
    assert gradient[entry] == pytest.approx((reached[0] - reached[1]) / 2e-3, rel=0.01, abs=0.02)


def test_the_curvature_is_that_of_expected_items() -> None:
    X, observed, weights, offsets = drawn(12, 2, 1.5, -1.0)
    observed[:] = 0
    observed[:, 4] = 1
    found = ep_e_step(X, observed, weights, offsets)
    assert (np.delete(found.curvature, 4, axis=0) == 0).all()
    assert (np.delete(found.gradient, 4, axis=0) == 0).all()
    # one item alone: its site is exact, and so is the mean of its slope, the last entry
    x = np.random.default_rng(1).standard_normal((400_000, 2))
    z = x @ weights[4] + offsets[4]
    slopes = expit(z) * expit(-z)
    n_ones = int(X[:, 4].sum())
    of_ones, of_zeros = (np.average(slopes, weights=expit(s * z)) for s in (1, -1))
    truth = n_ones * of_ones + (len(X) - n_ones) * of_zeros
    assert found.curvature[4, -1] == pytest.approx(truth, rel=0.01)


def test_a_row_has_the_same_bytes_whatever_its_neighbours() -> None:
    X, observed, weights, offsets = drawn(30, 5, 2.0, -1.0, n=1500)
    whole = ep_posterior(X, observed, weights, offsets)
    part = ep_posterior(X[301:1200], observed[301:1200], weights, offsets)
    for of_whole, of_part in zip(whole, part, strict=True):
        assert of_whole[301:1200].tobytes() == of_part.tobytes()


def em(X: Bits, passes: int, prior_precision: float = 0.0) -> tuple[Floats, list[NewtonStatistics]]:
    weights, margin = np.full((X.shape[1], 1), 0.5), X.mean(axis=0)
    packed, found = np.column_stack([weights, np.log(margin / (1 - margin))]), []
    for _ in range(passes):
        found.append(ep_e_step(X, None, packed[:, :1].copy(), packed[:, 1].copy()))
        gradient, hessian = found[-1].gradient.copy(), unpack_triangles(found[-1].curvature, 2)
        gradient[:, 0] -= prior_precision * packed[:, 0]
        hessian[:, 0, 0] += prior_precision
        packed = packed + np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    return packed, found


def test_steps_climb_to_where_the_gradient_vanishes() -> None:
    X, _, weights, _ = drawn(12, 1, 1.5, -1.0, n=3000)
    packed, found = em(X, 40)
    reached = [statistics.log_likelihood for statistics in found]
    assert np.diff(reached).min() > -1e-4 * len(X)
    assert np.abs(found[-1].gradient).max() < 0.02 * np.abs(found[0].gradient).max()
    sign = np.sign(packed[:, 0] @ weights[:, 0])
    assert np.sqrt(((sign * packed[:, 0] - weights[:, 0]) ** 2).mean()) < 0.15
    tight, _ = em(X, 20, prior_precision=1e6)
    assert np.abs(tight[:, 0]).max() < 0.01


@pytest.mark.parametrize(("slope", "base"), [(50.0, 20.0), (1e4, 1e4)])
def test_items_like_steps_leave_results_finite(slope: float, base: float) -> None:
    rng = np.random.default_rng(0)
    weights, offsets = slope * rng.standard_normal((60, 5)), base * rng.standard_normal(60)
    X = (rng.standard_normal((200, 5)) @ weights.T + offsets > 0).astype(np.uint8)
    X ^= rng.random(X.shape) < 0.02
    found, posterior = ep_e_step(X, None, weights, offsets), ep_posterior(X, None, weights, offsets)
    assert np.isfinite(found.gradient).all()
    assert np.isfinite(found.curvature).all()
    assert posterior.log_likelihood.max() < 0.01
    assert np.abs(posterior.mean).max() < 100
    assert (np.diagonal(posterior.covariance, axis1=1, axis2=2) <= 1 + 1e-9).all()
