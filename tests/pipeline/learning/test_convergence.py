"""When stages end."""

from __future__ import annotations

import pytest

from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    PassCountCriterion,
    PatienceCriterion,
    estimate_remaining_gain,
    find_final_objective,
    is_stage_over,
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


def test_a_fixed_number_of_passes_is_made() -> None:
    assert [is_stage_over(PassCountCriterion(2), (0.0,) * n) for n in range(4)] == [
        False,
        False,
        True,
        True,
    ]


def test_patience_waits_for_gains_that_count() -> None:
    slight = PatienceCriterion(50, patience=2, tol=0.1)
    assert slight.count_waiting_passes([-3.0, -2.9, -2.8]) == 2
    assert slight.count_waiting_passes([-3.0, -2.9, -2.5]) == 0
    assert slight.has_converged([-3.0, -2.9, -2.8])


@pytest.mark.parametrize(
    ("criterion", "kept"), [(PatienceCriterion(9, 2), -2.0), (PassCountCriterion(3), -4.0)]
)
def test_the_objective_is_that_of_the_parameters_kept(
    criterion: ConvergenceCriterion, kept: float
) -> None:
    assert find_final_objective(criterion, [-3.0, -2.0, -4.0]) == kept


@pytest.mark.parametrize("comes_to_rest", [False, True])
def test_all_passes_done_is_converged_where_they_come_to_rest(comes_to_rest: bool) -> None:
    criterion = PatienceCriterion(3, patience=9, converges_at_max_iter=comes_to_rest)
    assert criterion.has_converged([-3.0, -2.0, -1.0]) == comes_to_rest
    assert not criterion.has_converged([-3.0, -2.0])
