"""What all models of gradients share: rows held out, mean changes, shorter steps, doubts."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.learning.batches import TrainingBatch
from pipeline.learning.held_out import is_held_out
from pipeline.learning.training import (
    GradientTraining,
    Optimiser,
    compute_finite_score,
    train_on_blocks,
)
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums
from tests.support.strategies import DenseData, make_memory_blocks

RNG = RowRandom(3, 1)
SETTINGS: dict[str, Any] = {
    "optimizer": "momentum",
    "momentum": 0.0,
    "batch": 10,
    "rate": 0.2,
    "max_iter": 10,
    "patience": 3,
    "tol": 1e-5,
}
UNLEARNT = -10.0


def training(**settings: Any) -> GradientTraining:
    return GradientTraining.from_model(
        SimpleNamespace(**{**SETTINGS, **settings}), {"momentum": 0.5}
    )


class Counter:
    """Learns how many rows it was given."""

    def __init__(self) -> None:
        self.theta = np.zeros(2, np.float32)
        self.memory = {"velocity": np.ones(2, np.float32)}
        self.n_rows = 0
        self.seen: list[int] = []

    def step(self, batch: TrainingBatch) -> None:
        self.theta += np.float32(len(batch.rows))
        self.n_rows += len(batch.rows)
        self.seen += batch.rows.tolist()


def counted(n_samples: int, held_out: float, masked: bool = False) -> tuple[Counter, Sums]:
    X = (np.arange(n_samples)[:, None] >> np.arange(3) & 1).astype(np.uint8)
    observed = np.ones_like(X)
    observed[: n_samples // 2 if masked else 0, 0] = 0
    learner, blocks = Counter(), make_memory_blocks(DenseData(X, observed), [n_samples // 2] * 2)
    working = {"batch": np.array(10), "held_out": np.array(held_out)}
    sums = train_on_blocks(learner, lambda b: b.rows.astype(float), blocks, working, RNG)
    assert sums is not None
    return learner, sums


@pytest.mark.parametrize("masked", [False, True])
def test_rows_held_out_are_judged_and_no_step_is_taken_with_them(masked: bool) -> None:
    learner, sums = counted(400, 0.25, masked)
    apart = np.flatnonzero(is_held_out(np.arange(400), 0.25, RNG.seed))
    assert sorted([*learner.seen, *apart]) == list(range(400))
    assert sums.objective == apart.sum()
    assert int(sums.values["n_judged"]) == len(apart)
    assert int(sums.values["n_fitted"]) == 400 - len(apart)


def test_no_rows_leave_nothing() -> None:
    assert (
        train_on_blocks(
            Counter(), lambda b: b.rows * 1.0, [], training().make_working_state(9, 2), RNG
        )
        is None
    )


def state(history: tuple[float, ...]) -> FitState:
    return FitState(None, training().make_working_state(80, 2), history=history)


def test_a_pass_moves_by_the_mean_change_weighted_by_rows() -> None:
    parts = [counted(n, 0.0)[1] for n in (20, 60)]
    begun = state((-10.0, -9.0, -8.0, -7.0))
    change, after = training().compute_mean_change(begun, parts[0].merge(parts[1]), UNLEARNT)
    np.testing.assert_allclose(change, (20 * 20 + 60 * 60) / 80)
    np.testing.assert_allclose(after["velocity"], 1)


@pytest.mark.parametrize(
    ("sizes", "longer"), [((80,), 1.0), ((20,) * 4, 4.0), ((20, 60), 1.6), ((20,) * 8, 5.0)]
)
def test_steps_are_as_many_times_as_long_as_there_are_tasks_or_passes(
    sizes: tuple[int, ...], longer: float
) -> None:
    sums = reduce(Sums.merge, [counted(n, 0.0)[1] for n in sizes])
    _, after = training().compute_mean_change(state((-10.0, -9.0, -8.0, -7.0)), sums, UNLEARNT)
    assert float(after["rate"]) == pytest.approx(0.1 * longer)


@pytest.mark.parametrize(
    ("score", "is_lost"), [(-7.05, False), (-7.5, True), (-100.0, True), (np.nan, True)]
)
def test_from_a_lost_pass_training_goes_back_and_takes_shorter_steps(
    score: float, is_lost: bool
) -> None:
    sums = replace(counted(20, 0.0)[1], objective=20 * score)
    change, after = training().compute_mean_change(state((-10.0, -9.0, -7.0, -7.0)), sums, UNLEARNT)
    assert (change is None) == is_lost
    assert float(after["rate"]) == pytest.approx(0.1 / (3 if is_lost else 1))
    assert after["velocity"].tolist() == ([0, 0] if is_lost else [1, 1])


def test_lost_passes_are_not_waited_for() -> None:
    history = (-10.0, -7.0, -7.0, -50.0, -7.0)
    assert not training().get_convergence_criterion(UNLEARNT).has_converged(history)
    assert training().get_convergence_criterion(UNLEARNT).has_converged((*history, -7.0))


def test_all_passes_lost_are_not_converged() -> None:
    history = (-10.0, *[-50.0] * 9)
    assert not training().get_convergence_criterion(UNLEARNT).has_converged(history)


@pytest.mark.parametrize(("n", "share"), [(999, 0.0), (1000, 0.1), (10**6, 0.005)])
def test_a_tenth_is_held_out_and_5000_at_the_most(n: int, share: float) -> None:
    assert float(training().make_working_state(n, 2)["held_out"]) == pytest.approx(share)


@pytest.mark.parametrize(("n", "batch"), [(30, 10), (600, 30), (10**5, 100)])
def test_few_rows_are_cut_into_small_batches(n: int, batch: int) -> None:
    assert int(training(batch=None).make_working_state(n, 2)["batch"]) == batch
    assert int(training(batch=7).make_working_state(n, 2)["batch"]) == 7


def test_a_score_that_is_no_number_is_far_down() -> None:
    sums = Sums(1, 1.0, float("nan"), {"n_judged": np.array(1)})
    assert compute_finite_score(sums, UNLEARNT) < 2 * UNLEARNT


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ((-10.0, -5.0, -5.2), None),
        ((-10.0, -8.0, -50.0, -5.0), "1 pass lost much of what was learned"),
        ((-10.0, -8.0, -50.0, -8.0, -50.0), "Start with {rate=0.022}."),
        ((-10.0, -50.0), "Use a lower learning rate: {rate=0.02}."),
    ],
)
def test_steps_that_are_too_long_are_told(history: tuple[float, ...], told: str | None) -> None:
    texts = [notice.text for notice in training().make_warnings(state(history), UNLEARNT)]
    assert [bool(told) and told in text for text in texts] == ([True] if told else [])


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
