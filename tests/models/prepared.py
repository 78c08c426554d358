"""The mixture of Bernoullis with weights that are not normalised, so that log Z is estimated.

Model: as `pipeline.models.bernoulli_mixture.model`, with π up to a factor.

Needs of the contract: a start from rows drawn from the data, parameters that are prepared once
after the fit, and a likelihood whose error all rows share.
Not identifiable: the order of components; the factor of π.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.executors.base import MapFunction
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.state import FitState
from pipeline.models.support import Support
from pipeline.params import optional_array_field
from pipeline.random import RowRandom
from pipeline.statistics.row_samples import RowSample

_DRAWS, _TASKS = 2000, 4


@dataclass(frozen=True)
class PreparedParams(BernoulliMixtureParams):
    """As of the mixture, with log Z and its standard error once these are known."""

    log_z: NDArray[np.float64] | None = optional_array_field()
    log_z_error: NDArray[np.float64] | None = optional_array_field()


@dataclass(frozen=True)
class PreparedMixture(BernoulliMixture):
    """Hyperparameters, as of the mixture."""

    name: ClassVar[str] = "prepared-mixture"
    first_statistics: ClassVar[type[Any]] = RowSample
    params: ClassVar[type[Any]] = PreparedParams
    support: ClassVar[Support] = Support()  # no weights: rows are drawn one by one

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> RowSample:
        """Draw rows to begin at."""
        return RowSample.from_block(block, 20, rng)

    def first_key(self, seed: int) -> str:
        """Name the draw."""
        return f"20 rows by seed {seed}"

    def initialize(self, first: RowSample, rng: np.random.Generator) -> FitState:
        """Begin with the components nearer to rows of the data."""
        state = super().initialize(first.counts, rng)
        starts = tuple(self._nearer(start, first) for start in state.starts)
        return replace(self._nearer(state, first), starts=starts)

    def _nearer(self, state: FitState, first: RowSample) -> FitState:
        p = state.params.probabilities
        rows = np.resize(first.X, p.shape)
        params = PreparedParams(0.8 * p + 0.2 * np.clip(rows, 0.1, 0.9), state.params.weights)
        return replace(state, params=params)

    def update(self, *given: Any) -> FitState:
        """Do the M-step."""
        return _typed(super().update(*given))

    def next_stage(self, *given: Any) -> FitState | None:
        """Go through the stages of the mixture."""
        following = super().next_stage(*given)
        return None if following is None else _typed(following)

    def finish(self, *given: Any) -> FitState:
        """Sort the components."""
        return _typed(super().finish(*given))

    def prepare(
        self, params: PreparedParams, rng: np.random.Generator, map_items: MapFunction
    ) -> Any:
        """Estimate log Z = log Σ_k π_k, by drawing components evenly."""
        seeds = rng.integers(2**63, size=_TASKS).tolist()
        drawn = np.concatenate([*map_items(_Draw(params.weights), seeds)])
        z, error = drawn.mean(), drawn.std() / np.sqrt(len(drawn))
        return replace(params, log_z=np.array(np.log(z)), log_z_error=np.array(error / z))

    def log_likelihood(
        self, params: PreparedParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return log P(x) by the estimate of log Z."""
        found = super().log_likelihood(params, block, rng)
        assert params.log_z is not None
        assert params.log_z_error is not None
        return found._replace(
            nats=found.nats - params.log_z, shared_error=float(params.log_z_error)
        )


@dataclass(frozen=True)
class _Draw:
    """Draws weights for one task."""

    weights: NDArray[np.float64]

    def __call__(self, seed: int) -> NDArray[np.float64]:
        n = len(self.weights)
        return n * self.weights[np.random.default_rng(seed).integers(n, size=_DRAWS)]


def _typed(state: FitState) -> FitState:
    """Return the parameters in the class that has a field for log Z."""

    def one(params: Any) -> PreparedParams:
        kept = {f.name: getattr(params, f.name) for f in fields(BernoulliMixtureParams)}
        return PreparedParams(**kept)

    starts = tuple(replace(start, params=one(start.params)) for start in state.starts)
    return replace(state, params=one(state.params), starts=starts)
