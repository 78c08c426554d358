"""When a stage of a fit is done: converged and stopped are different answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_CYCLE_PASSES = 3  # passes
_MAX_GAIN_RATIO = 0.99  # ratio of gains; a slower one cannot be told from rounding


class ConvergenceCriterion(Protocol):
    """Judges the history of objectives of one stage, maximised."""

    @property
    def max_iter(self) -> int:
        """Number of passes at the most."""

    @property
    def keeps_best(self) -> bool:
        """Whether the stage ends with the parameters of its best pass instead of its last."""

    @property
    def is_stalled(self) -> bool:
        """Whether no further pass can bring anything, though the fit has not converged."""

    def has_converged(self, history: Sequence[float]) -> bool:
        """Tell whether further passes would change nothing that matters."""


@dataclass(frozen=True)
class ObjectiveCriterion:
    """Converged once a cycle of passes, and all that are to come, hardly change the objective.

    Gains of EM shrink by a steady ratio in the end, so that those to come are a geometric series
    (Aitken; D. Böhning et al., Ann. Inst. Statist. Math. 46 (1994)). The ratio is that
    of one cycle to the one before: three passes, as many as SQUAREM has in a cycle, so that each of
    them has one extrapolation beside two plain steps wherever it begins.

    Attributes
    ----------
    max_iter
        Number of passes at the most.
    tol
        Change of the objective per row, relative where that is above 1; 0 for a model that is done
        after its one pass.
    """

    max_iter: int
    tol: float
    keeps_best: bool = False
    is_stalled: ClassVar[bool] = False

    def has_converged(self, history: Sequence[float]) -> bool:
        """Tell whether the last cycle changed nothing that matters, nor would all further ones."""
        if self.max_iter == 1 and self.tol == 0:
            return len(history) >= 1
        if len(history) < 2:
            return False
        least = self.tol * max(1.0, abs(history[-1]))
        if len(history) == 2:  # one plain step, as of a warm start: any ratio may follow
            return abs(history[1] - history[0]) * _MAX_GAIN_RATIO / (1 - _MAX_GAIN_RATIO) <= least
        if len(history) <= _CYCLE_PASSES:
            return False
        change = abs(history[-1] - history[-1 - _CYCLE_PASSES])
        return change <= least and estimate_remaining_gain(history) <= least


def estimate_remaining_gain(history: Sequence[float]) -> float:
    """Expect how much further passes would raise the objective, by its last two cycles.

    0 where there are not as many, or the last one raised nothing.
    """
    if len(history) <= 2 * _CYCLE_PASSES:
        return 0.0
    before, last = (history[-1 - k] - history[-1 - k - _CYCLE_PASSES] for k in (_CYCLE_PASSES, 0))
    if last <= 0:
        return 0.0
    ratio = min(last / before, _MAX_GAIN_RATIO) if before > 0 else _MAX_GAIN_RATIO
    return last * ratio / (1 - ratio)


def _is_never_lost(best: float, score: float) -> bool:
    return False


@dataclass(frozen=True)
class PatienceCriterion:
    """Converged once so many passes brought nothing better: for scores of rows held out.

    Attributes
    ----------
    max_iter
        Number of passes at the most.
    patience
        Passes to wait for something better.
    tol
        Gain that counts as better, relative where the score is above 1 in size.
    is_lost
        Whether a score is so far below the best that the fit goes back: that pass is not waited
        for.
    comes_to_rest
        Whether passes change less and less, so that all of them done is as good as converged.
    """

    max_iter: int
    patience: int
    tol: float = 0.0
    is_lost: Callable[[float, float], bool] = _is_never_lost
    converges_at_max_iter: bool = False
    keeps_best: bool = True
    is_stalled: ClassVar[bool] = False

    def count_waiting_passes(self, history: Sequence[float]) -> int:
        """Count the passes since the last that was better."""
        best, n_passes = -math.inf, 0
        for k, score in enumerate(history):
            if k == 0 or score > best + self.tol * max(1.0, abs(best)):
                best, n_passes = score, 0
            elif not self.is_lost(best, score):
                n_passes += 1
        return n_passes

    def has_converged(self, history: Sequence[float]) -> bool:
        """Tell whether the best pass is that long ago."""
        if not history:
            return False
        if self.converges_at_max_iter and len(history) >= self.max_iter:
            return True
        return self.count_waiting_passes(history) >= self.patience


@dataclass(frozen=True)
class PassCountCriterion:
    """Converged after a fixed number of passes."""

    max_iter: int
    keeps_best: bool = False
    is_stalled: ClassVar[bool] = False

    def has_converged(self, history: Sequence[float]) -> bool:
        """Tell whether all passes are done."""
        return len(history) >= self.max_iter


@dataclass(frozen=True)
class ExpectedGainCriterion:
    """Converged once the step that led to the last pass had next to nothing to gain.

    Attributes
    ----------
    max_iter
        Number of passes at the most.
    tol
        What a step should gain, in all rows together, nats.
    gain
        What the last one should.
    stalled
        Whether no step leads higher, though one should.
    """

    max_iter: int
    tol: float
    gain: float
    is_stalled: bool
    keeps_best: bool = False

    def has_converged(self, history: Sequence[float]) -> bool:
        """Tell whether the last step was too small to matter."""
        return bool(history) and self.gain <= self.tol


def is_stage_over(convergence: ConvergenceCriterion, history: Sequence[float]) -> bool:
    """Tell whether a stage is over, converged or not."""
    is_last = len(history) >= convergence.max_iter
    return convergence.is_stalled or is_last or convergence.has_converged(history)


def find_final_objective(convergence: ConvergenceCriterion, history: Sequence[float]) -> float:
    """Give the objective of the parameters that a stage ends with."""
    return max(history) if convergence.keeps_best else history[-1]


def describe_early_stop(convergence: ConvergenceCriterion, history: Sequence[float]) -> str | None:
    """Say so when the fit stopped before it converged."""
    if convergence.has_converged(history) or not is_stage_over(convergence, history):
        return None
    last = ", ".join(f"{value:.6f}" for value in history[-2:])
    if convergence.is_stalled:
        return (
            "no step led higher any more, so the fit may have ended before the maximum; fewer "
            f"components may do better; last objectives: {last}"
        )
    return f"stopped at max_iter={convergence.max_iter} before converging; last objectives: {last}"


Array = NDArray[np.float64]
AccelerationMemory = Mapping[str, NDArray[np.float64]]

_FIRST_LIMIT, _GROWTH = 4.0, 4.0


class SquaremStep(NamedTuple):
    """Where the next pass is made.

    Attributes
    ----------
    parameters
        θ of the next pass.
    memory
        What the next call is given.
    accepted
        False where the pass just made was at an extrapolation that is taken back.
    """

    parameters: Array
    memory: AccelerationMemory
    accepted: bool


def choose_squarem_step(
    at: Array, mapped: Array, objective: float, memory: AccelerationMemory
) -> SquaremStep:
    """Choose the next parameters.

    Parameters
    ----------
    at, mapped
        θ of the pass just made, and what EM makes of it: vectors.
    objective
        At `at`.
    memory
        From the step before; empty before the first.
    """
    place, limit = int(memory.get("place", 0)), float(memory.get("limit", _FIRST_LIMIT))
    if place == 0:
        return SquaremStep(mapped, _make_memory(1, limit, start=at), True)
    if place == 1:
        return _extrapolate(memory["start"], at, mapped, objective, limit)
    if objective < float(memory["objective"]):
        return SquaremStep(memory["fallback"], _make_memory(0, max(limit / _GROWTH, 1.0)), False)
    return SquaremStep(mapped, _make_memory(0, limit), True)


def _extrapolate(
    start: Array, middle: Array, end: Array, objective: float, limit: float
) -> SquaremStep:
    r, v = middle - start, end - 2 * middle + start
    length = float(np.linalg.norm(r) / max(np.linalg.norm(v), np.finfo(float).tiny))
    alpha = -float(np.clip(length, 1.0, limit))
    if alpha == -limit:
        limit *= _GROWTH
    memory = _make_memory(2, limit, fallback=end, objective=np.array(objective))
    return SquaremStep(start - 2 * alpha * r + alpha**2 * v, memory, True)


def _make_memory(place: int, limit: float, **more: Array) -> AccelerationMemory:
    return {"place": np.array(float(place)), "limit": np.array(limit), **more}
