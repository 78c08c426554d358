"""Training by steps along gradients of batches: what all models that learn so have in common.

Every task takes its own steps through its rows, from where the pass begins, and the pass moves by
their mean, weighted by rows. Steps grow shorter in a line, from `rate` to 0 after `max_iter`
passes. Passes are judged by the score of rows held out: a tenth, 5,000 at the most; of less than
1,000 rows none is held out, and all are judged by. Parameters of the best pass are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock
from pipeline.errors import FitError, Notice
from pipeline.learning.batches import Batch, batches, joined, taken
from pipeline.learning.convergence import ByPatience
from pipeline.learning.held_out import are_held_out
from pipeline.learning.optimisers import Kind, Memory, Optimiser
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

Arrays = Mapping[str, NDArray[Any]]
Score = Callable[[Batch], NDArray[np.float64]]

_HELD_OUT, _MOST_HELD_OUT, _LEAST_ROWS = 0.1, 5000, 1000
_FLOOR = 0.03  # a slope has about this deviation from batch to batch
_COUNTS = ("batch", "patience", "max_iter")


class Learner(Protocol):
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
    memory: Memory
    n_rows: int

    def step(self, batch: Batch, at: NDArray[np.int64]) -> None:
        """Take a step with some rows of a batch."""


@dataclass(frozen=True)
class Training:
    """How steps are taken, and how long.

    Attributes
    ----------
    optimizer, momentum
        As of `Optimiser`.
    batch
        Rows of a step.
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

    optimizer: Kind
    momentum: float
    batch: int
    rate: float
    usual_rate: float
    max_iter: int
    patience: int
    tol: float

    @classmethod
    def of(cls, model: Any, rates: Mapping[str, float]) -> Training:
        """Take the settings of a model, whose rate of None stands for one by optimizer.

        Raises
        ------
        FitError
            Naming the first that is out of range.
        """
        for name in _COUNTS:
            if (value := getattr(model, name)) < 1:
                raise FitError(f"{name}: Expected at least 1, got {value}. Give more.")
        usual = rates[model.optimizer]
        rate = usual if model.rate is None else model.rate
        if not 0 < rate < np.inf:
            raise FitError(f"rate: Expected above 0, got {rate}. Give more.")
        if not 0 <= model.momentum < 1:
            raise FitError(f"momentum: Expected at least 0 and below 1, got {model.momentum}.")
        if not 0 < model.tol < 1:
            raise FitError(f"tol: Expected above 0 and below 1, got {model.tol}.")
        numbers = (model.max_iter, model.patience, model.tol)
        return cls(model.optimizer, model.momentum, model.batch, rate, usual, *numbers)

    @property
    def optimiser(self) -> Optimiser:
        """What turns gradients into steps."""
        return Optimiser(self.optimizer, self.momentum, _FLOOR)

    def first(self, n_samples: int, n_numbers: int) -> Arrays:
        """Give the working state before the first pass: rate, share held out and memory."""
        is_large = n_samples >= _LEAST_ROWS
        share = is_large * min(_HELD_OUT, _MOST_HELD_OUT / n_samples)
        memory = self.optimiser.memory(n_numbers)
        return {"rate": np.array(self.rate), "held_out": np.array(share), **memory}

    def memory(self, working: Arrays) -> Memory:
        """Copy the memory that a pass begins with."""
        return {name: working[name].copy() for name in self.optimiser.memory(0)}

    def moved(
        self, working: Arrays, statistics: Sums, n_passes: int
    ) -> tuple[NDArray[np.float64], Arrays]:
        """Give the mean change of Θ, and the working state of the next pass.

        Parameters
        ----------
        working, statistics
            Of the pass.
        n_passes
            Passes that its stage has had, this one with them.
        """
        sums, n_rows = statistics.values, max(int(statistics.values["n_fitted"]), 1)
        memory = {
            name: (sums[name] / n_rows).astype(np.float32) for name in self.optimiser.memory(0)
        }
        rate = np.array(self.rate * max(1 - n_passes / self.max_iter, 0.0))
        return sums["theta"] / n_rows, {**working, **memory, "rate": rate}

    def convergence(self, unlearnt: float) -> ByPatience:
        """Wait for something better; end at once where training went astray.

        Parameters
        ----------
        unlearnt
            Score of a row where nothing was learnt, nats. Training that comes far below has
            diverged.
        """
        return ByPatience(
            self.max_iter,
            self.patience,
            self.tol,
            astray=_astray(unlearnt),
            remedy=self._remedy,
            comes_to_rest=True,
        )

    def doubts(self, history: Sequence[float], unlearnt: float) -> tuple[Notice, ...]:
        """Say so where the best pass was the first, though that had learnt nothing."""
        at_first = history[0] <= 0.99 * unlearnt and history[0] >= max(history)
        if at_first and len(history) > self.patience:
            return (Notice(f"no pass was better than having learnt nothing. {self._remedy}"),)
        return ()

    @property
    def _remedy(self) -> str:
        rate = self.usual_rate if self.rate > self.usual_rate else self.rate / 10
        return f"Take shorter steps: --set rate={rate:g}."


def _astray(unlearnt: float) -> float:
    return 2 * unlearnt - 1


def finite_score(statistics: Sums, unlearnt: float) -> float:
    """Give the mean score of the rows that a pass is judged by; far down if it is no number."""
    score = statistics.objective / max(int(statistics.values["n_judged"]), 1)
    return score if math.isfinite(score) else 2 * _astray(unlearnt)


def learnt(
    learner: Learner,
    score: Score,
    blocks: Iterable[BinaryBlock],
    size: int,
    held_out: float,
    rng: RowRandom,
) -> Sums | None:
    """Step through the rows of a task; None where there are none.

    Parameters
    ----------
    learner
        At the beginning of the pass; it is changed.
    score
        Gives nats of rows by the parameters of that beginning, (n_samples,).
    blocks
        The rows.
    size
        Rows of a batch.
    held_out
        Share of rows that no step is taken with.
    rng
        Of the pass.

    Returns
    -------
    Sums
        The change of Θ (`theta`) and the optimiser's memory, times the rows that steps were taken
        with (`n_fitted`). The objective is the score, summed over `n_judged` rows.
    """
    before, judged, n_rows = learner.theta.copy(), _Judged(), 0
    for batch in batches(blocks, size, rng):
        apart = are_held_out(batch.rows, held_out, rng.seed)
        judged.add(taken(batch, np.flatnonzero(apart if held_out else ~apart)))
        learner.step(batch, np.flatnonzero(~apart))
        n_rows += len(batch.rows)
    if not n_rows:
        return None
    n_judged, nats = judged.score(score)
    means = {"theta": learner.theta.astype(np.float64) - before, **learner.memory}
    values = {name: learner.n_rows * np.asarray(a, np.float64) for name, a in means.items()}
    counts = {"n_fitted": np.array(learner.n_rows), "n_judged": np.array(n_judged)}
    return Sums(n_rows, nats, {**values, **counts})


class _Judged:
    """Rows that a pass is judged by, kept until its last batch: scored at once they cost less."""

    def __init__(self) -> None:
        self._whole: list[Batch] = []
        self._masked: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Take rows."""
        (self._whole if batch.observed is None else self._masked).append(batch)

    def score(self, score: Score) -> tuple[int, float]:
        """Count the rows, and sum their scores."""
        scores = [score(joined(parts)) for parts in (self._whole, self._masked) if parts]
        return sum(map(len, scores)), float(sum(nats.sum() for nats in scores))
