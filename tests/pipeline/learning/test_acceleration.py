"""SQUAREM: faster than the steps it is given, never downwards, whole after storage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.learning.acceleration import choose_squarem_step

Array = NDArray[np.float64]

CURVATURE = np.diag([1.0, 0.3, 0.05, 0.01])
TOP = np.array([1.0, -2.0, 3.0, -4.0])


def objective(at: Array) -> float:
    return float(-0.5 * (at - TOP) @ CURVATURE @ (at - TOP))


def step(at: Array) -> Array:
    """A step of gradient ascent, which like EM never falls and slows down near the top."""
    return at + CURVATURE @ (TOP - at)


def accelerated(
    mapped: Callable[[Array], Array], height: Callable[[Array], float], n_passes: int
) -> tuple[Array, list[float], int]:
    """The end, the objectives accepted, and the steps taken back."""
    at, memory, history, rejected = np.zeros(4), {}, [], 0
    for _ in range(n_passes):
        found = choose_squarem_step(at, mapped(at), height(at), memory)
        history += [height(at)] if found.accepted else []
        rejected += not found.accepted
        at, memory = found.parameters, found.memory
    return at, history, rejected


def test_it_arrives_where_plain_steps_are_still_far() -> None:
    plain = np.zeros(4)
    for _ in range(100):
        plain = step(plain)
    end, history, _ = accelerated(step, objective, 100)
    assert np.abs(plain - TOP).max() > 1.0
    np.testing.assert_allclose(end, TOP, atol=1e-6)
    assert np.diff(history).min() >= 0


def test_extrapolations_that_fall_are_taken_back() -> None:
    def bent(at: Array) -> float:
        """The same inside a box around the top, far below it outside."""
        return objective(at) - 1e6 * float(np.maximum(np.abs(at) - 3.9, 0).sum())

    def inside(at: Array) -> Array:
        return np.clip(step(at), -3.9, 3.9)

    end, history, rejected = accelerated(inside, bent, 400)
    assert rejected > 0
    assert np.diff(history).min() >= 0
    np.testing.assert_allclose(end, np.clip(TOP, -3.9, 3.9), atol=1e-3)


def test_the_memory_is_arrays() -> None:
    at, memory = np.zeros(4), {}
    for _ in range(5):
        found = choose_squarem_step(at, step(at), objective(at), memory)
        at, memory = found.parameters, found.memory
        assert all(isinstance(value, np.ndarray) for value in memory.values())


@pytest.mark.parametrize("at", [TOP, np.zeros(4)])
def test_a_fixed_point_stays(at: Array) -> None:
    memory = {}
    for _ in range(6):
        found = choose_squarem_step(at, at, 0.0, memory)
        np.testing.assert_array_equal(found.parameters, at)
        assert found.accepted
        memory = found.memory
