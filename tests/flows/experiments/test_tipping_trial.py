"""Trials of the latent-trait model: their data, errors and times, and posteriors on a grid."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from flows.experiments import tipping
from flows.experiments.tipping import (
    ESTIMATORS,
    NEAR_NATS,
    TippingResult,
    TippingTrial,
    check_rows,
    draw_noisy_prototypes,
    fine_posterior,
    make_fine_nodes,
    make_trial_model,
    plane_posterior,
    run_tipping_trial,
)
from pipeline.data.blocks import BinaryBlock, iter_blocks, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.params import LatentTraitParams

X = draw_noisy_prototypes(0.15, 20, 3).X
BLOCK = pack_block(X)


@pytest.fixture(scope="module")
def found() -> dict[str, TippingResult]:
    return {name: run_tipping_trial(TippingTrial(BLOCK, name, 5)) for name in ESTIMATORS}


def legendre_error(params: LatentTraitParams, X: np.ndarray, mask: np.ndarray) -> float:
    """Mean negative log-likelihood of a row by a Gauss–Legendre product rule on [−7, 7]²."""
    axis, weights = np.polynomial.legendre.leggauss(160)
    points = 7 * np.array([*itertools.product(axis, axis)])
    mass = 49 * np.outer(weights, weights).ravel() * np.exp(-(points**2).sum(1) / 2) / (2 * np.pi)
    eta = points @ params.weights.T + params.offsets
    log_p = (mask * X) @ -np.logaddexp(0, -eta).T + (mask * (1 - X)) @ -np.logaddexp(0, eta).T
    return -float(logsumexp(log_p, b=mass, axis=1).mean())


def test_prototypes_are_flipped_as_often_as_asked():
    clean = draw_noisy_prototypes(0.0, 400, 1)
    little, much = draw_noisy_prototypes(0.05, 400, 1), draw_noisy_prototypes(0.15, 400, 1)
    assert clean.X.shape == (1200, 16)
    assert len(np.unique(clean.X, axis=0)) == 3
    np.testing.assert_array_equal(np.bincount(clean.prototype), [400] * 3)
    flipped, more = clean.X != little.X, clean.X != much.X
    assert flipped.mean() == pytest.approx(0.05, abs=0.006)
    assert more.mean() == pytest.approx(0.15, abs=0.01)
    assert more[flipped].all()


def test_seeds_draw_other_prototypes():
    same, again, other = (draw_noisy_prototypes(0.1, 2, seed).X for seed in (0, 0, 1))
    np.testing.assert_array_equal(same, again)
    assert not np.array_equal(same, other)


def test_the_objective_is_the_error_on_the_nodes_of_the_fit(found):
    for name, error in (("sampling", "error_shared"), ("quadrature", "error_quadrature")):
        values = found[name].values
        # A fit leaves out the lightest nodes.
        assert values[error] == pytest.approx(-values["objective"], rel=1e-12)
    variational = found["variational"].values
    assert variational["error_grid"] < -variational["objective"]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_error_on_the_grid_is_that_of_a_dense_integral(found, name):
    expected = legendre_error(found[name].params, X, np.ones_like(X))
    # Parameters are those of the pass after, and the fit has converged.
    assert found[name].values["error_grid"] == pytest.approx(expected, abs=2e-4)


def test_each_estimator_is_best_on_what_it_is_fitted_with(found):
    errors = {name: tried.values for name, tried in found.items()}
    for own, error in (("sampling", "error_shared"), ("quadrature", "error_quadrature")):
        assert min(errors, key=lambda name: errors[name][error]) == own
    assert all(values["converged"] and values["pinned"] == 0 for values in errors.values())


def test_draws_are_shared_among_estimators_and_fresh_ones_are_others(found, monkeypatch):
    values = found["sampling"].values
    assert abs(values["error_shared"] - values["error_fresh"]) > 1e-3
    monkeypatch.setattr(tipping, "_MAX_ITER", 1)
    at_start = [run_tipping_trial(TippingTrial(BLOCK, name, 5)).values for name in ESTIMATORS]
    for error in ("error_shared", "error_fresh", "error_quadrature", "error_grid"):
        assert len({one[error] for one in at_start}) == 1
    assert not any(one["converged"] for one in at_start)


def test_time_is_that_of_the_pass_that_comes_near_the_end(monkeypatch):
    run_tipping_trial(TippingTrial(BLOCK, "variational", 5))
    ticks = itertools.count()
    monkeypatch.setattr(tipping.time, "thread_time", lambda: 2.0 * next(ticks))
    values = run_tipping_trial(TippingTrial(BLOCK, "variational", 5)).values
    history: list[float] = []
    rows = tipping._pack_block(BLOCK)
    states = []
    fit_model(make_trial_model("variational"), rows, SerialExecutor(), 5, checkpoint=states.append)
    history = [state.history[-1] for state in states]
    passes = 1 + next(k for k, value in enumerate(history) if value >= history[-1] - NEAR_NATS)
    assert 2 < passes < len(history)
    assert values["passes"] == len(history)
    assert values["cpu_seconds"] == 2 * passes


def masked_block() -> tuple[BinaryBlock, np.ndarray, np.ndarray]:
    """Rows with holes and a pixel that is always 0."""
    holed = X.copy()
    holed[:, 4] = 0
    mask = (np.random.default_rng(0).random(X.shape) > 0.2).astype(np.uint8)
    return pack_block(holed, mask), holed, mask


@pytest.mark.parametrize("name", ESTIMATORS)
def test_missing_values_and_a_constant_feature(name):
    block, holed, mask = masked_block()
    (same,) = iter_blocks(tipping._pack_block(block).read(0))
    np.testing.assert_array_equal(same.unpack_mask(), mask)
    np.testing.assert_array_equal(same.unpack_values(), holed & mask)
    tried = run_tipping_trial(TippingTrial(block, name, 0))
    assert tried.values["pinned"] == 1
    assert not tried.params.weights[4].any()
    expected = legendre_error(tried.params, holed, mask)
    assert tried.values["error_grid"] == pytest.approx(expected, abs=2e-3)


def test_a_trial_can_be_sent_to_another_process(found):
    function, trial = pickle.loads(
        pickle.dumps((run_tipping_trial, TippingTrial(BLOCK, "sampling", 5)))
    )
    here, there = found["sampling"].values, function(trial).values
    timed = {"cpu_seconds", "wall_seconds"}
    assert {k: v for k, v in there.items() if k not in timed} == {
        k: v for k, v in here.items() if k not in timed
    }


def test_rows_that_cannot_be_fitted_are_refused():
    with pytest.raises(FitError, match="Choose at most 1"):
        check_rows(pack_block(X[:, :2]))
    unseen = np.ones_like(X)
    unseen[:, 7] = 0
    with pytest.raises(FitError, match="no observed value: 7"):
        check_rows(pack_block(X, unseen))
    check_rows(BLOCK)


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
