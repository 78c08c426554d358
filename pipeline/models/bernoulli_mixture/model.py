"""Latent classes: each row is of one of a few classes, in which features are independent.

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

Cost per block: n_components times the number of values; sparse rows take less, see `e_step.py`.
Passes: tens to hundreds, or three to ten after a start on a sample of many rows, see
`newton_steps.py`.
Not identifiable: the order of the components, which are sorted by weight; and the components
themselves if there are fewer than about 2 log₂ n_components + 1 features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, iter_word_ranges
from pipeline.data.matching import draw_segments
from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled
from pipeline.learning.held_out import run_e_step_with_held_out
from pipeline.models.bernoulli_mixture.class_regression import (
    BATCH_WORDS,
    ClassWeightsByCovariates,
    limit_covariates,
)
from pipeline.models.bernoulli_mixture.classes import (
    MIN_SMOOTHING,
    ClassMixture,
    compute_class_posterior,
    count_observed,
)
from pipeline.models.bernoulli_mixture.e_step import (
    sum_mixture_statistics,
)
from pipeline.models.bernoulli_mixture.gaussians import (
    sum_gaussian_statistics,
)
from pipeline.models.bernoulli_mixture.groups import ClassWeightsByGroup
from pipeline.models.bernoulli_mixture.levels import (
    count_determined_parameters,
    cumulate_planes,
    mask_unreached_planes,
)
from pipeline.models.bernoulli_mixture.newton_steps import (
    compute_scales,
    invert_scaled_information,
    pack_information,
)
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams, ClassErrors
from pipeline.models.bernoulli_mixture.standard_errors import (
    ErrorForm,
    MixtureRows,
    compute_information,
    compute_mixture_errors,
    iter_mixture_scores,
    sum_mixture_information,
)
from pipeline.models.capabilities import FitRecord, LogLikelihood
from pipeline.models.sample_sizes import (
    ROWS_PER_CLASS,
    ROWS_PER_PARAMETER,
    count_information_rows,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Conflict, Support
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
)
from pipeline.statistics.sums import ClusteredSums, Sums

MAX_PARAMETERS = 1500
"""With more parameters, the information matrix is too large and there are no standard errors."""
MAX_ROWS = 20_000
"""Number of rows over which information is summed; more rows are sampled and scaled up."""
_SAMPLE_STARTS = 10
_INFORMATION_PASSES = 0.25  # that the information of a sample may take as long as
_MAX_DRAWN_VALUES = 1 << 25
"""Values that a draw of the bootstrap test may have; they are in memory at once."""


@dataclass(frozen=True)
class BernoulliMixture(ClassMixture):
    """Hyperparameters of the mixture of products of Bernoullis.

    Attributes
    ----------
    n_components
        Number of components. None doubles it from 1 while held-out rows become more likely.
    smoothing
        Pseudo-counts of ones, of zeros and of rows in every component; also the number of rows
        with the mean and the variance of all rows that is added for every continuous feature.
    starts
        Number of short runs; the fit continues with the best. None takes 10; unless values are
        missing or numbers of components are compared, only the best 3 go on after 8 passes.
    blrt
        Number of draws of the bootstrap likelihood-ratio test of each number of components against
        one fewer, up to max_components or n_components; 0 leaves it out.
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
        ("binary", "ordinal", "nominal", "continuous"),
        ("groups", "covariates", "frequency", "sampling", "clusters"),
        (Conflict("groups", "covariates", "Name the column of the groups among the covariates."),),
    )
    unlinked_effect: ClassVar[str] = (
        "which class of one part belongs to which class of another is not determined"
    )
    statistics: ClassVar[type[Sums]] = Sums
    acceleration: ClassVar[str] = "squarem"
    max_held_out_components: ClassVar[int] = 256
    short_run_tol: ClassVar[float] = 1e-3
    n_components: int | None = 10
    smoothing: float = setting(0.1, minimum=MIN_SMOOTHING)
    starts: int | None = setting(None, minimum=1)
    max_components: int | None = setting(None, minimum=1)
    blrt: int = setting(0, minimum=0)
    errors: Literal["louis", "crossproduct", "none"] = "louis"
    max_iter: int = setting(500, minimum=1)
    tol: float = setting(1e-6, above=0, below=1)

    @property
    def n_compared(self) -> int | None:
        """Largest number of components to fit and compare; None if numbers are not compared."""
        return self.max_components or (self.n_components if self.blrt else None)

    @property
    def _class_weights(self) -> ClassWeightsByGroup | ClassWeightsByCovariates:
        if self.structure.covariates is None:
            return ClassWeightsByGroup(self.structure.groups, self.smoothing)
        return ClassWeightsByCovariates(self.structure.covariates, self.smoothing)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's sums and logarithms, and of the extrapolation."""
        n_components = self.most_components
        return 8 * n_features * n_components * (6 * n_threads + 10)

    def estimate_work(
        self, params: BernoulliMixtureParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step if half of the values are ones; sparse rows take less.

        The pass for errors also multiplies the scores of a share of the rows.
        """
        n_components, n_parameters = len(params.weights), params.free_parameters.size
        nanoseconds = 20 + n_features * (0.25 + 0.12 * n_components) + 4 * n_components
        n_numbers = n_components * params.n_numbers
        nanoseconds += 8 * n_numbers
        n_sums = 2 * n_features * n_components + 3 * n_numbers
        if "share" in working:
            nanoseconds += float(working["share"]) * (30 + 0.06 * n_parameters) * n_parameters
            n_sums += n_parameters**2
        if params.regression is not None:
            size = n_components * (1 + len(params.regression.coefficients))
            nanoseconds += 30 * size + 0.3 * size**2
            n_sums += size**2
        return WorkEstimate(nanoseconds, 8 * n_sums)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the counts, and start from random components around the margins."""
        self._check_bootstrap(first)
        state = self._describe_counts(first, rng)
        if self.structure.covariates is not None:
            state = state.with_warnings(self.structure.covariates.make_warnings())
        has_sampling_weights = np.array(first.has_sampling_weights)
        auxiliary = {**state.auxiliary, "has_sampling_weights": has_sampling_weights}
        return self._begin_fit(replace(state, auxiliary=auxiliary))

    def _check_bootstrap(self, first: FeatureCounts) -> None:
        """Refuse tests for which rows cannot be drawn."""
        if not self.blrt:
            return
        reason, n_values = "", first.weight * first.ones.shape[1]
        if self.n_compared is None:
            reason = "there is no largest number of classes. Set {max_components}"
        elif self.n_compared == 1:
            reason = "one class cannot be tested. Set a larger {max_components}"
        elif self.structure.covariates is not None:
            reason = "rows of a fit with covariates cannot be drawn. Fit without {covariates}"
        elif first.has_sampling_weights:
            reason = "rows with sampling weights cannot be drawn. Leave out {blrt} or {weight}"
        elif n_values > _MAX_DRAWN_VALUES:
            reason = (
                f"{n_values:,.0f} values are too many to draw; at most {_MAX_DRAWN_VALUES:,} can "
                "be. Leave out {blrt}, and compare BIC"
            )
        if reason:
            raise FitError(f"{{blrt}} is {self.blrt}, but {reason}.", parameter="blrt")

    def _make_working(self, held_out: float, *, is_short: bool) -> Arrays:
        """Limit covariates at first if rows have high leverage."""
        working = super()._make_working(held_out, is_short=is_short)
        covariates = self.structure.covariates
        is_limited = covariates is not None and bool(covariates.leverages)
        return {**working, **({"is_limited": np.array(1)} if is_limited else {})}

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with covariates as they are after a stage of all rows that limits them."""
        if "is_limited" not in state.working or state.working["held_out"] > 0:
            return super().next_stage(state, statistics)
        return replace(state, working=super()._make_working(0.0, is_short=False))

    def warm_start(self, state: FitState, params: BernoulliMixtureParams) -> FitState:
        """Start from an earlier fit of any structure, without short runs."""
        params = self._class_weights.begin(self._measure_again(state, params))
        state = self.keep_order(self._begin_long_run(state, 0.0), params.probabilities)
        return replace(state, params=params)

    def make_refit_model(self, n_components: int, tol: float) -> BernoulliMixture:
        """Return the model that is fitted to drawn rows, without standard errors."""
        plain = replace(self, max_components=None, blrt=0, errors="none")
        return replace(plain, n_components=n_components, tol=tol)

    def split_component(
        self, params: BernoulliMixtureParams, component: int, rng: np.random.Generator
    ) -> BernoulliMixtureParams:
        """Return parameters in which two components that differ at random replace one."""
        order = np.append(np.arange(len(params.weights)), component)
        copies = order == component
        signs = np.where(np.arange(len(order)) == component, -0.5, 0.5)[:, None] * copies[:, None]
        split = params.take_components(order)
        noise = rng.standard_normal(split.continuation.shape[1])
        continuation = scipy.special.expit(scipy.special.logit(split.continuation) + signs * noise)
        halves = np.where(copies, 0.5, 1.0)
        split = replace(
            split,
            probabilities=cumulate_planes(continuation, self.n_levels),
            weights=split.weights * halves,
        )
        if split.groups is not None:
            own = split.groups.group_class_weights * halves
            split = replace(split, groups=replace(split.groups, group_class_weights=own))
        if split.gaussians is not None:
            shift = signs * rng.standard_normal(split.n_numbers) * split.gaussians.deviations
            gaussians = replace(split.gaussians, means=split.gaussians.means + shift)
            split = replace(split, gaussians=gaussians)
        return split

    def begin_short_runs(
        self, state: FitState, starts: Sequence[BernoulliMixtureParams]
    ) -> FitState:
        """Return the start of a stage with these parameters as starts."""
        auxiliary = {**state.auxiliary, "short": np.array(True)}
        state = replace(state, auxiliary=auxiliary)
        begin = self._class_weights.begin
        return replace(
            state, starts=tuple(replace(state, params=begin(params)) for params in starts)
        )

    def summarize(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        if "is_limited" in working and self.structure.covariates is not None:
            block = limit_covariates(block, self.structure.covariates)
        run = partial(self._run_e_step, params)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def _run_e_step(self, params: BernoulliMixtureParams, block: BinaryBlock) -> Sums:
        masked = mask_unreached_planes(block, params.n_levels)
        needs_posterior = params.gaussians is not None or self._class_weights.needs_posterior
        parts = iter_word_ranges(masked, BATCH_WORDS) if needs_posterior else iter([masked])
        sums = reduce(Sums.merge, (self._sum_part(params, part) for part in parts))
        empty_rows = np.array(block.count_unobserved_rows())
        return replace(sums, values={**sums.values, "empty_rows": empty_rows})

    def _sum_part(self, params: BernoulliMixtureParams, part: BinaryBlock) -> Sums:
        """Run the E-step on rows whose masks leave out the planes that they do not reach."""
        check_cancelled()
        class_weights, posterior = self._class_weights, None
        if params.gaussians is not None or class_weights.needs_posterior:
            posterior = np.empty((part.n_samples, len(params.weights)))
        terms = params.compute_terms(part, class_weights.compute_log_weights(params, part))
        words = (part.words, part.observed_words, part.n_samples)
        sums = sum_mixture_statistics(*words, terms, part.row_weights, posterior)
        values: dict[str, NDArray[Any]] = {"ones": sums.ones, "missing": sums.missing}
        if params.gaussians is not None:
            assert part.numbers is not None
            assert posterior is not None
            values |= sum_gaussian_statistics(part.numbers, params.gaussians, posterior)
        values |= class_weights.sum_rows(params, part, sums.mass, posterior)
        return Sums.from_block(part, sums.log_likelihood, values)

    def objective(self, params: BernoulliMixtureParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior per row, nats."""
        log_prior = self._compute_log_prior_of_features(params)
        log_prior += self._class_weights.compute_log_prior(params, statistics)
        return float((statistics.objective + self.smoothing * log_prior) / statistics.weight)

    def _run_m_step(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> BernoulliMixtureParams:
        mass = statistics.values["mass"].sum(axis=0) + self.smoothing
        params = replace(self._update_features(params, statistics), weights=mass / mass.sum())
        return self._class_weights.update(params, statistics)

    def pack_params(self, params: BernoulliMixtureParams) -> Array:
        """Return log-odds, then log-weights, or coefficients of standardized covariates."""
        return self._class_weights.standardize(params).free_parameters

    def unpack_params(self, params: BernoulliMixtureParams, packed: Array, weight: float) -> Any:
        """Return the parameters, within the bounds that an M-step can reach."""
        most = 1 if self.n_levels is None else max(int(self.n_levels.max()) - 1, 1)
        limit = np.log((weight + len(params.weights)) / self.smoothing + most)
        return self._class_weights.unstandardize(params.with_free_parameters(packed, limit))

    def count_sample_rows(self, state: FitState) -> int:
        """Return the rows that determine the parameters well enough to start from.

        None are needed if they would choose the number of components, or if there are too many
        parameters for the information.
        """
        n_parameters = int(state.params.free_parameters.size)
        is_searching = float(state.working["held_out"]) > 0 or self.n_compared is not None
        if is_searching or "is_limited" in state.working or n_parameters > MAX_PARAMETERS:
            return 0
        return ROWS_PER_PARAMETER * n_parameters

    def draw_sample_starts(self, state: FitState) -> Sequence[FitState]:
        """Draw more starts than for all rows, unless their number is set; none is a short run."""
        if not state.starts:
            return (state,)
        long_run, n_components = self.select_start(state.starts[0]), len(state.params.weights)
        return [
            replace(long_run, params=self._draw_start(state.auxiliary, n_components, k))
            for k in range(self.starts or _SAMPLE_STARTS)
        ]

    def leave_sample(self, state: FitState, statistics: Sums) -> FitState:
        """Return the state as it is."""
        return state

    def begin_newton_steps(self, state: FitState, n_rows: int) -> Arrays | None:
        """Request the sums of the information of so many rows that they pay.

        A class that the sample hardly has, or another one in its place, may be found in all rows.
        """
        if n_rows * state.params.weights.min() < ROWS_PER_CLASS:
            return None
        n_planes = state.params.probabilities.shape[1]
        n_affordable = _INFORMATION_PASSES * count_information_rows(self, state, n_planes)
        share = min(1.0, max(MAX_ROWS, n_affordable) / n_rows)
        return {"share": np.array(share), "without_products": np.array(1)}

    def invert_information(self, state: FitState, statistics: Sums) -> Array:
        """Return the inverse of the information, see `newton_steps`."""
        params, weight = state.params, float(state.auxiliary["weight"])
        scale = weight / statistics.weight
        sums = {name: scale * values for name, values in statistics.values.items()}
        curvature = self._class_weights.compute_curvature(params, sums, weight)
        pseudo_counts = self._list_pseudo_counts(params)
        measured = params.continuation, params.gaussians
        information, _ = compute_information(*measured, curvature, sums, pseudo_counts)
        packed = pack_information(information, params, self._class_weights.predictor_units)
        return invert_scaled_information(packed, params, self._compute_scales(state))

    def differentiate(self, state: FitState, statistics: Sums) -> Array | None:
        """Return the gradient in scaled parameters, see `newton_steps`."""
        params = state.params
        p = params.continuation
        pseudo = self._pseudo_ones + self.smoothing
        complete = [((count_observed(statistics) + pseudo) * p * (1 - p)).ravel()]
        if params.gaussians is not None:
            total = statistics.values["numbers"] + self.smoothing
            ratio = params.gaussians.overall_deviations / params.gaussians.deviations
            complete += [(total * ratio**2).ravel(), 2 * total.ravel()]
        information = np.concatenate(complete)
        mapped = self.pack_params(self._run_m_step(params, statistics))
        change = (mapped - self.pack_params(params))[: information.size]
        others = self._class_weights.differentiate(params, statistics)
        gradient = np.concatenate([information * change, others.ravel()])
        return np.asarray(gradient / self._compute_scales(state))

    def move_params(self, state: FitState, change: Array, weight: float) -> BernoulliMixtureParams:
        """Return the parameters after a step of scaled parameters."""
        packed = self.pack_params(state.params) + change / self._compute_scales(state)
        params: BernoulliMixtureParams = self.unpack_params(state.params, packed, weight)
        return params

    def _compute_scales(self, state: FitState) -> Array:
        pseudo_counts = self._list_pseudo_counts(state.params)
        return compute_scales(state.params, float(state.auxiliary["weight"]), pseudo_counts)

    def _list_pseudo_counts(self, params: BernoulliMixtureParams) -> Array:
        """Return the pseudo-counts of each score, (n_scores,)."""
        n_planes = params.probabilities.shape[1]
        pseudo_counts = np.full(n_planes + 2 * params.n_numbers, self.smoothing)
        pseudo_counts[:n_planes] = self._pseudo_ones + self.smoothing
        return pseudo_counts

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components by their mean weight, and add diagnostics and warnings."""
        params = self._class_weights.finish(state.params, statistics)
        return self._finish_classes(state, params, statistics)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors, unless there are too many parameters."""
        if self.errors == "none" or state.params.free_parameters.size > MAX_PARAMETERS:
            return None
        share = MAX_ROWS / max(int(state.auxiliary["n_rows"]), 1)
        # Scores of surveys are summed by cluster; few rows may be of a group.
        if state.auxiliary["has_sampling_weights"] or self._class_weights.are_conditional:
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
        information = {
            **sum_mixture_information(rows, *measured),
            **self._class_weights.sum_information(params, block),
        }
        sums = Sums.from_block(block, float(rows.row_weights @ nats), information)
        is_plain = not block.has_sampling_weights and self.errors != "crossproduct"
        if is_plain or "without_products" in working:
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
        errors = compute_mixture_errors(
            params.continuation,
            params.gaussians,
            self._class_weights.compute_curvature(params, sums, weight),
            sums,
            self._list_pseudo_counts(params),
            self._choose_error_form(state),
            params.planes_per_feature + 1,
        )
        params, weights_error = self._class_weights.compute_errors(
            params, sums, weight, errors.coefficients
        )
        levels = None if params.n_levels is None else errors.levels
        own = ClassErrors(
            errors.probabilities, errors.interval, weights_error, levels, errors.contrasts
        )
        params = replace(params, errors=own, gaussians_error=errors.gaussians)
        state = replace(state, params=params)
        if not errors.is_identified:
            state = state.with_warning(
                "the rows do not determine all parameters of the classes; those have no "
                "standard errors. Choose fewer {components}"
            )
        return state

    def _choose_error_form(self, state: FitState) -> ErrorForm:
        if state.auxiliary["has_sampling_weights"]:
            return "sandwich"
        return "crossproduct" if self.errors == "crossproduct" else "louis"

    def count_parameters(self, state: FitState) -> tuple[int, int] | None:
        """Return the numbers of free and of determined parameters of features with levels.

        Without `smoothing`, the prior, that is.
        """
        params = state.params
        if params.gaussians is not None or params.regression is not None:
            return None
        n_groups = 1 if params.groups is None else len(params.groups.segments)
        n_levels = params.planes_per_feature + 1
        found = count_determined_parameters(n_levels, len(params.weights), n_groups)
        n_planes = params.probabilities.shape[1]
        return self._count_parameters(params, n_planes), found

    def count_free_parameters(self, state: FitState) -> int:
        """Count the free probabilities, and the free weights of each group or coefficients."""
        return self._count_parameters(state.params, int((state.auxiliary["n_present"] - 1).sum()))

    def _count_parameters(self, params: BernoulliMixtureParams, n_planes: int) -> int:
        n_free = len(params.weights) - 1
        n_measured = len(params.weights) * (n_planes + 2 * params.n_numbers)
        if params.regression is not None:
            return n_measured + n_free * (1 + len(params.regression.coefficients))
        n_groups = 1 if params.groups is None else len(params.groups.segments)
        return n_measured + n_free * n_groups

    def explain_not_nested(self, fit: FitRecord, larger: FitRecord) -> str:
        """Return why a fit is no special case of one with groups or with more covariates."""
        if reason := super().explain_not_nested(fit, larger):
            return reason
        own, others = (
            {(manifest.get("group")), *(manifest.get("covariates") or {"names": ()})["names"]}
            for manifest in (fit.manifest, larger.manifest)
        )
        if own - {None} <= others:
            return ""
        return "the larger fit lacks groups or covariates of the smaller one"

    def log_likelihood(
        self, params: BernoulliMixtureParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Return the exact log P of the observed values of each row."""
        _, nats = compute_class_posterior(params, block)
        return LogLikelihood(nats, np.zeros_like(nats))

    def _begin_params(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        return self._class_weights.begin(params)

    def _draw_components(
        self,
        params: BernoulliMixtureParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        if params.groups is None:
            return rng.choice(len(params.weights), n_samples, p=params.weights)
        if segments is None:
            segments = draw_segments(params, n_samples, rng)
        components = np.empty(n_samples, np.int64)
        for segment in np.unique(segments).tolist():
            (rows,) = np.nonzero(segments == segment)
            own = params.get_class_weights(segment)
            components[rows] = rng.choice(len(own), len(rows), p=own)
        return components


def _make_mixture_rows(
    params: BernoulliMixtureParams, block: BinaryBlock
) -> tuple[MixtureRows, Array]:
    """Return the rows of a block for standard errors, and their log-likelihood, (n_samples,)."""
    posterior, nats = compute_class_posterior(params, block)
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
