"""Binary ICA by full likelihood, with segments that are hidden states.

Model: segments follow a Markov chain as in `hidden_segments`, and rows of a segment follow the
model of `likelihood`.

Fit: segments are found as for `blica`, with rows scored by this model, which BLICA's parameters are
converted to in every pass. BLICA is then fitted to the segments with the settings of `likelihood`.
From there, passes maximise the log-likelihood of the sequence of all rows and the priors of
`likelihood`: by Fisher's identity, its derivatives are the scores of the rows in each segment,
weighted by P(u_n | all rows). The products of scores are weighted in the same way. They are the
information about the parameters if segments were known, of which less is left; steps learn the
difference from the changes of the derivatives, see `scoring_steps`. ρ and T are updated as by
Baum and Welch, with pseudo-counts of 0.1.

The table is that of `likelihood`, with the chain of `hidden_segments`. Standard errors are given
the segments: they leave out what it adds that segments are found, not known.

Cost per block: as the search of `hidden_segments`; then that of `likelihood` for each segment and
distinct row, three times in a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any, ClassVar

import numpy as np

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion
from pipeline.models.binary_ica.blica import BLICAParams
from pipeline.models.binary_ica.hidden_segments import (
    DensityFunction,
    HiddenSegments,
    SegmentChain,
    SegmentSums,
    deal_rows,
    estimate_chain,
    take_segments,
)
from pipeline.models.binary_ica.likelihood import (
    BinaryICALikelihood,
    ScoreFunction,
    find_patterns,
    params_from_blica,
    sum_pattern_scores,
)
from pipeline.models.binary_ica.scoring_steps import BinaryICALikelihoodParams
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.sums import ScoreSums, Sums

_CHAIN = ("initial", "transition")


@dataclass(frozen=True, kw_only=True)
class HiddenLikelihoodParams(SegmentChain, BinaryICALikelihoodParams):
    """Parameters of binary ICA by likelihood, and of the Markov chain of segments."""


@dataclass(frozen=True)
class HiddenSegmentLikelihood(HiddenSegments, BinaryICALikelihood):
    """Hyperparameters of binary ICA by likelihood with `segments=auto`.

    Attributes
    ----------
    segments
        `auto`: segments are hidden states of the rows, in their order.
    n_segments
        Number of segments. None takes the number with the lowest BIC, from 3 to 32.
    n_components
        Number of components; None takes the number that BLICA chooses, given the segments.
    likelihood
        How log P(x) in a segment is computed, after the search for segments: `exact` integrates it,
        which takes at most 20 features or 2 components; `ep` approximates it by expectation
        propagation; `auto` is exact up to 2 components, else `ep`.
    starts
        Number of random starts of the BLICA fit that provides the starting point.
    min_rows
        Minimum number of rows of a segment in BLICA fits, which leave out smaller ones.
    max_iter
        Maximum number of passes: for each number of segments, and again for the likelihood.
    tol
        The fit ends once a further step should gain less than this, in nats over all rows.
    """

    params: ClassVar[type[HiddenLikelihoodParams]] = HiddenLikelihoodParams
    max_iter: int = setting(300, minimum=1)
    tol: float = setting(0.01, above=0)

    def count_groups(self, n_features: int) -> int:
        """Return the number of groups of BLICA."""
        return self._make_start_model().count_groups(n_features)

    def estimate_work(
        self, params: Any, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the search, or of the scores of each segment."""
        work = super().estimate_work(params, working, n_features, n_rows)
        if not _has_scores(working):
            return work
        scores = BinaryICALikelihood.estimate_work(self, params, working, n_features, n_rows)
        n_segments = len(params.segments)
        nanoseconds = work.nanoseconds + 2 * n_segments * scores.nanoseconds
        return WorkEstimate(nanoseconds, n_segments * scores.result_bytes)

    def _convert_params(self, params: BLICAParams) -> BinaryICALikelihoodParams:
        return params_from_blica(params)

    def _fit_pairs(
        self, state: FitState, pairs: PairCounts, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        return self._start_from_pairs(state, pairs, map_items, rng)

    def _count_parameters(self, params: HiddenLikelihoodParams) -> int:
        """Count A, c, μ and σ², less the lengths of columns, and the means that c can take."""
        point = params.point
        return int(point.n_shared + 2 * point.means.size - 2 * point.mixing.shape[1])

    def _find_density_function(self, params: Any, working: Arrays) -> DensityFunction:
        if not _has_scores(working):
            return super()._find_density_function(params, working)
        return _make_density_function(self._find_score_function(params))

    def summarize(self, params: Any, working: Arrays, block: BinaryBlock, rng: RowRandom) -> Any:
        """Count the pairs of rows dealt to segments, or sum the scores of each segment."""
        if not _has_scores(working):
            return super().summarize(params, working, block, rng)
        posterior, values, nats = self._find_posterior(params, working, block, rng)
        posterior /= posterior.sum(axis=1, keepdims=True)
        n_segments = len(params.segments)
        rows = np.bincount(deal_rows(posterior, block, rng), minlength=n_segments).tolist()
        patterns, score_rows = find_patterns(block), self._find_score_function(params)
        parts = (
            sum_pattern_scores(
                params,
                replace(patterns.block, segment=u),
                patterns.count_rows(posterior[:, u]),
                rows[u],
                score_rows,
            )
            for u in range(n_segments)
        )
        scores = replace(reduce(ScoreSums.merge, parts), log_likelihood=nats)
        sums = Sums.from_block(block, nats, {**values, "mass": posterior.sum(axis=0)})
        return SegmentSums(sums, scores=scores)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop scores as `BinaryICALikelihood` does."""
        if _has_scores(state.working):
            return BinaryICALikelihood.get_convergence_criterion(self, state)
        return super().get_convergence_criterion(state)

    def update(
        self,
        state: FitState,
        statistics: Any,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Fit BLICA to the segments of the rows, or step towards the maximum."""
        if not _has_scores(state.working):
            return super().update(state, statistics, map_items, rng)
        stepped = self._step(state, statistics.scores)
        if stepped.auxiliary["share"] < 1:  # from the best point; the chain is that after it
            return stepped
        own = {name: getattr(state.params, name) for name in _CHAIN}
        start = {f"start_{name}": chances for name, chances in own.items()}
        best = {f"best_{name}": chances for name, chances in own.items()}
        chain = estimate_chain(statistics.sums.values, state.params.segments)
        params = replace(stepped.params, **dict(zip(_CHAIN, chain, strict=True)))
        return replace(stepped, params=params, auxiliary={**start, **stepped.auxiliary, **best})

    def _begin_last(self, state: FitState) -> FitState:
        return replace(super()._begin_last(state), working={"is_start": np.array(1)})

    def next_stage(self, state: FitState, statistics: Any) -> FitState | None:
        """Search for segments, fit BLICA to them, then maximise the likelihood."""
        if "is_start" in state.working:
            return replace(state, working={})
        return super().next_stage(state, statistics)

    def finish(self, state: FitState, statistics: Any) -> FitState:
        """Return to the highest point, and sort segments by their rows."""
        best, scores = state.auxiliary, statistics.scores
        place = "start" if best["likelihood"][0] < best["start"][0] else "best"
        finished = BinaryICALikelihood.finish(self, state, scores)
        mass = statistics.sums.values["mass"]
        params = replace(
            finished.params,
            **{name: best[f"{place}_{name}"] for name in _CHAIN},
            weights=mass / mass.sum(),
            segment_rows=np.maximum(scores.rows, 1),
        )
        order = np.argsort(-params.segment_rows, kind="stable")
        finished = replace(finished, params=take_segments(params, order))
        return super().finish(finished, statistics)


def _has_scores(working: Arrays) -> bool:
    """Return whether a pass maximises the likelihood, after the search and the fit of BLICA."""
    return "is_search" not in working and "is_start" not in working


@cache
def _make_density_function(score_rows: ScoreFunction) -> DensityFunction:
    def compute_densities(*rows: Any) -> tuple[Array, Array]:
        scores = score_rows(*rows)
        return scores.log_likelihood, scores.error

    return compute_densities
