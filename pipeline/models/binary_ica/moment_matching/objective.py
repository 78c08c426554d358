"""The scaled Gaussian likelihood of segments' correlations, and its gradient.

Segment u has correlations C and the model Σ = Q (I + A S Aᵀ) Q. A (n_features, n_components) is the
same in all segments; S = diag(σ²) and the positive diagonal Q differ (Hyttinen, Barin-Pacela,
Hyvärinen, "Binary Independent Component Analysis: A Non-stationarity-based Approach", UAI 2022,
section 5 and algorithm 1; π/8 is absorbed in σ²). With D = Q⁻¹, L = A S^½, B = D L and G = I + LᵀL,
the determinant lemma and Woodbury's identity give

    −log det Σ − tr(C Σ⁻¹) = 2 log det D − log det G − Σ_i D_i² + tr(G⁻¹ Bᵀ C B),

which costs n² K per segment; no n × n matrix is inverted.

The matched matrix is (C + δ I) / (1 + δ). If the model is ridged too, it is (Σ + δ I) / (1 + δ)
with Σ = Q (I + L Lᵀ) Q of unit diagonal: that has the same form, with rows of L divided by √(1 + δ
+ δ ‖L_i‖²) and another Q.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction

Array = NDArray[np.float64]

_SLICE_BYTES = 4 << 20
_MAX_CORRELATION = 0.999
"""Limit of unshrunk correlations, which could otherwise exceed 1."""


@dataclass(frozen=True)
class SegmentMoments:
    """Correlations to match.

    Attributes
    ----------
    correlation
        Correlations, unit diagonal, (n_matrices, n_features, n_features).
    varies
        Whether a feature counts in a segment, (n_segments, n_features).
    weights
        Share of each segment in the objective, (n_segments,).
    ridge, model_ridge
        δ of the correlations and of the model in each segment, (n_segments,).
    places
        Index of each segment's matrix, ascending, (n_segments,); None if all are in order.
    """

    correlation: Array
    varies: NDArray[np.bool_]
    weights: Array
    ridge: Array
    model_ridge: Array
    places: NDArray[np.int64] | None = None

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return len(self.weights)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.correlation.shape[1])

    def matrices(self, part: slice) -> Array:
        """Return the correlations of a range of segments, copied only if it is not contiguous."""
        if self.places is None:
            return self.correlation[part]
        places = self.places[part]
        run = slice(places[0], places[-1] + 1)
        return self.correlation[run if run.stop - run.start == len(places) else places]

    def mean(self) -> Array:
        """Return the weighted mean of the correlations, (n_features, n_features)."""
        shares = np.zeros(len(self.correlation))
        shares[slice(None) if self.places is None else self.places] = self.weights
        mean: Array = np.tensordot(shares, self.correlation, axes=1)
        return mean

    def slices(self) -> Iterator[slice]:
        """Split the segments into ranges that depend on the shape alone."""
        step = max(1, _SLICE_BYTES // (8 * self.n_features**2))
        for first in range(0, self.n_segments, step):
            yield slice(first, min(first + step, self.n_segments))


class MatchSolution(NamedTuple):
    """Unknowns of the likelihood.

    Attributes
    ----------
    mixing
        A, (n_features, n_components).
    log_variances
        log σ², (n_segments, n_components).
    log_precisions
        log D = −log Q, (n_segments, n_features).
    """

    mixing: Array
    log_variances: Array
    log_precisions: Array

    def to_vector(self) -> Array:
        """Return all unknowns in one vector."""
        return np.concatenate([part.ravel() for part in self])

    def model_correlation(self, segment: int) -> Array:
        """Return the correlations of a segment under the model, (n_features, n_features)."""
        signal = self.mixing * np.exp(0.5 * self.log_variances[segment])
        covariance = signal @ signal.T
        scale = 1 / np.sqrt(1 + np.diag(covariance))
        implied: Array = covariance * (scale * scale[:, None])
        np.fill_diagonal(implied, 1.0)
        return implied

    def unshrink_correlation(self, segment: int, ridge: float) -> Array:
        """Return the model's correlations as they would be without the shrinkage by the ridge."""
        implied = self.model_correlation(segment)
        return np.clip(implied * (1 + ridge), -_MAX_CORRELATION, _MAX_CORRELATION)


def solution_from_vector(
    flat: Array, n_segments: int, n_features: int, n_components: int
) -> MatchSolution:
    """Invert `MatchSolution.to_vector`."""
    edges = np.cumsum([n_features * n_components, n_segments * n_components])
    mixing, variances, precisions = np.split(flat, edges)
    return MatchSolution(
        mixing.reshape(n_features, n_components),
        variances.reshape(n_segments, n_components),
        precisions.reshape(n_segments, n_features),
    )


def likelihood_and_gradient(
    moments: SegmentMoments, solution: MatchSolution, spread: MapFunction = map
) -> tuple[float, MatchSolution]:
    """Compute the mean log-likelihood of a row, up to a constant, and its gradient.

    Parameters
    ----------
    moments
        Correlations to match.
    solution
        Point of evaluation.
    spread
        Map over ranges of segments; the result does not depend on it.

    Returns
    -------
    value, gradient
        In nats; the gradient has the shape of the solution.
    """
    mixing, log_variances, log_precisions = solution

    def terms(part: slice) -> tuple[float, Array, Array, Array]:
        return _segment_terms(moments, part, mixing, log_variances[part], log_precisions[part])

    values, by_mixing, by_variances, by_precisions = zip(
        *spread(terms, moments.slices()), strict=True
    )
    gradient = MatchSolution(
        np.sum(by_mixing, axis=0), np.concatenate(by_variances), np.concatenate(by_precisions)
    )
    return float(np.sum(values)), gradient


def _segment_terms(
    moments: SegmentMoments, part: slice, mixing: Array, log_variances: Array, log_precisions: Array
) -> tuple[float, Array, Array, Array]:
    """Return value and gradients of some segments; D is 0 where a feature does not count."""
    counts, weights = moments.varies[part], moments.weights[part]
    model_ridge = moments.model_ridge[part, None]
    roots = np.exp(0.5 * log_variances)[:, None, :]
    D = np.exp(log_precisions) * counts
    signal = mixing * roots * counts[:, :, None]
    norms = np.sqrt(1 + model_ridge * (1 + (signal**2).sum(axis=2)))[:, :, None]
    L = signal / norms
    G = np.eye(mixing.shape[1]) + L.transpose(0, 2, 1) @ L
    inverse, (_, log_det) = np.linalg.inv(G), np.linalg.slogdet(G)
    B = D[:, :, None] * L
    CB = _multiply_ridged(moments, part, B)
    explained = B.transpose(0, 2, 1) @ CB
    trace = (D**2).sum(axis=1) - (inverse * explained).sum(axis=(1, 2))
    value = (log_precisions * counts).sum(axis=1) - 0.5 * (log_det + trace)
    CBG = CB @ inverse
    by_L = D[:, :, None] * CBG - L @ (inverse + inverse @ explained @ inverse)
    along = model_ridge[:, :, None] * (by_L * L).sum(axis=2, keepdims=True)
    by_signal = (by_L - along * L) / norms * weights[:, None, None]
    by_precision = counts - D**2 + (B * CBG).sum(axis=2)
    return (
        float(weights @ value),
        (by_signal * roots).sum(axis=0),
        0.5 * (by_signal * signal).sum(axis=1),
        by_precision * weights[:, None],
    )


def _multiply_ridged(moments: SegmentMoments, part: slice, B: Array) -> Array:
    """Return (C + δ I) B / (1 + δ)."""
    ridge = moments.ridge[part, None, None]
    product: Array = (moments.matrices(part) @ B + ridge * B) / (1 + ridge)
    return product
