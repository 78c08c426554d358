"""The mixture with covariates of rows: latent class regression.

Model: P(k) = π_nk = softmax_k(α_k + γ_kᵀ z_n) in row n with the covariates z_n, P(x_i = 1 | k) =
p_ki (K. Bandeen-Roche, D. L. Miglioretti, S. L. Zeger, P. J. Rathouz, Journal of the American
Statistical Association 92, 1997). The first component is the reference, with α = 0 and γ = 0. As
prior, s pseudo-rows of every component are spread evenly over the rows: their log-density is
s / N Σ_n Σ_k log π_nk. Without covariates, it is the Dirichlet(1 + s) prior of π. Covariates of
pseudo-rows are at most 6 standard deviations from their means, and so are all covariates in a first
stage if rows have high leverage: a row whose values contradict its covariates loses few nats, but
from coefficients of 0, it would hold them there.

E-step: that of the mixture with the class weights of each row. M-step: one step of Newton for
β_k = (α_k, γ_k), from Σ_n (r_nk − π_nk) z_n and Σ_n (diag π_n − π_n π_nᵀ) ⊗ z_n z_nᵀ, where r_nk =
P(k | x_n). The fit works with covariates of mean 0 and variance 1; parameters are those of the
covariates as they are.

=======  ==================  ============================
symbol   field               shape
=======  ==================  ============================
α        intercepts          (n_components,)
γ        coefficients        (n_covariates, n_components)
=======  ==================  ============================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, iter_word_ranges
from pipeline.data.covariates import MAX_FIRST_COVARIATE, Covariates
from pipeline.errors import FitWarning
from pipeline.executors.base import MapFunction
from pipeline.executors.cancellation import check_cancelled
from pipeline.models.bernoulli_mixture.conditional import ConditionalMixture, propagate_errors
from pipeline.models.bernoulli_mixture.levels import mask_unreached_planes
from pipeline.models.bernoulli_mixture.model import (
    BATCH_WORDS,
    BernoulliMixtureParams,
    sum_rows,
)
from pipeline.models.bernoulli_mixture.standard_errors import (
    name_feature_errors,
    warn_about_errors,
)
from pipeline.models.state import Arrays, FitState
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]

_MAX_STEP = 3.0  # of a coefficient in a pass, with covariates of variance 1


class _Coefficients(NamedTuple):
    """β of covariates as they are, or in units of their standard deviation from their mean."""

    intercepts: Array  # (n_components,)
    coefficients: Array  # (n_covariates, n_components)


@dataclass(frozen=True)
class ClassRegression(ConditionalMixture):
    """The mixture with the covariates of the rows as its structure."""

    @property
    def _covariates(self) -> Covariates:
        assert self.structure.covariates is not None
        return self.structure.covariates

    def estimate_work(
        self, params: BernoulliMixtureParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, and of the sums over covariates."""
        base = super().estimate_work(params, working, n_features, n_rows)
        size = len(params.weights) * (1 + len(self._covariates.names))
        nanoseconds = base.nanoseconds + 30 * size + 0.3 * size**2
        return WorkEstimate(nanoseconds, base.result_bytes + 8 * size**2)

    def _standardize(self, params: BernoulliMixtureParams) -> _Coefficients:
        means, deviations = np.array(self._covariates.means), np.array(self._covariates.deviations)
        assert params.intercepts is not None
        assert params.coefficients is not None
        return _Coefficients(
            params.intercepts + means @ params.coefficients,
            params.coefficients * deviations[:, None],
        )

    def _with_standardized(
        self, params: BernoulliMixtureParams, standardized: _Coefficients
    ) -> BernoulliMixtureParams:
        """Undo `_standardize`."""
        means, deviations = np.array(self._covariates.means), np.array(self._covariates.deviations)
        coefficients = standardized.coefficients / deviations[:, None]
        intercepts = standardized.intercepts - means @ coefficients
        return replace(params, intercepts=intercepts, coefficients=coefficients)

    def _warn_about_features(self, first: FeatureCounts) -> tuple[FitWarning, ...]:
        """Warn about features, and about rows of high leverage."""
        return (*super()._warn_about_features(first), *self._covariates.make_warnings())

    def _make_working(self, held_out: float, *, is_short: bool) -> Arrays:
        """Limit covariates at first if rows have high leverage."""
        working = super()._make_working(held_out, is_short=is_short)
        is_limited = bool(self._covariates.leverages)
        return {**working, **({"is_limited": np.array(1)} if is_limited else {})}

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with covariates as they are after a stage of all rows that limits them."""
        if "is_limited" not in state.working or state.working["held_out"] > 0:
            return super().next_stage(state, statistics)
        return replace(state, working=super()._make_working(0.0, is_short=False))

    def summarize(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        own = self._limit_covariates(block) if "is_limited" in working else block
        return super().summarize(params, working, own, rng)

    def _limit_covariates(self, block: BinaryBlock) -> BinaryBlock:
        """Return a block whose covariates are not far from their means; itself if none is."""
        assert block.covariates is not None
        means, reach = np.array(self._covariates.means), np.array(self._covariates.deviations)
        reach = MAX_FIRST_COVARIATE * reach
        if not (np.abs(block.covariates - means) > reach).any():
            return block
        limited = np.clip(block.covariates, means - reach, means + reach)
        return replace(block, covariates=limited)

    def _draw_start(
        self, auxiliary: Arrays, n_components: int, start: int
    ) -> BernoulliMixtureParams:
        params = super()._draw_start(auxiliary, n_components, start)
        return self._add_coefficients(params, params)

    def _add_coefficients(
        self, params: BernoulliMixtureParams, earlier: BernoulliMixtureParams
    ) -> BernoulliMixtureParams:
        """Add the coefficients of an earlier fit, or else class weights equal in all rows."""
        intercepts, coefficients = earlier.intercepts, earlier.coefficients
        if intercepts is None or coefficients is None:
            intercepts = np.log(earlier.weights / earlier.weights[0])
            coefficients = np.zeros((len(self._covariates.names), len(intercepts)))
        plain = params.take_components(np.arange(len(params.weights)))
        return replace(
            plain,
            segments=None,
            segment_rows=None,
            group_class_weights=None,
            intercepts=intercepts,
            coefficients=coefficients,
            covariate_center=np.array(self._covariates.means),
        )

    def warm_start(self, state: FitState, params: BernoulliMixtureParams) -> FitState:
        """Start from an earlier fit, with or without covariates."""
        return super().warm_start(state, self._add_coefficients(params, params))

    def _run_e_step(self, params: BernoulliMixtureParams, block: BinaryBlock) -> Sums:
        """Use the class weights of each row, and sum over its covariates too."""
        block = mask_unreached_planes(block, params.n_levels)
        beta = np.vstack(self._standardize(params))
        n_components = beta.shape[1]
        log_likelihood, values = 0.0, dict[str, Any]()

        def weigh(rows: BinaryBlock) -> tuple[Array, Array]:
            """Return log π of rows, and their predictors."""
            predictors = self._make_standardized_predictors(rows)
            return scipy.special.log_softmax(predictors @ beta, axis=1), predictors

        for part in iter_word_ranges(block, BATCH_WORDS):
            check_cancelled()
            log_weights, predictors = weigh(part)
            posterior = np.empty((part.n_samples, n_components))
            nats, own = sum_rows(params, part, log_weights, posterior)
            log_likelihood += nats
            own["responsibilities"] = posterior.T @ predictors
            own |= self._sum_class_weights(part, weigh)
            values = {name: values.get(name, 0.0) + value for name, value in own.items()}
        values["empty_rows"] = np.array(block.count_unobserved_rows())
        return Sums.from_block(block, log_likelihood, values)

    def _sum_class_weights(
        self, block: BinaryBlock, weigh: Callable[[BinaryBlock], tuple[Array, Array]]
    ) -> dict[str, Any]:
        """Sum over rows, and over the pseudo-rows of the prior, whose covariates are limited.

        Parameters
        ----------
        block
            The rows.
        weigh
            Returns log π_n, (n_rows, n_components), and predictors z_n, (n_rows, n_predictors).

        Returns
        -------
        dict
            As `_sum_products` has them: `expected` and `class_curvature` of rows, `predictors`,
            `log_class_weights`, `prior_expected` and `prior_curvature` of pseudo-rows.
        """
        row_weights, limited = _get_row_weights(block), self._limit_covariates(block)
        own = _sum_products(*weigh(block), row_weights)
        prior = own if limited is block else _sum_products(*weigh(limited), row_weights)
        return {
            **prior,
            "prior_expected": prior["expected"],
            "prior_curvature": prior["class_curvature"],
            "expected": own["expected"],
            "class_curvature": own["class_curvature"],
        }

    def _make_standardized_predictors(self, block: BinaryBlock) -> Array:
        """Return 1 and the covariates of each row, in deviations from their means."""
        assert block.covariates is not None
        means, deviations = np.array(self._covariates.means), np.array(self._covariates.deviations)
        z = (block.covariates - means) / deviations
        return np.column_stack([np.ones(len(z)), z])

    def _compute_log_prior_of_classes(
        self, params: BernoulliMixtureParams, statistics: Sums
    ) -> float:
        return float(statistics.values["log_class_weights"] / statistics.weight)

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step."""
        coefficients = self._take_newton_step(self._standardize(state.params), statistics)
        state = super().update(state, statistics, map_items, rng)
        return replace(state, params=self._with_standardized(state.params, coefficients))

    def _take_newton_step(self, current: _Coefficients, statistics: Sums) -> _Coefficients:
        """Step towards the maximum over β of the expected log-likelihood of the classes."""
        values, pseudo = statistics.values, self.smoothing / statistics.weight
        n_components, n_predictors = values["responsibilities"].shape
        if n_components == 1:
            return current
        # Every row adds `pseudo` rows of each component.
        gradient = values["responsibilities"] - values["expected"]
        gradient += pseudo * (values["predictors"] - n_components * values["prior_expected"])
        curvature = values["class_curvature"] + n_components * pseudo * values["prior_curvature"]
        basis = np.kron(scipy.linalg.null_space(np.ones((1, n_components))), np.eye(n_predictors))
        size = n_components * n_predictors
        projected = basis.T @ curvature.reshape(size, size) @ basis
        step = basis @ np.linalg.lstsq(projected, basis.T @ gradient.ravel(), rcond=None)[0]
        step *= min(1.0, _MAX_STEP / max(np.abs(step).max(initial=0.0), np.finfo(float).tiny))
        change = step.reshape(n_components, n_predictors).T
        return _Coefficients(current.intercepts + change[0], current.coefficients + change[1:])

    def pack_params(self, params: BernoulliMixtureParams) -> Array:
        """Return log-odds, then intercepts and coefficients of standardized covariates."""
        intercepts, coefficients = self._standardize(params)
        return replace(params, intercepts=intercepts, coefficients=coefficients).free_parameters

    def unpack_params(self, params: BernoulliMixtureParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`, within the bounds that an M-step can reach."""
        found = super().unpack_params(params, packed, weight)
        return self._with_standardized(found, _Coefficients(found.intercepts, found.coefficients))

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Sort the components by their mean weight; the first becomes the reference."""
        weights = statistics.values["expected"][:, 0] / statistics.weight
        state = super().finish(
            replace(state, params=replace(state.params, weights=weights)), statistics
        )
        return self.add_likelihood(state, statistics)

    def summarize_information(
        self, params: BernoulliMixtureParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters."""
        sums = super().summarize_information(params, working, block, rng)

        def weigh(rows: BinaryBlock) -> tuple[Array, Array]:
            """Return log π of rows, and their predictors."""
            return params.compute_class_weights(rows)[1], params.make_predictors(rows)

        own: dict[str, Any] = {}
        for part in iter_word_ranges(block, BATCH_WORDS):
            found = self._sum_class_weights(part, weigh)
            own = {name: own.get(name, 0.0) + value for name, value in found.items()}
        return replace(sums, values={**sums.values, **own})

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, intervals, and the log-likelihood of the final parameters."""
        params, sums = state.params, dict(statistics.values)
        if isinstance(statistics, ClusteredSums):
            sums["score_products"] = statistics.sum_score_products()
        n_components, n_predictors = sums["expected"].shape
        pseudo = n_components * self.smoothing / statistics.weight
        curvature = sums["class_curvature"] + pseudo * sums["prior_curvature"]
        errors = self._compute_errors(state, curvature, sums)
        gradients = np.zeros((n_predictors, n_components, n_components, n_predictors))
        for j in range(n_predictors):
            gradients[j, :, :, j] = np.eye(n_components)
            gradients[j, :, 0, j] -= 1.0  # the first component is the reference
        # The intercept of covariates as they are is that of centred ones minus cᵀγ.
        intercepts = gradients[0] - np.tensordot(params.covariate_center, gradients[1:], axes=1)
        params = replace(
            params,
            weights=sums["expected"][:, 0] / statistics.weight,
            **name_feature_errors(errors),
            weights_error=propagate_errors(
                sums["class_curvature"][:, 0] / statistics.weight, errors.coefficients
            ),
            intercepts_error=propagate_errors(intercepts, errors.coefficients),
            coefficients_error=propagate_errors(gradients[1:], errors.coefficients),
        )
        state = warn_about_errors(replace(state, params=params), errors)
        return self.add_likelihood(state, statistics)


def _get_row_weights(block: BinaryBlock) -> Array:
    return np.ones(block.n_samples) if block.row_weights is None else block.row_weights


def _sum_products(log_weights: Array, predictors: Array, row_weights: Array) -> dict[str, Any]:
    """Sum over rows times their weights, given log π_n, (n_rows, n_components).

    Returns
    -------
    dict
        `predictors`: Σ z, (n_predictors,); `expected`: Σ π zᵀ, (n_components, n_predictors);
        `class_curvature`: Σ (diag π − π πᵀ) ⊗ z zᵀ, (n_components, n_predictors, n_components,
        n_predictors); `log_class_weights`: Σ Σ_k log π_k, ().
    """
    weights = np.exp(log_weights)
    n_rows, n_components = weights.shape
    n_predictors = predictors.shape[1]
    products = (weights[:, :, None] * predictors[:, None]).reshape(n_rows, -1)
    weighted = products * row_weights[:, None]
    curvature = -(weighted.T @ products)
    curvature = curvature.reshape(n_components, n_predictors, n_components, n_predictors)
    by_class = weighted.reshape(n_rows, n_components, n_predictors)
    for k in range(n_components):
        curvature[k, :, k] += by_class[:, k].T @ predictors
    return {
        "predictors": row_weights @ predictors,
        "expected": by_class.sum(axis=0),
        "class_curvature": curvature,
        "log_class_weights": row_weights @ log_weights.sum(axis=1),
    }
