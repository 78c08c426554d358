"""When stages end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    PassCountCriterion,
    PatienceCriterion,
    choose_squarem_step,
    describe_starts,
    estimate_remaining_gain,
    find_final_objective,
    find_reachable_objective,
    is_stage_over,
    warn_about_ending,
    warn_about_starts,
)


@pytest.mark.parametrize("ratio", [0.3, 0.9, 0.97])
def test_what_is_to_come_is_the_rest_of_the_series(ratio: float) -> None:
    history = [-2.0 - ratio**k for k in range(30)]
    assert estimate_remaining_gain(history) == pytest.approx(-2.0 - history[-1], rel=1e-6)
    assert estimate_remaining_gain(history[:6]) == 0


@pytest.mark.parametrize("ratio", [0.3, 0.9, 0.97])
def test_a_slow_climb_ends_where_all_that_is_to_come_is_within_tol(ratio: float) -> None:
    """The change of a single pass is within tol long before, where the ratio is near 1."""
    criterion, history = ObjectiveCriterion(500, 1e-4), [-0.5 - 0.1]
    while not criterion.has_converged(history):
        history.append(-0.5 - 0.1 * ratio ** len(history))
    assert -0.5 - history[-1] <= 1e-4
    assert 4 <= len(history) < 500


def test_a_plateau_that_only_rounding_moves_is_the_end() -> None:
    history = [-3.0 + k * 1e-15 for k in range(8)]
    assert ObjectiveCriterion(500, 1e-7).has_converged(history)


@pytest.mark.parametrize("objective", [-0.5, -2000.0])
def test_the_same_gain_matters_whatever_the_size_of_the_objective(objective: float) -> None:
    history = [objective - 1e-3 * 0.9**k for k in range(20)]
    assert not ObjectiveCriterion(500, 1e-4).has_converged(history)
    assert ObjectiveCriterion(500, 1e-2).has_converged(history)


def test_many_rows_resolve_smaller_gains() -> None:
    history = [-5.0 - 1e-3 * 0.5**k for k in range(14)]
    assert ObjectiveCriterion(500, 1e-6, weight=10_000).has_converged(history)
    assert not ObjectiveCriterion(500, 1e-6, weight=1_000_000).has_converged(history)


def test_objectives_that_fall_have_not_converged() -> None:
    assert not ObjectiveCriterion(500, 1e-7).has_converged([-1.0, -1.1, -1.2, -1.3, -1.4])


@pytest.mark.parametrize(
    ("history", "converged"),
    [
        ((), False),
        ((-3.0,), False),
        ((-3.0, -2.0, -2.5), False),
        ((-3.0, -2.0, -2.5, -2.1), True),
        ((-3.0, -2.0, -2.5, -1.9), False),
        ((-2.0, -2.0, -2.0), True),
    ],
)
def test_patience_ends_two_passes_after_the_best(
    history: tuple[float, ...], converged: bool
) -> None:
    assert PatienceCriterion(50, patience=2).has_converged(history) == converged
    assert is_stage_over(PatienceCriterion(4, patience=9), history) == (len(history) >= 4)


@pytest.mark.parametrize(
    ("criterion", "kept"), [(PatienceCriterion(9, 2), -2.0), (PassCountCriterion(3), -4.0)]
)
def test_the_objective_is_that_of_the_parameters_kept(
    criterion: ConvergenceCriterion, kept: float
) -> None:
    assert find_final_objective(criterion, [-3.0, -2.0, -4.0]) == kept


def is_far_below(best: float, score: float) -> bool:
    return score < best - 5


def test_a_fit_cools_after_it_has_waited_and_keeps_its_last_pass() -> None:
    criterion = PatienceCriterion(50, 2, is_lost=is_far_below, cooling_passes=3)
    history = (-3.0, -2.0, -2.5, -2.4, -2.3, -2.2, -2.1)
    counts = [criterion.count_cooling_passes(history[:n]) for n in range(3, 8)]
    assert counts == [None, 0, 1, 2, 3]
    assert [criterion.has_converged(history[:n]) for n in (6, 7)] == [False, True]
    assert find_final_objective(criterion, history) == -2.1
    assert find_final_objective(criterion, (*history[:-1], -9.0)) == -2.0
    late = PatienceCriterion(6, 2, cooling_passes=3)
    assert [late.count_cooling_passes(history[:n]) for n in (4, 5, 6)] == [None] * 3


def test_the_limit_of_passes_is_not_convergence() -> None:
    for cooling in (0, 2):
        criterion = PatienceCriterion(3, patience=9, cooling_passes=cooling)
        history = [-3.0, -2.0, -1.0]
        assert not criterion.has_converged(history)
        assert is_stage_over(criterion, history)
        (warning,) = warn_about_ending(criterion, history)
        assert "at {max_iter=3}; raise it" in warning.text


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


def test_starts_with_the_same_optimum_reach_the_best_objective() -> None:
    criterion = ObjectiveCriterion(500, 1e-6, weight=1000)
    histories = [(-4.0, -3.0, -2.9999), (-4.0, -3.1, -2.99985), (-4.0, -3.3, -3.2)]
    reachable = [find_reachable_objective(criterion, history) for history in histories]
    found = describe_starts([history[-1] for history in histories], reachable)
    assert found == {"starts": 3, "starts_at_best": 2, "next_start_below": pytest.approx(5e-5)}


def test_starts_that_were_stopped_below_the_best_are_not_counted() -> None:
    found = describe_starts(
        [-3.0, -3.1, -3.2, -3.3], [-2.9, -2.9, -3.1, -3.2], [False] * 3 + [True]
    )
    assert found == {"starts": 3, "starts_at_best": 2, "next_start_below": pytest.approx(0.1)}


def test_starts_of_a_sample_count_at_the_optimum_where_they_ended() -> None:
    found = describe_starts([-3.2, -3.0, -3.0], [-3.1, -2.9, -2.9], [True] * 3, counts=[5, 2, 1])
    assert found == {"starts": 8, "starts_at_best": 3, "next_start_below": 0}


def test_a_start_that_still_gains_may_reach_the_best_objective() -> None:
    rising = [-3.0 - 0.8**k for k in range(20)]  # stopped by the limit of passes
    assert rising[-1] < -3.01
    assert find_reachable_objective(ObjectiveCriterion(20, 1e-4), rising) >= -3.0
    ended = PassCountCriterion(20)
    assert find_reachable_objective(ended, rising) == rising[-1]


@pytest.mark.parametrize(
    ("n_starts", "n_at_best", "warns"), [(3, 1, False), (8, 2, False), (8, 1, True)]
)
def test_a_single_start_of_many_at_the_best_is_a_warning(
    n_starts: int, n_at_best: int, warns: bool
) -> None:
    diagnostics = {"starts": n_starts, "starts_at_best": n_at_best, "next_start_below": 0.0123}
    for setting, advice in ((None, "starts=32"), (3, "starts=12")):
        warnings = warn_about_starts(diagnostics, setting)
        assert bool(warnings) == warns
        texts = [warning.render() for warning in warnings]
        assert all(advice in text and "ended 0.012 nats per row below" in text for text in texts)
    assert warn_about_starts({}) == ()


def test_a_warning_tells_that_starts_were_compared_on_a_sample() -> None:
    diagnostics = {"starts": 8, "starts_at_best": 1, "next_start_below": 0.1, "sample_rows": 20_000}
    (warning,) = warn_about_starts(diagnostics)
    assert warning.render().startswith("only 1 of 8 starts on a sample of 20,000 rows reached")


def test_patience_waits_for_gains_that_count() -> None:
    slight = PatienceCriterion(50, patience=2, tol=0.1)
    assert slight.count_waiting_passes([-3.0, -2.9, -2.8]) == 2
    assert slight.count_waiting_passes([-3.0, -2.9, -2.5]) == 0
    assert slight.has_converged([-3.0, -2.9, -2.8])


@pytest.mark.parametrize("at", [TOP, np.zeros(4)])
def test_a_fixed_point_stays(at: Array) -> None:
    memory = {}
    for _ in range(6):
        found = choose_squarem_step(at, at, 0.0, memory)
        np.testing.assert_array_equal(found.parameters, at)
        assert found.accepted
        memory = found.memory
