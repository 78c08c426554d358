"""Training by gradient steps on batches, shared by all models that learn this way.

Every task takes its own steps through its rows, starting from the parameters of the pass. After the
pass, the parameters move by the mean change of all tasks, weighted by rows. The learning rate
decays linearly from `rate` to 0 over `max_iter` passes. A pass is scored on held-out rows: a tenth
of the rows, at most 5,000. With fewer than 1,000 rows none are held out, and all rows score the
pass. The parameters of the best pass are kept. If a pass loses much of what was learned, training
returns to the best pass with a third of the rate.

With noisy gradients, or a score that does not see all of the model, the best pass is best by
chance. Then training that no longer improves returns to the best pass, and its rate falls to 0
within a few more cooling passes. The last of them is kept. Without such a return, the last passes
before `max_iter` are the cooling passes.

Compared with a single task that takes steps through all rows, the mean of k tasks changes by only a
k-th, with a k-th of the noise. The rate is therefore multiplied by k: not at once, but by 2 after
two passes, by 3 after three, and so on (P. Goyal et al., "Accurate, large minibatch SGD",
arXiv:1706.02677, 2017, sections 2.1 and 2.2: linear scaling, gradual warmup).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitWarning
from pipeline.learning.batches import (
    TrainingBatch,
    concatenate_batches,
    iter_shuffled_rows,
    split_into_batches,
    take_batch_rows,
)
from pipeline.learning.convergence import PatienceCriterion
from pipeline.learning.held_out import is_held_out
from pipeline.numerics.networks.gradient_steps import adam_step, momentum_step
from pipeline.random import RowRandom
from pipeline.statistics.sums import StepSums, Sums

Numbers = NDArray[Any]
Arrays = Mapping[str, Numbers]
OptimiserMemory = Arrays
OptimiserKind = Literal["adam", "momentum"]
ScoreRows = Callable[[TrainingBatch], NDArray[np.float64]]

_ADAM_BETA_2 = 0.999
_ADAM_FLOOR = 0.03  # about the standard deviation of a gradient from batch to batch
_HELD_OUT_SHARE, _MAX_HELD_OUT_ROWS, _MIN_ROWS_TO_HOLD_OUT = 0.1, 5000, 1000
_MAX_LOST_SHARE = 0.1  # of the gain so far
_MIN_LOST_SHARE = 0.01  # of the baseline score
_RATE_DIVISOR = 3
_MAX_BATCH, _MIN_BATCH, _STEPS_PER_PASS = 100, 10, 20


@dataclass(frozen=True)
class Optimiser:
    """Rule that turns gradients into steps.

    Attributes
    ----------
    kind
        `adam` or `momentum`.
    momentum
        Share of the running mean gradient, or of the velocity, that is kept from step to step.
    floor
        Added by Adam to the root mean square gradient. Parameters with smaller gradients move as
        without Adam, instead of by the noise of their gradients.
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
        self, parameters: Numbers, gradient: Numbers, memory: OptimiserMemory, rate: float
    ) -> None:
        """Take a step, changing parameters and memory in place.

        `parameters` and `gradient` are (n_numbers,), with the dtype of the memory.
        """
        number = parameters.dtype.type
        if self.kind == "momentum":
            share = number(self.momentum)
            momentum_step(parameters, gradient, memory["velocity"], number(rate), share)
            return
        memory["steps"][0] += 1
        steps = float(memory["steps"][0])
        first, root = 1 - self.momentum**steps, math.sqrt(1 - _ADAM_BETA_2**steps)
        length, floor = number(rate * root / first), number(self.floor * root)
        gains = (number(1 - self.momentum), number(1 - _ADAM_BETA_2))
        adam_step(parameters, gradient, memory["first"], memory["second"], length, gains, floor)


class GradientLearner:
    """The parameters while a task takes steps. A subclass implements `_take_step`.

    Attributes
    ----------
    theta
        All learned numbers, in single precision.
    memory
        Memory of the optimiser.
    n_rows
        Number of rows that steps were taken with.
    """

    def __init__(
        self, theta: NDArray[np.float32], training: GradientTraining, working: Arrays
    ) -> None:
        """Start at `theta`, which is changed in place, from the working state of a pass."""
        self.theta, self.memory, self.n_rows = theta, training.copy_memory(working), 0
        self._optimiser, self._rate = training.optimiser, float(working["rate"])

    def step(self, batch: TrainingBatch) -> None:
        """Take a step with the rows of a batch."""
        self._take_step(batch)
        self.n_rows += len(batch.rows)

    def _take_step(self, batch: TrainingBatch) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class GradientTraining:
    """Settings of the steps and passes.

    Attributes
    ----------
    optimizer, momentum
        As in `Optimiser`.
    batch
        Rows per step. None takes 100, or fewer (at least 10) so that a pass has 20 steps.
    rate
        Initial learning rate.
    default_rate
        Learning rate that the model uses by default.
    max_iter
        Maximum number of passes.
    patience
        Number of passes to wait for an improvement.
    tol
        Smallest gain of the score per row that counts as an improvement, relative if the score is
        above 1.
    cooling_passes
        Passes that end the training, in which the rate falls to 0; none keeps the best pass.
    """

    optimizer: OptimiserKind
    momentum: float
    batch: int | None
    rate: float
    default_rate: float
    max_iter: int
    patience: int
    tol: float
    cooling_passes: int = 0

    @classmethod
    def from_model(
        cls, model: Any, rates: Mapping[str, float], cooling_passes: int = 0
    ) -> GradientTraining:
        """Take the settings of a model; a rate of None means the default of its optimizer."""
        default_rate = rates[model.optimizer]
        rate = default_rate if model.rate is None else model.rate
        steps = (model.batch, rate, default_rate)
        passes = (model.max_iter, model.patience, model.tol)
        return cls(model.optimizer, model.momentum, *steps, *passes, cooling_passes)

    @property
    def optimiser(self) -> Optimiser:
        """The rule that turns gradients into steps."""
        return Optimiser(self.optimizer, self.momentum, _ADAM_FLOOR)

    def make_working_state(self, n_samples: int, n_numbers: int) -> Arrays:
        """Return the working state before the first pass.

        It holds the rows per step, the rate, the held-out share, the number of the pass among the
        cooling passes (0 before them), and the optimiser's memory.
        """
        is_large = n_samples >= _MIN_ROWS_TO_HOLD_OUT
        share = is_large * min(_HELD_OUT_SHARE, _MAX_HELD_OUT_ROWS / n_samples)
        memory = self.optimiser.make_memory(n_numbers)
        default_batch = min(max(n_samples // _STEPS_PER_PASS, _MIN_BATCH), _MAX_BATCH)
        steps = {"batch": np.array(self.batch or default_batch), "rate": np.array(self.rate)}
        return {**steps, "held_out": np.array(share), "cooling": np.array(0), **memory}

    def copy_memory(self, working: Arrays) -> OptimiserMemory:
        """Copy the optimiser's memory at the start of a pass."""
        return {name: working[name].copy() for name in self.optimiser.make_memory(0)}

    def compute_mean_change(
        self, state: Any, statistics: Sums, baseline_score: float
    ) -> tuple[NDArray[np.float64] | None, Arrays]:
        """Return the mean change of Θ over a pass, and the working state of the next pass.

        The change is None if training returns to the best pass: with a lower rate if the pass lost
        much of what was learned, or to cool. `state` is the state before the pass, and
        `baseline_score` the score per row before anything is learned, in nats.
        """
        history = (*state.history, compute_finite_score(statistics, baseline_score))
        n_lost = _count_lost(baseline_score, history)
        is_lost = n_lost > _count_lost(baseline_score, state.history)
        n_cooling = None
        if self.cooling_passes:
            n_cooling = self.get_convergence_criterion(baseline_score).count_cooling_passes(history)
        returns = is_lost or n_cooling == 0
        share = max(1 - (len(history) - (n_cooling or 0)) / self.max_iter, 0.0)
        if n_cooling is not None:
            share *= max(1 - n_cooling / self.cooling_passes, 0.0)
        sums, n_rows = statistics.values, max(int(statistics.values["n_fitted"]), 1)
        factor = min(_count_tasks(sums), len(history))
        if n_cooling is None:  # the last passes cool without a return
            n_cooling = len(history) - (self.max_iter - self.cooling_passes)
        rate = self._compute_reduced_rate(n_lost) * share * factor
        steps = {"rate": np.array(rate), "cooling": np.array(max(n_cooling + 1, 0))}
        if returns:
            new_memory = self.optimiser.make_memory(sums["theta"].size)
            return None, {**state.working, **steps, **new_memory}
        names = self.optimiser.make_memory(0)
        memory = {name: (sums[name] / n_rows).astype(np.float32) for name in names}
        return sums["theta"] / n_rows, {**state.working, **steps, **memory}

    def get_convergence_criterion(self, baseline_score: float) -> PatienceCriterion:
        """Return a criterion that waits for an improvement; lost passes do not count as waiting."""
        return PatienceCriterion(
            self.max_iter,
            self.patience,
            self.tol,
            partial(_is_lost, baseline_score),
            cooling_passes=self.cooling_passes,
        )

    def make_warnings(self, state: Any, baseline_score: float) -> tuple[FitWarning, ...]:
        """Return a warning if steps were too long."""
        n_lost = _count_lost(baseline_score, state.history)
        if not n_lost:
            return ()
        if _has_diverged(state, baseline_score):
            rate = min(self.default_rate, self.rate / 10)
            text = (
                "training diverged: no pass was better than the initial parameters. Use a lower "
                f"learning rate: {{rate={rate:g}}}."
            )
            return (FitWarning(text),)
        passes = "1 pass" if n_lost == 1 else f"{n_lost} passes"
        rate = min(self._compute_reduced_rate(n_lost), self.default_rate)
        text = (
            f"the initial learning rate was too high: {passes} lost much of what was learned, and "
            f"training returned to the best pass with a lower rate. Start with {{rate={rate:.2g}}}."
        )
        return (FitWarning(text),)

    def _compute_reduced_rate(self, n_lost: int) -> float:
        return float(self.rate / _RATE_DIVISOR**n_lost)


def _count_tasks(sums: Arrays) -> float:
    """Return the effective number of tasks of a pass, (Σ n)² / Σ n² for tasks of n rows."""
    return max(float(sums["n_fitted"]) ** 2 / max(float(sums["n_fitted_squared"]), 1.0), 1.0)


def _has_diverged(state: Any, baseline_score: float) -> bool:
    """Return whether no pass improved the score of the initial parameters."""
    history = state.history or (-math.inf,)
    gained = max(history) - history[0]
    n_lost = _count_lost(baseline_score, history)
    return n_lost > 0 and not gained > _MIN_LOST_SHARE * abs(baseline_score)


def _count_lost(baseline_score: float, history: Sequence[float]) -> int:
    """Count the passes that lost much of what was learned."""
    bests = accumulate(history, max)
    return sum(_is_lost(baseline_score, *pair) for pair in zip(bests, history[1:], strict=False))


def _is_lost(baseline_score: float, best: float, score: float) -> bool:
    """Return whether the score fell far, relative to the gain so far and the possible gain."""
    gain = max(best - baseline_score, 0.0)
    return best - score > _MAX_LOST_SHARE * gain + _MIN_LOST_SHARE * abs(baseline_score)


def compute_finite_score(statistics: Sums, baseline_score: float) -> float:
    """Return the mean score of the rows that score a pass; very low if it is not finite."""
    score = statistics.objective / max(int(statistics.values["n_judged"]), 1)
    return score if math.isfinite(score) else 10 * baseline_score - 10


def compute_judged_log_likelihood(shares: NDArray[np.float64], statistics: Sums) -> float:
    """Return the mean log-likelihood of independent features, of the rows that score a pass.

    `shares` (n_features,) are the shares of ones, neither 0 nor 1.
    """
    sums = statistics.values
    ones, zeros = sums["judged_ones"], sums["judged_observed"] - sums["judged_ones"]
    nats = ones @ np.log(shares) + zeros @ np.log1p(-shares)
    return float(nats / max(int(sums["n_judged"]), 1))


def train_on_blocks(
    learner: GradientLearner,
    score_rows: ScoreRows,
    blocks: Iterable[BinaryBlock],
    working: Arrays,
    rng: RowRandom,
    score_baseline: ScoreRows | None = None,
) -> StepSums | None:
    """Take steps through the rows of a task; return None if it has no rows.

    The learner, which is changed in place, is at the start of the pass. `score_rows` returns the
    score of each row of a batch at the start of the pass, (n_samples,), nats. The working state
    holds the rows per step and the held-out share. `score_baseline` scores rows as if features told
    nothing.

    Returns
    -------
    StepSums
        The change of Θ (`theta`) and the optimiser's memory, each times the number of rows that
        steps were taken with (`n_fitted`), and the square of this number. The objective is the sum
        of the scores of `n_judged` rows, with `judged_observed` values and `judged_ones` among
        them, (n_features,) each, and the sum `judged_baseline` of their baseline scores.
    """
    before, scored, n_rows = learner.theta.copy(), _ScoredRows(), 0
    held_out, size = float(working["held_out"]), int(working["batch"])
    for rows in iter_shuffled_rows(blocks, size, rng):
        is_out = is_held_out(rows.rows, held_out, rng.seed)
        scored.add(take_batch_rows(rows, np.flatnonzero(is_out if held_out else ~is_out)))
        for batch in split_into_batches(rows, size, ~is_out):
            learner.step(batch)
        n_rows += len(rows.rows)
    if not n_rows:
        return None
    n_scored, nats = scored.score(score_rows)
    means = {"theta": learner.theta.astype(np.float64) - before, **learner.memory}
    values = {name: learner.n_rows * np.asarray(a, np.float64) for name, a in means.items()}
    counts = {"n_fitted": np.array(learner.n_rows), "n_judged": np.array(n_scored)}
    counts |= {"judged_observed": np.asarray(scored.observed)}
    counts |= {"judged_ones": np.asarray(scored.ones)}
    if score_baseline is not None:
        counts |= {"judged_baseline": np.array(scored.score(score_baseline)[1])}
    values["n_fitted_squared"] = np.array(float(learner.n_rows) ** 2)
    return StepSums(n_rows, n_rows, nats, {**values, **counts})


class _ScoredRows:
    """Rows that score a pass, collected until its last batch: scoring them together is cheaper."""

    def __init__(self) -> None:
        self._complete: list[TrainingBatch] = []
        self._masked: list[TrainingBatch] = []
        self.observed: NDArray[np.int64] | int = 0
        self.ones: NDArray[np.int64] | int = 0

    def add(self, batch: TrainingBatch) -> None:
        """Add the rows of a batch, and count observed values and ones among them."""
        mask = np.ones_like(batch.X) if batch.observed is None else batch.observed
        self.observed = self.observed + mask.sum(axis=0, dtype=np.int64)
        self.ones = self.ones + (batch.X & mask).sum(axis=0, dtype=np.int64)
        (self._complete if batch.observed is None else self._masked).append(batch)

    def score(self, score_rows: ScoreRows) -> tuple[int, float]:
        """Return the number of rows, and the sum of their scores."""
        groups = (self._complete, self._masked)
        scores = [score_rows(concatenate_batches(parts)) for parts in groups if parts]
        return sum(map(len, scores)), float(sum(nats.sum() for nats in scores))
