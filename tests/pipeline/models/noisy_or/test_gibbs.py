"""Gibbs sampling of noisy-OR networks against enumeration of all states."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.models.noisy_or.estimation import NoisyOrParams, start_chains
from pipeline.models.noisy_or.gibbs import (
    MISSING,
    NoisyOrNetwork,
    enumerate_log_probabilities,
    enumerate_posterior_means,
    estimate_log_probabilities,
    gibbs_sweep,
    load_row,
    make_network,
    make_workspace,
    sample_posterior_means,
    sample_states,
)
from pipeline.random import RowRandom
from tests.support.enumerated_noisy_or import Parts, enumerated, random_network

N_HIDDEN = 8


def drawn(
    network: NoisyOrNetwork, X: np.ndarray, n_sweeps: int, rows: np.ndarray | None = None
) -> np.ndarray:
    """Units after so many sweeps from all off."""
    states = np.zeros((len(X), network.n_hidden), np.uint8)
    rows = np.arange(len(X)) if rows is None else rows
    sample_states(network, X, states, RowRandom(3).key, rows, 0.0, np.ones(n_sweeps))
    return states


@pytest.mark.matrix
@pytest.mark.parametrize("missing", [False, True])
def test_chains_visit_states_as_often_as_the_posterior_says(missing: bool) -> None:
    f, leaks = random_network(np.random.default_rng(0), (10, 5, 3))
    x = np.array([1, 0, 1, 1, 0, 1, 0, 0, 1, 0], np.uint8)
    if missing:
        x[[1, 5]] = MISSING
    _, posterior = enumerated(f, leaks, x[None])
    states = drawn(make_network(f, leaks), np.tile(x, (20_000, 1)), 30)
    found = np.bincount(states @ (1 << np.arange(N_HIDDEN)), minlength=1 << N_HIDDEN)
    expected = 20_000 * posterior[0]
    # Few states are rare: those expected fewer than 5 times are taken together.
    rare = expected < 5
    cells = np.array([[*a[~rare], a[rare].sum()] for a in (found, expected)])
    chi_square = ((cells[0] - cells[1]) ** 2 / cells[1]).sum()
    n_free = cells.shape[1] - 1
    assert abs(chi_square - n_free) < 4 * np.sqrt(2 * n_free)


def test_means_are_as_far_off_as_they_say() -> None:
    rng = np.random.default_rng(1)
    f, leaks = random_network(rng, (12, 5, 3))
    X = rng.integers(0, 2, (40, 12)).astype(np.uint8)
    X[:5, 3] = MISSING
    states = np.arange(1 << N_HIDDEN)[:, None] >> np.arange(N_HIDDEN) & 1
    exact = enumerated(f, leaks, X)[1] @ states
    key = RowRandom(2).key
    means, worth = sample_posterior_means(make_network(f, leaks), X, key, np.arange(40), 50, 1000)
    z = (means - exact) / np.sqrt(exact * (1 - exact) / worth)
    assert 0.6 < z.std() < 1.5
    assert (worth <= 2000 + 1e-9).all()


def test_chains_that_stay_apart_are_worth_little() -> None:
    """Two units explain the same features, and either holds the other off."""
    f, leaks = (np.full((2, 30), 0.999),), (np.full(30, 1e-4), np.full(2, 0.01))
    X = np.ones((1, 30), np.uint8)
    _, worth = sample_posterior_means(
        make_network(f, leaks), X, RowRandom(0).key, np.arange(1), 5, 40
    )
    assert worth.max() < 10


def test_units_of_a_row_do_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(4)
    network = make_network(*random_network(rng, (12, 5, 3)))
    X, rows = rng.integers(0, 2, (50, 12)).astype(np.uint8), rng.permutation(500)[:50]
    whole, some = drawn(network, X, 4, rows), np.array([3, 40, 7])
    np.testing.assert_array_equal(drawn(network, X[some], 4, rows[some]), whole[some])


def test_sweeps_end_where_no_flip_is_likely() -> None:
    """With one sure cause of all features, the first sweep turns it on, and the second is sure."""
    network = make_network((np.full((1, 20), 0.99),), (np.full(20, 1e-4), np.array([0.5])))
    X, states = np.ones((1, 20), np.uint8), np.zeros((1, 1), np.uint8)
    flips = sample_states(network, X, states, np.uint64(1), np.arange(1), 0.05, np.ones(15))
    assert states[0, 0] == 1
    assert flips[0, 0] < 0.05


def test_what_a_network_does_not_explain_keeps_its_units_finite() -> None:
    """Sixty sure causes bring e below the smallest numbers there are, and back."""
    network = make_network((np.ones((60, 3)),), (np.full(3, 1e-4), np.full(60, 0.999)))
    X = np.array([[1, 1, 1], [0, 0, 0]], np.uint8)
    means, worth = sample_posterior_means(network, X, np.uint64(1), np.arange(2), 5, 20)
    assert np.isfinite(means).all()
    assert np.isfinite(worth).all()
    assert means[0].mean() > 0.9
    assert means[1].mean() < 0.1


@pytest.mark.parametrize("sizes", [(6, 1), (7, 4), (9, 4, 3), (5, 1, 3, 2)])
def test_enumeration_sums_the_formula(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(sizes))
    f, leaks = random_network(rng, sizes)
    X = rng.integers(0, 3, (20, sizes[0])).astype(np.uint8)
    X[0], X[1], X[2] = 0, 1, MISSING
    found = enumerate_log_probabilities(make_network(f, leaks), X)
    np.testing.assert_allclose(found, enumerated(f, leaks, X)[0], rtol=1e-12, atol=1e-12)


def exclusive_network(
    rng: np.random.Generator, sizes: tuple[int, ...], groups: tuple[int, ...]
) -> tuple[NoisyOrNetwork, Parts, Parts]:
    f, leaks = random_network(rng, sizes)
    leaks = (*leaks[:-1], leaks[-1] / np.repeat(groups, groups))
    return make_network(f, leaks, np.array(groups)), f, leaks


@pytest.mark.parametrize(
    ("sizes", "groups"), [((6, 3), (3,)), ((7, 5), (2, 1, 2)), ((8, 4, 5), (3, 2)), ((5, 2), (2,))]
)
def test_enumeration_of_exclusive_groups_sums_the_formula(
    sizes: tuple[int, ...], groups: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(sum(sizes))
    network, f, leaks = exclusive_network(rng, sizes, groups)
    X = rng.integers(0, 3, (20, sizes[0])).astype(np.uint8)
    X[0], X[1], X[2] = 0, 1, MISSING
    expected, posterior = enumerated(f, leaks, X, groups)
    found = enumerate_log_probabilities(network, X)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    states = np.arange(1 << network.n_hidden)[:, None] >> np.arange(network.n_hidden) & 1
    means = enumerate_posterior_means(network, X)
    np.testing.assert_allclose(means, posterior @ states, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("sizes", "groups"), [((9, 4), (3, 1)), ((6, 3, 5), (2, 3))])
def test_a_group_is_drawn_by_its_probabilities_given_all_other_units(
    sizes: tuple[int, ...], groups: tuple[int, ...]
) -> None:
    """By enumeration; the last group is drawn last, so its means are given the states drawn."""
    rng = np.random.default_rng(3)
    network, f, leaks = exclusive_network(rng, sizes, groups)
    x = rng.integers(0, 3, sizes[0]).astype(np.uint8)
    n_hidden, n_top = network.n_hidden, sizes[-1]
    space = make_workspace(*network[:3])
    n_on = load_row(*network[:3], x, space)
    shares, flips = np.empty(n_hidden), np.empty(len(sizes) - 1)
    numbers = 1 << np.arange(n_hidden)
    posterior = enumerated(f, leaks, x[None], groups)[1][0]
    for draw in range(5):
        sweep = (space, np.uint64(7), draw * n_hidden, 1.0, shares, flips)
        gibbs_sweep(network.sizes, network.groups, n_on, *sweep)
        units = space[3][:n_hidden].astype(int)
        last = np.arange(n_hidden - groups[-1], n_hidden)
        states = np.tile(units, (groups[-1] + 1, 1))
        states[:, last] = np.eye(groups[-1] + 1, groups[-1])
        given = posterior[states @ numbers]
        np.testing.assert_allclose(shares[last], given[:-1] / given.sum(), rtol=1e-10)
        assert np.add.reduceat(units[-n_top:], [0, groups[0]]).max() <= 1


def test_chains_of_exclusive_groups_visit_states_as_often_as_the_posterior_says() -> None:
    sizes, groups = (8, 3, 3), (2, 1)
    network, f, leaks = exclusive_network(np.random.default_rng(0), sizes, groups)
    x = np.array([1, 0, 1, 1, MISSING, 0, 1, 0], np.uint8)
    _, posterior = enumerated(f, leaks, x[None], groups)
    key, n_rows = RowRandom(3).key, 20_000
    X, states, rows = np.tile(x, (n_rows, 1)), np.zeros((n_rows, 6), np.uint8), np.arange(n_rows)
    sample_states(network, X, states, key, rows, 0.0, np.ones(20))
    found = np.bincount(states @ (1 << np.arange(6)), minlength=64)
    expected = n_rows * posterior[0]
    assert found[expected == 0].sum() == 0
    is_rare = expected < 5
    cells = np.array([[*a[~is_rare], a[is_rare].sum()] for a in (found, expected)])
    chi_square, n_free = ((cells[0] - cells[1]) ** 2 / cells[1]).sum(), cells.shape[1] - 1
    assert abs(chi_square - n_free) < 4 * np.sqrt(2 * n_free)
    # Annealing draws the groups from their prior.
    exact = enumerate_log_probabilities(network, x[None])[0]
    found_nats, errors = estimate_log_probabilities(network, X[:50], key, rows[:50], 50, 50)
    assert abs((found_nats - exact).mean()) < 4 * errors.mean() / np.sqrt(50)


def test_chains_start_with_the_state_of_a_group_that_explains_a_row() -> None:
    """Either state turns on six units, which together cause the same features."""
    pairs, rng = np.repeat(np.eye(6), 2, axis=1), np.random.default_rng(0)
    f = (np.vstack([pairs, np.roll(pairs, 1, axis=1)]) * 0.99, np.repeat(np.eye(2), 6, axis=1) / 2)
    leaks = [np.full(12, 1e-4), np.full(12, 1e-4), np.full(2, 0.49)]
    groups = np.repeat([0, 1], [12, 2])
    params = NoisyOrParams.from_probabilities([own.T for own in f], leaks, exclusive_groups=groups)
    on = rng.random((300, 6)) < 0.5
    X = np.repeat(on, 2, axis=1).astype(np.uint8)
    X[150:] = np.roll(X[150:], 1, axis=1)
    for states, is_good in (
        (drawn(params.network, X, 30), False),
        (start_chains(params, X, RowRandom(1), np.arange(300)), True),
    ):
        is_right = states[:, 12:].argmax(axis=1) == np.repeat([0, 1], 150)
        share = is_right[on.any(axis=1) & ~on.all(axis=1)].mean()
        assert (share > 0.97) == is_good


@pytest.mark.matrix
def test_annealing_is_as_far_off_as_it_says() -> None:
    rng = np.random.default_rng(5)
    network = make_network(*random_network(rng, (12, 5, 3)))
    X = rng.integers(0, 2, (60, 12)).astype(np.uint8)
    X[:10, 4] = MISSING
    exact = enumerate_log_probabilities(network, X)
    found, errors = estimate_log_probabilities(network, X, RowRandom(1).key, np.arange(60), 60, 100)
    z = (found - exact) / errors
    assert np.abs(z).max() < 4
    assert 0.7 < z.std() < 1.4
    assert errors.max() < 0.15


@pytest.mark.matrix
def test_annealing_agrees_with_enumeration_where_causes_are_sure() -> None:
    """Leaks of 1e-4 and f near 1: chains must find the one explanation of each row."""
    rng = np.random.default_rng(6)
    f, leaks = (
        (np.where(np.eye(6).repeat(4, axis=1) == 1, 0.99, 0.0),),
        (np.full(24, 1e-4), np.full(6, 0.3)),
    )
    X = np.repeat(rng.integers(0, 2, (20, 6)), 4, axis=1).astype(np.uint8)
    network = make_network(f, leaks)
    found, errors = estimate_log_probabilities(network, X, RowRandom(1).key, np.arange(20), 50, 200)
    assert (np.abs(found - enumerate_log_probabilities(network, X)) < 4 * errors + 1e-6).all()
