"""Mixture of products of Bernoullis: each row is of one of a few kinds, with independent features.

Model: P(k) = π_k, P(x_i = 1 | k) = p_ki, features independent given k (G. J. McLachlan, D. Peel,
"Finite mixture models", 2000, section 5; also known as latent class analysis).

Fit by EM with pseudo-counts: every p has a Beta(1 + s, 1 + s) prior and π a Dirichlet(1 + s) prior,
where s is `smoothing`. At each start, every component has the margins of the features, with
randomly perturbed log-odds; see `pipeline.models.mixture`. Steps are extrapolated by SQUAREM in
log p / (1 − p) and log π. Missing values are left out of a row's likelihood. This is also right if
observed values decide which values are missing, but not if the missing values themselves do.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
p          probabilities   (n_components, n_features)
π          weights         (n_components,)
μ, σ       means,          (n_components, n_continuous)
           deviations
=========  ==============  ================================

Features with several levels are categorical, see `levels.py`: p has a column per plane, P(x ≥ c |
k). Continuous features are normal within components, see `gaussians.py`. With groups or covariates,
π differs between rows and p does not, see `groups.py` and `class_regression.py`.

Posteriors are computed from packed bits, see `e_step.py`. A row's posterior does not depend on the
other rows of the call, not even in its last bit. Standard errors use the observed information, see
`standard_errors.py`. Intervals are symmetric in log-odds.

Cost per block: 2 n_components (number of ones + number of missing values + number of continuous
values). Passes: tens to hundreds.
Not identifiable: the order of the components, which are sorted by weight; and the components
themselves if there are fewer than about 2 log₂ n_components + 1 features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, iter_word_ranges
from pipeline.data.features import MAX_LEVELS, are_binary
from pipeline.data.level_probabilities import find_level_probabilities
from pipeline.data.matching import draw_segments
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.held_out import (
    run_e_step_with_held_out,
)
from pipeline.models.bernoulli_mixture.e_step import (
    MixtureTerms,
    compute_log_joint,
    compute_mixture_terms,
    mixture_posterior,
    sum_mixture_statistics,
)
from pipeline.models.bernoulli_mixture.gaussians import (
    Gaussians,
    Overall,
    add_log_densities,
    compute_log_prior,
    find_bounded,
    pack_gaussians,
    sum_gaussian_statistics,
    unpack_gaussians,
    update_gaussians,
)
from pipeline.models.bernoulli_mixture.imputation import compute_plane_probabilities
from pipeline.models.bernoulli_mixture.levels import (
    count_determined_parameters,
    count_levels_from,
    count_reached,
    cumulate_planes,
    divide_planes,
    draw_levels,
    mask_unreached_planes,
)
from pipeline.models.bernoulli_mixture.standard_errors import (
    ErrorForm,
    MixtureErrors,
    MixtureRows,
    compute_mixture_errors,
    iter_mixture_scores,
    name_feature_errors,
    sum_mixture_information,
    warn_about_errors,
)
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.mixture import Mixture
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure, add_structure
from pipeline.models.support import Conflict, Support
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]

BATCH_WORDS = 128
"""Words of rows whose posteriors are in memory at once: 8,192 rows."""
MAX_PARAMETERS = 1500
"""With more parameters, the information matrix is too large and there are no standard errors."""
MAX_ROWS = 20_000
"""Number of rows over which information is summed; more rows are sampled and scaled up."""
# These import this file.
_GROUPED_CLASS = "pipeline.models.bernoulli_mixture.groups:GroupedMixture"
_STRUCTURED_CLASS = "pipeline.models.bernoulli_mixture.conditional:StructuredMixture"
_REGRESSION_CLASS = "pipeline.models.bernoulli_mixture.class_regression:ClassRegression"
_MIN_SMOOTHING = 1e-6  # keeps 1 − p accurate for up to 1e9 rows


@dataclass(frozen=True)
class BernoulliMixtureParams:
    """Parameters; the module's table gives shapes.

    Attributes
    ----------
    probabilities_error, probabilities_interval, weights_error
        Standard errors, and the ends of 95 % intervals; None if they were not computed.
    segments, segment_rows
        Indices of the groups of rows, in the order of their names, and their numbers of rows, or
        the sums of their weights. All arrays of groups are None without groups. Otherwise
        `weights` is the mean of the class weights of all rows.
    group_class_weights, group_class_weights_error
        Class weights in each group, and their standard errors.
    intercepts, coefficients, intercepts_error, coefficients_error
        With covariates, the log-odds of each component against the first where all covariates are
        0, their change per unit of each covariate, and standard errors, which are 0 for the first
        component. Then `weights` is the mean of the class weights of all rows.
    covariate_center
        Means of the covariates in the fitted rows.
    n_levels, level_probabilities, level_probabilities_error
        Numbers of levels of the features, P(x = level | k) of each level of each feature, and
        standard errors; None if all features are binary. Otherwise `probabilities` are P(x ≥ c |
        k) of each plane. A continuous feature has one level, which is in no array, and no plane.
    means, deviations, means_error, deviations_error
        Mean and standard deviation of each continuous feature in each component, and standard
        errors; None without continuous features.
    overall_means, overall_deviations
        Mean and standard deviation of each continuous feature in the fitted rows.
    """

    probabilities: Array = array_field("component", "plane", allowed=NumberRange(above=0, below=1))
    weights: Array = array_field("component", allowed=NumberRange(above=0), total=1)
    probabilities_error: Array | None = optional_array_field("component", "plane")
    probabilities_interval: Array | None = optional_array_field("bound", "component", "plane")
    weights_error: Array | None = optional_array_field("component")
    segments: NDArray[np.int64] | None = optional_array_field("segment")
    segment_rows: NDArray[np.int64] | None = optional_array_field("segment")
    group_class_weights: Array | None = optional_array_field(
        "segment", "component", allowed=NumberRange(above=0)
    )
    group_class_weights_error: Array | None = optional_array_field("segment", "component")
    intercepts: Array | None = optional_array_field("component")
    intercepts_error: Array | None = optional_array_field("component")
    coefficients: Array | None = optional_array_field("covariate", "component")
    coefficients_error: Array | None = optional_array_field("covariate", "component")
    covariate_center: Array | None = optional_array_field("covariate")
    n_levels: NDArray[np.int64] | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=1, maximum=MAX_LEVELS)
    )
    level_probabilities: Array | None = optional_array_field("component", "level")
    level_probabilities_error: Array | None = optional_array_field("component", "level")
    means: Array | None = optional_array_field("component", "continuous")
    deviations: Array | None = optional_array_field(
        "component", "continuous", allowed=NumberRange(above=0)
    )
    means_error: Array | None = optional_array_field("component", "continuous")
    deviations_error: Array | None = optional_array_field("component", "continuous")
    overall_means: Array | None = optional_array_field("continuous")
    overall_deviations: Array | None = optional_array_field(
        "continuous", allowed=NumberRange(above=0)
    )

    @property
    def continuation(self) -> Array:
        """P(x ≥ c | x ≥ c − 1, k) of each plane, (n_components, n_planes)."""
        return divide_planes(self.probabilities, self.n_levels)

    @property
    def planes_per_feature(self) -> NDArray[np.int64]:
        """Number of planes of each feature that has any, (n_features,)."""
        if self.n_levels is None:
            return np.ones(self.probabilities.shape[1], np.int64)
        return self.n_levels[self.n_levels > 1] - 1

    @property
    def gaussians(self) -> Gaussians:
        """μ and σ; both have no columns if no feature is continuous."""
        if self.means is None or self.deviations is None:
            return Gaussians(*np.empty((2, len(self.weights), 0)))
        return Gaussians(self.means, self.deviations)

    @property
    def overall(self) -> Overall:
        """Mean and standard deviation of continuous features in all rows."""
        if self.overall_means is None or self.overall_deviations is None:
            return Overall(*np.empty((2, 0)))
        return Overall(self.overall_means, self.overall_deviations)

    @property
    def free_parameters(self) -> Array:
        """Log-odds, then means and log-deviations, then log-weights: an unconstrained vector.

        Groups have log-weights of their own. With covariates, intercepts and coefficients take the
        place of log-weights.
        """
        log_odds = scipy.special.logit(self.continuation).ravel()
        if self.means is not None:
            log_odds = np.append(log_odds, pack_gaussians(self.gaussians, self.overall))
        if self.intercepts is not None and self.coefficients is not None:
            return np.concatenate([log_odds, self.intercepts, self.coefficients.ravel()])
        own = self.weights if self.group_class_weights is None else self.group_class_weights
        return np.concatenate([log_odds, np.log(own).ravel()])

    def with_free_parameters(self, packed: Array, limit: float) -> BernoulliMixtureParams:
        """Return the parameters of such a vector, log-odds and log-weights clipped at ±`limit`."""
        n_components, n_features = self.probabilities.shape
        if self.means is not None:
            return self._with_free_numbers(packed, limit)
        log_odds, others = np.split(packed, [self.probabilities.size])
        log_odds = np.clip(log_odds, -limit, limit)
        others = others.reshape(-1, n_components)
        continuation = scipy.special.expit(log_odds).reshape(n_components, n_features)
        probabilities = cumulate_planes(continuation, self.n_levels)
        if self.coefficients is not None:
            coefficients = {"intercepts": others[0], "coefficients": others[1:]}
            return replace(self, probabilities=probabilities, **coefficients)
        weights = np.exp(scipy.special.log_softmax(np.maximum(others, -limit), axis=1))
        if self.group_class_weights is None:
            return replace(self, probabilities=probabilities, weights=weights[0])
        return replace(self, probabilities=probabilities, group_class_weights=weights)

    def _with_free_numbers(self, packed: Array, limit: float) -> BernoulliMixtureParams:
        """Return the parameters of a vector that has means and log-deviations too."""
        first = self.probabilities.size
        numbers = slice(first, first + 2 * self.gaussians.means.size)
        discrete = replace(self, means=None).with_free_parameters(np.delete(packed, numbers), limit)
        means, deviations = unpack_gaussians(packed[numbers], self.overall, limit)
        return replace(discrete, means=means, deviations=deviations)

    def get_class_weights(self, segment: int) -> Array:
        """Return the class weights of the rows of a segment, (n_components,).

        Rows of other segments than the fitted ones have the mean of the fitted rows.
        """
        if self.segments is None or self.group_class_weights is None:
            return self.weights
        (places,) = np.nonzero(self.segments == segment)
        own: Array = self.group_class_weights[places[0]] if places.size else self.weights
        return own

    def compute_class_weights(self, block: BinaryBlock) -> tuple[Array, Array]:
        """Return π of the rows of a block and its logarithm, (n_components,).

        With covariates, they have the shape (n_samples, n_components).
        """
        if self.coefficients is None or self.intercepts is None:
            weights = self.get_class_weights(block.segment)
            return weights, np.log(weights)
        assert block.covariates is not None
        odds = np.tile(self.intercepts, (block.n_samples, 1))
        for values, own in zip(block.covariates.T, self.coefficients, strict=True):
            odds += values[:, None] * own  # unlike BLAS, the same for any number of rows
        log_weights = scipy.special.log_softmax(odds, axis=1)
        return np.exp(log_weights), log_weights

    def compute_terms(self, block: BinaryBlock, log_weights: Array) -> MixtureTerms:
        """Return the terms of the E-step of a block, given log π."""
        if self.means is not None:
            assert block.numbers is not None
            log_weights = add_log_densities(block.numbers, self.gaussians, log_weights)
        return compute_mixture_terms(self.continuation, log_weights)

    def make_predictors(self, block: BinaryBlock) -> Array:
        """Return what the class weights of a block's rows depend on, (n_samples, n_predictors).

        These are indicators of the groups, or 1 and the distances of the covariates from their
        means; without groups and covariates, all are 1.
        """
        if self.covariate_center is not None:
            assert block.covariates is not None
            centred = block.covariates - self.covariate_center
            return np.column_stack([np.ones(block.n_samples), centred])
        n_groups = 1 if self.group_class_weights is None else len(self.group_class_weights)
        indicators = np.zeros(n_groups)
        indicators[block.segment if n_groups > 1 else 0] = 1.0
        return np.broadcast_to(indicators, (block.n_samples, n_groups))

    def take_components(self, order: NDArray[np.intp]) -> BernoulliMixtureParams:
        """Return the components in another order, without standard errors."""
        arrays = (self.group_class_weights, self.intercepts, self.coefficients)
        groups, intercepts, coefficients = (
            None if array is None else array[..., order] for array in arrays
        )
        has_numbers = self.means is not None
        means, deviations = (a[order] if has_numbers else None for a in self.gaussians)
        return BernoulliMixtureParams(
            self.probabilities[order],
            self.weights[order],
            segments=self.segments,
            segment_rows=self.segment_rows,
            group_class_weights=groups,
            intercepts=None if intercepts is None else intercepts - intercepts[0],
            coefficients=None if coefficients is None else coefficients - coefficients[:, :1],
            covariate_center=self.covariate_center,
            n_levels=self.n_levels,
            means=means,
            deviations=deviations,
            overall_means=self.overall_means,
            overall_deviations=self.overall_deviations,
        )


@dataclass(frozen=True)
class BernoulliMixture(Mixture):
    """Hyperparameters of the mixture of products of Bernoullis.

    Attributes
    ----------
    n_components
        Number of components. None doubles it from 1 while held-out rows become more likely.
    smoothing
        Pseudo-counts of ones, of zeros and of rows in every component; also the number of rows
        with the mean and the variance of all rows that is added for every continuous feature.
    starts
        Number of short runs; the fit continues with the best. None takes 3, or 10 if values are
        missing.
    errors
        Standard errors from the observed information (`louis`), from the products of scores
        (`crossproduct`, as poLCA), or `none`. With sampling weights they are those of the sandwich.
    max_iter
        Maximum number of passes, for each start and number of components.
    tol
        Stop once the objective per row has changed by less than this in the last three passes and
        is predicted to change by less in total, nats. The limit for all rows together is 10,000
        times this.
    """

    name: ClassVar[str] = "bernoulli-mixture"
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "continuous"),
        ("groups", "covariates", "frequency", "sampling", "clusters"),
        (Conflict("groups", "covariates", "Name the column of the groups among the covariates."),),
    )
    unlinked_effect: ClassVar[str] = (
        "which class of one part belongs to which class of another is not determined"
    )
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[Sums]] = Sums
    params: ClassVar[type[BernoulliMixtureParams]] = BernoulliMixtureParams
    acceleration: ClassVar[str] = "squarem"
    max_held_out_components: ClassVar[int] = 256
    short_run_tol: ClassVar[float] = 1e-3
    n_components: int | None = 10
    smoothing: float = setting(0.1, minimum=_MIN_SMOOTHING)
    starts: int | None = setting(None, minimum=1)
    errors: Literal["louis", "crossproduct", "none"] = "louis"
    max_iter: int = setting(500, minimum=1)
    tol: float = setting(1e-6, above=0, below=1)

    def with_structure(self, structure: Structure) -> Any:
        """Return the model of levels, groups or covariates, or this model if there are none."""
        plain = super().with_structure(structure)
        if structure.covariates is not None:
            kind = resolve_name(_REGRESSION_CLASS)
        elif structure.groups:
            kind = resolve_name(_GROUPED_CLASS)
        elif not are_binary(structure.features):
            kind = resolve_name(_STRUCTURED_CLASS)
        else:
            return plain
        return add_structure(kind, plain, structure)

    @property
    def n_levels(self) -> NDArray[np.int64] | None:
        """Number of levels of each feature; None if all have two."""
        return None

    @property
    def _pseudo_ones(self) -> Array | float:
        """Pseudo-counts of the ones of each plane; those of its zeros are `smoothing`."""
        return self.smoothing * (1 if self.n_levels is None else count_levels_from(self.n_levels))

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's sums and logarithms, and of the extrapolation."""
        n_components = self.n_components or self.max_held_out_components
        return 8 * n_features * n_components * (6 * n_threads + 10)

    def estimate_work(
        self, params: BernoulliMixtureParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step if half of the values are ones; sparse rows take less.

        The pass for errors also multiplies the scores of a share of the rows.
        """
        n_components, n_parameters = len(params.weights), params.free_parameters.size
        nanoseconds = n_features * (3 + 0.13 * n_components) + 10 * n_components
        n_numbers = params.gaussians.means.size
        nanoseconds += 8 * n_numbers
        n_sums = 2 * n_features * n_components + 3 * n_numbers
        if "share" in working:
            nanoseconds += float(working["share"]) * (30 + 0.06 * n_parameters) * n_parameters
            n_sums += n_parameters**2
        return WorkEstimate(nanoseconds, 8 * n_sums)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, and start from random components around the margins."""
        warnings = self._warn_about_features(first)
        observed, ones = pool_margins(first)
        observed = count_reached(observed, ones, self.n_levels)
        self._check_number_of_components(first)
        auxiliary = {
            "n_rows": np.array(first.n_rows),
            "weight": np.array(first.weight),
            "is_complete": np.array(first.is_complete),
            "has_sampling_weights": np.array(first.has_sampling_weights),
            "margins": scipy.special.logit(
                (ones + self._pseudo_ones) / (observed + (self._pseudo_ones + self.smoothing))
            ),
            "seed": rng.integers(2**63, size=1),
            **self._measure_numbers(first),
        }
        state = FitState(None, auxiliary=auxiliary, warnings=warnings)
        return self._begin_fit(state)

    def _measure_numbers(self, first: FeatureCounts) -> Arrays:
        """Return mean and standard deviation of continuous features, if there are any."""
        return {}

    def _warn_about_features(self, first: FeatureCounts) -> tuple[FitWarning, ...]:
        consequence = "only the smoothing determines their probabilities"
        return make_constant_feature_warnings(*pool_margins(first), consequence)

    def _draw_start(
        self, auxiliary: Arrays, n_components: int, start: int
    ) -> BernoulliMixtureParams:
        margins = auxiliary["margins"]
        rng = np.random.default_rng([int(auxiliary["seed"][0]), n_components, start])
        noise = rng.standard_normal((n_components, len(margins))) if n_components > 1 else 0.0
        probabilities = np.atleast_2d(scipy.special.expit(margins + noise))
        params = BernoulliMixtureParams(
            cumulate_planes(probabilities, self.n_levels),
            np.full(n_components, 1 / n_components),
            n_levels=self.n_levels,
        )
        if "overall_means" not in auxiliary:
            return params
        overall = _get_overall(auxiliary)
        shape = (n_components, len(overall["overall_means"]))
        noise = rng.standard_normal(shape) if n_components > 1 else np.zeros(shape)
        deviations = np.broadcast_to(overall["overall_deviations"], shape)
        means = overall["overall_means"] + deviations * noise
        return replace(params, means=means, deviations=deviations.copy(), **overall)

    def warm_start(self, state: FitState, params: BernoulliMixtureParams) -> FitState:
        """Start from an earlier fit, without short runs."""
        params = replace(params, **_get_overall(state.auxiliary))
        return replace(self._begin_long_run(state, 0.0), params=params)

    def summarize(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        run = partial(self._run_e_step, params)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def _run_e_step(self, params: BernoulliMixtureParams, block: BinaryBlock) -> Sums:
        masked = mask_unreached_planes(block, params.n_levels)
        has_numbers = params.means is not None
        parts = iter_word_ranges(masked, BATCH_WORDS) if has_numbers else iter([masked])
        sums = reduce(Sums.merge, (self._sum_part(params, part) for part in parts))
        empty_rows = np.array(block.count_unobserved_rows())
        return replace(sums, values={**sums.values, "empty_rows": empty_rows})

    def _sum_part(self, params: BernoulliMixtureParams, part: BinaryBlock) -> Sums:
        """Run the E-step on rows whose masks leave out the planes that they do not reach."""
        _, log_weights = params.compute_class_weights(part)
        nats, values = sum_rows(params, part, log_weights)
        return Sums.from_block(part, nats, values)

    def objective(self, params: BernoulliMixtureParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        p = params.continuation
        counts = 1 if self.n_levels is None else count_levels_from(self.n_levels)
        log_prior = (counts * np.log(p)).sum() + np.log1p(-p).sum()
        log_prior += self._compute_log_prior_of_classes(params, statistics)
        if params.means is not None:
            log_prior += compute_log_prior(params.gaussians, params.overall)
        return float((statistics.objective + self.smoothing * log_prior) / statistics.weight)

    def _compute_log_prior_of_classes(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> float:
        return float(np.log(params.weights).sum())

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step."""
        s, values = self.smoothing, statistics.values
        ones, mass = values["ones"].T, values["mass"]
        # Rounding must not lead to more ones than values.
        observed = np.maximum(mass[:, None] - values["missing"].T, ones)
        weights = (mass + s) / (mass + s).sum()
        continuation = (ones + self._pseudo_ones) / (observed + (self._pseudo_ones + s))
        probabilities = cumulate_planes(continuation, self.n_levels)
        params = replace(state.params, probabilities=probabilities, weights=weights)
        if params.means is not None:
            found = update_gaussians(params.gaussians, params.overall, values, s)
            params = replace(params, means=found.means, deviations=found.deviations)
        return replace(state, params=params)

    def pack_params(self, params: BernoulliMixtureParams) -> Array:
        """Return log-odds, then log-weights."""
        return params.free_parameters

    def unpack_params(self, params: BernoulliMixtureParams, packed: Array, weight: float) -> Any:
        """Return the parameters, within the bounds that an M-step can reach."""
        most = 1 if self.n_levels is None else max(int(self.n_levels.max()) - 1, 1)
        limit = np.log((weight + len(params.weights)) / self.smoothing + most)
        return params.with_free_parameters(packed, limit)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components by weight, and add diagnostics and warnings."""
        order = np.argsort(-state.params.weights, kind="stable")
        params = state.params.take_components(order)
        if params.n_levels is not None:
            by_level = find_level_probabilities(
                params.probabilities, params.n_levels[params.n_levels > 1]
            )
            params = replace(params, level_probabilities=by_level)
        values = statistics.values
        state = self._describe_components(state, values["mass"], values["empty_rows"])
        return replace(state, params=params)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors, unless there are too many parameters."""
        if self.errors == "none" or state.params.free_parameters.size > MAX_PARAMETERS:
            return None
        share = MAX_ROWS / max(int(state.auxiliary["n_rows"]), 1)
        if state.auxiliary["has_sampling_weights"]:  # scores are summed by cluster
            share = 1.0
        return {"share": np.array(min(share, 1.0))}

    def summarize_information(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters over a share of the rows."""
        uniform = rng.stream("information").uniform(block.rows, 1)[:, 0]
        block = block.take_rows(np.flatnonzero(uniform < working["share"]))
        rows, nats = _make_mixture_rows(params, block)
        measured = (params.continuation, params.gaussians)
        information = sum_mixture_information(rows, *measured)
        sums = Sums.from_block(block, float(rows.row_weights @ nats), information)
        if not block.has_sampling_weights and self.errors != "crossproduct":
            return sums
        if block.clusters is None:
            products = np.zeros_like(information["products"])
            for batch, scores in iter_mixture_scores(rows, *measured):
                factors = 1.0 if block.has_sampling_weights else rows.row_weights[batch, None]
                products += scores.T @ (scores / factors)
            return replace(sums, values={**information, "score_products": products})
        clusters, places = np.unique(block.clusters, return_inverse=True)
        by_cluster = np.zeros((len(clusters), len(information["products"])))
        for batch, scores in iter_mixture_scores(rows, *measured):
            np.add.at(by_cluster, places[batch], scores)
        return ClusteredSums.from_sums(sums, clusters, by_cluster)

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors and intervals."""
        params, weight = state.params, float(state.auxiliary["weight"])
        scale = weight / statistics.weight if statistics.weight else 1.0
        sums = {name: scale * values for name, values in statistics.values.items()}
        if isinstance(statistics, ClusteredSums):
            sums["score_products"] = statistics.sum_score_products()
        weights = params.weights
        jacobian = np.diag(weights) - np.outer(weights, weights)
        curvature = (weight + len(weights) * self.smoothing) * jacobian[:, None, :, None]
        errors = self._compute_errors(state, curvature, sums)
        weights_error = np.sqrt(np.diag(jacobian @ errors.coefficients[:, 0, :, 0] @ jacobian))
        params = replace(
            params,
            **name_feature_errors(errors),
            weights_error=weights_error,
        )
        return warn_about_errors(replace(state, params=params), errors)

    def _compute_errors(
        self, state: FitState, curvature: Array, sums: Mapping[str, NDArray[Any]]
    ) -> MixtureErrors:
        params = state.params
        n_planes, n_numbers = params.probabilities.shape[1], params.gaussians.means.shape[1]
        pseudo_counts = np.full(n_planes + 2 * n_numbers, self.smoothing)
        pseudo_counts[:n_planes] = self._pseudo_ones + self.smoothing
        return compute_mixture_errors(
            params.continuation,
            params.gaussians,
            find_bounded(params.gaussians, params.overall),
            curvature,
            sums,
            pseudo_counts,
            self._choose_error_form(state),
            params.n_levels,
        )

    def _choose_error_form(self, state: FitState) -> ErrorForm:
        if state.auxiliary["has_sampling_weights"]:
            return "sandwich"
        return "crossproduct" if self.errors == "crossproduct" else "louis"

    def count_parameters(self, state: FitState) -> tuple[int, int] | None:
        """Return the numbers of free and of determined parameters of features with levels.

        Without `smoothing`, the prior, that is.
        """
        params = state.params
        if params.means is not None or params.coefficients is not None:
            return None
        n_levels = params.n_levels
        if n_levels is None:
            n_levels = np.full(params.probabilities.shape[1], 2)
        n_groups = 1 if params.segments is None else len(params.segments)
        found = count_determined_parameters(n_levels, len(params.weights), n_groups)
        return self.count_mixture_parameters(params), found

    def count_mixture_parameters(self, params: BernoulliMixtureParams) -> int:
        """Count the free probabilities, and the free weights of each group or coefficients."""
        n_free = len(params.weights) - 1
        n_measured = params.probabilities.size + 2 * params.gaussians.means.size
        if params.coefficients is not None:
            return n_measured + n_free * (1 + len(params.coefficients))
        n_groups = 1 if params.segments is None else len(params.segments)
        return n_measured + n_free * n_groups

    def transform(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Return P(k | x) as `mean`, (n_samples, n_components)."""
        return {"mean": _posterior(params, block)[0]}

    def log_likelihood(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row."""
        _, nats = _posterior(params, block)
        return LogLikelihood(nats, np.zeros_like(nats))

    def impute(self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom) -> Array:
        """Return P(plane = 1 | all other values of the row), (n_samples, n_planes)."""
        masked, terms = _prepare_rows(params, block)
        joint = compute_log_joint(masked.words, masked.observed_words, masked.n_samples, terms)
        return compute_plane_probabilities(
            block, params.planes_per_feature, terms, params.probabilities, joint
        )

    def sample(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features), of the groups of these segments if there are any."""
        return self.sample_numbers(params, n_samples, rng, segments)[0]

    def sample_numbers(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows as `sample` does, with values of continuous features."""
        components = self._draw_components(params, n_samples, rng, segments)
        uniform = rng.random((n_samples, params.probabilities.shape[1]))
        bits = (uniform < params.continuation[components]).astype(np.uint8)
        means, deviations = params.gaussians
        noise = rng.standard_normal((n_samples, means.shape[1]))
        numbers = means[components] + deviations[components] * noise
        return draw_levels(bits, params.n_levels), numbers

    def _draw_components(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        if params.segments is None:
            return rng.choice(len(params.weights), n_samples, p=params.weights)
        if segments is None:
            segments = draw_segments(params, n_samples, rng)
        components = np.empty(n_samples, np.int64)
        for segment in np.unique(segments).tolist():
            (rows,) = np.nonzero(segments == segment)
            own = params.get_class_weights(segment)
            components[rows] = rng.choice(len(own), len(rows), p=own)
        return components

    def reconstruct(
        self,
        params: BernoulliMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k p_k clipped to 0 and 1, (n_samples, n_features)."""
        probabilities: Array = np.clip(codes @ params.probabilities, 0.0, 1.0)
        return probabilities

    def reconstruct_numbers(
        self,
        params: BernoulliMixtureParams,
        codes: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k μ_k, (n_samples, n_continuous)."""
        numbers: Array = codes @ params.gaussians.means
        return numbers

    def number_probabilities(
        self,
        params: BernoulliMixtureParams,
        codes: Mapping[str, Array],
        numbers: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return Σ_k codes_k Φ((x − μ_k) / σ_k), (n_samples, n_continuous)."""
        means, deviations = params.gaussians.means, params.gaussians.deviations
        probabilities = np.zeros(numbers.shape)
        for k, weights in enumerate(codes["mean"].T):
            probabilities += weights[:, None] * scipy.special.ndtr(
                (numbers - means[k]) / deviations[k]
            )
        return probabilities


def sum_rows(
    params: BernoulliMixtureParams,
    block: BinaryBlock,
    log_weights: Array,
    posterior: Array | None = None,
) -> tuple[float, dict[str, NDArray[Any]]]:
    """Return the log-likelihood of a block and the sums of the M-step, by name, given log π.

    `posterior`, (n_samples, n_components), is filled with P(k | x) times the weight of the row.
    """
    terms = params.compute_terms(block, log_weights)
    if params.means is not None and posterior is None:
        posterior = np.empty((block.n_samples, len(params.weights)))
    words = (block.words, block.observed_words, block.n_samples)
    sums = sum_mixture_statistics(*words, terms, block.row_weights, posterior)
    values = {"mass": sums.mass, "ones": sums.ones, "missing": sums.missing}
    if params.means is not None:
        assert block.numbers is not None
        assert posterior is not None
        values |= sum_gaussian_statistics(block.numbers, params.gaussians, posterior)
    return sums.log_likelihood, values


def _get_overall(auxiliary: Arrays) -> dict[str, Any]:
    """Return mean and standard deviation of continuous features, if there are any."""
    names = ("overall_means", "overall_deviations")
    return {name: auxiliary[name] for name in names if name in auxiliary}


def _prepare_rows(
    params: BernoulliMixtureParams, block: BinaryBlock
) -> tuple[BinaryBlock, MixtureTerms]:
    """Return the rows without the planes that they do not reach, and the terms of the E-step."""
    _, log_weights = params.compute_class_weights(block)
    terms = params.compute_terms(block, log_weights)
    return mask_unreached_planes(block, params.n_levels), terms


def _posterior(params: BernoulliMixtureParams, block: BinaryBlock) -> tuple[Array, Array]:
    block, terms = _prepare_rows(params, block)
    return mixture_posterior(block.words, block.observed_words, block.n_samples, terms)


def _make_mixture_rows(
    params: BernoulliMixtureParams, block: BinaryBlock
) -> tuple[MixtureRows, Array]:
    """Return the rows of a block for standard errors, and their log-likelihood, (n_samples,)."""
    posterior, nats = _posterior(params, block)
    block = mask_unreached_planes(block, params.n_levels)
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    class_weights, _ = params.compute_class_weights(block)
    rows = MixtureRows(
        block.unpack_values(),
        block.unpack_mask(),
        block.numbers.T if block.numbers is not None else np.empty((block.n_samples, 0)),
        weights,
        posterior,
        np.broadcast_to(class_weights, posterior.shape),
        params.make_predictors(block),
    )
    return rows, nats
