"""Base class of BLICA and binary ICA by likelihood: everything that a fitted probit model can do.

In segment u: z ~ N(μ, diag σ²), P(x_i = 1 | z) = Φ(w_iᵀ (z − μ) + b_i). A feature with several
levels has a b for each of its planes. A continuous feature has no planes: it is
m_i + s_i (w_iᵀ (z − μ) + b_i + ε) with ε ~ N(0, 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, unpack_levels
from pipeline.data.features import are_binary, find_continuous
from pipeline.data.matching import UNKNOWN_SEGMENT, draw_segments
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.structure import Structure, add_structure
from pipeline.numerics.gaussian.level_bounds import place_bounds, share_between
from pipeline.numerics.gaussian.pair_tables import log_cells
from pipeline.numerics.gaussian.predictive import compute_predictive_probabilities
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.interval_probability import log_interval_probability
from pipeline.numerics.probit.interval_scores import (
    interval_ep_scores,
    interval_quadrature_scores,
)
from pipeline.numerics.probit.interval_sites import interval_codes
from pipeline.numerics.probit.orthant import MAX_FEATURES, log_orthant_probability
from pipeline.numerics.probit.probit_scores import MAX_COMPONENTS, quadrature_scores
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.random import RowRandom

Array = NDArray[np.float64]
PROBIT_SCALE = np.sqrt(np.pi / 8)
"""Scale in P(x = 1) = Φ(√(π/8) y), which is close to a logistic function of y."""
_FAR = 9.9  # standard deviations, beyond which a normal has no rows
_MIN_CELL = 1e-300


class ContinuousUnits(NamedTuple):
    """Units of continuous features, (n_continuous,) each: x = means + scales · (latent + noise)."""

    shifts: Array  # the latent is w·(z − source means) + shifts
    means: Array
    scales: Array

    def standardize(self, numbers: NDArray[np.floating[Any]]) -> Array:
        """Return w·(z − source means) + noise of values, (n_samples, n_continuous)."""
        values: Array = (numbers - self.means) / self.scales - self.shifts
        return values


class SegmentModel(NamedTuple):
    """z ~ N(means, diag variances), P(x_i = 1 | z) = Φ(w_i·(z − means) + offsets_i)."""

    weights: Array  # w, √(π/8) times the mixing, (n_features, n_components)
    thresholds: Array  # of standard normals with the model's correlations, (n_planes,)
    # Means and variances of the sources, (n_components,).
    means: Array
    variances: Array
    # Of each feature, 1 of a continuous one; None if all are binary.
    n_levels: NDArray[np.int64] | None = None
    continuous: ContinuousUnits | None = None  # None if there are no continuous features

    @property
    def is_continuous(self) -> NDArray[np.bool_]:
        """Mark the continuous features, (n_features,)."""
        if self.n_levels is None:
            return np.zeros(len(self.weights), np.bool_)
        is_continuous: NDArray[np.bool_] = self.n_levels == 1
        return is_continuous

    @property
    def deviations(self) -> Array:
        """Standard deviations of w·z plus noise, (n_features,)."""
        return np.asarray(np.sqrt(1 + self.weights**2 @ self.variances))

    @property
    def offsets(self) -> Array:
        """Negative thresholds in units of the noise, (n_planes,)."""
        return -self.thresholds * self.repeat_for_planes(self.deviations)

    def repeat_for_planes(self, values: Array) -> Array:
        """Repeat values of features, (..., n_features), for each of their planes."""
        return values if self.n_levels is None else np.repeat(values, self.n_levels - 1, axis=-1)

    def find_numbers(self, latents: Array) -> Array:
        """Return the values of continuous features, given w·(z − means) of all plus noise."""
        if self.continuous is None:
            return np.zeros((len(latents), 0))
        shifts, means, scales = self.continuous
        return np.asarray(means + scales * (latents[:, self.is_continuous] + shifts))

    def sum_planes(self, values: Array) -> Array:
        """Sum values over the planes of each feature, (..., n_features).

        `values` are of planes, then of continuous features, (..., n_planes + n_continuous).
        """
        if self.n_levels is None:
            return values
        own = self.is_continuous
        n_planes = self.n_levels[~own] - 1
        of_planes, of_numbers = np.split(values, [n_planes.sum()], axis=-1)
        sums = np.empty((*values.shape[:-1], len(own)))
        sums[..., ~own] = np.add.reduceat(of_planes, np.cumsum(n_planes) - n_planes, axis=-1)
        sums[..., own] = of_numbers
        return sums

    def correlation(self) -> Array:
        """Return the correlations of w·z plus noise, (n_features, n_features): q of eq. 5."""
        covariance = (self.weights * self.variances) @ self.weights.T
        deviations = np.sqrt(1 + np.diag(covariance))
        correlation: Array = covariance / deviations / deviations[:, None]
        np.fill_diagonal(correlation, 1.0)
        return correlation

    def composite_log_likelihood(
        self, X: NDArray[np.uint8], observed: NDArray[np.uint8] | None
    ) -> Array:
        """Sum log P(x_i, x_j) over the observed pairs i < j: nats, (n_samples,)."""
        correlation, t = self.correlation(), self.thresholds
        np.fill_diagonal(correlation, 0.0)  # unused, but a correlation of 1 has no density
        cells = np.moveaxis(log_cells(t[:, None], t, correlation), -1, 0)
        ones = X.astype(np.float64)
        zeros = (1.0 if observed is None else observed) - ones
        pairs = ((ones, ones), (ones, zeros), (zeros, ones), (zeros, zeros))
        total = np.zeros(len(X))
        for log_cell, (left, right) in zip(np.triu(cells, 1), pairs, strict=True):
            total += (left @ log_cell * right).sum(axis=1)
        return total

    def composite_log_likelihood_of_levels(
        self, levels: NDArray[np.uint8], observed: NDArray[np.uint8] | None
    ) -> Array:
        """Sum log P(x_i, x_j) over the observed pairs i < j of levels: nats, (n_samples,)."""
        assert self.n_levels is not None
        correlation, total = self.correlation(), np.zeros(len(levels))
        edges = np.cumsum(self.n_levels - 1)[:-1]
        thresholds = [
            np.pad(t, (1, 0), constant_values=-_FAR) for t in np.split(self.thresholds, edges)
        ]
        for i, j in itertools.combinations(range(len(thresholds)), 2):
            corners = np.exp(log_cells(thresholds[i][:, None], thresholds[j], correlation[i, j]))
            corners = np.pad(corners[..., 0], ((0, 1), (0, 1)))
            cells = corners[:-1, :-1] - corners[1:, :-1] - corners[:-1, 1:] + corners[1:, 1:]
            pairs = np.log(np.maximum(cells, _MIN_CELL))[levels[:, i], levels[:, j]]
            total += pairs if observed is None else pairs * (observed[:, i] * observed[:, j])
        return total


class ProbitICAParams(Protocol):
    """Parameters that define a model for each segment."""

    @property
    def mixing(self) -> Array:
        """A, (n_features, n_components)."""

    def segment_model(self, index: int) -> SegmentModel:
        """Return the model of a segment; unfitted segments get the mean of the others."""


class ProbitICA(Model):
    """Transform, sample, reconstruct and likelihoods of a fitted probit model."""

    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
        "converged": (),
    }
    # Classes of the same model with the structure of features: paths of modules and names, because
    # these import the class of binary features.
    ordinal_class: ClassVar[str]
    mixed_class: ClassVar[str]

    def with_structure(self, structure: Structure) -> Any:
        """Return the model of ordinal and continuous features, or this model if all are binary."""
        plain = super().with_structure(structure)
        if are_binary(structure.features):
            return plain
        has_continuous = bool(find_continuous(structure.features))
        kind = resolve_name(self.mixed_class if has_continuous else self.ordinal_class)
        return add_structure(kind, plain, structure)

    def transform(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the posterior mean and variance of z, (n_samples, n_components) each.

        `converged` (n_samples,) is false if expectation propagation did not converge.
        """
        model = params.segment_model(block.segment)
        if model.n_levels is None:
            return probit_codes(*_posterior_arguments(model, block))
        codes = interval_codes(*_interval_arguments(model, block))
        codes["mean"] = model.means + np.sqrt(model.variances) * codes["mean"]
        codes["variance"] = model.variances * codes["variance"]
        return codes

    def sample(
        self,
        params: ProbitICAParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_planes); by default segments are as frequent as their rows."""
        return self.sample_numbers(params, n_samples, rng, segments)[0]

    def sample_numbers(
        self,
        params: ProbitICAParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows as `sample` does, and values of continuous features."""
        if segments is None:
            segments = draw_segments(params, n_samples, rng)
        codes = rng.standard_normal((n_samples, params.mixing.shape[1]))
        noise = rng.standard_normal((n_samples, len(params.mixing)))
        X = np.empty((n_samples, _count_planes(params)), np.uint8)
        numbers = np.empty((n_samples, _count_continuous(params)))
        for index in np.unique(segments):
            model, rows = params.segment_model(index), segments == index
            means = (codes[rows] * np.sqrt(model.variances)) @ model.weights.T
            of_planes, noises = (model.repeat_for_planes(a) for a in (means, noise[rows]))
            X[rows] = of_planes + model.offsets + noises > 0
            numbers[rows] = model.find_numbers(means + noise[rows])
        return X, numbers

    def reconstruct(
        self, params: ProbitICAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(x = 1 | z), (n_samples, n_planes); without segments, for the mean segment."""
        if segments is None:
            segments = np.full(len(codes), UNKNOWN_SEGMENT)
        probabilities = np.empty((len(codes), _count_planes(params)))
        for index in np.unique(segments):
            model, rows = params.segment_model(index), segments == index
            means = model.repeat_for_planes((codes[rows] - model.means) @ model.weights.T)
            probabilities[rows] = scipy.special.ndtr(means + model.offsets)
        return probabilities

    def reconstruct_numbers(
        self, params: ProbitICAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return expected values of continuous features, (n_samples, n_continuous).

        Without segments, they are those of the mean segment.
        """
        if segments is None:
            segments = np.full(len(codes), UNKNOWN_SEGMENT)
        numbers = np.empty((len(codes), _count_continuous(params)))
        for index in np.unique(segments):
            model, rows = params.segment_model(index), segments == index
            numbers[rows] = model.find_numbers((codes[rows] - model.means) @ model.weights.T)
        return numbers

    def number_probabilities(
        self,
        params: ProbitICAParams,
        codes: Mapping[str, Array],
        numbers: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return P(x ≤ number) of continuous features, given the codes as if independent.

        Without segments, it is the result for the mean segment.
        """
        if segments is None:
            segments = np.full(len(numbers), UNKNOWN_SEGMENT)
        residuals = numbers - self.reconstruct_numbers(params, codes["mean"], segments)
        probabilities = np.empty(numbers.shape)
        for index in np.unique(segments):
            model, rows = params.segment_model(index), segments == index
            assert model.continuous is not None
            noise = model.continuous.scales
            slopes = noise[:, None] * model.weights[model.is_continuous]
            probabilities[rows] = compute_predictive_probabilities(
                residuals[rows], slopes, noise, codes["variance"][rows]
            )
        return probabilities

    def log_likelihood(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Estimate log P(x) of each row, an orthant probability (eqs 6 and 7).

        Up to 20 features it is integrated with a standard error near 1e-4 nats, and up to 2
        components by quadrature; otherwise expectation propagation approximates it. With
        continuous features, it is a log density.
        """
        model = params.segment_model(block.segment)
        if model.continuous is not None:
            nats, error = _integrate_mixed_likelihood(model, block)
            return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)
        if model.n_levels is not None:
            levels, observed = unpack_levels(block, model.n_levels - 1)
            nats, error = log_interval_probability(
                levels, model.correlation(), model.thresholds, model.n_levels, observed
            )
            return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)
        if block.n_features <= MAX_FEATURES:
            result = log_orthant_probability(
                block.unpack_values(), model.correlation(), model.thresholds, block.unpack_mask()
            )
            return LogLikelihood(*result)
        nats, error = _integrate_likelihood(model, block)
        return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)

    def composite_log_likelihood(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> Array:
        """Return Σ_i<j log P(x_i, x_j) of each row over its observed pairs, nats, (n_samples,)."""
        model = params.segment_model(block.segment)
        if model.continuous is not None:
            return _sum_mixed_pairs(model, block)
        if model.n_levels is not None:
            levels, observed = unpack_levels(block, model.n_levels - 1)
            return model.composite_log_likelihood_of_levels(levels, observed)
        return model.composite_log_likelihood(block.unpack_values(), block.unpack_mask())


def _count_planes(params: ProbitICAParams) -> int:
    return len(params.segment_model(UNKNOWN_SEGMENT).thresholds)


def _count_continuous(params: ProbitICAParams) -> int:
    return int(params.segment_model(UNKNOWN_SEGMENT).is_continuous.sum())


def _interval_arguments(model: SegmentModel, block: BinaryBlock) -> tuple[Any, ...]:
    """Return the arguments of `interval_codes`, for standard normal sources."""
    assert model.n_levels is not None
    own = model.is_continuous
    n_levels, weights = model.n_levels[~own], model.weights * np.sqrt(model.variances)
    levels, observed = unpack_levels(block, n_levels - 1)
    values = None
    if model.continuous is not None:
        assert block.numbers is not None
        values = model.continuous.standardize(block.numbers.T)
    weights = np.concatenate([weights[~own], weights[own]])
    return levels, weights, model.offsets, n_levels, observed, values


def _integrate_mixed_likelihood(model: SegmentModel, block: BinaryBlock) -> tuple[Array, Array]:
    """Integrate the log density of each row over the sources; also return estimated errors."""
    assert model.continuous is not None
    is_wide = len(model.variances) > MAX_COMPONENTS
    arguments = _interval_arguments(model, block)
    scores = (interval_ep_scores if is_wide else interval_quadrature_scores)(*arguments)
    values = arguments[-1]
    nats = scores.log_likelihood - ~np.isnan(values) @ np.log(model.continuous.scales)
    return nats, np.where(scores.settled, scores.error, np.abs(nats))


def _integrate_likelihood(model: SegmentModel, block: BinaryBlock) -> tuple[Array, Array]:
    """Integrate log P(x) of each row over the sources; also return error bounds."""
    if len(model.variances) > MAX_COMPONENTS:
        posterior = probit_posterior(*_posterior_arguments(model, block))
        return posterior.log_evidence, posterior.evidence_error
    weights = model.weights * np.sqrt(model.variances)
    scores = quadrature_scores(block.unpack_values(), weights, model.offsets, block.unpack_mask())
    # If the points missed the posterior, the result means nothing.
    return scores.log_likelihood, np.where(
        scores.settled, scores.error, np.abs(scores.log_likelihood)
    )


def _sum_mixed_pairs(model: SegmentModel, block: BinaryBlock) -> Array:
    """Sum the log densities of the observed pairs of features, some of them continuous."""
    own, correlation = model.is_continuous, model.correlation()
    levels, _, _, n_levels, observed, values = _interval_arguments(model, block)
    assert model.continuous is not None
    with_levels = model._replace(weights=model.weights[~own], n_levels=n_levels, continuous=None)
    total = with_levels.composite_log_likelihood_of_levels(levels, observed)
    deviations = model.deviations[own]
    y, units = values / deviations, np.log(model.continuous.scales * deviations)
    mixed, between = correlation[np.ix_(own, ~own)], correlation[np.ix_(own, own)]
    bounds = np.split(place_bounds(model.thresholds, n_levels)[1], np.cumsum(n_levels + 1)[:-1])
    for i, own_y in enumerate(y.T):
        is_known = ~np.isnan(own_y)
        for j, edges in enumerate(bounds):
            rho = mixed[i, j]
            root, level = np.sqrt(1 - rho**2), levels[:, j]
            shares = share_between(*((edges[level + k] - rho * own_y) / root for k in (0, 1)))
            pairs = np.log(np.maximum(shares, _MIN_CELL)) + _log_density(own_y) - units[i]
            total += np.where(is_known if observed is None else is_known & observed[:, j], pairs, 0)
        for j in range(i):
            root = np.sqrt(1 - between[i, j] ** 2)
            rest = (y[:, j] - between[i, j] * own_y) / root
            pairs = _log_density(own_y) + _log_density(rest) - np.log(root) - units[i] - units[j]
            total += np.where(is_known & ~np.isnan(y[:, j]), pairs, 0.0)
    return total


def _log_density(z: Array) -> Array:
    return np.asarray(-0.5 * z**2 - 0.5 * np.log(2 * np.pi))


def _posterior_arguments(model: SegmentModel, block: BinaryBlock) -> tuple[Any, ...]:
    """Return the arguments of `probit_posterior` up to `observed`."""
    return (
        block.unpack_values(),
        model.weights,
        model.offsets - model.weights @ model.means,
        model.means,
        model.variances,
        block.unpack_mask(),
    )
