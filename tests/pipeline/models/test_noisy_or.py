"""Noisy-OR networks: EM updates, recovery of known causes, and warnings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.noisy_or import NoisyOr, NoisyOrParams
from pipeline.models.noisy_or.estimation import (
    log_prior,
    reestimate,
    remove_units,
    sum_unit_statistics,
)
from pipeline.models.noisy_or.exact import choose_states, sum_by_state
from pipeline.models.noisy_or.gibbs import MISSING, enumerate_log_probabilities
from pipeline.models.noisy_or.model import (
    compute_unmixed_share,
    find_unused_units,
    warn_about_unmixed_chains,
)
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from tests.support.designs import DESIGNS
from tests.support.enumerated_noisy_or import enumerated, random_network
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

Parts = tuple[np.ndarray, ...]

QUICK = {"starts": 2, "epochs": 10}


def fit(X: np.ndarray, **settings: object) -> FitState:
    return fit_model(
        NoisyOr(**{**QUICK, **settings}), make_memory_rows(DenseData(X)), SerialExecutor(), 0
    )


def draw_bars(rng: np.random.Generator, n_rows: int, n_units: int = 4) -> np.ndarray:
    """Draw rows of units that each turn on six features with probability 0.9."""
    f = np.eye(n_units).repeat(6, axis=1) * 0.9
    off = np.exp((rng.random((n_rows, n_units)) < 0.3) @ np.log1p(-f)) * (1 - 0.01)
    return (rng.random(off.shape) > off).astype(np.uint8)


@pytest.mark.parametrize(
    ("alpha", "beta", "groups"), [(1.0, 1.5, None), (2.0, 3.0, None), (2.0, 3.0, (1, 1, 0))]
)
def test_updates_converge_to_maximum_of_penalised_likelihood(
    alpha: float, beta: float, groups: tuple[int, ...] | None
) -> None:
    """With fixed units, log P plus log prior rises in every step and ends with zero gradient."""
    rng = np.random.default_rng(0)
    X, states = draw_bars(rng, 300), (rng.random((300, 7)) < 0.4).astype(np.uint8)
    X[:40, 2] = 2  # not observed
    numbers = None if groups is None else np.array([0] * 4 + [*groups])
    states[:, 4] &= (groups is None) | (1 - states[:, 5])
    f = [rng.uniform(0.1, 0.6, shape) for shape in ((24, 4), (4, 3))]
    params = NoisyOrParams.from_probabilities(
        f, [np.full(24, 0.05), np.full(4, 0.05), np.full(3, 0.2)], None, numbers
    )

    def penalised_likelihood(at: NoisyOrParams) -> float:
        return float(sum_unit_statistics(at, X, states)[0].sum()) + log_prior(
            at, alpha, beta, learns_leaks=False
        )

    values = [penalised_likelihood(params)]
    for _ in range(400):
        _, sums = sum_unit_statistics(params, X, states)
        params = reestimate(params, sums, alpha, beta, range(2), learns_leaks=False)
        values.append(penalised_likelihood(params))
    assert np.diff(values).min() > -1e-8
    for k in range(2):
        for i in range(4):
            changed_weights = [w.copy() for w in params.weights]
            changed_weights[k][i, i % 3] += 1e-5
            slope = (
                penalised_likelihood(replace(params, weights=tuple(changed_weights))) - values[-1]
            ) / 1e-5
            # At its lower bound f cannot decrease.
            assert slope < 0.01 if params.weights[k][i, i % 3] < 1e-6 else abs(slope) < 0.01
    for i in range(3):
        leaks = params.leaks[-1] + 1e-5 * (np.arange(3) == i)
        changed = replace(params, leaks=(*params.leaks[:-1], leaks))
        assert abs(penalised_likelihood(changed) - values[-1]) < 1e-6


def test_known_causes_are_recovered() -> None:
    X = draw_bars(np.random.default_rng(1), 8000)
    state = fit(X, n_components=4, starts=3, max_iter=20)
    f = state.params.f[0]
    _, order = linear_sum_assignment(-np.eye(4).repeat(6, axis=1) @ f)
    np.testing.assert_allclose(f[:, order], np.eye(4).repeat(6, axis=1).T * 0.9, atol=0.04)
    np.testing.assert_allclose(state.params.f_of_leaks[1], 0.3, atol=0.03)
    np.testing.assert_allclose(state.params.activity, 0.3, atol=0.03)
    assert state.iteration > 2  # later passes also used rows outside the sample


def draw_causes(kind: str, design: str, seed: int) -> tuple[DenseData, Parts, Parts]:
    """Draw 3,000 rows of 10 features with 4 causes; return f and leaks too, as `enumerated`."""
    rng = np.random.default_rng(seed)
    f = rng.uniform(0.5, 0.95, (4, 10)) * (rng.random((4, 10)) < 0.4)
    f[np.arange(4), np.arange(4)] = 0.8  # every cause has an effect
    prior = rng.uniform(0.01, 0.05, 4) if kind == "rare" else rng.uniform(0.1, 0.4, 4)
    leaks = rng.uniform(0.02, 0.2, 10) if kind == "leaks" else np.full(10, 1e-4)
    on = rng.random((3000, 4)) < prior
    off = (1 - leaks) * np.prod(1 - on[:, :, None] * f, axis=1)
    X = (rng.random((3000, 10)) > off).astype(np.uint8)
    observed = DESIGNS[design](3000, 10, rng).astype(np.uint8)
    return DenseData(X * observed, observed), (f,), (leaks, prior)


def gain_on_truth(kind: str, design: str, seed: int) -> float:
    """By how many nats a fit is more likely than the parameters that the rows were drawn from."""
    data, f, leaks = draw_causes(kind, design, seed)
    params = fit_model(NoisyOr(4), make_memory_rows(data), SerialExecutor(), seed).params
    X = np.where(data.observed == 1, data.X, MISSING).astype(np.uint8)
    fitted, _ = enumerated(tuple(own.T for own in params.f), params.f_of_leaks, X)
    return float(fitted.sum() - enumerated(f, leaks, X)[0].sum())


@pytest.mark.parametrize(
    ("kind", "design"),
    [
        ("common", "complete"),
        ("rare", "complete"),
        ("leaks", "complete"),
        ("common", "two forms, 8 % of rows link"),
    ],
)
def test_no_cause_is_lost(kind: str, design: str) -> None:
    assert gain_on_truth(kind, design, 0) > 0


@pytest.mark.matrix
def test_held_out_rows_select_true_number_of_units() -> None:
    state = fit(draw_bars(np.random.default_rng(2), 1500), leaks="learned")
    assert state.diagnostics["layers"][0] == 4
    scores = state.diagnostics["held_out_scores"]
    assert max(scores) > scores[0] + 1


def test_units_that_explain_too_little_are_pruned() -> None:
    """Two causes; units that fit noise are removed, and a cause of a few rows is not."""
    X = draw_bars(np.random.default_rng(3), 1000, n_units=2)
    settings = {"layers": (6,), "leaks": "learned", "prune": True}
    pruned = fit(X, **settings)
    assert pruned.diagnostics["layers"] == [2]
    assert not pruned.warnings
    X[:8] = np.arange(12) % 2
    assert fit(X, **settings).diagnostics["layers"][0] > 2


def test_only_units_without_which_rows_are_as_likely_are_called_unused() -> None:
    X = draw_bars(np.random.default_rng(3), 1000, n_units=2)
    f = np.vstack([np.eye(2).repeat(6, axis=1) * 0.9, np.full(12, 1e-9)])
    prior = np.array([0.3, 0.3, 0.2])
    params = NoisyOrParams.from_probabilities([f.T], [np.full(12, 0.01), prior], prior)
    np.testing.assert_array_equal(find_unused_units(params, X, 1000), [False, False, True])
    # A cause of a few rows outside the sample.
    rare = np.array([0.3, 0.3, 1e-3])
    f[2, :6] = 1e-3
    params = NoisyOrParams.from_probabilities([f.T], [np.full(12, 0.01), rare], rare)
    assert not find_unused_units(params, X, 10_000_000).any()


def test_removing_units_updates_both_adjacent_layers() -> None:
    rng = np.random.default_rng(4)
    f = [rng.random(shape) for shape in ((5, 3), (3, 2))]
    params = NoisyOrParams.from_probabilities(
        f, [np.full(n, 0.1) for n in (5, 3, 2)], np.arange(5.0)
    )
    remaining = remove_units(params, np.array([False, True, False, True, True]))
    assert remaining.sizes == (5, 2, 1)
    np.testing.assert_allclose(remaining.f[0], f[0][:, [0, 2]])
    np.testing.assert_allclose(remaining.f[1], f[1][[0, 2]][:, :1])
    np.testing.assert_array_equal(remaining.activity, [0, 2, 3])


def test_disagreeing_chains_are_reported() -> None:
    """If two units cause the same features, a chain stays with the unit that is on first."""
    X = np.repeat(np.arange(200)[:, None] % 2, 40, axis=1).astype(np.uint8)
    twins = NoisyOrParams.from_probabilities(
        [np.full((40, 2), 0.999)], [np.full(40, 1e-4), np.full(2, 0.002)]
    )
    assert 0.3 < compute_unmixed_share(twins, X) <= 0.5  # chains agree on rows of zeros
    assert "for 40% of rows, two chains" in warn_about_unmixed_chains(0.4)[0].text
    one = NoisyOrParams.from_probabilities(
        [twins.f[0][:, :1]], [twins.f_of_leaks[0], np.array([0.5])]
    )
    assert compute_unmixed_share(one, X) == 0
    assert warn_about_unmixed_chains(0.0) == ()


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param("paper", marks=pytest.mark.matrix),
        pytest.param("stability", marks=pytest.mark.slow),
    ],
)
def test_upper_units_group_cooccurring_units(schedule: str) -> None:
    """Each upper unit turns on two bars at once; each bar also occurs alone."""
    rng = np.random.default_rng(6)
    both, alone = rng.random((1500, 1)) < 0.3, rng.random((1500, 4)) < 0.15
    on = np.repeat(alone | (both & np.array([True, True, False, False])), 6, axis=1)
    on |= np.repeat((rng.random((1500, 1)) < 0.3) & np.array([False, False, True, True]), 6, axis=1)
    X = (on & (rng.random(on.shape) < 0.95)).astype(np.uint8)
    state = fit(X, layers=(4, 2), schedule=schedule, epochs=20, starts=4)
    (block,) = make_memory_blocks(DenseData(X[:200]))
    top = NoisyOr(layers=(4, 2)).transform(state.params, block, RowRandom(1))["mean"][:, 4:]
    agreement = np.abs(np.corrcoef(np.column_stack([both[:200], top]).T.astype(float))[0, 1:])
    # In 0.15 x 0.15 of the rows, two bars that occur alone look like an upper unit.
    assert agreement.max() > 0.6
    assert agreement.min() < 0.2


def test_many_rare_causes_are_found() -> None:
    """By enumeration of 13 causes, of which hardly ever more than two are present."""
    rng, n_units = np.random.default_rng(1), 13
    f = np.where(rng.random((n_units, 24)) < 0.3, rng.uniform(0.4, 0.95, (n_units, 24)), 1e-6)
    prior, leaks = np.full(n_units, 0.03), np.full(24, 0.02)
    on = rng.random((800, n_units)) < prior
    off = (1 - leaks) * np.prod(1 - on[:, :, None] * f, axis=1)
    X = (rng.random(off.shape) > off).astype(np.uint8)
    state = fit(X, n_components=n_units)
    truth = NoisyOrParams.from_probabilities((f.T,), (leaks, prior))
    fitted, expected = (
        enumerate_log_probabilities(p.network, X).sum() for p in (state.params, truth)
    )
    assert fitted > expected
    assert state.diagnostics["objective_is"] == "lower bound of the log-likelihood"
    assert state.history[-1] == pytest.approx(fitted / len(X), abs=1e-4)


@pytest.mark.matrix
def test_causes_in_two_layers_are_found() -> None:
    """By enumeration of 11 causes, which 2 others bring about."""
    rng, sizes = np.random.default_rng(2), (20, 11, 2)
    f = tuple(
        np.where(rng.random(s) < 0.3, rng.uniform(0.5, 0.9, s), 1e-6) for s in pairwise(sizes)
    )
    leaks = (np.full(20, 0.03), np.full(11, 0.04), np.full(2, 0.25))
    truth = NoisyOrParams.from_probabilities(f, leaks)
    X = NoisyOr().sample(truth, 800, rng)
    state = fit(X, layers=sizes[1:], leaks="learned", starts=4)
    fitted, expected = (
        enumerate_log_probabilities(p.network, X).sum() for p in (state.params, truth)
    )
    assert fitted > expected
    assert state.diagnostics["objective_is"] == "exact log-likelihood"


def test_sums_over_few_states_of_two_layers_are_those_of_their_states() -> None:
    """By enumeration of all states, of which those with at most one cause are kept."""
    f, leaks = random_network(np.random.default_rng(1), (6, 4, 2))
    params = NoisyOrParams.from_probabilities([a.T for a in f], leaks)
    X = np.random.default_rng(2).integers(0, 2, (20, 6)).astype(np.uint8)
    n_on = choose_states(4, 15).sum(axis=1)
    total, posterior = enumerated(f, leaks, X)
    lowest = posterior.reshape(len(X), 4, 16).sum(axis=1)
    is_few = np.array([s.bit_count() for s in range(16)]) <= n_on.max()
    nats, sums = sum_by_state(params, X, None, 15)
    # Above, all states of two units are summed over.
    assert nats == pytest.approx(total + np.log(lowest[:, is_few].sum(axis=1)))
    assert sums.rows.sum() == pytest.approx(len(X))


def test_the_objective_of_few_units_is_the_log_likelihood_of_all_rows() -> None:
    X = draw_bars(np.random.default_rng(9), 1500)
    state = fit(X, n_components=4)
    assert state.diagnostics["objective_is"] == "exact log-likelihood"
    nats, _ = enumerated(tuple(f.T for f in state.params.f), state.params.f_of_leaks, X)
    assert state.history[-1] == pytest.approx(nats.mean(), abs=1e-6)


def test_rows_and_features_without_ones_can_be_fitted() -> None:
    X = draw_bars(np.random.default_rng(7), 600)
    X[:300], X[:, 5] = 0, 0
    state = fit(X, n_components=4)
    assert "constant" in state.warnings[0].text
    (block,) = make_memory_blocks(DenseData(X))
    nats = NoisyOr(n_components=4).log_likelihood(state.params, block, RowRandom(0)).nats
    assert np.isfinite(nats).all()
    assert nats[:300].min() > nats[300:].mean()


def draw_categories(rng: np.random.Generator, n_rows: int) -> np.ndarray:
    """Draw rows of two exclusive groups of three causes each, and of an independent cause."""
    f = np.kron(np.eye(7), np.full(2, 0.9))
    on = np.zeros((n_rows, 7))
    for group in (0, 3):
        state = rng.integers(4, size=n_rows)
        on[np.flatnonzero(state < 3), group + state[state < 3]] = 1
    on[:, 6] = rng.random(n_rows) < 0.4
    off = np.exp(on @ np.log1p(-f)) * (1 - 0.02)
    return (rng.random(off.shape) > off).astype(np.uint8)


EXCLUSIVE = {"layers": (7,), "top": "exclusive", "group_sizes": (3, 3, 1)}


def test_exclusive_causes_are_found_and_sampled() -> None:
    X = draw_categories(np.random.default_rng(0), 1500)
    model = NoisyOr(**EXCLUSIVE)
    state = fit(X, **EXCLUSIVE)
    params = state.params
    np.testing.assert_array_equal(params.exclusive_groups, [1, 1, 1, 2, 2, 2, 0])
    nats, _ = enumerated(tuple(f.T for f in params.f), params.f_of_leaks, X, (3, 3, 1))
    assert state.history[-1] == pytest.approx(nats.mean(), abs=1e-6)
    truth = NoisyOrParams.from_probabilities(
        [np.kron(np.eye(7), np.full(2, 0.9)).T],
        [np.full(14, 0.02), np.array([0.25] * 6 + [0.4])],
        exclusive_groups=np.array([1, 1, 1, 2, 2, 2, 0]),
    )
    assert nats.sum() > enumerate_log_probabilities(truth.network, X).sum()
    causes = params.f[0].argmax(axis=0) // 2
    # A group has causes of one group of the truth.
    assert {frozenset(causes[:3]), frozenset(causes[3:6])} == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5}),
    }
    (block,) = make_memory_blocks(DenseData(X))
    means = model.transform(params, block, RowRandom(1))["mean"]
    assert means[:, :3].sum(axis=1).max() <= 1 + 1e-12
    rebuilt = model.reconstruct(params, means)
    assert np.abs(rebuilt.mean(axis=0) - X.mean(axis=0)).max() < 0.02
    drawn = model.sample(params, 20_000, np.random.default_rng(2))
    pairs = [np.corrcoef(rows.T) for rows in (drawn, X)]
    assert np.abs(pairs[0] - pairs[1]).max() < 0.1


def test_many_exclusive_causes_have_an_exact_likelihood() -> None:
    """By the formula of a mixture of 30 causes and none."""
    rng = np.random.default_rng(0)
    f, leaks, prior = rng.random((8, 30)) * 0.9, rng.uniform(0.01, 0.2, 8), np.full(30, 0.03)
    groups = np.ones(30, np.int64)
    params = NoisyOrParams.from_probabilities([f], [leaks, prior], exclusive_groups=groups)
    X = rng.integers(0, 2, (20, 8)).astype(np.uint8)
    (block,) = make_memory_blocks(DenseData(X))
    found = NoisyOr(30, top="exclusive").log_likelihood(params, block, RowRandom(0))
    on = 1 - (1 - leaks[:, None]) * (1 - np.column_stack([f, np.zeros(8)]))
    each = np.where(X[:, :, None] == 1, on, 1 - on).prod(axis=1)
    expected = np.log(each @ np.append(prior, 1 - prior.sum()))
    np.testing.assert_allclose(found.nats, expected, rtol=1e-10)
    assert not found.standard_error.any()


def test_removing_units_keeps_groups() -> None:
    f = [np.full((5, 4), 0.5)]
    leaks = [np.full(5, 0.1), np.full(4, 0.2)]
    params = NoisyOrParams.from_probabilities(f, leaks, None, np.array([1, 1, 2, 2]))
    remaining = remove_units(params, np.array([False, False, True, False]))
    np.testing.assert_array_equal(remaining.group_sizes, [2, 1])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"layers": (4, 1), "top": "exclusive"}, "every group has one"),
        ({"layers": (4,), "group_sizes": (2, 2)}, "group_sizes needs exclusive groups"),
        (
            {"layers": (4,), "top": "exclusive", "group_sizes": (2, 1)},
            "of 3 units of the top layer, but it has 4",
        ),
        ({"top": "exclusive", "group_sizes": (2, 1)}, "but its size is not set"),
    ],
)
def test_groups_that_do_not_fit_the_top_layer_are_refused(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(FitError, match=reason):
        NoisyOr(**settings)


def test_a_warm_start_with_other_groups_is_refused() -> None:
    X = draw_bars(np.random.default_rng(0), 300)
    state = fit(X, n_components=4, max_iter=1)
    with pytest.raises(FitError, match="has other exclusive groups"):
        NoisyOr(n_components=4, top="exclusive").warm_start(state, state.params)


def test_numbers_of_units_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(FitError, match="components is 4, but layers has 5 units"):
        NoisyOr(n_components=4, layers=(3, 2))
    with pytest.raises(FitError, match=r"layers must be at least 1, but is \(\)"):
        NoisyOr(layers=())


def test_too_few_rows_to_choose_layers_raise() -> None:
    with pytest.raises(FitError, match="has only 50 rows; choosing the layers needs at least 100"):
        fit(draw_bars(np.random.default_rng(8), 50))


def test_a_fit_no_better_than_independent_features_warns() -> None:
    rng = np.random.default_rng(0)
    unrelated = (rng.random((2000, 6)) < 0.3).astype(np.uint8)
    for X, is_independent in ((unrelated, True), (draw_bars(rng, 2000), False)):
        texts = [warning.text for warning in fit(X, n_components=1).warnings]
        assert any("no better than independent" in text for text in texts) == is_independent
