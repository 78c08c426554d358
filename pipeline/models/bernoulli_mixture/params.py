"""Parameters of the mixture: classes of rows, and what the weights of classes depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import MAX_LEVELS
from pipeline.models.bernoulli_mixture.e_step import MixtureTerms, compute_mixture_terms
from pipeline.models.bernoulli_mixture.gaussians import (
    GaussianErrors,
    Gaussians,
    add_log_densities,
    pack_gaussians,
    unpack_gaussians,
)
from pipeline.models.bernoulli_mixture.levels import cumulate_planes, divide_planes
from pipeline.params import (
    HasParts,
    NumberRange,
    array_field,
    optional_array_field,
    optional_part_field,
)


@dataclass(frozen=True)
class ClassErrors:
    """Standard errors of weights and probabilities.

    Attributes
    ----------
    probabilities_interval
        Ends of 95 % intervals.
    level_probabilities_error
        None if all features are binary.
    contrasts_error
        Standard errors of differences between two components, feature by feature: of the
        probability of 1 of a binary feature, and of each level of others; then of the means of
        continuous features.
    """

    probabilities_error: Array = array_field("component", "plane", may_be_nan=True)
    probabilities_interval: Array = array_field("bound", "component", "plane")
    weights_error: Array = array_field("component")
    level_probabilities_error: Array | None = optional_array_field("component", "level")
    contrasts_error: Array | None = optional_array_field(
        "component", "component_j", "contrast", may_be_nan=True
    )


@dataclass(frozen=True)
class GroupWeights:
    """Class weights of groups of rows, in the order of the names of the groups.

    Attributes
    ----------
    segments, segment_rows
        Indices of the groups, and their numbers of rows, or the sums of their weights.
    group_class_weights, group_class_weights_error
        Class weights in each group, and their standard errors.
    """

    segments: NDArray[np.int64] = array_field("segment")
    segment_rows: NDArray[np.int64] = array_field("segment")
    group_class_weights: Array = array_field("segment", "component", allowed=NumberRange(above=0))
    group_class_weights_error: Array | None = optional_array_field("segment", "component")


@dataclass(frozen=True)
class ClassRegression:
    """How class weights depend on covariates.

    Attributes
    ----------
    intercepts, coefficients, intercepts_error, coefficients_error
        Log-odds of each component against the first where all covariates are 0, their change per
        unit of each covariate, and standard errors, which are 0 for the first component.
    log_odds_error
        Standard errors of intercepts and coefficients, in this order, against each component.
    covariate_center
        Means of the covariates in the fitted rows.
    """

    intercepts: Array = array_field("component")
    coefficients: Array = array_field("covariate", "component")
    covariate_center: Array = array_field("covariate")
    intercepts_error: Array | None = optional_array_field("component")
    coefficients_error: Array | None = optional_array_field("covariate", "component")
    log_odds_error: Array | None = optional_array_field("component", "component_j", "predictor")


@dataclass(frozen=True)
class BernoulliMixtureParams(HasParts):
    """Parameters; the table of `pipeline.models.bernoulli_mixture.model` gives shapes.

    Attributes
    ----------
    weights
        Class weights. With groups or covariates, the mean of the class weights of all rows.
    n_levels, level_probabilities
        Numbers of levels of the features, and P(x = level | k) of each level of each feature;
        None if all features are binary. Otherwise `probabilities` are P(x ≥ c | k) of each plane.
        A continuous feature has one level, which is in no array, and no plane.
    errors, gaussians_error
        Standard errors; None if they were not computed.
    gaussians
        Continuous features; None without any.
    groups, regression
        Class weights of groups, or those that depend on covariates.
    """

    probabilities: Array = array_field("component", "plane", allowed=NumberRange(above=0, below=1))
    weights: Array = array_field("component", allowed=NumberRange(above=0), total=1)
    n_levels: NDArray[np.int64] | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=1, maximum=MAX_LEVELS)
    )
    level_probabilities: Array | None = optional_array_field("component", "level")
    errors: ClassErrors | None = optional_part_field()
    gaussians: Gaussians | None = optional_part_field()
    gaussians_error: GaussianErrors | None = optional_part_field(suffix="_error")
    groups: GroupWeights | None = optional_part_field()
    regression: ClassRegression | None = optional_part_field()

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
    def n_numbers(self) -> int:
        """Number of continuous features."""
        return 0 if self.gaussians is None else self.gaussians.means.shape[1]

    @property
    def free_parameters(self) -> Array:
        """Log-odds, then means and log-deviations, then log-weights: an unconstrained vector.

        Groups have log-weights of their own. With covariates, intercepts and coefficients take the
        place of log-weights.
        """
        parts = [scipy.special.logit(self.continuation).ravel()]
        if self.gaussians is not None:
            parts.append(pack_gaussians(self.gaussians))
        if self.regression is not None:
            parts += [self.regression.intercepts, self.regression.coefficients.ravel()]
        else:
            own = self.weights if self.groups is None else self.groups.group_class_weights
            parts.append(np.log(own).ravel())
        return np.concatenate(parts)

    def with_free_parameters(self, packed: Array, limit: float) -> Self:
        """Return the parameters of such a vector, log-odds and log-weights clipped at ±`limit`."""
        n_components, n_planes = self.probabilities.shape
        first = self.probabilities.size
        log_odds, numbers, others = np.split(
            packed, [first, first + 2 * n_components * self.n_numbers]
        )
        log_odds = np.clip(log_odds, -limit, limit)
        continuation = scipy.special.expit(log_odds).reshape(n_components, n_planes)
        params = replace(self, probabilities=cumulate_planes(continuation, self.n_levels))
        if self.gaussians is not None:
            params = replace(params, gaussians=unpack_gaussians(numbers, self.gaussians, limit))
        others = others.reshape(-1, n_components)
        if self.regression is not None:
            coefficients = {"intercepts": others[0], "coefficients": others[1:]}
            return replace(params, regression=replace(self.regression, **coefficients))
        weights = np.exp(scipy.special.log_softmax(np.clip(others, -limit, limit), axis=1))
        if self.groups is None:
            return replace(params, weights=weights[0])
        return replace(params, groups=replace(self.groups, group_class_weights=weights))

    def get_class_weights(self, segment: int) -> Array:
        """Return the class weights of the rows of a segment, (n_components,).

        Rows of other segments than the fitted ones have the mean of the fitted rows.
        """
        if self.groups is None:
            return self.weights
        (places,) = np.nonzero(self.groups.segments == segment)
        own: Array = self.groups.group_class_weights[places[0]] if places.size else self.weights
        return own

    def compute_class_weights(self, block: BinaryBlock) -> tuple[Array, Array]:
        """Return π of the rows of a block and its logarithm, (n_components,).

        With covariates, they have the shape (n_samples, n_components).
        """
        if self.regression is None:
            weights = self.get_class_weights(block.segment)
            return weights, np.log(weights)
        assert block.covariates is not None
        odds = np.tile(self.regression.intercepts, (block.n_samples, 1))
        for values, own in zip(block.covariates.T, self.regression.coefficients, strict=True):
            odds += values[:, None] * own  # unlike BLAS, the same for any number of rows
        log_weights = scipy.special.log_softmax(odds, axis=1)
        return np.exp(log_weights), log_weights

    def compute_terms(self, block: BinaryBlock, log_weights: Array) -> MixtureTerms:
        """Return the terms of the E-step of a block, given log π."""
        if self.gaussians is not None:
            assert block.numbers is not None
            log_weights = add_log_densities(block.numbers, self.gaussians, log_weights)
        return compute_mixture_terms(self.continuation, log_weights)

    def make_predictors(self, block: BinaryBlock) -> Array:
        """Return what the class weights of a block's rows depend on, (n_samples, n_predictors).

        These are indicators of the groups, or 1 and the distances of the covariates from their
        means; without groups and covariates, all are 1.
        """
        if self.regression is not None:
            assert block.covariates is not None
            centred = block.covariates - self.regression.covariate_center
            return np.column_stack([np.ones(block.n_samples), centred])
        n_groups = 1 if self.groups is None else len(self.groups.segments)
        indicators = np.zeros(n_groups)
        indicators[block.segment if n_groups > 1 else 0] = 1.0
        return np.broadcast_to(indicators, (block.n_samples, n_groups))

    def take_components(self, order: NDArray[np.intp]) -> Self:
        """Return the components in another order, without standard errors."""
        gaussians, groups, regression = self.gaussians, self.groups, self.regression
        if gaussians is not None:
            measured = {"means": gaussians.means[order], "deviations": gaussians.deviations[order]}
            gaussians = replace(gaussians, **measured)
        if groups is not None:
            own = groups.group_class_weights[:, order]
            groups = GroupWeights(groups.segments, groups.segment_rows, own)
        if regression is not None:
            intercepts = regression.intercepts[order]
            coefficients = regression.coefficients[:, order]
            regression = ClassRegression(
                intercepts - intercepts[0],
                coefficients - coefficients[:, :1],
                regression.covariate_center,
            )
        return replace(
            self,
            probabilities=self.probabilities[order],
            weights=self.weights[order],
            level_probabilities=None,
            errors=None,
            gaussians=gaussians,
            gaussians_error=None,
            groups=groups,
            regression=regression,
        )
