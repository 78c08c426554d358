"""Binary ICA by full likelihood: the model of BLICA, with all that rows say of it.

Model, in segment u: z ~ N(μ, diag σ²), y = A z, P(x_i = 1 | z) = Φ(√(π/8) y_i + c_i); A and c are
the same in all segments (A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component
Analysis: A Non-stationarity-based Approach", UAI 2022, eqs 2–7, whose c is 0). Other than to BLICA,
the means of the features tell something of A too.

Fit: log P(x), an orthant probability (eq. 7), is climbed from where BLICA ends at a ridge of 20, by
scoring (`climbing`): a pass sums the scores of all rows and their products, each distinct row of a
block once. P(x) is integrated over z where there are one or two components
(`numerics.probit_quadrature`), and approximated by expectation propagation where there are more
(`numerics.probit_scores`). The maximum is that of the posterior under priors whose variances are
found from the data: log σ² about 0 for the mean over segments, μ and c about 0, the lengths of the
rows of A about a common one.

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

Missing values are left out of P(x): right where they are missing at random.
Cost a distinct row of a block: that of its scores, and (n_features n_components)² for their
products. Passes: one that counts pairs, and 8 to 20; a hundred and more where the data are far
from the model, or there are far too few components.
Not identifiable: order, signs and lengths of columns (by explained variance, the entry of largest
size positive, length 1); sources whose means and variances change alike; all but the prior's word
on how long a row of A is beside the noise, where there are as many components as features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction, SerialExecutor
from pipeline.learning.convergence import ExpectedGainCriterion
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.likelihood_params import BinaryICALikelihoodParams, ParameterPoint
from pipeline.models.binary_ica.moment_matching.warnings import warn_about_mixing
from pipeline.models.binary_ica.optimiser import (
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
from pipeline.models.binary_ica.params import BLICAParams
from pipeline.models.binary_ica.probit_ica import ProbitICA
from pipeline.models.binary_ica.scoring import ScoreFunction, sum_scores
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.probit.orthant import MAX_FEATURES
from pipeline.numerics.probit.orthant_scores import orthant_scores
from pipeline.numerics.probit.probit_quadrature import MAX_COMPONENTS, quadrature_scores
from pipeline.numerics.probit.probit_scores import ep_scores
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.scores import ScoreSums

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
    starts: int = 3
    max_iter: int = 300
    tol: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("starts", "max_iter"):
            if (value := getattr(self, name)) < 1:
                raise FitError(f"{name}: Expected at least 1, got {value}.")
        if not 0 < self.tol < np.inf:
            raise FitError(f"tol: Expected a finite number above 0, got {self.tol}.")

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
