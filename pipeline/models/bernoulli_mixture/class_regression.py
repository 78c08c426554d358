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

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, iter_word_ranges
from pipeline.data.covariates import MAX_FIRST_COVARIATE, Covariates
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams, ClassRegression
from pipeline.models.bernoulli_mixture.standard_errors import propagate_errors
from pipeline.statistics.sums import Sums

BATCH_WORDS = 128
"""Words of rows whose posteriors are in memory at once: 8,192 rows."""
_MAX_STEP = 3.0  # of a coefficient in a pass, with covariates of variance 1


@dataclass(frozen=True)
class ClassWeightsByCovariates:
    """How a fit estimates the class weights of rows with covariates.

    Attributes
    ----------
    covariates
        The covariates.
    smoothing
        s.
    """

    covariates: Covariates
    smoothing: float
    needs_posterior: ClassVar[bool] = True
    are_conditional: ClassVar[bool] = True

    @property
    def _units(self) -> tuple[Array, Array]:
        """Means and standard deviations of the covariates."""
        return np.array(self.covariates.means), np.array(self.covariates.deviations)

    @property
    def predictor_units(self) -> Array:
        """Units of 1 and the covariates in packed coefficients."""
        return np.append(1.0, self._units[1])

    def begin(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        """Return the parameters to start from, given those of a fit of any structure.

        Without coefficients of an earlier fit, class weights are equal in all rows.
        """
        if params.regression is None:
            intercepts = np.log(params.weights / params.weights[0])
            coefficients = np.zeros((len(self.covariates.names), len(intercepts)))
        else:
            intercepts = params.regression.intercepts
            coefficients = params.regression.coefficients
        own = ClassRegression(intercepts, coefficients, np.array(self.covariates.means))
        return replace(params, groups=None, regression=own)

    def standardize(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        """Return the parameters for covariates in deviations from their means."""
        means, deviations = self._units
        own = _get_regression(params)
        intercepts = own.intercepts + means @ own.coefficients
        coefficients = own.coefficients * deviations[:, None]
        own = replace(own, intercepts=intercepts, coefficients=coefficients)
        return replace(params, regression=own)

    def unstandardize(self, params: BernoulliMixtureParams) -> BernoulliMixtureParams:
        """Undo `standardize`."""
        means, deviations = self._units
        own = _get_regression(params)
        coefficients = own.coefficients / deviations[:, None]
        intercepts = own.intercepts - means @ coefficients
        own = replace(own, intercepts=intercepts, coefficients=coefficients)
        return replace(params, regression=own)

    def compute_log_weights(self, params: BernoulliMixtureParams, block: BinaryBlock) -> Array:
        """Return log π of the rows of a block, (n_samples, n_components)."""
        return self._weigh(params, block)[0]

    def _weigh(self, params: BernoulliMixtureParams, block: BinaryBlock) -> tuple[Array, Array]:
        """Return log π of rows, and 1 and their covariates in deviations from the means."""
        assert block.covariates is not None
        means, deviations = self._units
        z = (block.covariates - means) / deviations
        predictors = np.column_stack([np.ones(len(z)), z])
        own = _get_regression(self.standardize(params))
        beta = np.vstack([own.intercepts, own.coefficients])
        return scipy.special.log_softmax(predictors @ beta, axis=1), predictors

    def sum_rows(
        self,
        params: BernoulliMixtureParams,
        block: BinaryBlock,
        mass: Array,
        posterior: Array | None,
    ) -> dict[str, Any]:
        """Return the sums of the M-step of β over a block, given the weighted P(k | x)."""
        assert posterior is not None
        log_weights, predictors = self._weigh(params, block)
        row_weights, limited = _get_row_weights(block), limit_covariates(block, self.covariates)
        own = _sum_products(log_weights, predictors, row_weights)
        if limited is not block:
            prior = _sum_products(*self._weigh(params, limited), row_weights)
        return {
            "mass": mass[None],
            "responsibilities": posterior.T @ predictors,
            **_name_sums(own, own if limited is block else prior),
        }

    def compute_log_prior(self, params: BernoulliMixtureParams, statistics: Sums) -> float:
        """Return the log prior of class weights divided by s."""
        return float(statistics.values["log_class_weights"] / statistics.weight)

    def update(self, params: BernoulliMixtureParams, statistics: Sums) -> BernoulliMixtureParams:
        """Step towards the maximum over β of the expected log-likelihood of the classes."""
        values, pseudo = statistics.values, self.smoothing / statistics.weight
        n_components, n_predictors = values["responsibilities"].shape
        current = self.standardize(params)
        if n_components == 1:
            return self.unstandardize(current)
        gradient = self.differentiate(params, statistics).T
        curvature = values["class_curvature"] + n_components * pseudo * values["prior_curvature"]
        basis = np.kron(scipy.linalg.null_space(np.ones((1, n_components))), np.eye(n_predictors))
        size = n_components * n_predictors
        projected = basis.T @ curvature.reshape(size, size) @ basis
        step = basis @ np.linalg.lstsq(projected, basis.T @ gradient.ravel(), rcond=None)[0]
        step *= min(1.0, _MAX_STEP / max(np.abs(step).max(initial=0.0), np.finfo(float).tiny))
        change = step.reshape(n_components, n_predictors).T
        own = _get_regression(current)
        intercepts, coefficients = own.intercepts + change[0], own.coefficients + change[1:]
        own = replace(own, intercepts=intercepts, coefficients=coefficients)
        return self.unstandardize(replace(current, regression=own))

    def differentiate(self, params: BernoulliMixtureParams, statistics: Sums) -> Array:
        """Return the gradient in β of standardized covariates, (n_predictors, n_components)."""
        values, pseudo = statistics.values, self.smoothing / statistics.weight
        # Every row adds `pseudo` rows of each component.
        gradient = values["responsibilities"] - values["expected"]
        expected = len(gradient) * values["prior_expected"]
        gradient = gradient + pseudo * (values["predictors"] - expected)
        return np.asarray(gradient.T)

    def finish(self, params: BernoulliMixtureParams, statistics: Sums) -> BernoulliMixtureParams:
        """Add the mean of the class weights of all rows."""
        return replace(params, weights=statistics.values["expected"][:, 0] / statistics.weight)

    def sum_information(
        self, params: BernoulliMixtureParams, block: BinaryBlock
    ) -> dict[str, NDArray[Any]]:
        """Return the sums of the information about β, with centred covariates."""
        total: dict[str, NDArray[Any]] = {}
        for part in iter_word_ranges(block, BATCH_WORDS):
            limited = limit_covariates(part, self.covariates)
            own, prior = (
                _sum_products(
                    params.compute_class_weights(rows)[1],
                    params.make_predictors(rows),
                    _get_row_weights(part),
                )
                for rows in (part, limited)
            )
            found = _name_sums(own, prior)
            total = {name: total.get(name, 0.0) + value for name, value in found.items()}
        return total

    def compute_curvature(
        self, params: BernoulliMixtureParams, sums: dict[str, NDArray[Any]], weight: float
    ) -> Array:
        """Return the information about β; see `compute_mixture_errors`."""
        pseudo = len(params.weights) * self.smoothing / weight
        curvature: Array = sums["class_curvature"] + pseudo * sums["prior_curvature"]
        return curvature

    def compute_errors(
        self,
        params: BernoulliMixtureParams,
        sums: dict[str, NDArray[Any]],
        weight: float,
        covariance: Array,
    ) -> tuple[BernoulliMixtureParams, Array]:
        """Return the parameters with errors of β and mean weights, and the errors of these."""
        own = _get_regression(params)
        log_odds_error = compute_log_odds_errors(own.covariate_center, covariance)
        own = replace(
            own,
            intercepts_error=log_odds_error[:, 0, 0],  # the first component is the reference
            coefficients_error=log_odds_error[:, 0, 1:].T,
            log_odds_error=log_odds_error,
        )
        weights = sums["expected"][:, 0] / weight
        weights_error = propagate_errors(sums["class_curvature"][:, 0] / weight, covariance)
        return replace(params, weights=weights, regression=own), weights_error


def compute_log_odds_errors(center: Array, covariance: Array) -> Array:
    """Return standard errors of the coefficients of the log-odds of each class against each.

    The predictors are the intercept and the covariates as they are. `covariance`, (n_classes,
    n_predictors, n_classes, n_predictors), is of coefficients of covariates minus `center`. The
    result has the shape (n_classes, n_classes, n_predictors).
    """
    n_classes, n_predictors = covariance.shape[:2]
    gradients = np.zeros((n_classes, n_classes, n_predictors, n_classes, n_predictors))
    for one in range(n_classes):
        for other in range(n_classes):
            gradients[one, other, :, one] += np.eye(n_predictors)
            gradients[one, other, :, other] -= np.eye(n_predictors)
    # The intercept of covariates as they are is that of centred ones minus cᵀγ.
    gradients[:, :, 0] -= np.einsum("j,stjkl->stkl", center, gradients[:, :, 1:])
    return propagate_errors(gradients, covariance)


def limit_covariates(block: BinaryBlock, covariates: Covariates) -> BinaryBlock:
    """Return a block whose covariates are not far from their means; itself if none is."""
    assert block.covariates is not None
    means, reach = np.array(covariates.means), MAX_FIRST_COVARIATE * np.array(covariates.deviations)
    if not (np.abs(block.covariates - means) > reach).any():
        return block
    return replace(block, covariates=np.clip(block.covariates, means - reach, means + reach))


def _get_regression(params: BernoulliMixtureParams) -> ClassRegression:
    assert params.regression is not None
    return params.regression


def _get_row_weights(block: BinaryBlock) -> Array:
    return np.ones(block.n_samples) if block.row_weights is None else block.row_weights


def _name_sums(rows: dict[str, Any], pseudo_rows: dict[str, Any]) -> dict[str, Any]:
    """Return the results of `_sum_products` for rows, and for the pseudo-rows of the prior.

    `expected` and `class_curvature` are of rows; `predictors`, `log_class_weights`,
    `prior_expected` and `prior_curvature` of pseudo-rows, whose covariates are limited.
    """
    return {
        **pseudo_rows,
        "prior_expected": pseudo_rows["expected"],
        "prior_curvature": pseudo_rows["class_curvature"],
        "expected": rows["expected"],
        "class_curvature": rows["class_curvature"],
    }


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
