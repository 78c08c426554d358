"""Log-odds of each feature, found by many central steps from counts that are read once.

Model: P(x_i = 1) = σ(θ_i), features independent.

Needs of the contract: central iterations; a model that can do nothing but code rows.
Not identifiable: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins


@dataclass(frozen=True)
class ClimberParams:
    """Log-odds."""

    log_odds: NDArray[np.float64] = array_field("feature")


@dataclass(frozen=True)
class Climber(Model):
    """Hyperparameters.

    Attributes
    ----------
    n_components
        Groups of features whose ones are counted; None takes 2.
    max_iter
        Steps at the most.
    tol
        Change of the objective at which to stop.
    """

    name: ClassVar[str] = "climber"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    params: ClassVar[type[ClimberParams]] = ClimberParams
    n_components: int | None = None
    max_iter: int = setting(200, minimum=1)
    tol: float = setting(1e-6, above=0, below=1)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Begin at random."""
        observed, ones = pool_margins(first)
        constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
        noted = (FitWarning("constant: {features}", constant),) if constant else ()
        return FitState(ClimberParams(rng.standard_normal(len(ones))), warnings=noted)

    def counts_key(self, n_features: int) -> str:
        """Name the margins."""
        return "margins"

    def summarize(
        self, params: ClimberParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> FeatureCounts:
        """Count ones."""
        return FeatureCounts.from_block(block)

    def objective(self, params: ClimberParams, statistics: FeatureCounts) -> float:
        """Return the log-likelihood of a row with a pseudo-count of each value."""
        observed, ones = pool_margins(statistics)
        nats = (ones + 1) * params.log_odds - (observed + 2) * np.logaddexp(0, params.log_odds)
        return float(nats.sum()) / statistics.n_rows

    def update(
        self,
        state: FitState,
        statistics: FeatureCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Take one step uphill."""
        observed, ones = pool_margins(statistics)
        slope = (ones + 1) / (observed + 2) - expit(state.params.log_odds)
        return replace(state, params=ClimberParams(state.params.log_odds + 2 * slope))

    def finish(self, state: FitState, statistics: FeatureCounts) -> FitState:
        """Say how many components there are."""
        return replace(state, diagnostics={"n_components": self.n_components or 2})

    def transform(
        self, params: ClimberParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Sum the log-odds of the ones of each group."""
        q = self.n_components or 2
        each = block.unpack_values() * params.log_odds
        return {"mean": np.stack([each[:, k::q].sum(axis=1) for k in range(q)], axis=1)}
