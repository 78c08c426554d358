"""Moments of restricted Boltzmann machines against enumeration of all units."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.numerics.networks.boltzmann_moments import (
    compute_model_moments,
    match_moments,
    sum_row_moments,
)
from pipeline.numerics.networks.boltzmann_rows import BoltzmannMachine
from pipeline.numerics.networks.unit_states import list_states
from tests.support.enumeration import JointTable


def draw_machine(n_features: int, n_hidden: int, seed: int) -> BoltzmannMachine:
    rng = np.random.default_rng(seed)
    return BoltzmannMachine(
        rng.standard_normal((n_features, n_hidden)),
        rng.standard_normal(n_features),
        rng.standard_normal(n_hidden),
    )


def enumerate_joint(machine: BoltzmannMachine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All states of both layers, and exp(−E) of each pair of states."""
    x, h = (list_states(n) for n in machine.weights.shape)
    energies = x @ machine.weights @ h.T + (x @ machine.visible)[:, None] + h @ machine.hidden
    return x, h, np.exp(energies)


def moments_of(x: np.ndarray, h: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Mean of (x, 1)(h, 1)ᵀ under these masses of all pairs of states."""
    x1, h1 = (np.column_stack([units, np.ones(len(units))]) for units in (x, h))
    return x1.T @ (masses / masses.sum()) @ h1


@pytest.mark.parametrize("shape", [(6, 2), (3, 7), (7, 6)])
def test_moments_are_those_of_all_states(shape: tuple[int, int]) -> None:
    """Missing values are summed over their states, or the hidden units over theirs."""
    machine, rng = draw_machine(*shape, seed=0), np.random.default_rng(1)
    x, h, masses = enumerate_joint(machine)
    X = rng.integers(0, 2, (40, shape[0]), dtype=np.uint8)
    observed = (rng.random(X.shape) < 0.6).astype(np.uint8)
    observed[0], observed[1] = 0, 1
    log_weight, expected = 0.0, 0.0
    for row, mask in zip(X, observed, strict=True):
        agrees = JointTable(x, masses).is_consistent(row, mask == 1)
        log_weight += np.log(masses[agrees].sum())
        expected = expected + moments_of(x[agrees], h, masses[agrees])
    found = sum_row_moments(machine, X * observed, observed)
    assert found.log_weight == pytest.approx(log_weight, rel=1e-12)
    np.testing.assert_allclose(found.moments, expected, rtol=1e-10)
    own = compute_model_moments(machine)
    assert own.log_weight == pytest.approx(np.log(masses.sum()), rel=1e-12)
    np.testing.assert_allclose(own.moments, moments_of(x, h, masses), rtol=1e-10)


def test_moments_of_many_units_are_summed_in_parts() -> None:
    machine = draw_machine(11, 12, seed=6)
    x, h, masses = enumerate_joint(machine)
    found = compute_model_moments(machine)
    assert found.log_weight == pytest.approx(np.log(masses.sum()), rel=1e-12)
    np.testing.assert_allclose(found.moments, moments_of(x, h, masses), rtol=1e-10)


def test_the_machine_with_given_moments_is_found() -> None:
    truth = draw_machine(6, 2, seed=2)
    moments = compute_model_moments(truth).moments
    start = draw_machine(6, 2, seed=3)
    is_free = np.ones(6, np.bool_)
    found = match_moments(start, moments, is_free, weight_decay=0.0, max_steps=500)
    np.testing.assert_allclose(compute_model_moments(found).moments, moments, atol=1e-4)


def test_features_that_are_not_free_keep_their_parameters() -> None:
    start, is_free = draw_machine(5, 2, seed=4), np.arange(5) != 3
    start.weights[3] = 0.0
    moments = compute_model_moments(draw_machine(5, 2, seed=5)).moments
    found = match_moments(start, moments, is_free, weight_decay=0.0, max_steps=20)
    np.testing.assert_array_equal(found.weights[3], 0.0)
    assert found.visible[3] == start.visible[3]
    assert (found.visible != start.visible).sum() == 4
