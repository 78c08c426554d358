"""What models that learn by steps along gradients of batches have in common: settings and passes.

How steps are taken and judged is told in `pipeline.learning.training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion
from pipeline.learning.training import GradientTraining
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import FitState
from pipeline.statistics.sums import StepSums


@dataclass(frozen=True)
class GradientModel(Model):
    """Settings of all such models.

    `initialize` puts into `working` the state that `Training.first` gives, and as `unlearnt` the
    score of a row where nothing was learnt, nats.

    Attributes
    ----------
    batch
        Rows of a step; None takes 100, or fewer, 10 at the least, so that a pass has 20 steps.
    rate
        Length of the first steps, that of the last is 0; None takes what suits the optimizer.
    optimizer
        How a gradient becomes a step.
    momentum
        Share that the mean gradient keeps of itself from step to step.
    patience
        Passes to wait for something better.
    max_iter
        Passes at the most.
    tol
        Gain of the objective per row, relative where that is above 1, that counts as better.
    """

    statistics: ClassVar[type[StepSums]] = StepSums
    default_rates: ClassVar[Mapping[str, float]]
    """Length of the first steps where none is given, by optimizer."""
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
        """Give how steps are taken in the stage that the state is in."""
        return self._training

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Wait for something better."""
        return self._get_stage_training(state).get_convergence_criterion(
            state, float(state.working["unlearnt"])
        )

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Move by the mean change of all tasks, or back; the next steps are shorter."""
        unlearnt = float(state.working["unlearnt"])
        change, working = self._get_stage_training(state).compute_mean_change(
            state, statistics, unlearnt
        )
        params = state.best if change is None else self._move_params(state, change)
        return replace(state, params=params, working=working)

    def _move_params(self, state: FitState, change: Any) -> Any:
        """Give the parameters after a change of all numbers that are learnt."""
        return state.params.add_change(change)

    def _add_training_warnings(self, state: FitState) -> FitState:
        """Say what is in doubt of a stage, once where it is said of several."""
        doubts = self._get_stage_training(state).make_warnings(
            state, float(state.working["unlearnt"])
        )
        return replace(state, warnings=tuple(dict.fromkeys((*state.warnings, *doubts))))
