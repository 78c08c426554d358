"""The restricted Boltzmann machine against enumeration, finite differences and the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.learning.batches import TrainingBatch
from pipeline.learning.convergence import describe_ending
from pipeline.learning.training import GradientTraining
from pipeline.models.rbm import (
    ChainSteps,
    ContrastLearner,
    ContrastRule,
    RBMParams,
    RestrictedBoltzmannMachine,
    enumerate_log_z,
    estimate_log_z,
    theta_as_layer,
)
from pipeline.models.state import FitState
from pipeline.numerics.networks.boltzmann_moments import compute_model_moments, sum_row_moments
from pipeline.numerics.networks.boltzmann_rows import BoltzmannMachine
from pipeline.numerics.networks.gradient_steps import apply_centred_step, centre_gradient
from pipeline.random import RowRandom
from tests.support.data import find_shared_data
from tests.support.derivatives import differentiate
from tests.support.designs import DESIGNS
from tests.support.enumeration import JointTable, draw_incomplete_rows, list_states
from tests.support.strategies import DenseData, make_memory_rows

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
SERIAL, RNG, MODEL = SerialExecutor(), RowRandom(0), RestrictedBoltzmannMachine()


def states(n_units: int) -> Floats:
    """All states of some units, (2**n_units, n_units)."""
    return list_states((2,) * n_units).astype(np.float64)


def random_params(n_features: int, n_hidden: int, seed: int, scale: float = 1.0) -> RBMParams:
    rng = np.random.default_rng(seed)
    weights = scale * rng.standard_normal((n_features, n_hidden))
    visible, hidden = rng.standard_normal(n_features), rng.standard_normal(n_hidden)
    log_odds = visible + 0.5 * weights.sum(axis=1)
    return RBMParams(weights, visible, hidden, np.clip(log_odds, -3, 3))


def prepared(params: RBMParams) -> RBMParams:
    return MODEL.prepare(params, np.random.default_rng(0), map)


def joint_logs(params: RBMParams) -> Floats:
    """−E of all pairs of states, (2**n_features, 2**n_hidden), with nothing saved."""
    x, h = states(len(params.visible_biases)), states(len(params.hidden_biases))
    below, above = x @ params.visible_biases, h @ params.hidden_biases
    return x @ params.weights @ h.T + below[:, None] + above


def log_probabilities(params: RBMParams) -> Floats:
    logs = joint_logs(params)
    return logsumexp(logs, axis=1) - logsumexp(logs)


def fitted(X: Bits, observed: Bits | None = None, seed: int = 0, **more: Any) -> FitState:
    model, data = RestrictedBoltzmannMachine(**more), DenseData(X, observed)
    rows = make_memory_rows(data, [len(X) // 2, len(X) - len(X) // 2])
    return fit_model(model, rows, SERIAL, seed)


@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.matrix), pytest.param(1, marks=pytest.mark.slow)]
)
def test_frequencies_are_right_with_missing_values(seed: int) -> None:
    """Of 16 disabilities, which most people lack all and a few have most of."""
    with np.load(find_shared_data("debd_nltcs.npz")) as saved:
        X = np.unpackbits(saved["X"], axis=1)[:8000, :16]
    observed = (np.random.default_rng(seed).random(X.shape) >= 0.3).astype(np.uint8)
    params = fitted(X, observed, n_components=8, seed=seed).params
    frequencies = np.exp(log_probabilities(params)) @ states(16)
    shares = (X * observed).sum(axis=0) / observed.sum(axis=0)
    assert np.abs(frequencies - shares).max() < 0.015


def pair_shares(X: Bits) -> Floats:
    return X.T.astype(np.float64) @ X / len(X)


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (3, 6), (7, 1), (6, 12)])
def test_likelihoods_are_those_of_enumeration(shape: tuple[int, int]) -> None:
    params = prepared(random_params(*shape, 1))
    table = JointTable(list_states((2,) * shape[0]), np.exp(joint_logs(params) - params.log_z))
    X, seen = draw_incomplete_rows((2,) * shape[0], 40)
    found = MODEL.log_likelihood(params, pack_block(X * seen, seen.astype(np.uint8)), RNG)
    expected = [np.log(table.sum_states(*row).sum()) for row in zip(X, seen, strict=True)]
    np.testing.assert_allclose(found.nats, expected, atol=1e-9)
    assert found.shared_error == 0
    assert not found.standard_error.any()


def test_codes_are_conditional_probabilities() -> None:
    params = random_params(5, 3, 2)
    joint = np.exp(joint_logs(params))
    expected = joint @ states(3) / joint.sum(axis=1, keepdims=True)
    codes = MODEL.transform(params, pack_block(states(5).astype(np.uint8)), RNG)["mean"]
    np.testing.assert_allclose(codes, expected, atol=1e-12)
    given_h = joint.T @ states(5) / joint.sum(axis=0)[:, None]
    np.testing.assert_allclose(MODEL.reconstruct(params, states(3)), given_h, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_pseudo_likelihoods_are_those_of_enumeration(scale: float) -> None:
    params = random_params(6, 4, 3, scale)
    logs, x = log_probabilities(params), states(6)
    flipped = np.arange(64)[:, None] ^ (1 << np.arange(6)[::-1])
    expected = -np.logaddexp(0, logs[flipped] - logs[:, None]).sum(axis=1)
    found = MODEL.pseudo_log_likelihood(params, pack_block(x.astype(np.uint8)), RNG)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_likelihoods_of_many_missing_values_are_drawn() -> None:
    params = prepared(random_params(14, 12, 4, 0.5))
    X = np.random.default_rng(1).integers(0, 2, (30, 14)).astype(np.uint8)
    observed = (np.arange(14) < 3).astype(np.uint8) * np.ones_like(X)
    found = MODEL.log_likelihood(params, pack_block(X * observed, observed), RNG)
    expected = sum_row_moments(params.machine, X[:1] * observed[:1], observed[:1]).log_weight
    z = (found.nats[:1] - expected + params.log_z) / found.standard_error[:1]
    assert (found.standard_error > 0).all()
    assert np.abs(z).max() < 4


# --- log Z ---------------------------------------------------------------------------------------


def exact(machine: BoltzmannMachine) -> float:
    return enumerate_log_z(machine, map)


def test_enumeration_takes_the_smaller_layer() -> None:
    for shape in ((12, 4), (4, 12)):
        params = random_params(*shape, 6)
        assert exact(params.machine) == pytest.approx(logsumexp(joint_logs(params)), abs=1e-9)


def test_annealing_agrees_with_enumeration() -> None:
    for seed in range(20):
        params = random_params(14, 8, seed)
        found, error = estimate_log_z(params.machine, params.log_odds, 100 + seed, 200, 300, map)
        assert 0 < error < 0.2
        assert abs(found - exact(params.machine)) < 3 * error, seed


def spread_over_error(params: RBMParams, n_repeats: int, n_temperatures: int) -> float:
    given = (params.machine, params.log_odds)
    found = [estimate_log_z(*given, seed, 200, n_temperatures, map) for seed in range(n_repeats)]
    log_z, errors = np.array(found).T
    return float(log_z.std(ddof=1) / np.sqrt((errors**2).mean()))


def test_the_error_of_annealing_is_right() -> None:
    assert 0.7 < spread_over_error(random_params(14, 8, 1), 50, 100) < 1.4


def test_log_z_is_estimated_where_both_layers_are_large() -> None:
    params = random_params(24, 22, 7, 0.5)
    model = RestrictedBoltzmannMachine(chains=150, temperatures=200)
    found, again = (model.prepare(params, np.random.default_rng(0), m) for m in (map, SERIAL.map))
    assert found.log_z_error > 0
    assert found.log_z == again.log_z
    assert MODEL.log_likelihood(found, pack_block(np.eye(24, dtype=np.uint8)), RNG).shared_error > 0
    with pytest.raises(FitError, match="log Z is missing"):
        MODEL.log_likelihood(params, pack_block(np.eye(24, dtype=np.uint8)), RNG)


# --- steps ---------------------------------------------------------------------------------------


def statistics_of(params: RBMParams, mass: Floats) -> Floats:
    """⟨(x, 1) (h, 1)ᵀ⟩ over rows of these probabilities, h given each."""
    x = states(len(params.visible_biases))
    h = expit(x @ params.weights + params.hidden_biases)
    ones = np.ones((len(x), 1))
    return np.hstack([x, ones]).T @ (mass[:, None] * np.hstack([h, ones]))


def test_contrasted_statistics_are_the_gradient() -> None:
    """By finite differences of the exact log-likelihood, plain and around means."""
    params, rng = random_params(5, 3, 8), np.random.default_rng(8)
    mass, mu, lam = rng.dirichlet(np.ones(32)), rng.random(5), rng.random(3)
    slope = statistics_of(params, mass) - statistics_of(params, np.exp(log_probabilities(params)))

    def likelihood(change: Floats) -> float:
        return float(mass @ log_probabilities(params.add_change(change)))

    def around_means(change: Floats) -> Floats:
        moved = change.copy()
        moved[:-1, -1] -= change[:-1, :-1] @ lam
        moved[-1, :-1] -= mu @ change[:-1, :-1]
        return moved

    def differences(place: Callable[[Floats], Floats]) -> Floats:
        def change(flat: Floats) -> float:
            return likelihood(place(flat.reshape(6, 4)))

        found = differentiate(change, np.zeros(24)).reshape(6, 4)
        found[-1, -1] = 0
        return found

    np.testing.assert_allclose(slope, differences(lambda change: change), atol=1e-8)
    centre_gradient(theta_as_layer(slope), mu, lam)
    np.testing.assert_allclose(slope, differences(around_means), atol=1e-8)
    moved = np.zeros_like(slope)
    apply_centred_step(theta_as_layer(moved), theta_as_layer(slope), mu, lam)
    np.testing.assert_allclose(moved, around_means(slope), atol=1e-12)


def make_learner(
    params: RBMParams, batch: int, chains: Bits, seed: int, n_steps: int
) -> ContrastLearner:
    """Return a learner whose steps have the length 1."""
    theta, rule = params.theta.astype(np.float32), ContrastRule(n_steps, 3, 0.0, 0.0, 0.1)
    training, shares = (
        GradientTraining("momentum", 0.0, batch, 1.0, 1.0, 1, 1, 0.0),
        np.full(len(theta) - 1, 0.5, np.float32),
    )
    working = {**training.make_working_state(batch, theta.size), "chains": chains}
    return ContrastLearner(rule, theta, shares, training, working, RowRandom(seed))


def step_of(params: RBMParams, X: Bits, chains: Bits, seed: int, n_steps: int) -> Floats:
    """Θ after one step of length 1, less Θ before."""
    learner, numbers = make_learner(params, len(X), chains, seed, n_steps), np.arange(len(X))
    learner.step(TrainingBatch(X, None, numbers, numbers, {}))
    return learner.theta - params.theta.astype(np.float32)


def test_a_mask_without_missing_values_changes_nothing() -> None:
    params, X, chains = random_params(4, 2, 9), states(4)[5:8].astype(np.uint8), np.eye(4)
    learners = [make_learner(params, 3, chains.astype(np.uint8), 1, 1) for _ in range(2)]
    for observed, learner in zip((None, np.ones_like(X)), learners, strict=True):
        for first in (0, 3):
            rows = np.arange(first, first + 3)
            learner.step(TrainingBatch(X, observed, rows, rows, {}))
    np.testing.assert_array_equal(learners[0].theta, learners[1].theta)
    np.testing.assert_array_equal(learners[0].chains, learners[1].chains)


@pytest.mark.parametrize("goes_on", [False, True])
def test_steps_are_contrasted_statistics_on_the_average(goes_on: bool) -> None:
    params = random_params(4, 2, 9)
    X = np.array([[1, 0, 1, 1], [0, 0, 1, 0]], np.uint8)
    begun = np.array([[0, 1, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]], np.uint8) if goes_on else X
    x, joint = states(4), np.exp(joint_logs(params))
    kernel = (joint / joint.sum(axis=1, keepdims=True)) @ (joint / joint.sum(axis=0)).T
    own = (X[:, None] == x).all(axis=2).mean(axis=0)
    after = (begun[:, None] == x).all(axis=2).mean(axis=0) @ kernel @ kernel
    expected = statistics_of(params, own) - statistics_of(params, after)
    mu, lam = np.full(4, 0.5), expit(X @ params.weights + params.hidden_biases).mean(axis=0)
    centre_gradient(theta_as_layer(expected), mu, lam)
    slope, expected = expected, np.zeros_like(expected)
    apply_centred_step(theta_as_layer(expected), theta_as_layer(slope), mu, lam)
    chains = begun if goes_on else begun[:0]
    found = np.array([step_of(params, X, chains, seed, 2) for seed in range(2000)])
    z = (found.mean(axis=0) - expected)[:-1] / (found.std(axis=0)[:-1] / np.sqrt(2000) + 1e-6)
    assert np.abs(z).max() < 4


def test_chains_go_on_from_one_task_each() -> None:
    def part(key: list[float], bit: int) -> ChainSteps:
        chains = {"chains": np.full((2, 3), bit, np.uint8), "chain_keys": np.array(key)}
        return ChainSteps(1, 1.0, -1.0, {"theta": np.ones(4), **chains})

    parts = [part([0.5, 0.2], 0), part([0.1, 0.9], 1), part([0.3, 0.4], 0)]
    left = parts[0].merge(parts[1]).merge(parts[2])
    right = parts[0].merge(parts[1].merge(parts[2]))
    for merged in (left, right):
        assert merged.values["chains"].tolist() == [[1, 1, 1], [0, 0, 0]]
        assert merged.values["theta"].tolist() == [3, 3, 3, 3]
        assert merged.n_rows == 3


# --- fits ----------------------------------------------------------------------------------------


def truth() -> RBMParams:
    weights = np.repeat(np.eye(3), 4, axis=0) * 2.5
    visible = np.linspace(-2, -0.5, 12)
    return prepared(RBMParams(weights, visible, np.array([-3.8, -5.0, -6.2]), visible))


def drawn(n_rows: int, seed: int) -> Bits:
    return MODEL.sample(truth(), n_rows, np.random.default_rng(seed))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_iter": None},
        {"method": "cd", "steps": 5},
        {"method": "pcd", "optimizer": "momentum", "max_iter": 40},
    ],
)
def test_a_refit_is_as_likely_as_the_truth(settings: dict[str, Any]) -> None:
    state = fitted(drawn(10_000, 1), **{"n_components": 6, "max_iter": 30, **settings})
    block = pack_block(drawn(10_000, 2))
    best, found = (MODEL.log_likelihood(p, block, RNG).nats for p in (truth(), state.params))
    margins = expit(state.params.log_odds)
    alone = (
        np.log(margins) * block.unpack_values() + np.log1p(-margins) * (1 - block.unpack_values())
    ).sum(axis=1)
    assert found.mean() > best.mean() - 0.02
    assert best.mean() > alone.mean() + 0.5
    assert all(describe_ending(False) in warning.text for warning in state.warnings)
    assert state.converged or settings.get("max_iter", 30)


@pytest.mark.few(1)
@pytest.mark.parametrize("design", ["complete", "two forms, 2 features link"])
def test_more_hidden_units_end_with_exact_passes(design: str) -> None:
    """By enumeration, with as many hidden units as a fit has by default."""
    rng = np.random.default_rng(2)
    weights = 2 * rng.standard_normal((11, 4))
    params = prepared(RBMParams(weights, -weights.sum(axis=1) / 2, np.zeros(4), np.zeros(11)))
    X = MODEL.sample(params, 1000, rng)
    observed = DESIGNS[design](*X.shape, rng).astype(np.uint8)
    mask = None if observed.all() else observed
    state = fitted(X * observed, mask)
    assert state.params.weights.shape == (11, 11)
    found, truth = (sum_row_moments(p.machine, X * observed, mask) for p in (state.params, params))
    log_z = [compute_model_moments(p.machine).log_weight for p in (state.params, params)]
    assert found.log_weight / len(X) - log_z[0] > truth.log_weight / len(X) - log_z[1]
    assert state.diagnostics["objective_is"] == "log-likelihood"
    assert state.converged or any(describe_ending(False) in w.text for w in state.warnings)


def test_large_machines_keep_their_chains_by_default() -> None:
    X = np.random.default_rng(0).integers(0, 2, (200, 18)).astype(np.uint8)
    fits = [fitted(X, n_components=17, method=method, max_iter=3) for method in ("auto", "pcd")]
    np.testing.assert_array_equal(fits[0].params.theta, fits[1].params.theta)
    other = fitted(X, n_components=17, method="cd", max_iter=3)
    assert (fits[0].params.theta != other.params.theta).any()


def test_a_fit_ends_at_the_mean_of_its_cooling_passes_and_scores_it() -> None:
    X, states = drawn(500, 6), list[FitState]()
    model = RestrictedBoltzmannMachine(4, method="pcd", max_iter=20, patience=20)
    last = fit_model(model, make_memory_rows(DenseData(X)), SERIAL, checkpoint=states.append)
    first, second, ended = states[16:19]
    mean = (first.params.theta + 2 * second.params.theta) / 3
    np.testing.assert_allclose(second.auxiliary["mean_theta"], mean)
    np.testing.assert_allclose(ended.params.theta, ended.auxiliary["mean_theta"])
    np.testing.assert_array_equal(last.params.theta, ended.params.theta)
    scores = MODEL.pseudo_log_likelihood(last.params, pack_block(X), RNG)
    assert last.history[-1] == pytest.approx(scores.mean(), abs=1e-9)
    counts = [len(s.working["chains"]) for s in states[14:19]]
    assert counts == [25, *[800] * 4]


def test_hidden_units_come_near_the_share_wanted() -> None:
    X = drawn(3000, 6)
    plain, sparse = (
        fitted(X, n_components=6, max_iter=40, sparsity=s, target=0.2) for s in (0.0, 5.0)
    )
    active = [MODEL.transform(s.params, pack_block(X), RNG)["mean"].mean() for s in (plain, sparse)]
    assert abs(active[1] - 0.2) < 0.1 < abs(active[0] - 0.2)


def test_weight_decay_makes_weights_smaller() -> None:
    X = drawn(2000, 7)
    sizes = [
        np.abs(fitted(X, n_components=3, max_iter=60, weight_decay=decay).params.weights).max()
        for decay in (0.0, 0.02)
    ]
    assert sizes[1] < 0.7 * sizes[0]


def test_constant_features_are_told() -> None:
    X = drawn(300, 8)
    X[:, 5] = 1
    for method in ("exact", "pcd"):
        state = fitted(X, n_components=2, max_iter=2, method=method)
        assert state.warnings[0].features == (5,)
    exact = fitted(X, n_components=2)
    assert (exact.params.weights[5] == 0).all()
    assert exact.params.visible_biases[5] == exact.params.log_odds[5]


# --- what is refused and told --------------------------------------------------------------------


@pytest.mark.parametrize("rate", [100.0, 1e6])
def test_steps_that_are_too_long_are_shortened_and_told(rate: float) -> None:
    state = fitted(drawn(2000, 9), n_components=5, method="pcd", rate=rate, optimizer="momentum")
    notice = state.warnings[0]
    assert "the initial learning rate was too high" in notice.text
    assert max(state.history) > 0.9 * state.params.baseline_log_likelihood


def test_diverging_training_is_told_and_the_last_good_parameters_kept() -> None:
    X = drawn(2000, 9)
    settings = {"method": "pcd", "rate": 1e30, "optimizer": "momentum", "max_iter": 20}
    state = fitted(X, n_components=5, **settings)
    texts = [notice.text for notice in state.warnings]
    assert texts[0].startswith("training diverged: no pass was better than the initial parameters.")
    assert texts[0].endswith("Use a lower learning rate: {rate=0.05}.")
    independent = "no better than independent features with the same margins: -8.2"
    assert texts[1].startswith(independent)
    assert texts[2].startswith("stopped before converging, at {max_iter=20}; raise it")
    nats = MODEL.pseudo_log_likelihood(state.params, pack_block(X), RNG).mean()
    assert nats > state.params.baseline_log_likelihood - 1


def test_units_by_default_are_as_many_as_features() -> None:
    told = {"n_components": 12, "objective_is": "pseudo-likelihood"}
    assert fitted(drawn(100, 10), method="pcd", max_iter=1).diagnostics == told


def test_a_warm_start_keeps_weights_and_forgets_log_z() -> None:
    X = drawn(500, 11)
    state = fitted(X, n_components=2, max_iter=2)
    begun = MODEL.warm_start(replace(state, params=random_params(12, 2, 0)), state.params)
    assert begun.params.log_z is None
    np.testing.assert_array_equal(begun.params.weights, state.params.weights)
    np.testing.assert_array_equal(begun.params.log_odds, random_params(12, 2, 0).log_odds)
