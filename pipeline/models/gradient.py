"""Base class of models that take gradient steps over batches: their settings and passes.

`pipeline.learning.training` takes the steps and judges the passes.
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
    """Settings that all models trained by gradient steps share.

    `initialize` must put into `working` the arrays of `GradientTraining.make_working_state`, and
    as `unlearnt` the score per row before any training, nats.

    Attributes
    ----------
    batch
        Rows per step; None chooses 10 to 100, so that a pass has about 20 steps or more.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer.
    optimizer
        Update rule: Adam, or plain momentum.
    momentum
        Decay factor of the running mean of gradients.
    patience
        Passes to wait for an improvement.
    max_iter
        Maximum number of passes over the data.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if the
        objective is above 1.
    """

    statistics: ClassVar[type[StepSums]] = StepSums
    default_rates: ClassVar[Mapping[str, float]]
    """Default initial learning rate, by optimizer."""
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
        """Return the training settings of the current stage."""
        return self._training

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Return a criterion that waits for an improvement."""
        return self._get_stage_training(state).get_convergence_criterion(
            state, float(state.working["unlearnt"])
        )

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Move by the mean change of all tasks, or return to the best pass; shorten the steps."""
        unlearnt = float(state.working["unlearnt"])
        change, working = self._get_stage_training(state).compute_mean_change(
            state, statistics, unlearnt
        )
        params = state.best if change is None else self._move_params(state, change)
        return replace(state, params=params, working=working)

    def _move_params(self, state: FitState, change: Any) -> Any:
        """Return the parameters after adding a change to all trained numbers."""
        return state.params.add_change(change)

    def _add_training_warnings(self, state: FitState) -> FitState:
        """Add the warnings about a stage; a warning that several stages give appears once."""
        warnings = self._get_stage_training(state).make_warnings(
            state, float(state.working["unlearnt"])
        )
        return replace(state, warnings=tuple(dict.fromkeys((*state.warnings, *warnings))))
