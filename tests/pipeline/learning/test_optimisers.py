"""Steps of optimisers against their textbook form."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.learning.optimisers import Optimiser


def slopes(n_steps: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n_steps, 7)) * np.logspace(-3, 1, 7)


@pytest.mark.parametrize("floor", [1e-8, 0.03])
def test_adam_is_that_of_the_paper(floor: float) -> None:
    optimiser = Optimiser("adam", 0.9, floor)
    found, memory = np.zeros(7), optimiser.make_memory(7, "float64")
    expected, first, second = np.zeros(7), np.zeros(7), np.zeros(7)
    for t, slope in enumerate(slopes(20), start=1):
        optimiser.step(found, slope, memory, 0.1)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        root = np.sqrt(second / (1 - 0.999**t))
        expected = expected + 0.1 * first / (1 - 0.9**t) / (root + floor)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_momentum_gathers_speed() -> None:
    optimiser = Optimiser("momentum", 0.5, 0.0)
    found, memory = np.zeros(7), optimiser.make_memory(7, "float64")
    for _ in range(60):
        optimiser.step(found, np.ones(7), memory, 0.1)
    np.testing.assert_allclose(memory["velocity"], 0.2)
    np.testing.assert_allclose(found, 0.2 * 60 - 0.2)


@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_steps_go_uphill_and_keep_single_precision(kind: str) -> None:
    optimiser = Optimiser(kind, 0.5, 1e-8)
    parameters, memory = np.full(5, 3.0, np.float32), optimiser.make_memory(5)
    for _ in range(500):
        optimiser.step(parameters, -2 * (parameters - 1), memory, 0.02)
    assert parameters.dtype == np.float32
    assert {a.dtype for a in memory.values()} == {np.dtype(np.float32)}
    np.testing.assert_allclose(parameters, 1, atol=1e-2)
