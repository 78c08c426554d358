"""Convergence criteria of stages, descriptions of how fits ended, and acceleration of EM.

A stage ends when it has converged, after `max_iter` passes, or if no step raises the objective.

SQUAREM extrapolates the steps of EM, with a safeguard that keeps the objective rising: R. Varadhan,
C. Roland, "Simple and globally convergent methods for accelerating the convergence of any EM
algorithm", Scandinavian Journal of Statistics 35 (2008), scheme S3. A cycle has three passes: from
θ₀ to θ₁, from θ₁ to θ₂, and one from θ' = θ₀ − 2 α r + α² v with r = θ₁ − θ₀, v = θ₂ − 2 θ₁ + θ₀
and α = −‖r‖ / ‖v‖. If θ' is worse than θ₁, the fit continues from θ₂.

Where the information of a sample of the rows is known, steps are those of Newton's method, with the
inverse H of this information and the gradient g of all rows. A step is expected to gain g·Hg / 2.
H differs from that of all rows by chance, so a step leaves a small share of the distance to the
optimum; it then tells how to correct H. The ratio of the last two gains tells how much the last
step has left. If a step turns out to be worse than the point before, the fit goes on
from the step of EM at that point, and takes shorter steps; if they fail as well, SQUAREM follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitWarning

AccelerationMemory = Mapping[str, NDArray[np.float64]]

_CYCLE_PASSES = 3  # passes in a cycle of SQUAREM
_MAX_GAIN_RATIO = 0.99  # a slower decay of gains cannot be distinguished from rounding
_MAX_ROWS_OF_TOLERANCE = 10_000
_SAME_OPTIMUM_NATS = 0.1  # of all rows; starts that differ by less are at the same optimum
_MANY_STARTS = 4  # of fewer, a single one at the best is no sign of more optima
_FIRST_LIMIT, _GROWTH = 4.0, 4.0
_LEAST_DAMPING = 0.1  # shorter steps of Newton's method are given up
# The last step of Newton's method gains at most so many nats per row, and leaves at most this share
# of the tolerance.
_MOST_GAIN, _MOST_REMAINING = 1e-9, 0.1


class ConvergenceCriterion(Protocol):
    """Decides from the objectives of a stage, which are maximised, whether it has converged."""

    @property
    def max_iter(self) -> int:
        """Maximum number of passes."""

    @property
    def keeps_best(self) -> bool:
        """Whether the parameters of the best pass are kept."""

    def ends_with_best(self, history: Sequence[float]) -> bool:
        """Return whether the stage ends with the parameters of its best pass, not of its last."""

    @property
    def is_stalled(self) -> bool:
        """Whether further passes are useless although the fit has not converged."""

    def has_converged(self, history: Sequence[float]) -> bool:
        """Return whether further passes would hardly change the fit."""


class _KeepsLast:
    """Base of criteria whose stages end with the parameters of the last pass."""

    keeps_best: ClassVar[bool] = False

    def ends_with_best(self, history: Sequence[float]) -> bool:
        """Return False: the last parameters are the ones to keep."""
        return False


@dataclass(frozen=True)
class ObjectiveCriterion(_KeepsLast):
    """Converged once the last passes hardly changed the objective, nor would further ones.

    The gains of EM finally shrink by a constant ratio, so the gains still to come are a geometric
    series (Aitken; D. Böhning et al., Ann. Inst. Statist. Math. 46 (1994)). The ratio compares two
    cycles of three passes, the length of SQUAREM's cycles. So each cycle here contains one
    extrapolation and two plain steps, wherever it begins.

    Attributes
    ----------
    max_iter
        Maximum number of passes.
    tol
        Change of the objective per row, nats; 0 for a model that needs a single pass.
    weight
        Sum of the weights of all rows, or their number. The change of all rows together is at most
        10,000 `tol`, because more rows resolve smaller changes of the parameters.
    enough_passes
        Number of passes that suffice in a stage that refines one that has converged.
    """

    max_iter: int
    tol: float
    weight: float = 1.0
    enough_passes: float = math.inf
    is_stalled: ClassVar[bool] = False

    @property
    def threshold(self) -> float:
        """Change per row below which a stage has converged, nats."""
        return self.tol * min(1.0, _MAX_ROWS_OF_TOLERANCE / self.weight)

    def has_converged(self, history: Sequence[float]) -> bool:
        """Return whether the last cycle changed little, and further ones would too."""
        if self.max_iter == 1 and self.tol == 0:
            return len(history) >= 1
        if len(history) >= self.enough_passes:
            return True
        if len(history) < 2:
            return False
        threshold = self.threshold
        if len(history) == 2:  # one plain step, as after a warm start: any ratio may follow
            change = abs(history[1] - history[0])
            return change * _MAX_GAIN_RATIO / (1 - _MAX_GAIN_RATIO) <= threshold
        if len(history) <= _CYCLE_PASSES:
            return False
        change = abs(history[-1] - history[-1 - _CYCLE_PASSES])
        return change <= threshold and estimate_remaining_gain(history) <= threshold


def estimate_remaining_gain(history: Sequence[float]) -> float:
    """Estimate from the last two cycles how much further passes would raise the objective.

    The estimate is 0 if there are fewer than two cycles, or if the last one gained nothing.
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
    """Converged after a number of passes without improvement, for scores of held-out rows.

    Attributes
    ----------
    max_iter
        Maximum number of passes.
    patience
        Number of passes to wait for an improvement.
    tol
        Smallest gain that counts as an improvement, relative if the score is above 1 in size.
    is_lost
        Whether a score is so far below the best that the fit goes back. Such passes do not count
        as waiting.
    keeps_best
        Whether the best parameters are kept.
    cooling_passes
        Passes that follow after the fit has waited, from the best parameters and with steps that
        shrink to 0. The fit ends with the last of them, or of `max_iter`, unless it is lost. This
        is for steps so noisy that the best pass is best by chance. A fit with fewer passes left
        does not return to the best parameters, because it could not leave them again.
    """

    max_iter: int
    patience: int
    tol: float = 0.0
    is_lost: Callable[[float, float], bool] = _is_never_lost
    keeps_best: bool = True
    cooling_passes: int = 0
    is_stalled: ClassVar[bool] = False

    def count_waiting_passes(self, history: Sequence[float]) -> int:
        """Count the passes since the last improvement."""
        best, n_passes = -math.inf, 0
        for k, score in enumerate(history):
            if k == 0 or score > best + self.tol * max(1.0, abs(best)):
                best, n_passes = score, 0
            elif not self.is_lost(best, score):
                n_passes += 1
        return n_passes

    def count_cooling_passes(self, history: Sequence[float]) -> int | None:
        """Count the passes since the fit has waited for `patience` passes.

        The result is None if it has not, or had fewer than `cooling_passes` left when it had.
        """
        last = self.max_iter - self.cooling_passes
        for n in range(self.patience, min(len(history), last) + 1):
            if self.count_waiting_passes(history[:n]) >= self.patience:
                return len(history) - n
        return None

    def has_converged(self, history: Sequence[float]) -> bool:
        """Return whether the fit has waited in vain, and cooled."""
        if not history:
            return False
        n_cooling = self.count_cooling_passes(history)
        return n_cooling is not None and n_cooling >= self.cooling_passes

    def ends_with_best(self, history: Sequence[float]) -> bool:
        """Return whether the best pass is kept; a cooled fit keeps its last, unless it is lost."""
        has_cooled = self.cooling_passes > 0 and not self.is_lost(max(history), history[-1])
        return self.keeps_best and not has_cooled


@dataclass(frozen=True)
class PassCountCriterion(_KeepsLast):
    """Converged after a fixed number of passes."""

    max_iter: int
    is_stalled: ClassVar[bool] = False

    def has_converged(self, history: Sequence[float]) -> bool:
        """Return whether all passes are done."""
        return len(history) >= self.max_iter


@dataclass(frozen=True)
class ExpectedGainCriterion(_KeepsLast):
    """Converged once the last step had almost nothing to gain.

    Attributes
    ----------
    max_iter
        Maximum number of passes.
    tol
        Smallest expected gain that is worth another step, summed over all rows, nats.
    gain
        Expected gain of the last step.
    is_stalled
        Whether no step raises the objective, although the gain should be positive.
    """

    max_iter: int
    tol: float
    gain: float
    is_stalled: bool

    def has_converged(self, history: Sequence[float]) -> bool:
        """Return whether the last step was too small to matter."""
        return bool(history) and self.gain <= self.tol


def is_stage_over(convergence: ConvergenceCriterion, history: Sequence[float]) -> bool:
    """Return whether a stage is over, converged or not."""
    is_last = len(history) >= convergence.max_iter
    return convergence.is_stalled or is_last or convergence.has_converged(history)


def find_final_objective(convergence: ConvergenceCriterion, history: Sequence[float]) -> float:
    """Return the objective of the parameters that a stage ends with."""
    return max(history) if convergence.ends_with_best(history) else history[-1]


def find_reachable_objective(convergence: ConvergenceCriterion, history: Sequence[float]) -> float:
    """Return the objective that a stage might have reached if it had been continued.

    A stage that stops on the change of its objective stops a little below its optimum. So two
    starts with the same optimum do not end with the same objective.
    """
    objective = find_final_objective(convergence, history)
    if not isinstance(convergence, ObjectiveCriterion):
        return objective
    tolerance = max(convergence.threshold, _SAME_OPTIMUM_NATS / convergence.weight)
    return objective + tolerance + estimate_remaining_gain(history)


def describe_starts(
    objectives: Sequence[float],
    reachable: Sequence[float],
    are_finished: Sequence[bool] | None = None,
    counts: Sequence[int] | None = None,
) -> dict[str, int | float]:
    """Return the diagnostics of several starts.

    They are their number, how many reached the best, and how far the next best ended below it.
    Starts that were stopped early, far below the best, are not counted: where they would have ended
    is not known.

    Parameters
    ----------
    objectives
        Objective of each start.
    reachable
        What each start might have reached, see `find_reachable_objective`; or its objective plus
        the difference that does not matter.
    are_finished
        Whether each start has converged; None if all have.
    counts
        Number of starts that each stands for; None for 1.
    """
    best, next_best = (*sorted(objectives, reverse=True), max(objectives))[:2]
    are_at_best = np.array(reachable) >= best
    are_counted = are_at_best | (True if are_finished is None else np.array(are_finished))
    own_counts = np.ones(len(reachable), np.int64) if counts is None else np.array(counts)
    return {
        "starts": int(own_counts[are_counted].sum()),
        "starts_at_best": int(own_counts[are_at_best].sum()),
        "next_start_below": best - next_best,
    }


def warn_about_starts(
    diagnostics: Mapping[str, Any], setting: int | None = None
) -> tuple[FitWarning, ...]:
    """Return a warning if a single one of many starts reached the best objective.

    `setting` is the number that the model was told, which may differ from the number of starts.
    """
    n_starts, n_rows = diagnostics.get("starts", 1), diagnostics.get("sample_rows")
    if n_starts < _MANY_STARTS or diagnostics["starts_at_best"] > 1:
        return ()
    place = "" if n_rows is None else f" on a sample of {n_rows:,} rows"
    text = (
        f"only 1 of {n_starts} starts{place} reached the best objective, and the next ended "
        f"{diagnostics['next_start_below']:.2g} nats per row below it, so a better fit may exist; "
        f"{{starts={4 * (setting or n_starts)}}} searches longer"
    )
    return (FitWarning(text),)


def describe_ending(converged: bool) -> str:
    """Describe how a fit ended, for summaries, reports and lists of runs."""
    return "converged" if converged else "stopped before converging"


def describe_passes(n_passes: int, converged: bool) -> str:
    """Describe the passes of a fit and how it ended; fits by a single pass do not converge."""
    if converged and n_passes <= 1:
        return f"{n_passes:,}, not iterative"
    return f"{n_passes:,}, {describe_ending(converged)}"


def warn_about_ending(
    convergence: ConvergenceCriterion, history: Sequence[float]
) -> tuple[FitWarning, ...]:
    """Return a warning if a fit whose last stage is over stopped before it converged.

    The criterion is the one that ended the stage: after the last update, a model's criterion may
    no longer know why.
    """
    if convergence.has_converged(history):
        return ()
    if convergence.is_stalled:
        reason = "because no step raised the objective; fewer components may do better"
    else:
        reason = f"at {{max_iter={convergence.max_iter}}}; raise it"
    objectives = ", ".join(f"{value:.6f}" for value in history[-2:])
    text = f"{describe_ending(False)}, {reason}. Last objectives: {objectives}"
    return (FitWarning(text),)


def adapt_to_newton_steps(
    convergence: ConvergenceCriterion, memory: AccelerationMemory
) -> ConvergenceCriterion:
    """Return the criterion of a stage, or that of Newton's steps if these are the last ones.

    These converge so fast that they can do better than the threshold of EM.
    """
    if not isinstance(convergence, ObjectiveCriterion) or not is_newton_step(memory):
        return convergence
    tol = convergence.threshold * convergence.weight
    most = max(tol, _MOST_GAIN * convergence.weight)
    gain = tol * max(
        float(memory["remaining"]) / (_MOST_REMAINING * tol), float(memory["gain"]) / most
    )
    return ExpectedGainCriterion(convergence.max_iter, tol, gain, is_stalled=False)


def is_newton_step(memory: AccelerationMemory) -> bool:
    """Return whether the step that left this memory is one of Newton's method."""
    return "gain" in memory


class NewtonStep(NamedTuple):
    """The change of the parameters, and the memory for the next call.

    `change` is None if the last step was worse and is rejected: `fallback` of the memory follows.
    """

    change: Array | None
    memory: AccelerationMemory


def choose_newton_step(
    gradient: Array, fallback: Array, objective: float, memory: AccelerationMemory
) -> NewtonStep:
    """Choose a step of Newton's method.

    Parameters
    ----------
    gradient
        Of the objective of all rows, (p,).
    fallback
        Result of EM, packed.
    objective
        Objective per row.
    memory
        Has the inverse of the information; other entries come from the previous call.
    """
    inverse, damping = memory["inverse"], float(memory.get("damping", 1.0))
    if "change" in memory:
        inverse = _update_inverse(inverse, memory["change"], memory["gradient"] - gradient)
    if objective < float(memory.get("objective", -np.inf)):
        if damping / 2 < _LEAST_DAMPING:
            return NewtonStep(None, {})
        return NewtonStep(None, {"inverse": inverse, "damping": np.array(damping / 2)})
    change = inverse @ gradient
    gain = float(0.5 * gradient @ change)
    before = float(memory.get("gain", np.inf))
    ratio = min(gain / before, _MAX_GAIN_RATIO) if before > 0 else 0.0
    own = {
        "damping": min(1.0, 2 * damping),
        "objective": objective,
        "gain": gain,
        "remaining": gain * ratio / (1 - ratio) if np.isfinite(before) and damping == 1 else gain,
    }
    numbers = {name: np.array(value) for name, value in own.items()}
    change = damping * change
    last = {"inverse": inverse, "gradient": gradient, "change": change, "fallback": fallback}
    return NewtonStep(change, {**last, **numbers})


def _update_inverse(inverse: Array, change: Array, difference: Array) -> Array:
    """Correct H along the last step, whose effect on the gradient is known, by the BFGS formula.

    J. Nocedal, S. J. Wright, Numerical optimization (2006), equation 6.17.
    """
    curvature = float(change @ difference)
    if curvature <= 0:
        return inverse
    moved = inverse @ difference
    across = np.outer(moved, change)
    factor = (1 + float(difference @ moved) / curvature) / curvature
    updated: Array = inverse - (across + across.T) / curvature + factor * np.outer(change, change)
    return updated


class SquaremStep(NamedTuple):
    """θ of the next pass, and the memory for the next call.

    `accepted` is False if the extrapolation that the last pass evaluated was worse and is rejected.
    """

    parameters: Array
    memory: AccelerationMemory
    accepted: bool


def choose_squarem_step(
    theta: Array, mapped: Array, objective: float, memory: AccelerationMemory
) -> SquaremStep:
    """Choose the parameters of the next pass.

    `theta` is θ of the last pass, `objective` its objective, and `mapped` the result of EM at θ.
    `memory` comes from the previous call and is empty at first.
    """
    place, limit = int(memory.get("place", 0)), float(memory.get("limit", _FIRST_LIMIT))
    if place == 0:
        return SquaremStep(mapped, _make_memory(1, limit, start=theta), True)
    if place == 1:
        return _extrapolate(memory["start"], theta, mapped, objective, limit)
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


def _make_memory(place: int, limit: float, **arrays: Array) -> AccelerationMemory:
    return {"place": np.array(float(place)), "limit": np.array(limit), **arrays}
