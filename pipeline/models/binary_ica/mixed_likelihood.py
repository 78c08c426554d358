"""Binary ICA by likelihood with continuous features.

Model: as in `ordinal_likelihood`, and a continuous feature is m_i + s_i (√(π/8) a_i·z + c_i + ε),
with ε ~ N(0, 1). m_i is the mean of its values; c_i and s_i are common to all segments. Given z,
the features are independent, so a row's density is an integral over z of normal densities and of
probabilities of levels; see `numerics.probit.probit_scores`.

The fit has two stages. The first is a pass that counts pairs for BLICA with continuous features,
see `mixed`. The second takes the steps of `scoring_steps`, with log s_i as further shared
parameters. Their prior is N(0, 4) in units of the standard deviations of the values.

Passes: one counts levels and sums means and variances; one counts pairs; the others sum scores.
Cost per row: as of `ordinal_likelihood` per distinct row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import find_continuous
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, ObjectiveCriterion
from pipeline.models.binary_ica.blica import BLICAParams, make_empty_params
from pipeline.models.binary_ica.likelihood import sum_scores
from pipeline.models.binary_ica.mixed import MixedBLICA
from pipeline.models.binary_ica.ordinal_likelihood import OrdinalBinaryICALikelihood
from pipeline.models.binary_ica.scoring_steps import BinaryICALikelihoodParams
from pipeline.models.state import Arrays, FitState
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.measurements import FIRST_KEY, MeasuredCounts, MixedStatistics
from pipeline.statistics.sums import ScoreSums, UntiledStatistics


@dataclass(frozen=True)
class StageSums(UntiledStatistics):
    """Sums of a pass of either stage; the other part is None.

    Attributes
    ----------
    pairs
        Counts and sums of the BLICA fit.
    scores
        Scores of rows.
    """

    label: ClassVar[str] = "scores"
    pairs: MixedStatistics | None = None
    scores: ScoreSums | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows read."""
        return self._part.n_rows

    @property
    def weight(self) -> float:
        """Number of rows; models with these sums take no weights."""
        return self._part.weight

    @property
    def objective(self) -> float:
        """Log-likelihood summed over rows, nats, or 0 in the first stage."""
        return self._part.objective

    @property
    def _part(self) -> MixedStatistics | ScoreSums:
        part = self.pairs or self.scores
        assert part is not None
        return part

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        if self.pairs is not None and other.pairs is not None:
            return replace(self, pairs=self.pairs.merge(other.pairs))
        assert self.scores is not None
        assert other.scores is not None
        return replace(self, scores=self.scores.merge(other.scores))

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        return self._part.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore the sums from the arrays of `to_arrays`."""
        if "log_likelihood" in arrays:
            return cls(scores=ScoreSums.from_arrays(arrays))
        return cls(pairs=MixedStatistics.from_arrays(arrays))


@dataclass(frozen=True)
class MixedBinaryICALikelihood(OrdinalBinaryICALikelihood):
    """Hyperparameters of binary ICA by likelihood with continuous features."""

    first_statistics: ClassVar[type[FeatureCounts]] = MeasuredCounts  # type: ignore[assignment]
    statistics: ClassVar[type[Any]] = StageSums

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> MeasuredCounts:  # type: ignore[override]
        """Count the levels of a block, and sum means and variances."""
        return MeasuredCounts.from_block(block)

    def first_key(self, seed: int) -> str:
        """Return a key of the counts with moments of continuous features."""
        return FIRST_KEY

    def estimate_work(
        self, params: BinaryICALikelihoodParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of counting pairs, or of the scores, per row."""
        if _is_first_stage(params):
            return self._make_start_model().estimate_work(params, working, n_features, n_rows)
        return super().estimate_work(params, working, n_features, n_rows)

    def _estimate_distinct(self, n_features: int, n_segments: int) -> float:
        return np.inf

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the products of scores, or of the BLICA fit if it needs more."""
        n_shared = 2 * len(find_continuous(self.structure.features))
        return super().estimate_memory(n_features + n_shared, n_segments, n_threads)

    def _make_start_model(self) -> MixedBLICA:
        model = super()._make_start_model()
        assert isinstance(model, MixedBLICA)
        return model

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:  # type: ignore[override]
        """Check margins and moments for the BLICA fit of the first stage."""
        if self.n_components is not None:
            self._check_exact(len(self.structure.features), self.n_components)
        start = self._make_start_model().initialize(first, rng)
        return replace(start, params=make_empty_params(BinaryICALikelihoodParams))

    def summarize(  # type: ignore[override]
        self, params: BinaryICALikelihoodParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> StageSums:
        """Count the pairs of a block, or score its rows."""
        if _is_first_stage(params):
            empty = make_empty_params(BLICAParams)
            return StageSums(pairs=self._make_start_model().summarize(empty, working, block, rng))
        return StageSums(scores=sum_scores(params, block, self._find_score_function(params)))

    def mean_log_likelihood(
        self, params: BinaryICALikelihoodParams, statistics: Any
    ) -> float | None:
        """Return the log-likelihood per row, nats; None of the first stage."""
        scores = statistics.scores
        return None if scores is None else super().mean_log_likelihood(params, scores)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:  # type: ignore[override]
        """Stop the first stage after its pass, and the second as for other features."""
        if "priors" not in state.auxiliary:  # the first stage
            return ObjectiveCriterion(1, 0.0)
        return super().get_convergence_criterion(state)

    def update(  # type: ignore[override]
        self,
        state: FitState,
        statistics: StageSums,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Fit BLICA, or step towards the maximum."""
        if statistics.scores is not None:
            return super().update(state, statistics.scores, map_items, rng)
        assert statistics.pairs is not None
        blica = self._make_start_model()
        fitted = blica.update(state, statistics.pairs, map_items, rng)
        assert statistics.pairs.pairs is not None
        state = state.with_warnings(blica.warn_about_nested_features(statistics.pairs.pairs))
        return self._start_from(fitted.params, state)

    def next_stage(self, state: FitState, statistics: StageSums) -> FitState | None:
        """Return the state of the second stage after the first."""
        return state if statistics.scores is None else None

    def finish(self, state: FitState, statistics: StageSums) -> FitState:  # type: ignore[override]
        """Finish the fit, and name the features of warnings."""
        assert statistics.scores is not None
        return super().finish(state, statistics.scores)


def _is_first_stage(params: BinaryICALikelihoodParams) -> bool:
    return params.mixing.size == 0
