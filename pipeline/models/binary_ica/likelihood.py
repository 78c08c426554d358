"""Binary ICA by full likelihood: the model of BLICA, fitted to whole rows instead of pairs.

Model, in segment u: z ~ N(μ, diag σ²), y = A z, P(x_i = 1 | z) = Φ(√(π/8) y_i + c_i). All segments
share A and c (A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022, eqs 2–7, where c is 0). Unlike in BLICA, the means of
the features carry information about A. A feature with several levels has level p or higher iff
√(π/8) a_i·z + c_ip + ε > 0, with ε ~ N(0, 1): the c_ip of its planes decrease in p, and their mean
is c_i. A continuous feature is m_i + s_i (√(π/8) a_i·z + c_i + ε), where m_i is the mean of its
values. c_ip and s_i are common to all segments.

Fit: maximise the posterior by scoring (`scoring_steps`), starting from a BLICA fit with
regularization 20. A pass sums the scores of all rows and their products; each distinct row of a
block is scored once. P(x) is an orthant probability (eq. 7), or that of a rectangle; values have a
density. `numerics.probit.probit_scores` integrates it over z for one or two components, and
approximates it by expectation propagation for more. The log gaps between neighbouring c_ip (see
`level_gaps`) and log s_i, in units of the standard deviations of the values, have the prior
N(0, 4). The other priors are normal: log σ² around 0 for the mean over segments, μ and c around 0,
and the log lengths of the rows of A around their mean. Their variances are estimated from the data,
those of log σ² and μ not below 4 and 1. Priors that lead below the likelihood of the start are
widened, so the fit never ends below its start.

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
Cost per distinct row of a block: its scores, up to three times as much for features with levels,
and (n_features n_components)² for their products. With continuous features, all rows are distinct.
Passes: one that counts pairs, then 4 to 20. With continuous features, one before it sums moments;
without, 200,000 rows or more start on a sample of the rows, and then take 3 to 8 passes. A hundred
or more are needed if the data are far from the model or there are far too few components.
Not identifiable: order, sign and length of columns (ordered by explained variance, largest entry
positive, length 1); sources whose means and variances change alike. With as many components as
features, the length of a row of A relative to the noise is determined almost only by the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ExpectedGainCriterion,
    ObjectiveCriterion,
)
from pipeline.models.binary_ica.blica import (
    BLICA,
    MIN_SEGMENTS,
    BLICAParams,
    check_segment_settings,
    make_empty_params,
    warn_about_mixing,
)
from pipeline.models.binary_ica.level_gaps import split_level_offsets
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE, ProbitICA, SegmentModel
from pipeline.models.binary_ica.rotations import (
    UNLINKED_SOURCES,
    find_rotatable_sources,
    warn_about_rotations,
)
from pipeline.models.binary_ica.scoring_steps import (
    BinaryICALikelihoodParams,
    ParameterPoint,
    PriorVariances,
    SearchPath,
    find_maximum,
    level_offset_errors,
    limit_step,
    log_prior,
    make_empty_path,
    make_initial_priors,
    move_point,
    number_scale_errors,
    standard_errors,
    update_priors,
)
from pipeline.models.sample_sizes import ROWS_PER_PARAMETER, ROWS_PER_SEGMENT
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.probit.orthant import MAX_FEATURES
from pipeline.numerics.probit.probit_scores import (
    MAX_COMPONENTS,
    ProbitScores,
    ep_scores,
    orthant_scores,
    quadrature_scores,
)
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.measurements import MeasuredCounts, MixedStatistics
from pipeline.statistics.sums import ScoreSums, UntiledStatistics

ScoreFunction = Callable[..., ProbitScores]
ScoreMethod = Literal["ep", "quadrature", "orthant"]

_START_RIDGE = 20.0
_MIN_STEP_SHARE = 1 / 32
_WIDENING, _MAX_WIDENINGS = 4.0, 10
# Limits of the initial source variances, and of the size of their logs.
_VARIANCE_RANGE, _MAX_LOG_VARIANCE = (1e-3, 1e3), 3.0
_CELLS_PER_PART = 1 << 22


@dataclass(frozen=True)
class StageSums(UntiledStatistics):
    """Sums of a pass over rows with continuous features: of BLICA, or scores."""

    label: ClassVar[str] = "scores"
    part: MixedStatistics | ScoreSums

    @property
    def n_rows(self) -> int:
        """Number of rows read."""
        return self.part.n_rows

    @property
    def weight(self) -> float:
        """Number of rows; models with these sums take no weights."""
        return self.part.weight

    @property
    def objective(self) -> float:
        """Log-likelihood summed over rows, nats, or 0 in BLICA's stage."""
        return self.part.objective

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return replace(self, part=self.part.merge(other.part))  # type: ignore[arg-type]


@dataclass(frozen=True)
class BinaryICALikelihood(ProbitICA):
    """Hyperparameters of binary ICA by likelihood.

    Attributes
    ----------
    n_components
        Number of components; None takes the number that BLICA chooses.
    likelihood
        How log P(x) is computed: `exact` integrates it, which takes at most 20 features or 2
        components; `ep` approximates it by expectation propagation; `auto` is exact up to 2
        components, else `ep`.
    starts
        Number of random starts of the BLICA fit that provides the starting point.
    min_rows
        Minimum number of rows of a segment in the BLICA fit, which leaves out smaller ones.
    segments
        `given`: the dataset says which segment each row is of. `auto`: segments are hidden states
        of the rows, in their order.
    n_segments
        Number of segments with `segments=auto`. None takes the number with the lowest BIC, from 3
        to 32.
    max_iter
        Maximum number of passes.
    tol
        The fit ends once a further step should gain less than this, in nats over all rows.
    """

    name: ClassVar[str] = "binary-ica-likelihood"
    indeterminacy: ClassVar[str] = (
        "the order, signs and lengths of the components, and those that change alike"
    )
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "continuous"), ("groups",), needs_levels=True
    )
    unlinked_effect: ClassVar[str] = UNLINKED_SOURCES
    params: ClassVar[type[BinaryICALikelihoodParams]] = BinaryICALikelihoodParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("mixing", "source_means")
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("likelihood_error",)
    n_components: int | None = None
    likelihood: Literal["auto", "exact", "ep"] = "auto"
    starts: int = setting(3, minimum=1)
    min_rows: int = setting(20, minimum=1)
    segments: Literal["given", "auto"] = "given"
    n_segments: int | None = setting(None, minimum=MIN_SEGMENTS)
    max_iter: int = setting(300, minimum=1)
    tol: float = setting(0.01, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_segment_settings(self.segments, self.n_segments)

    @property
    def first_statistics(self) -> type[FeatureCounts | PairCounts]:
        """Counts of pairs, or of levels and moments if BLICA takes a pass of its own."""
        return MeasuredCounts if self.structure.continuous.size else PairCounts

    @property
    def statistics(self) -> type[ScoreSums | StageSums]:  # type: ignore[override]
        """Sums of scores, or those of the stage if BLICA takes a pass of its own."""
        return StageSums if self.structure.continuous.size else ScoreSums

    def _make_start_model(self) -> BLICA:
        """Return the model whose fit is the starting point."""
        ridge = None if self.n_components is None else _START_RIDGE
        return BLICA(
            self.n_components,
            ridge,
            starts=self.starts,
            min_rows=self.min_rows,
            structure=self.structure,
        )

    def _count_features(self, n_planes: int) -> int:
        """Return the number of features with this number of planes."""
        return len(self.structure.features) or n_planes

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the products of scores, or of the BLICA fit if it needs more."""
        n_mixed = self._count_features(n_features)
        n_components = self.n_components or n_mixed
        n_scales = 2 * len(self.structure.continuous)
        n_shared, n_own = n_mixed * n_components + n_features + n_scales, 2 * n_components
        products = n_shared**2 + n_segments * n_own * n_shared
        start = self._make_start_model().estimate_memory(n_features, n_segments, n_threads)
        return max(start, 8 * products * (2 * n_threads + 4))

    def estimate_work(
        self, params: BinaryICALikelihoodParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the scores, which are computed once for each distinct row of a block.

        Real rows repeat more often than independent features would: 21,574 rows of 16 features had
        3,152 distinct ones.
        """
        if _is_first_stage(params):
            return self._make_start_model().estimate_work(params, working, n_features, n_rows)
        n_segments, q = params.source_means.shape
        n_parameters = params.mixing.size + n_features + 2 * q
        nanoseconds = len(params.mixing) * self._estimate_nanoseconds(*params.mixing.shape)
        n_distinct = float(n_segments * 2 ** (0.75 * min(n_features, 64)))
        share = 1.0 if self.structure.continuous.size else min(1.0, n_distinct / max(n_rows, 1))
        nanoseconds += 0.07 * n_parameters**2
        return WorkEstimate(nanoseconds * share, 8 * n_parameters**2)

    def _estimate_nanoseconds(self, n_features: int, n_components: int) -> float:
        """Return the time to score a row, per feature."""
        are_bits = self.structure.n_levels is None
        method = self._choose_method(n_features, n_components)
        if method == "ep":
            return (120.0 if are_bits else 450.0) * n_components
        if method == "quadrature":
            of_one, of_two = (1150.0, 8500.0) if are_bits else (4200.0, 23_000.0)
            return of_one if n_components == 1 else of_two
        return 45_000.0

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> FeatureCounts | PairCounts:
        """Count the pairs of a block, as BLICA does, or its levels and moments."""
        if self.structure.continuous.size:
            return MeasuredCounts.from_block(block)
        return PairCounts.from_groups(
            block, self._make_start_model().count_groups(block.n_features)
        )

    def first_key(self, seed: int) -> str:
        """Return a key of the counts; the number of groups of pairs depends on BLICA's choices."""
        if self.structure.continuous.size:
            return super().first_key(seed)
        return "pairs of one group" if self.n_components else "pairs of groups"

    def initialize(self, first: FeatureCounts | PairCounts, rng: np.random.Generator) -> FitState:
        """Begin with the state of BLICA; refuse too many features for the exact likelihood."""
        if self.n_components is not None:
            n_planes = first.n_features if isinstance(first, PairCounts) else 0
            self._check_exact(self._count_features(n_planes), self.n_components)
        blica = self._make_start_model()
        if not isinstance(first, PairCounts):
            start = blica.initialize(first, rng)
            return replace(start, params=make_empty_params(self.params))
        return blica.initialize(_sum_groups(first, blica.count_groups(first.n_features)), rng)

    def find_start(
        self,
        state: FitState,
        first: FeatureCounts | PairCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Fit BLICA, unless that takes a pass of its own."""
        if not isinstance(first, PairCounts):
            return state
        return self._start_from_pairs(state, first, map_items, rng)

    def _start_from_pairs(
        self,
        start: FitState,
        statistics: PairCounts | MixedStatistics,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Fit BLICA from its initial state; return the state of the first pass of scores."""
        blica = self._make_start_model()
        pairs = statistics if isinstance(statistics, PairCounts) else statistics.pairs
        assert pairs is not None
        fitted = blica.update(start, statistics, map_items, rng)
        warnings = blica.warn_about_nested_features(pairs)
        return self._start_from(fitted.params, start.with_warnings(warnings))

    def _start_from(self, start: BLICAParams, state: FitState) -> FitState:
        """Return the state of the first pass of scores, given a BLICA fit, with the warnings."""
        params = params_from_blica(start)
        self._check_exact(*params.mixing.shape)
        return self._begin_scores(replace(state, params=params))

    def _begin_scores(self, state: FitState) -> FitState:
        """Return the state of the first pass of scores, from the parameters of a state."""
        point = state.params.point
        auxiliary = {
            "priors": np.array(make_initial_priors(point)),
            "start_point": point.to_vector(),
            "widenings": np.array(0),
            **make_empty_path(point)._asdict(),
        }
        return replace(state, auxiliary=auxiliary)

    def _check_exact(self, n_features: int, n_components: int) -> None:
        if self._choose_method(n_features, n_components) is not None:
            return
        text = (
            f"takes at most {MAX_FEATURES} features or {MAX_COMPONENTS} components, but there are "
            f"{n_features} features and {n_components} components. Use {{likelihood=ep}}, or fewer "
            "features or components."
        )
        if self.structure.n_levels is not None:
            text = (
                f"takes at most {MAX_COMPONENTS} components if some features are not binary, but "
                f"there are {n_components}. Use {{likelihood=ep}}, or fewer components."
            )
        raise FitError("{likelihood=exact} " + text, parameter="likelihood")

    def _choose_method(self, n_features: int, n_components: int) -> ScoreMethod | None:
        """Return how rows are scored; None if no method takes this shape."""
        if self.likelihood == "ep":
            return "ep"
        if n_components <= MAX_COMPONENTS:
            return "quadrature"
        if self.likelihood == "auto":
            return "ep"
        is_possible = n_features <= MAX_FEATURES and self.structure.n_levels is None
        return "orthant" if is_possible else None

    def _find_score_function(self, params: BinaryICALikelihoodParams) -> ScoreFunction:
        method = self._choose_method(*params.mixing.shape)
        if method == "orthant":
            return _score_orthants
        return ep_scores if method == "ep" else quadrature_scores

    def summarize(
        self, params: BinaryICALikelihoodParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> ScoreSums | StageSums:
        """Score the rows of a block, or count its pairs as BLICA does."""
        if _is_first_stage(params):
            empty = make_empty_params(BLICAParams)
            pairs = self._make_start_model().summarize(empty, working, block, rng)
            assert isinstance(pairs, MixedStatistics)
            return StageSums(pairs)
        scores = sum_scores(params, block, self._find_score_function(params))
        return StageSums(scores) if self.structure.continuous.size else scores

    def mean_log_likelihood(
        self, params: BinaryICALikelihoodParams, statistics: Any
    ) -> float | None:
        """Return the log-likelihood per row, nats; None in BLICA's stage."""
        scores = statistics.part if isinstance(statistics, StageSums) else statistics
        if not isinstance(scores, ScoreSums):
            return None
        return float(scores.log_likelihood / scores.n_rows)

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop once the last step had a tiny expected gain, or no step raises the posterior.

        BLICA's stage stops after its pass.
        """
        if "priors" not in state.auxiliary:
            return ObjectiveCriterion(1, 0.0)
        gain = float(state.auxiliary.get("gain", np.inf))
        return ExpectedGainCriterion(self.max_iter, self.tol, gain, _has_stalled(state.auxiliary))

    def update(
        self,
        state: FitState,
        statistics: ScoreSums | StageSums,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Fit BLICA, or step towards the maximum."""
        scores = statistics.part if isinstance(statistics, StageSums) else statistics
        if isinstance(scores, ScoreSums):
            return self._step(state, scores)
        return self._start_from_pairs(state, scores, map_items, rng)

    def next_stage(self, state: FitState, statistics: ScoreSums | StageSums) -> FitState | None:
        """Return the state of the passes of scores after BLICA's pass."""
        is_first = isinstance(statistics, StageSums) and isinstance(
            statistics.part, MixedStatistics
        )
        return state if is_first else None

    def count_sample_rows(self, state: FitState) -> int:
        """Return the rows that determine the parameters of every segment well enough.

        None are needed with continuous features: BLICA reads all rows first.
        """
        if "priors" not in state.auxiliary:
            return 0
        rows = state.params.segment_rows
        n_parameters = state.params.point.to_vector().size
        of_segments = int(ROWS_PER_SEGMENT * rows.sum() / rows.min())
        return max(ROWS_PER_PARAMETER * int(n_parameters), of_segments)

    def draw_sample_starts(self, state: FitState) -> Sequence[FitState]:
        """Return the state itself."""
        return (state,)

    def leave_sample(self, state: FitState, statistics: ScoreSums) -> FitState:
        """Return to the highest point, as a start: scores of the sample tell nothing further."""
        best = _take_step(state, state.auxiliary, 0.0)
        point = best.params.point
        kept = {name: state.auxiliary[name] for name in ("priors", "widenings")}
        path = make_empty_path(point)._asdict()
        return replace(best, auxiliary={**kept, "start_point": point.to_vector(), **path})

    def _step(self, state: FitState, statistics: ScoreSums) -> FitState:
        """Step towards the maximum, or half as far as before if the last step overshot it."""
        previous, point = state.auxiliary, state.params.point
        priors = PriorVariances(*previous["priors"].tolist())
        if _log_posterior(statistics, point, priors) < previous.get("reached", -np.inf) - self.tol:
            return _shorten_step(state, statistics.variance)
        path = SearchPath(previous["points"], previous["scores"]).add_point(point, statistics)
        if previous["widenings"] == 0:
            priors = update_priors(point, find_maximum(statistics, point, priors, path), priors)
        maximum = find_maximum(statistics, point, priors, path)
        # The minimum so far, because moving priors can raise the gain after convergence.
        gain = min(maximum.gain, float(previous.get("gain", np.inf)))
        likelihood = np.array([statistics.log_likelihood, statistics.error])
        start = previous.get("start", likelihood)
        if gain <= self.tol and likelihood[0] < start[0]:
            if previous.get("gain", np.inf) <= self.tol:  # the last pass; the one before was higher
                return _take_step(state, previous, 0.0)
            if previous["widenings"] < _MAX_WIDENINGS:
                return _restart_with_wider_priors(state)
        auxiliary = {
            **previous,
            "priors": np.array(priors),
            "gain": np.array(gain),
            "reached": np.array(_log_posterior(statistics, point, priors)),
            "likelihood": likelihood,
            "start": start,
            "step": limit_step(maximum.step, point).to_vector(),
            **path._asdict(),
        }
        mixing, offsets, log_variances = standard_errors(point, maximum)
        params = replace(
            state.params,
            mixing_error=mixing,
            offsets_error=offsets,
            log_variances_error=log_variances,
            level_offsets_error=level_offset_errors(state.params, maximum),
            number_scales_error=number_scale_errors(state.params, maximum),
        )
        return _take_step(replace(state, params=params), auxiliary, 1.0)

    def finish(self, state: FitState, statistics: ScoreSums | StageSums) -> FitState:
        """Return to the highest point, order its columns, and add warnings.

        The last pass may have overshot the maximum, and the point after its step was never scored.
        A fit that was cut short below the likelihood of its start returns to the start.
        """
        scores = statistics.part if isinstance(statistics, StageSums) else statistics
        assert isinstance(scores, ScoreSums)
        best = state.auxiliary
        if best["likelihood"][0] < best["start"][0]:
            best = _return_to_start(best)
        objective, error = (best["likelihood"] / scores.n_rows).tolist()
        fitted = _take_step(state, best, 0.0).params
        covariances = _find_variance_covariances(scores, PriorVariances(*best["priors"]))
        rotatable = find_rotatable_sources(np.log(fitted.source_variances), covariances)
        places = np.argsort(fitted.order_columns())  # of the sources in the order of the result
        params = fitted.without_errors(rotatable).normalize_columns()
        method = self._choose_method(*params.mixing.shape)
        diagnostics = {
            "n_components": params.mixing.shape[1],
            "likelihood": "ep" if method == "ep" else "exact",
            "likelihood_error": error,
            "priors": dict(zip(PriorVariances._fields, best["priors"].tolist(), strict=True)),
        }
        new_warnings = _warn_about_unsettled_rows(scores) + warn_about_mixing(
            params.mixing, "fewer components"
        )
        new_warnings += warn_about_rotations([sorted(places[[*own]].tolist()) for own in rotatable])
        finished = replace(
            state,
            params=params,
            history=(*state.history[:-1], objective),
            diagnostics=diagnostics,
            warnings=(*state.warnings, *new_warnings),
        )
        return finished.with_feature_names(self.structure.feature_names)


def _score_orthants(*rows: Any) -> ProbitScores:
    return orthant_scores(*rows[:4])


def _is_first_stage(params: BinaryICALikelihoodParams) -> bool:
    """Return whether BLICA's pass, of rows with continuous features, comes first."""
    return params.mixing.size == 0


def _find_variance_covariances(statistics: ScoreSums, priors: PriorVariances) -> Array:
    """Return covariances of log σ² given A, (n_segments, n_components, n_components)."""
    n_components = statistics.own_information.shape[1] // 2
    precisions = np.repeat([1 / priors.means, 1 / priors.log_variances], n_components)
    covariances = np.linalg.inv(statistics.own_information + np.diag(precisions))
    return np.asarray(covariances[:, n_components:, n_components:])


def _sum_groups(counts: PairCounts, n_groups: int) -> FeatureCounts:
    """Sum the groups of each segment, and drop the pairs."""
    weights = np.ones((len(counts.list_grouped_segments(n_groups)), n_groups), np.int64)
    return counts.sum_weighted_groups(n_groups, weights).to_feature_counts()


def params_from_blica(start: BLICAParams) -> BinaryICALikelihoodParams:
    """Convert a BLICA fit."""
    point = _point_from_blica(start)
    return BinaryICALikelihoodParams(
        *point[:3],
        np.exp(point.log_variances),
        np.zeros_like(point.mixing),
        np.zeros_like(point.offsets),
        np.zeros_like(point.means),
        start.segments,
        start.segment_rows,
        start.n_levels,
        number_means=start.number_means,
        number_deviations=start.number_deviations,
    ).with_point(point)


def _point_from_blica(params: BLICAParams) -> ParameterPoint:
    """Convert a BLICA fit; log variances are centred at 0, which lengthens the columns of A."""
    logs = np.log(np.clip(params.source_variances, *_VARIANCE_RANGE))
    centre = logs.mean(axis=0)
    lengths = np.exp(centre / 2)
    models = [params.segment_model(index) for index in params.segments]
    by_segment = np.array(
        [model.offsets - model.repeat_for_planes(model.weights @ model.means) for model in models]
    )
    offsets = params.segment_rows @ by_segment / params.segment_rows.sum()
    point = ParameterPoint(
        params.mixing * lengths,
        offsets,
        params.source_means / lengths,
        np.clip(logs - centre, -_MAX_LOG_VARIANCE, _MAX_LOG_VARIANCE),
    )
    if params.n_levels is None:
        return point
    own, of_features = params.n_levels == 1, np.zeros(len(params.mixing))
    of_features[~own], log_gaps = split_level_offsets(offsets, params.n_levels)
    point = point._replace(offsets=of_features, log_gaps=log_gaps)
    if params.number_scales is None or params.number_deviations is None:
        return point
    # The c of continuous features are 0 at first: their values are centred.
    return point._replace(log_scales=np.log(params.number_scales / params.number_deviations))


def _log_posterior(statistics: ScoreSums, point: ParameterPoint, priors: PriorVariances) -> float:
    """Return the log posterior of a point up to a constant, in nats."""
    return statistics.log_likelihood + log_prior(point, priors)


def _shorten_step(state: FitState, variance: float) -> FitState:
    """Halve the last step, or return to the best point if the step would become too short.

    Gains within the noise of this variance count as 0.
    """
    before = state.auxiliary
    share = 0.5 * float(before["share"])
    if share >= _MIN_STEP_SHARE:
        return _take_step(state, before, share)
    gain = 0.0 if before["gain"] <= np.sqrt(variance) else float(before["gain"])
    return _take_step(state, {**before, "gain": np.array(gain)}, 0.0)


def _restart_with_wider_priors(state: FitState) -> FitState:
    """Return to the start with wider priors, which then stay fixed.

    The fit converged below the likelihood of the start, so the priors pull too hard.
    """
    start = _return_to_start(state.auxiliary)
    auxiliary = {
        **{name: array for name, array in start.items() if name not in ("reached", "gain")},
        "priors": _WIDENING * state.auxiliary["priors"],
        "widenings": state.auxiliary["widenings"] + 1,
    }
    return replace(_take_step(state, auxiliary, 0.0), auxiliary=auxiliary)


def _return_to_start(auxiliary: Arrays) -> Arrays:
    """Make the start the best point. Its scores are not kept, and 0 has no effect on steps."""
    points = auxiliary["start_point"][None]
    start = {"points": points, "scores": np.zeros_like(points), "likelihood": auxiliary["start"]}
    return {**auxiliary, **start}


def _take_step(state: FitState, auxiliary: Arrays, share: float) -> FitState:
    """Take a share of the step from the best point."""
    best, step = (
        state.params.point.from_vector(own) for own in (auxiliary["points"][-1], auxiliary["step"])
    )
    params = state.params.with_point(move_point(best, step, share))
    return replace(state, params=params, auxiliary={**auxiliary, "share": np.array(share)})


def _has_stalled(auxiliary: Arrays) -> bool:
    return "share" in auxiliary and auxiliary["share"] == 0


def _warn_about_unsettled_rows(statistics: ScoreSums) -> tuple[FitWarning, ...]:
    if not statistics.n_unsettled:
        return ()
    text = (
        f"the likelihood of {statistics.n_unsettled} of {statistics.n_rows} rows did not converge"
    )
    return (FitWarning(text),)


class RowPatterns(NamedTuple):
    """Distinct rows of a block, and the pattern of each row, (n_samples,)."""

    block: BinaryBlock
    places: NDArray[np.intp]

    def count_rows(self, weights: Array | None = None) -> NDArray[Any]:
        """Return how many rows have each pattern, or the sums of their weights, (n_patterns,)."""
        return np.bincount(self.places, weights, self.block.n_samples)


def find_patterns(block: BinaryBlock) -> RowPatterns:
    """Find the distinct rows of a block; with continuous features, every row counts as distinct."""
    if block.numbers is not None:
        return RowPatterns(block, np.arange(block.n_samples))
    rows = block.to_packed_rows()
    keys = np.hstack([rows.words.T, rows.mask.T])
    _, first, places = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return RowPatterns(block.take_rows(first), places.ravel())


def sum_scores(
    params: BinaryICALikelihoodParams, block: BinaryBlock, score_rows: ScoreFunction
) -> ScoreSums:
    """Sum the scores of the rows of a block, and their products.

    `score_rows` scores rows, given `ProbitArguments`, for example `ep_scores`.
    """
    patterns = find_patterns(block)
    return sum_pattern_scores(
        params, patterns.block, patterns.count_rows(), block.n_samples, score_rows
    )


def sum_pattern_scores(
    params: BinaryICALikelihoodParams,
    block: BinaryBlock,
    times: NDArray[Any],
    n_rows: int,
    score_rows: ScoreFunction,
) -> ScoreSums:
    """Sum the scores of distinct rows as `sum_scores` does.

    Parameters
    ----------
    params, score_rows
        As for `sum_scores`.
    block, times
        Distinct rows, and how often each occurs in the segment of the block, (n_patterns,).
    n_rows
        Number of rows in this segment.
    """
    model = params.segment_model(block.segment)
    rows = model.read_rows(block)
    gap_slopes, n_own = params.gap_slopes, 2 * len(model.variances)
    n_shared = params.point.n_shared
    totals, variance = np.zeros(3), 0.0
    gradient, products = np.zeros(n_shared + n_own), np.zeros((n_shared + n_own,) * 2)
    height = max(1, _CELLS_PER_PART // (n_shared + n_own))  # so that scores stay small
    for first in range(0, len(times), height):
        part = slice(first, first + height)
        own, own_times = rows.take(part), times[part]
        own_scores = score_rows(*own)
        log_likelihood = own_scores.log_likelihood
        if own.values is not None:
            log_likelihood = log_likelihood + model.log_density_of_units(own.values)
        scores = _apply_chain_rule(own_scores, model, own.values, gap_slopes)
        weighted = scores * np.sqrt(own_times)[:, None]
        totals += own_times @ np.stack(
            [log_likelihood, own_scores.error, ~own_scores.settled], axis=1
        )
        variance += float(own_times**2 @ own_scores.error**2) if own_scores.sampled else 0.0
        gradient += own_times @ scores
        products += weighted.T @ weighted
    shared, local = slice(n_shared), slice(n_shared, None)
    return ScoreSums(
        float(totals[0]),
        float(totals[1]),
        variance,
        round(totals[2]),
        gradient[shared],
        products[shared, shared],
        np.array([block.segment]),
        np.array([n_rows]),
        gradient[None, local],
        products[None, local, local],
        products[None, local, shared],
    )


def _apply_chain_rule(
    scores: ProbitScores, model: SegmentModel, values: Array | None, gap_slopes: Array | None
) -> Array:
    """Return scores by all parameters, (n_patterns, n_shared + n_own).

    The order is A, c, log gaps, log scales, μ and log σ². Weights of standard normal sources are
    √(π/8) A σ, and offsets c + √(π/8) A μ. A value has the density of v, its value in units of the
    noise, over the scale; the derivative of v by the log scale is −v.
    """
    deviations = np.sqrt(model.variances)
    by_offset, by_weight = model.sum_planes(scores.offsets), scores.weights * deviations
    by_mixing = PROBIT_SCALE * (by_weight + by_offset[:, :, None] * model.means)
    by_mean = by_offset @ model.weights
    by_log_variance = 0.5 * np.einsum("nik,ik->nk", by_weight, model.weights)
    shared = by_mixing.reshape(len(by_mixing), -1)
    n_planes = len(model.thresholds)
    further = [] if gap_slopes is None else [scores.offsets[:, :n_planes] @ gap_slopes]
    if model.continuous is not None and values is not None:
        values = values + model.continuous.shifts
        by_log_scale = scores.offsets[:, n_planes:] * values - 1
        further.append(np.where(np.isnan(values), 0.0, by_log_scale))
    return np.hstack([shared, by_offset, *further, by_mean, by_log_variance])
