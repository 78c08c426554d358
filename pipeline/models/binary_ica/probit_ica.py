"""Base class of BLICA and binary ICA by likelihood: everything that a fitted probit model can do.

In segment u: z ~ N(μ, diag σ²), P(x_i = 1 | z) = Φ(w_iᵀ (z − μ) + b_i). A feature with several
levels has a b for each of its planes. A continuous feature has no planes: it is
m_i + s_i (w_iᵀ (z − μ) + b_i + ε) with ε ~ N(0, 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, unpack_levels
from pipeline.data.matching import UNKNOWN_SEGMENT, draw_segments
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.numerics.gaussian.level_bounds import place_bounds, share_between
from pipeline.numerics.gaussian.pair_tables import log_cells
from pipeline.numerics.gaussian.predictive import compute_predictive_probabilities
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.interval_probability import log_interval_probability
from pipeline.numerics.probit.orthant import MAX_FEATURES, log_orthant_probability
from pipeline.numerics.probit.probit_scores import MAX_COMPONENTS, quadrature_scores
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.random import RowRandom

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
    n_levels: NDArray[np.int64]  # of each feature, 1 of a continuous one
    continuous: ContinuousUnits | None = None  # None if there are no continuous features

    @property
    def is_continuous(self) -> NDArray[np.bool_]:
        """Mark the continuous features, (n_features,)."""
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
        return np.repeat(values, self.n_levels - 1, axis=-1)

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

    def read_rows(self, block: BinaryBlock) -> ProbitArguments:
        """Return rows and their model as functions of `numerics.probit` take them."""
        levels, observed = unpack_levels(block, self.n_levels[~self.is_continuous] - 1)
        values = None
        if self.continuous is not None:
            assert block.numbers is not None
            values = self.continuous.standardize(block.numbers.T)
        weights = self.weights * np.sqrt(self.variances)
        return ProbitArguments(levels, weights, self.offsets, observed, self.n_levels, values)

    def log_density_of_units(self, values: Array) -> Array:
        """Return what the units of continuous features add to log densities, (n_samples,)."""
        assert self.continuous is not None
        return np.asarray(-(~np.isnan(values) @ np.log(self.continuous.scales)))

    def sum_log_pairs(self, levels: NDArray[np.uint8], observed: NDArray[np.uint8] | None) -> Array:
        """Sum log P(x_i, x_j) over the observed pairs i < j of levels: nats, (n_samples,)."""
        n_levels = self.n_levels[~self.is_continuous]
        cells = np.zeros((len(levels), n_levels.sum()))
        places = np.cumsum(n_levels) - n_levels + levels.astype(np.int64)
        np.put_along_axis(cells, places, 1.0 if observed is None else observed, axis=1)
        total: Array = (cells @ self._log_pair_cells() * cells).sum(axis=1)
        return total

    def _log_pair_cells(self) -> Array:
        """Return log P of the levels of two features, (n_cells, n_cells).

        Cells are the levels of all features with levels. Entries are 0 unless the first feature
        comes before the second.
        """
        n_levels, t = self.n_levels[~self.is_continuous], self.thresholds
        owner = np.repeat(np.arange(len(n_levels)), n_levels)
        planes = np.flatnonzero(np.diff(owner, prepend=-1) == 0)
        is_highest = np.diff(owner, append=len(n_levels)) > 0
        correlation = self.correlation()[np.ix_(~self.is_continuous, ~self.is_continuous)]
        np.fill_diagonal(correlation, 0.0)  # unused, but a correlation of 1 has no density
        tables = log_cells(t[:, None], t, correlation[np.ix_(owner[planes], owner[planes])])
        reached = np.ones((len(owner), len(owner)))  # P(both features at this level or higher)
        reached[planes] = scipy.special.ndtr(-t)[:, None]
        reached[:, planes] = scipy.special.ndtr(-t)
        reached[np.ix_(planes, planes)] = np.exp(tables[..., 0])
        for _ in range(2):
            beyond = np.where(is_highest[:, None], 0.0, np.roll(reached, -1, axis=0))
            reached = (reached - beyond).T
        logs = np.log(np.maximum(reached, _MIN_CELL))
        # Pairs of bits need no differences, which lose digits.
        bits = np.flatnonzero(n_levels[owner[planes]] == 2)
        places = planes[bits], planes[bits] - 1
        for k, pair in enumerate(itertools.product(places, repeat=2)):
            logs[np.ix_(*pair)] = tables[np.ix_(bits, bits)][..., k]
        return np.where(owner[:, None] < owner, logs, 0.0)


class ProbitArguments(NamedTuple):
    """Arguments of `probit_posterior`, for standard normal sources."""

    levels: NDArray[np.uint8]
    weights: Array
    offsets: Array
    observed: NDArray[np.uint8] | None
    n_levels: NDArray[np.int64]
    values: Array | None

    def take(self, rows: slice) -> ProbitArguments:
        """Return the arguments of some rows."""
        return self._replace(
            levels=self.levels[rows],
            observed=None if self.observed is None else self.observed[rows],
            values=None if self.values is None else self.values[rows],
        )


class ProbitICAParams(Protocol):
    """Parameters that define a model for each segment."""

    @property
    def mixing(self) -> Array:
        """A, (n_features, n_components)."""

    def segment_model(self, index: int) -> SegmentModel:
        """Return the model of a segment; unfitted segments get the mean of the others."""


@dataclass(frozen=True)
class ProbitICA(Model):
    """Transform, sample, reconstruct and likelihoods of a fitted probit model."""

    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
        "converged": (),
    }

    @contextmanager
    def _name_features(self) -> Iterator[None]:
        """Put names of features in place of their indices in errors."""
        try:
            yield
        except FitError as error:
            raise error.with_names(self.structure.feature_names) from None

    def transform(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the posterior mean and variance of z, (n_samples, n_components) each.

        `converged` (n_samples,) is false if expectation propagation did not converge.
        """
        model = params.segment_model(block.segment)
        codes = probit_codes(*model.read_rows(block))
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
        for model, rows in _iter_segments(params, segments, n_samples):
            means = (codes[rows] * np.sqrt(model.variances)) @ model.weights.T
            of_planes, noises = (model.repeat_for_planes(a) for a in (means, noise[rows]))
            X[rows] = of_planes + model.offsets + noises > 0
            numbers[rows] = model.find_numbers(means + noise[rows])
        return X, numbers

    def reconstruct(
        self, params: ProbitICAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(x = 1 | z), (n_samples, n_planes); without segments, for the mean segment."""
        probabilities = np.empty((len(codes), _count_planes(params)))
        for model, rows in _iter_segments(params, segments, len(codes)):
            means = model.repeat_for_planes((codes[rows] - model.means) @ model.weights.T)
            probabilities[rows] = scipy.special.ndtr(means + model.offsets)
        return probabilities

    def reconstruct_numbers(
        self, params: ProbitICAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return expected values of continuous features, (n_samples, n_continuous).

        Without segments, they are those of the mean segment.
        """
        numbers = np.empty((len(codes), _count_continuous(params)))
        for model, rows in _iter_segments(params, segments, len(codes)):
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
        residuals = numbers - self.reconstruct_numbers(params, codes["mean"], segments)
        probabilities = np.empty(numbers.shape)
        for model, rows in _iter_segments(params, segments, len(numbers)):
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
        arguments = model.read_rows(block)
        if model.continuous is not None or (block.n_features > MAX_FEATURES and _are_bits(model)):
            nats, error = _integrate_likelihood(model, arguments)
        elif _are_bits(model):
            R, t = model.correlation(), model.thresholds
            return LogLikelihood(
                *log_orthant_probability(arguments.levels, R, t, arguments.observed)
            )
        else:
            nats, error = log_interval_probability(
                arguments.levels,
                model.correlation(),
                model.thresholds,
                model.n_levels,
                arguments.observed,
            )
        return LogLikelihood(nats, np.zeros_like(nats), integration_error=error)

    def composite_log_likelihood(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> Array:
        """Return Σ_i<j log P(x_i, x_j) of each row over its observed pairs, nats, (n_samples,)."""
        model = params.segment_model(block.segment)
        rows = model.read_rows(block)
        total = model.sum_log_pairs(rows.levels, rows.observed)
        return total if rows.values is None else total + _sum_mixed_pairs(model, rows)


def _iter_segments(
    params: ProbitICAParams, segments: NDArray[np.int64] | None, n_rows: int
) -> Iterator[tuple[SegmentModel, NDArray[np.bool_]]]:
    """Yield the model of each segment, and which rows are of it; None takes the mean segment."""
    if segments is None:
        segments = np.full(n_rows, UNKNOWN_SEGMENT)
    for index in np.unique(segments):
        yield params.segment_model(index), segments == index


def _are_bits(model: SegmentModel) -> bool:
    """Return whether all features are binary."""
    return bool((model.n_levels == 2).all())


def _count_planes(params: ProbitICAParams) -> int:
    return len(params.segment_model(UNKNOWN_SEGMENT).thresholds)


def _count_continuous(params: ProbitICAParams) -> int:
    return int(params.segment_model(UNKNOWN_SEGMENT).is_continuous.sum())


def _integrate_likelihood(model: SegmentModel, arguments: ProbitArguments) -> tuple[Array, Array]:
    """Integrate log P(x) of each row over the sources; also return estimated errors."""
    if len(model.variances) > MAX_COMPONENTS:
        posterior = probit_posterior(*arguments)
        nats, error = posterior.log_evidence, posterior.evidence_error
    else:
        scores = quadrature_scores(*arguments)
        nats = scores.log_likelihood
        # If the points missed the posterior, the result means nothing.
        error = np.where(scores.settled, scores.error, np.abs(nats))
    if arguments.values is not None:
        nats = nats + model.log_density_of_units(arguments.values)
    return nats, error


def _sum_mixed_pairs(model: SegmentModel, arguments: ProbitArguments) -> Array:
    """Sum the log densities of the observed pairs of features with a continuous one."""
    own, correlation = model.is_continuous, model.correlation()
    levels, observed, n_levels = arguments.levels, arguments.observed, model.n_levels[~own]
    assert model.continuous is not None
    assert arguments.values is not None
    total, deviations = np.zeros(len(levels)), model.deviations[own]
    y, units = arguments.values / deviations, np.log(model.continuous.scales * deviations)
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
