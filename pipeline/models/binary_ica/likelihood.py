"""Binary ICA by full likelihood: the model of BLICA, fitted to whole rows instead of pairs.

Model, in segment u: z ~ N(μ, diag σ²), y = A z, P(x_i = 1 | z) = Φ(√(π/8) y_i + c_i). All segments
share A and c (A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022, eqs 2–7, where c is 0). Unlike in BLICA, the means of
the features carry information about A.

Fit: maximise the posterior by scoring (`optimiser`), starting from a BLICA fit at a ridge of 20. A
pass sums the scores of all rows and their products; each distinct row of a block is scored once.
P(x) is an orthant probability (eq. 7). It is integrated over z for one or two components
(`numerics.probit.probit_quadrature`) and approximated by expectation propagation for more
(`numerics.probit.probit_scores`). The priors are normal, and their variances are estimated from the
data: log σ² around 0 for the mean over segments, μ and c around 0, and the log lengths of the rows
of A around their mean.

==========  ====================  ==============================================
symbol      field                 shape
==========  ====================  ==============================================
A           mixing                (n_features, n_components)
c           offsets               (n_features,)
μ           source_means          (n_segments, n_components)
σ²          source_variances      (n_segments, n_components)
s.e. of A   mixing_error          (n_features, n_components)
s.e. of c   offsets_error         (n_features,)
of log σ²   log_variances_error   (n_segments, n_components)
==========  ====================  ==============================================

Missing values are left out of P(x), which is right if they are missing at random.
Cost per distinct row of a block: its scores, and (n_features n_components)² for their products.
Passes: one that counts pairs, then 8 to 20. A hundred or more are needed if the data are far from
the model or there are far too few components.
Not identifiable: order, sign and length of columns (ordered by explained variance, largest entry
positive, length 1); sources whose means and variances change alike. With as many components as
features, the length of a row of A relative to the noise is known almost only from the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.executors.serial import SerialExecutor
from pipeline.learning.convergence import ExpectedGainCriterion
from pipeline.models.binary_ica.blica import BLICA, BLICAParams
from pipeline.models.binary_ica.moment_matching.warnings import warn_about_mixing
from pipeline.models.binary_ica.optimiser import (
    BinaryICALikelihoodParams,
    ParameterPoint,
    PriorVariances,
    SearchPath,
    find_maximum,
    limit_step,
    log_prior,
    make_empty_path,
    make_initial_priors,
    standard_errors,
    update_priors,
)
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE, ProbitICA, SegmentModel
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.probit.orthant import MAX_FEATURES
from pipeline.numerics.probit.orthant_scores import orthant_scores
from pipeline.numerics.probit.probit_quadrature import MAX_COMPONENTS, quadrature_scores
from pipeline.numerics.probit.probit_scores import ProbitScores, ep_scores
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.sums import ScoreSums

_START_RIDGE = 20.0
_MIN_STEP_SHARE = 1 / 32
_VARIANCE_RANGE, _MAX_LOG_VARIANCE = (1e-3, 1e3), 3.0  # of sources to begin with, and of their logs


@dataclass(frozen=True)
class BinaryICALikelihood(ProbitICA):
    """Hyperparameters of binary ICA by likelihood.

    Attributes
    ----------
    n_components
        Number of components; None takes as many as BLICA finds.
    likelihood
        How log P(x) is found: `exact` integrates it, which takes at most 20 features or 2
        components; `ep` approximates it by expectation propagation; `auto` is exact up to 2
        components.
    starts
        Random starts of the BLICA fit that this one starts from.
    max_iter
        Passes at the most.
    tol
        Nats that a further step should gain, in all rows together, below which the fit ends.
    """

    name: ClassVar[str] = "binary-ica-likelihood"
    first_statistics: ClassVar[type[PairCounts]] = PairCounts
    statistics: ClassVar[type[ScoreSums]] = ScoreSums
    params: ClassVar[type[BinaryICALikelihoodParams]] = BinaryICALikelihoodParams
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("likelihood_error",)
    has_expensive_rows: ClassVar[bool] = True
    n_components: int | None = None
    likelihood: Literal["auto", "exact", "ep"] = "auto"
    starts: int = setting(3, minimum=1)
    max_iter: int = setting(300, minimum=1)
    tol: float = setting(0.01, above=0)

    def _make_start_model(self) -> BLICA:
        """Give the model whose fit this one begins at."""
        ridge = None if self.n_components is None else _START_RIDGE
        return BLICA(self.n_components, ridge, starts=self.starts)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the products of scores, and of what the start needs."""
        n_components = self.n_components or n_features
        n_shared, n_own = n_features * (n_components + 1), 2 * n_components
        products = n_shared**2 + n_segments * n_own * n_shared
        start = self._make_start_model().estimate_memory(n_features, n_segments, n_threads)
        return max(start, 8 * products * (2 * n_threads + 4))

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> PairCounts:
        """Count the pairs of a block, as BLICA does."""
        return PairCounts.from_groups(
            block, self._make_start_model().count_groups(block.n_features)
        )

    def first_key(self, seed: int) -> str:
        """Name the pairs counted: of how many groups depends on what BLICA has to choose."""
        return "pairs of one group" if self.n_components else "pairs of groups"

    def initialize(self, first: PairCounts, rng: np.random.Generator) -> FitState:
        """Fit BLICA.

        Raises
        ------
        FitError
            As BLICA's fit, or if there are too many features for the exact likelihood.
        """
        if self.n_components is not None:
            self._check_exact(first.n_features, self.n_components)
        blica, map_items = self._make_start_model(), SerialExecutor().map
        n_groups = blica.count_groups(first.n_features)
        margins = _sum_groups(first, n_groups)
        begun = blica.update(blica.initialize(margins, rng), first, map_items, rng)
        point = _point_from_blica(begun.params)
        self._check_exact(*point.mixing.shape)
        params = BinaryICALikelihoodParams(
            *point[:3],
            np.exp(point.log_variances),
            np.zeros_like(point.mixing),
            np.zeros_like(point.offsets),
            np.zeros_like(point.means),
            margins.segments,
            margins.rows,
        )
        auxiliary = {
            "priors": np.array(make_initial_priors(point)),
            "reached": np.array(-np.inf),
            **make_empty_path(point)._asdict(),
        }
        return FitState(params, auxiliary=auxiliary)

    def _check_exact(self, n_features: int, n_components: int) -> None:
        if (
            self.likelihood == "exact"
            and self._choose_score_function(n_features, n_components) is None
        ):
            raise FitError(
                f"likelihood: Expected at most {MAX_FEATURES} features or {MAX_COMPONENTS} "
                f"components for an exact likelihood, got {n_features} and {n_components}. "
                "Fit with likelihood=ep, or fewer features or components."
            )

    def _choose_score_function(self, n_features: int, n_components: int) -> ScoreFunction | None:
        """Choose how rows are scored; None where they cannot be."""
        if self.likelihood == "ep":
            return ep_scores
        if n_components <= MAX_COMPONENTS:
            return quadrature_scores
        if self.likelihood == "auto":
            return ep_scores
        return orthant_scores if n_features <= MAX_FEATURES else None

    def summarize(
        self,
        params: BinaryICALikelihoodParams,
        working: Arrays,
        block: BinaryBlock,
        rng: RowRandom,
    ) -> ScoreSums:
        """Score the rows of a block."""
        scores_of = self._choose_score_function(*params.mixing.shape)
        assert scores_of is not None
        return sum_scores(params, block, scores_of)

    def get_convergence_criterion(self, state: FitState) -> ExpectedGainCriterion:
        """End where the last step was expected to gain next to nothing, or none leads higher."""
        gain = float(state.auxiliary.get("gain", np.inf))
        return ExpectedGainCriterion(self.max_iter, self.tol, gain, _is_at_rest(state.auxiliary))

    def update(
        self,
        state: FitState,
        statistics: ScoreSums,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Step towards the summit, or half as far as before where that went past it."""
        before, point = state.auxiliary, state.params.point
        priors = PriorVariances(*before["priors"].tolist())
        if _log_posterior(statistics, point, priors) < before["reached"] - self.tol:
            return _shorten_step(state, statistics.variance)
        path = SearchPath(before["points"], before["scores"]).add_point(point, statistics)
        priors = update_priors(point, find_maximum(statistics, point, priors, path), priors)
        found = find_maximum(statistics, point, priors, path)
        after = {
            "priors": np.array(priors),
            # The least so far: priors that move on may ask for more once all has come to rest.
            "gain": np.array(min(found.gain, float(before.get("gain", np.inf)))),
            "reached": np.array(_log_posterior(statistics, point, priors)),
            "likelihood": np.array([statistics.log_likelihood, statistics.error]),
            "step": limit_step(found.step, point).to_vector(),
            **path._asdict(),
        }
        mixing, offsets, log_variances = standard_errors(point, found)
        params = replace(
            state.params,
            mixing_error=mixing,
            offsets_error=offsets,
            log_variances_error=log_variances,
        )
        return _take_step(replace(state, params=params), after, 1.0)

    def finish(self, state: FitState, statistics: ScoreSums) -> FitState:
        """Go back to the highest point, order its columns, and say what is in doubt.

        The last pass may have gone past the summit, and what it would have stepped to is not known.
        """
        reached, n_rows = state.auxiliary, statistics.n_samples
        objective, error = (reached["likelihood"] / n_rows).tolist()
        params = _take_step(state, reached, 0.0).params.normalize_columns()
        scores_of = self._choose_score_function(*params.mixing.shape)
        told = {
            "n_components": params.mixing.shape[1],
            "likelihood": "ep" if scores_of is ep_scores else "exact",
            "likelihood_error": error,
            "priors": dict(zip(PriorVariances._fields, reached["priors"].tolist(), strict=True)),
        }
        noted = _warn_about_unsettled_rows(statistics) + warn_about_mixing(
            params.mixing, "fewer components"
        )
        return replace(
            state,
            params=params,
            history=(*state.history[:-1], objective),
            diagnostics=told,
            warnings=(*state.warnings, *noted),
        )


def _sum_groups(counts: PairCounts, n_groups: int) -> FeatureCounts:
    """Sum the groups of each segment, and leave the pairs."""
    every = np.ones((len(counts.list_grouped_segments(n_groups)), n_groups), np.int64)
    whole = counts.sum_weighted_groups(n_groups, every)
    return FeatureCounts(whole.segments, whole.rows, *whole.margins())


def _point_from_blica(params: BLICAParams) -> ParameterPoint:
    """Start at a BLICA fit; log variances about 0, which lengthens the columns of A."""
    logs = np.log(np.clip(params.source_variances, *_VARIANCE_RANGE))
    centre = logs.mean(axis=0)
    lengths = np.exp(centre / 2)
    models = [params.segment_model(index) for index in params.segments]
    offsets = np.array([model.offsets - model.weights @ model.means for model in models])
    return ParameterPoint(
        params.mixing * lengths,
        params.segment_rows @ offsets / params.segment_rows.sum(),
        params.source_means / lengths,
        np.clip(logs - centre, -_MAX_LOG_VARIANCE, _MAX_LOG_VARIANCE),
    )


def _log_posterior(statistics: ScoreSums, point: ParameterPoint, priors: PriorVariances) -> float:
    """Log posterior of a point up to a constant, nats."""
    return statistics.log_likelihood + log_prior(point, priors)


def _shorten_step(state: FitState, variance: float) -> FitState:
    """Go half as far as before; back, if that is so little that no step leads higher.

    What noise of this variance hides is no gain.
    """
    before = state.auxiliary
    share = 0.5 * float(before["share"])
    if share >= _MIN_STEP_SHARE:
        return _take_step(state, before, share)
    gain = 0.0 if before["gain"] <= np.sqrt(variance) else float(before["gain"])
    return _take_step(state, {**before, "gain": np.array(gain)}, 0.0)


def _take_step(state: FitState, auxiliary: Arrays, share: float) -> FitState:
    """Go a share of the step from the point reached."""
    there = auxiliary["points"][-1] + share * auxiliary["step"]
    params = state.params.with_point(state.params.point.from_vector(there))
    return replace(state, params=params, auxiliary={**auxiliary, "share": np.array(share)})


def _is_at_rest(auxiliary: Arrays) -> bool:
    return "share" in auxiliary and auxiliary["share"] == 0


def _warn_about_unsettled_rows(statistics: ScoreSums) -> tuple[FitWarning, ...]:
    """Say of how many rows the likelihood is not to be trusted."""
    if not statistics.n_unsettled:
        return ()
    told = (
        f"the likelihood of {statistics.n_unsettled} of {statistics.n_samples} rows did not come "
        "to rest"
    )
    return (FitWarning(told),)


Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

ScoreFunction = Callable[[Bits, Array, Array, Bits], ProbitScores]

_CELLS_PER_PART = 1 << 22


class RowPatterns(NamedTuple):
    """Distinct rows.

    Attributes
    ----------
    X, observed
        Values and mask, (n_patterns, n_features).
    times
        Rows that are like each, (n_patterns,).
    """

    X: Bits
    observed: Bits
    times: NDArray[np.int64]


def find_patterns(block: BinaryBlock) -> RowPatterns:
    """Find the distinct rows of a block."""
    rows = block.to_packed_rows()
    keys = np.hstack([rows.words.T, rows.mask.T])
    _, first, times = np.unique(keys, axis=0, return_index=True, return_counts=True)
    found = block.take_rows(first)
    X, observed = found.unpack_values(), found.unpack_mask()
    return RowPatterns(X, np.ones_like(X) if observed is None else observed, times)


def sum_scores(
    params: BinaryICALikelihoodParams,
    block: BinaryBlock,
    scores_of: ScoreFunction,
) -> ScoreSums:
    """Sum the scores of the rows of a block.

    Parameters
    ----------
    params
        Where to score.
    block
        The rows.
    scores_of
        Scores rows by weights and offsets of standard normal sources: `ep_scores` is one.
    """
    model, patterns = params.segment_model(block.segment), find_patterns(block)
    n_features, n_components = model.weights.shape
    n_shared, n_own = n_features * (n_components + 1), 2 * n_components
    totals, variance = np.zeros(3), 0.0
    gradient, products = np.zeros(n_shared + n_own), np.zeros((n_shared + n_own,) * 2)
    for part in _iter_pattern_parts(patterns, n_shared + n_own):
        found = _score_patterns(model, part, scores_of)
        scores = _apply_chain_rule(found, model)
        weighted = scores * np.sqrt(part.times)[:, None]
        totals += part.times @ np.stack([found.log_likelihood, found.error, ~found.settled], axis=1)
        variance += float(part.times**2 @ found.error**2) if found.sampled else 0.0
        gradient += part.times @ scores
        products += weighted.T @ weighted
    shared, own = slice(n_shared), slice(n_shared, None)
    return ScoreSums(
        float(totals[0]),
        float(totals[1]),
        variance,
        int(totals[2]),
        gradient[shared],
        products[shared, shared],
        np.array([block.segment]),
        np.array([block.n_samples]),
        gradient[None, own],
        products[None, own, own],
        products[None, own, shared],
    )


def _iter_pattern_parts(patterns: RowPatterns, n_parameters: int) -> Iterator[RowPatterns]:
    """Cut patterns so that their scores stay small."""
    height = max(1, _CELLS_PER_PART // n_parameters)
    for first in range(0, len(patterns.X), height):
        X, observed, times = patterns
        rows = slice(first, first + height)
        yield RowPatterns(X[rows], observed[rows], times[rows])


def _score_patterns(
    model: SegmentModel,
    patterns: RowPatterns,
    scores_of: ScoreFunction,
) -> ProbitScores:
    deviations = np.sqrt(model.variances)
    return scores_of(patterns.X, model.weights * deviations, model.offsets, patterns.observed)


def _apply_chain_rule(found: ProbitScores, model: SegmentModel) -> Array:
    """Scores by A, c, μ and log σ², side by side: (n_patterns, n_shared + n_own).

    Weights of standard normal sources are √(π/8) A σ, and offsets c + √(π/8) A μ.
    """
    deviations = np.sqrt(model.variances)
    by_offset, by_weight = found.offsets, found.weights * deviations
    by_mixing = PROBIT_SCALE * (by_weight + by_offset[:, :, None] * model.means)
    by_mean = by_offset @ model.weights
    by_log_variance = 0.5 * np.einsum("nik,ik->nk", by_weight, model.weights)
    shared = by_mixing.reshape(len(by_mixing), -1)
    return np.hstack([shared, by_offset, by_mean, by_log_variance])
