"""Training by steps along gradients of batches: what all models that learn so have in common.

Every task takes its own steps through its rows, from where the pass begins, and the pass moves by
their mean, weighted by rows. Steps grow shorter in a line, from `rate` to 0 after `max_iter`
passes. Passes are judged by the score of rows held out: a tenth, 5,000 at the most; of less than
1,000 rows none is held out, and all are judged by. Parameters of the best pass are kept. Where
a pass has lost much of what was learnt, training goes on from the best one with steps a third as
long.

The mean of k tasks has gone a k-th of the way that one task would go through all rows, with a k-th
of its noise. So it bears steps k times as long, and needs them; not at once, but twice as long
after two passes, three times after three (P. Goyal et al., "Accurate, large minibatch SGD",
arXiv:1706.02677, 2017, sections 2.1 and 2.2: linear scaling, gradual warmup).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitWarning
from pipeline.learning.batches import (
    TrainingBatch,
    concatenate_batches,
    iter_batches,
    take_batch_rows,
)
from pipeline.learning.convergence import PatienceCriterion
from pipeline.learning.held_out import is_held_out
from pipeline.numerics.networks.gradient_steps import adam_step, momentum_step
from pipeline.random import RowRandom
from pipeline.statistics.sums import StepSums, Sums

Numbers = NDArray[Any]
OptimiserMemory = Mapping[str, Numbers]
OptimiserKind = Literal["adam", "momentum"]

_ADAM_BETA_2 = 0.999


@dataclass(frozen=True)
class Optimiser:
    """Takes steps.

    Attributes
    ----------
    kind
        `adam` or `momentum`.
    momentum
        Share that the mean slope keeps of itself from step to step; of momentum the velocity.
    floor
        Added by Adam to the root of the mean square. Parameters whose slopes are smaller move
        as without Adam, instead of by the noise of their slopes.
    """

    kind: OptimiserKind
    momentum: float
    floor: float

    def make_memory(self, n_numbers: int, dtype: str = "float32") -> OptimiserMemory:
        """Return the optimiser's memory before the first step."""
        if self.kind == "momentum":
            return {"velocity": np.zeros(n_numbers, dtype)}
        means = {name: np.zeros(n_numbers, dtype) for name in ("first", "second")}
        return {**means, "steps": np.zeros(1, dtype)}

    def step(
        self, parameters: Numbers, slope: Numbers, memory: OptimiserMemory, rate: float
    ) -> None:
        """Change parameters and memory in place.

        Parameters
        ----------
        parameters, slope
            (n_numbers,), of the memory's type.
        memory
            From `memory`.
        rate
            Length of the step.
        """
        number = parameters.dtype.type
        if self.kind == "momentum":
            share = number(self.momentum)
            momentum_step(parameters, slope, memory["velocity"], number(rate), share)
            return
        memory["steps"][0] += 1
        steps, kept = float(memory["steps"][0]), (self.momentum, _ADAM_BETA_2)
        first, second = (1 - share**steps for share in kept)
        length, floor = rate * math.sqrt(second) / first, self.floor * math.sqrt(second)
        gains = (number(1 - kept[0]), number(1 - kept[1]))
        means = memory["first"], memory["second"]
        adam_step(parameters, slope, *means, number(length), gains, number(floor))


Arrays = Mapping[str, NDArray[Any]]
ScoreRows = Callable[[TrainingBatch], NDArray[np.float64]]

_HELD_OUT_SHARE, _MAX_HELD_OUT_ROWS, _MIN_ROWS_TO_HOLD_OUT = 0.1, 5000, 1000
_ADAM_FLOOR = 0.03  # a slope has about this deviation from batch to batch
_MAX_LOST_SHARE = 0.1  # of what was gained
_MIN_LOST_SHARE = 0.01  # of the score where nothing was learnt
_RATE_DIVISOR = 3
_MAX_BATCH, _MIN_BATCH, _STEPS_PER_PASS = 100, 10, 20


class GradientLearner(Protocol):
    """Parameters on their way through the batches of a task.

    Attributes
    ----------
    theta
        All numbers that are learnt.
    memory
        Of the optimiser.
    n_rows
        Rows that steps were taken with.
    """

    theta: NDArray[np.float32]
    memory: OptimiserMemory
    n_rows: int

    def step(self, batch: TrainingBatch, at: NDArray[np.int64]) -> None:
        """Take a step with some rows of a batch."""


@dataclass(frozen=True)
class GradientTraining:
    """How steps are taken, and how long.

    Attributes
    ----------
    optimizer, momentum
        As of `Optimiser`.
    batch
        Rows of a step; None takes 100, or fewer, 10 at the least, so that a pass has 20 steps.
    rate
        Length of the first steps.
    usual_rate
        What it is where none is given.
    max_iter
        Passes at the most.
    patience
        Passes to wait for something better.
    tol
        Gain of a row's score, relative where that is above 1, that counts as better.
    """

    optimizer: OptimiserKind
    momentum: float
    batch: int | None
    rate: float
    default_rate: float
    max_iter: int
    patience: int
    tol: float

    @classmethod
    def from_model(cls, model: Any, rates: Mapping[str, float]) -> GradientTraining:
        """Take the settings of a model; a rate of None means the default of its optimizer."""
        usual = rates[model.optimizer]
        rate = usual if model.rate is None else model.rate
        steps = (model.batch, rate, usual)
        passes = (model.max_iter, model.patience, model.tol)
        return cls(model.optimizer, model.momentum, *steps, *passes)

    @property
    def optimiser(self) -> Optimiser:
        """What turns gradients into steps."""
        return Optimiser(self.optimizer, self.momentum, _ADAM_FLOOR)

    def make_working_state(self, n_samples: int, n_numbers: int) -> Arrays:
        """Return the working state before the first pass: rows of a step, rate, share held out and
        memory.
        """
        is_large = n_samples >= _MIN_ROWS_TO_HOLD_OUT
        share = is_large * min(_HELD_OUT_SHARE, _MAX_HELD_OUT_ROWS / n_samples)
        memory = self.optimiser.make_memory(n_numbers)
        fewer = min(max(n_samples // _STEPS_PER_PASS, _MIN_BATCH), _MAX_BATCH)
        steps = {"batch": np.array(self.batch or fewer), "rate": np.array(self.rate)}
        return {**steps, "held_out": np.array(share), **memory}

    def copy_memory(self, working: Arrays) -> OptimiserMemory:
        """Copy the memory that a pass begins with."""
        return {name: working[name].copy() for name in self.optimiser.make_memory(0)}

    def compute_mean_change(
        self, state: Any, statistics: Sums, unlearnt: float
    ) -> tuple[NDArray[np.float64] | None, Arrays]:
        """Return the mean change of Θ, and the working state of the next pass.

        Parameters
        ----------
        state
            Of the fit, before the pass.
        statistics
            Of the pass.
        unlearnt
            Score of a row where nothing was learnt, nats.

        Returns
        -------
        tuple
            The change, or None where steps were so long that much of what was learnt is lost: then
            training goes on from the best pass, with shorter ones.
        """
        history = (*state.history, compute_finite_score(statistics, unlearnt))
        n_lost = _count_lost(unlearnt, history)
        is_lost = n_lost > _count_lost(unlearnt, state.history)
        share = max(1 - len(history) / self.max_iter, 0.0)
        sums, n_rows = statistics.values, max(int(statistics.values["n_fitted"]), 1)
        longer = min(_count_tasks(sums), len(history))
        steps = {"rate": np.array(self._compute_reduced_rate(n_lost) * share * longer)}
        if is_lost:
            forgot = self.optimiser.make_memory(sums["theta"].size)
            return None, {**state.working, **steps, **forgot}
        names = self.optimiser.make_memory(0)
        memory = {name: (sums[name] / n_rows).astype(np.float32) for name in names}
        return sums["theta"] / n_rows, {**state.working, **steps, **memory}

    def get_convergence_criterion(self, state: Any, unlearnt: float) -> PatienceCriterion:
        """Wait for something better; passes that were lost do not count.

        Parameters
        ----------
        state
            Of the fit.
        unlearnt
            Score of a row where nothing was learnt, nats.
        """
        is_lost, at_rest = partial(_is_lost, unlearnt), not _has_diverged(state, unlearnt)
        return PatienceCriterion(self.max_iter, self.patience, self.tol, is_lost, at_rest)

    def make_warnings(self, state: Any, unlearnt: float) -> tuple[FitWarning, ...]:
        """Warn if steps were too long."""
        n_lost = _count_lost(unlearnt, state.history)
        if not n_lost:
            return ()
        if _has_diverged(state, unlearnt):
            rate = min(self.default_rate, self.rate / 10)
            return (
                FitWarning(
                    "training diverged: no pass was better than before the first step. Take "
                    f"shorter steps: {{rate={rate:g}}}."
                ),
            )
        times = "once" if n_lost == 1 else f"{n_lost} times"
        reduced_rate = min(self._compute_reduced_rate(n_lost), self.default_rate)
        return (
            FitWarning(
                f"steps were too long at first: {times} much of what was learnt was lost, and "
                "training went on from the best pass with shorter ones. "
                f"{{rate={reduced_rate:.2g}}} begins with such."
            ),
        )

    def _compute_reduced_rate(self, n_lost: int) -> float:
        return float(self.rate / _RATE_DIVISOR**n_lost)


def _count_tasks(sums: Arrays) -> float:
    """Count the tasks of a pass, fewer where some have most of the rows: (Σ n)² / Σ n²."""
    return max(float(sums["n_fitted"]) ** 2 / max(float(sums["n_fitted_squared"]), 1.0), 1.0)


def _has_diverged(state: Any, unlearnt: float) -> bool:
    """Return whether no pass improved the score of the initial parameters."""
    history = state.history or (-math.inf,)
    gained = max(history) - history[0]
    return _count_lost(unlearnt, history) > 0 and not gained > _MIN_LOST_SHARE * abs(unlearnt)


def _count_lost(unlearnt: float, history: Sequence[float]) -> int:
    """Count the passes that were lost."""
    bests = accumulate(history, max)
    return sum(_is_lost(unlearnt, *pair) for pair in zip(bests, history[1:], strict=False))


def _is_lost(unlearnt: float, best: float, score: float) -> bool:
    """Return whether the score fell far, relative to the gain so far and the possible gain."""
    most = _MAX_LOST_SHARE * max(best - unlearnt, 0.0) + _MIN_LOST_SHARE * abs(unlearnt)
    return best - score > most


def compute_finite_score(statistics: Sums, unlearnt: float) -> float:
    """Return the mean score of the rows that judge a pass; a very low value if it is not finite."""
    score = statistics.objective / max(int(statistics.values["n_judged"]), 1)
    return score if math.isfinite(score) else 10 * unlearnt - 10


def train_on_blocks(
    learner: GradientLearner,
    score: ScoreRows,
    blocks: Iterable[BinaryBlock],
    working: Arrays,
    rng: RowRandom,
) -> StepSums | None:
    """Step through the rows of a task; None where there are none.

    Parameters
    ----------
    learner
        At the beginning of the pass; it is changed.
    score
        Gives nats of rows by the parameters of that beginning, (n_samples,).
    blocks
        The rows.
    working
        Rows of a batch, and the share of rows that no step is taken with.
    rng
        Of the pass.

    Returns
    -------
    Steps
        The change of Θ (`theta`) and the optimiser's memory, times the rows that steps were taken
        with (`n_fitted`), and the square of their number. The objective is the score, summed over
        `n_judged` rows.
    """
    before, judged, n_rows = learner.theta.copy(), _ValidationRows(), 0
    held_out = float(working["held_out"])
    for batch in iter_batches(blocks, int(working["batch"]), rng):
        apart = is_held_out(batch.rows, held_out, rng.seed)
        judged.add(take_batch_rows(batch, np.flatnonzero(apart if held_out else ~apart)))
        learner.step(batch, np.flatnonzero(~apart))
        n_rows += len(batch.rows)
    if not n_rows:
        return None
    n_judged, nats = judged.score(score)
    means = {"theta": learner.theta.astype(np.float64) - before, **learner.memory}
    values = {name: learner.n_rows * np.asarray(a, np.float64) for name, a in means.items()}
    counts = {"n_fitted": np.array(learner.n_rows), "n_judged": np.array(n_judged)}
    values["n_fitted_squared"] = np.array(float(learner.n_rows) ** 2)
    return StepSums(n_rows, nats, {**values, **counts})


class _ValidationRows:
    """Rows that a pass is judged by, kept until its last batch: scored at once they cost less."""

    def __init__(self) -> None:
        self._whole: list[TrainingBatch] = []
        self._masked: list[TrainingBatch] = []

    def add(self, batch: TrainingBatch) -> None:
        """Take rows."""
        (self._whole if batch.observed is None else self._masked).append(batch)

    def score(self, score: ScoreRows) -> tuple[int, float]:
        """Count the rows, and sum their scores."""
        scores = [
            score(concatenate_batches(parts)) for parts in (self._whole, self._masked) if parts
        ]
        return sum(map(len, scores)), float(sum(nats.sum() for nats in scores))
