"""Trials of the latent-trait model: the data they draw, the errors and times they give."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from scipy.special import logsumexp

from flows.experiments import tipping_trial as tipping_trials
from flows.experiments.tipping_trial import (
    ESTIMATORS,
    NEAR_NATS,
    TippingResult,
    TippingTrial,
    check_rows,
    draw_noisy_prototypes,
    make_trial_model,
    run_tipping_trial,
)
from pipeline.data.blocks import BinaryBlock, iter_blocks, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.em import LatentTraitParams

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
    monkeypatch.setattr(tipping_trials, "_MAX_ITER", 1)
    at_start = [run_tipping_trial(TippingTrial(BLOCK, name, 5)).values for name in ESTIMATORS]
    for error in ("error_shared", "error_fresh", "error_quadrature", "error_grid"):
        assert len({one[error] for one in at_start}) == 1
    assert not any(one["converged"] for one in at_start)


def test_time_is_that_of_the_pass_that_comes_near_the_end(monkeypatch):
    run_tipping_trial(TippingTrial(BLOCK, "variational", 5))
    ticks = itertools.count()
    monkeypatch.setattr(tipping_trials.time, "thread_time", lambda: 2.0 * next(ticks))
    values = run_tipping_trial(TippingTrial(BLOCK, "variational", 5)).values
    history: list[float] = []
    rows = tipping_trials._pack_block(BLOCK)
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
    (same,) = iter_blocks(tipping_trials._pack_block(block).read(0))
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
    with pytest.raises(FitError, match="got none in 7"):
        check_rows(pack_block(X, unseen))
    check_rows(BLOCK)
