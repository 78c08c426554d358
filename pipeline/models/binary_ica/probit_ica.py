"""Base class of BLICA and binary ICA by likelihood: everything that a fitted probit model can do.

In segment u: z ~ N(μ, diag σ²), P(x_i = 1 | z) = Φ(w_iᵀ (z − μ) + b_i).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.matching import UNKNOWN_SEGMENT, draw_segments
from pipeline.models.base import Model
from pipeline.models.capabilities import LogLikelihood
from pipeline.numerics.gaussian.pair_tables import log_cells
from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.orthant import MAX_FEATURES, log_orthant_probability
from pipeline.numerics.probit.probit_scores import MAX_COMPONENTS, quadrature_scores
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.random import RowRandom

Array = NDArray[np.float64]
PROBIT_SCALE = np.sqrt(np.pi / 8)
"""Scale in P(x = 1) = Φ(√(π/8) y), which is close to a logistic function of y."""


class SegmentModel(NamedTuple):
    """z ~ N(means, diag variances), P(x_i = 1 | z) = Φ(w_i·(z − means) + offsets_i)."""

    weights: Array  # w, √(π/8) times the mixing, (n_features, n_components)
    thresholds: Array  # of standard normals with the model's correlations, (n_features,)
    # Means and variances of the sources, (n_components,).
    means: Array
    variances: Array

    @property
    def offsets(self) -> Array:
        """Negative thresholds in units of the noise, (n_features,)."""
        return -self.thresholds * np.sqrt(1 + self.weights**2 @ self.variances)

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

    def transform(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the posterior mean and variance of z, (n_samples, n_components) each.

        `converged` (n_samples,) is false if expectation propagation did not converge.
        """
        return probit_codes(*_posterior_arguments(params.segment_model(block.segment), block))

    def sample(
        self,
        params: ProbitICAParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_features); by default segments are as frequent as their rows."""
        if segments is None:
            segments = draw_segments(params, n_samples, rng)
        codes = rng.standard_normal((n_samples, params.mixing.shape[1]))
        noise = rng.standard_normal((n_samples, len(params.mixing)))
        X = np.empty(noise.shape, np.uint8)
        for index in np.unique(segments):
            model, rows = params.segment_model(index), segments == index
            centred = codes[rows] * np.sqrt(model.variances)
            X[rows] = centred @ model.weights.T + model.offsets + noise[rows] > 0
        return X

    def reconstruct(
        self, params: ProbitICAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(x = 1 | z), (n_samples, n_features); without segments, for the mean segment."""
        if segments is None:
            segments = np.full(len(codes), UNKNOWN_SEGMENT)
        probabilities = np.empty((len(codes), len(params.mixing)))
        for index in np.unique(segments):
            model, rows = params.segment_model(index), segments == index
            probabilities[rows] = scipy.special.ndtr(
                (codes[rows] - model.means) @ model.weights.T + model.offsets
            )
        return probabilities

    def log_likelihood(
        self, params: ProbitICAParams, block: BinaryBlock, rng: RowRandom
    ) -> LogLikelihood:
        """Estimate log P(x) of each row, an orthant probability (eqs 6 and 7).

        Up to 20 features it is integrated with a standard error near 1e-4 nats, and up to 2
        components by quadrature; otherwise expectation propagation approximates it.
        """
        model = params.segment_model(block.segment)
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
        return model.composite_log_likelihood(block.unpack_values(), block.unpack_mask())


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
