"""Base class of the models that learn by gradient steps on batches.

`pipeline.learning.training` describes how steps are taken and passes are judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion
from pipeline.learning.training import GradientTraining, compute_finite_score
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import FitState
from pipeline.statistics.sums import StepSums


@dataclass(frozen=True)
class GradientModel(Model):
    """Settings and central step shared by these models.

    A subclass implements `initialize` (see `_make_initial_state`), `learn`, `transform`, and the
    two hooks `_score_scale` and `_diagnose`.

    Attributes
    ----------
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer.
    optimizer
        How a gradient becomes a step.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes without improvement after which the fit stops.
    max_iter
        Maximum number of passes over the data.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if the
        objective is above 1.
    """

    statistics: ClassVar[type[StepSums]] = StepSums
    default_rates: ClassVar[Mapping[str, float]]
    """Initial learning rate by optimizer, used if `rate` is None."""
    n_components: int | None = None
    _: KW_ONLY
    batch: int | None = setting(None, minimum=1)
    rate: float | None = setting(None, above=0)
    optimizer: Literal["adam", "momentum"] = "adam"
    momentum: float = setting(0.9, minimum=0, below=1)
    patience: int = setting(20, minimum=1)
    max_iter: int = setting(100, minimum=1)
    tol: float = setting(1e-5, above=0, below=1)

    @property
    def _training(self) -> GradientTraining:
        return GradientTraining.from_model(self, self.default_rates)

    def _get_stage_training(self, state: FitState) -> GradientTraining:
        """Return how steps are taken in the current stage."""
        return self._training

    def _make_initial_state(
        self,
        params: Any,
        n_samples: int,
        n_numbers: int,
        baseline_score: float,
        warnings: tuple[FitWarning, ...],
    ) -> FitState:
        """Return the state before the first pass.

        Parameters
        ----------
        params
            Initial parameters.
        n_samples
            Number of rows that steps are taken with.
        n_numbers
            Number of learned values.
        baseline_score
            Score per row before anything is learned, nats; kept as `working["unlearnt"]`.
        warnings
            Warnings about the data.
        """
        working = self._training.make_working_state(n_samples, n_numbers)
        return FitState(
            params, {**working, "unlearnt": np.array(baseline_score)}, warnings=warnings
        )

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Return a criterion that stops after `patience` passes without improvement."""
        return self._get_stage_training(state).get_convergence_criterion(
            state, float(state.working["unlearnt"])
        )

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Apply the mean change of all tasks, or return to the best pass; reduce the rate."""
        unlearnt = float(state.working["unlearnt"])
        change, working = self._get_stage_training(state).compute_mean_change(
            state, statistics, unlearnt
        )
        params = state.best if change is None else self._move_params(state, change)
        return replace(state, params=params, working=working)

    def _move_params(self, state: FitState, change: Any) -> Any:
        """Return the parameters plus a change of all learned values."""
        return state.params.add_change(change)

    def objective(self, params: Any, statistics: Any) -> float:
        """Return the mean score of a held-out row, nats."""
        return compute_finite_score(statistics, self._score_scale(params))

    def _score_scale(self, params: Any) -> float:
        """Return a typical score per row; scores that are not finite are set far below it."""
        raise NotImplementedError

    def finish(self, state: FitState, statistics: Any) -> FitState:
        """Add the diagnostics, and warnings about steps that were too long."""
        return replace(self._add_training_warnings(state), diagnostics=self._diagnose(state))

    def _diagnose(self, state: FitState) -> dict[str, Any]:
        """Return the diagnostics of a finished fit: at least `n_components` and `objective_is`."""
        raise NotImplementedError

    def _add_training_warnings(self, state: FitState) -> FitState:
        """Add the warnings of the current stage, each text once."""
        warnings = self._get_stage_training(state).make_warnings(
            state, float(state.working["unlearnt"])
        )
        return replace(state, warnings=tuple(dict.fromkeys((*state.warnings, *warnings))))
