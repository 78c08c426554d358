"""Variational EM of a logistic latent-trait model, with the bound of Jaakkola and Jordan.

Tipping (Probabilistic visualisation of high-dimensional binary data, NIPS 1998): x ~ N(0, I_q) and
P(t_i = 1 | x) = σ(z_i), z_i = w_i·x + b_i, independent given x. For any ξ_i, tight at z_i = ±ξ_i,

    log P(t_i | x) >= log σ(ξ_i) − ξ_i / 2 + (t_i − ½) z_i + λ(ξ_i) (z_i² − ξ_i²),
    λ(ξ) = (½ − σ(ξ)) / (2 ξ) < 0,

quadratic in x. The posterior under it is N(μ, C),

    C = [I − 2 Σ λ(ξ_i) w_i w_iᵀ]⁻¹,   μ = C h,   h = Σ (t_i − ½ + 2 λ(ξ_i) b_i) w_i,

and integrating x out bounds the row's log-likelihood from below,

    log P(t) >= ½ log det C + ½ hᵀ C h
                + Σ [log σ(ξ_i) − ξ_i / 2 − λ(ξ_i) ξ_i² + (t_i − ½) b_i + λ(ξ_i) b_i²].

A round sets ξ_i² = ⟨z_i²⟩, then C, μ and the bound, which no round lowers; the first round has the
moments of the prior. The M-step is a least-squares problem for each ŵ_i = (w_i, b_i), x̂ = (x, 1):

    [Σ_n −2 λ(ξ_in) ⟨x̂ x̂ᵀ⟩_n] ŵ_i = Σ_n (t_in − ½) ⟨x̂⟩_n,

with ξ_in² = ⟨z_in²⟩ under the last posterior. A value that is missing leaves all sums.

A row of n features costs about 1.5 n nanoseconds a round at one or two components, 2.3 n at three
and 12 n at ten, on one core with AVX-512; the sums of the M-step cost one to two rounds more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.factor_checks import check_weights
from pipeline.numerics.logistic.logistic_lanes import LANES, TILE, Floats, Integers, Words
from pipeline.numerics.logistic.logistic_rounds import (
    InterleavedRows,
    LanePosteriors,
    LogisticParameters,
    add_statistics,
    estimate_posteriors,
)

_STRIP = 64  # words at once: memory does not grow with the rows


class VariationalStatistics(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    curvature
        Upper triangles, row by row, of Σ −2 λ(ξ) ⟨x̂ x̂ᵀ⟩: (n_features, (q + 1)(q + 2) / 2).
    target
        Σ (t − ½) ⟨x̂⟩, (n_features, q + 1).
    bound, rounds
        On the log-likelihood, nats; rounds used.
    """

    curvature: Floats
    target: Floats
    bound: float
    rounds: int


class VariationalPosterior(NamedTuple):
    """Posterior of each row.

    Attributes
    ----------
    mean
        μ, (n_samples, q).
    covariance
        C, (n_samples, q, q).
    bound, rounds
        On log P(t), nats, and rounds used, each (n_samples,).
    """

    mean: Floats
    covariance: Floats
    bound: Floats
    rounds: Integers


def variational_e_step(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    weights: Floats,
    offsets: Floats,
    tol: float = 1e-4,
    max_rounds: int = 20,
) -> VariationalStatistics:
    """E-step: find the posterior of each row, and add up what the M-step needs.

    Parameters
    ----------
    words
        Packed bits, (n_features, n_words), 0 where not observed.
    observed_words
        Mask of the same shape, or None when every value is there.
    n_samples
        Rows, from the first bit.
    weights
        w, (n_features, q).
    offsets
        b, (n_features,).
    tol
        Nats. A row has rounds until its bound moves by less; 0 asks for `max_rounds` of them.
    max_rounds
        Rounds at the most.

    Returns
    -------
    BoundStatistics
        Sums over the rows; those of several blocks add up.

    Raises
    ------
    FitError
        If shapes disagree, the words hold fewer rows, a parameter is not finite or so large that
        the bound is not, `tol` is negative or `max_rounds` is below 1.
    """
    _check_arguments(words, observed_words, n_samples, weights, offsets, tol, max_rounds)
    model = _make_parameters(weights, offsets)
    curvature = np.zeros((len(weights), model.place.max() + 1))
    target = np.zeros(model.weights.shape)
    bound, rounds = 0.0, 0
    for bits in _iter_strips(words, observed_words, n_samples):
        found = _estimate_strip(bits, model, tol, max_rounds)
        add_statistics(bits, model, found, curvature, target)
        bound += float(found.bound.sum())
        rounds += int(found.rounds.sum())
    return VariationalStatistics(curvature, target, bound, rounds)


def variational_row_posterior(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    weights: Floats,
    offsets: Floats,
    tol: float = 1e-4,
    max_rounds: int = 20,
) -> VariationalPosterior:
    """Find the posterior of each row.

    The result for a row depends on that row and the parameters alone, to the last bit.

    Parameters
    ----------
    words, observed_words, n_samples, weights, offsets, tol, max_rounds
        As for `variational_e_step`.

    Returns
    -------
    BoundPosterior
        In the order of the rows.

    Raises
    ------
    FitError
        As `variational_e_step`.
    """
    _check_arguments(words, observed_words, n_samples, weights, offsets, tol, max_rounds)
    model, q = _make_parameters(weights, offsets), weights.shape[1]
    posterior = VariationalPosterior(
        np.empty((n_samples, q)),
        np.empty((n_samples, q, q)),
        np.empty(n_samples),
        np.empty(n_samples, np.int64),
    )
    start = 0
    for bits in _iter_strips(words, observed_words, n_samples):
        found = _estimate_strip(bits, model, tol, max_rounds)
        rows = slice(start, start + bits.n_samples)
        solved = np.moveaxis(found.system[:, model.place], 3, 1).reshape(-1, q + 1, q + 1)
        posterior.mean[rows] = -solved[: bits.n_samples, :q, q]
        posterior.covariance[rows] = -solved[: bits.n_samples, :q, :q]
        posterior.bound[rows] = found.bound.ravel()[: bits.n_samples]
        posterior.rounds[rows] = found.rounds.ravel()[: bits.n_samples]
        start = rows.stop
    return posterior


def variational_m_step(
    curvature: Floats, target: Floats, prior_precision: float = 0.0
) -> tuple[Floats, Floats]:
    """M-step: maximise the bound, for given posteriors and ξ, over weights and offsets.

    Parameters
    ----------
    curvature, target
        As in `VariationalStatistics`, summed over all rows.
    prior_precision
        Of a prior N(0, I / precision) on each w_i; offsets have none.

    Returns
    -------
    weights, offsets
        (n_features, q) and (n_features,).

    Raises
    ------
    FitError
        If a feature is observed in no row, or the precision is negative.
    """
    if not prior_precision >= 0:
        raise FitError(f"Expected prior_precision >= 0, got {prior_precision}. Change it.")
    unseen = np.flatnonzero(~(curvature[:, -1] > 0))
    if len(unseen):
        raise FitError(
            f"Expected every feature in some row, got none of feature {unseen[0]}. Leave it out."
        )
    q = target.shape[1] - 1
    matrices = curvature[:, _triangle_places(q + 1)]
    matrices[:, range(q), range(q)] += prior_precision
    solved = np.linalg.solve(matrices, target[:, :, None])[:, :, 0].astype(np.float64)
    return solved[:, :q], solved[:, q]


def _check_arguments(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    weights: Floats,
    offsets: Floats,
    tol: float,
    max_rounds: int,
) -> None:
    """Raise unless rows, parameters and limits fit together."""
    n_features = len(words)
    check_weights(n_features, weights, offsets)
    if observed_words is not None and observed_words.shape != words.shape:
        raise FitError(
            f"Expected observed_words of shape {words.shape}, that of words, "
            f"got {observed_words.shape}. Pass the mask of these words."
        )
    if not 0 <= n_samples <= LANES * words.shape[1]:
        raise FitError(
            f"Expected n_samples from 0 to {LANES * words.shape[1]}, the bits of a feature, "
            f"got {n_samples}. Pass the n_samples of these words."
        )
    if not (tol >= 0 and max_rounds >= 1):
        raise FitError(
            f"Expected tol >= 0 and max_rounds >= 1, got {tol} and {max_rounds}. Change those."
        )


def _make_parameters(weights: Floats, offsets: Floats) -> LogisticParameters:
    """Join weights and offsets, and write out the quadratic form of each feature."""
    joined = np.ascontiguousarray(np.column_stack([weights, offsets]), np.float64)
    place = _triangle_places(joined.shape[1])
    k, j = np.triu_indices(len(place))
    forms = np.zeros((len(joined), -(-len(k) // TILE) * TILE))
    with np.errstate(over="ignore"):  # `_estimate_strip` tells.
        forms[:, : len(k)] = np.where(k == j, 1, 2) * joined[:, k] * joined[:, j]
    return LogisticParameters(joined, forms, place)


def _triangle_places(size: int) -> Integers:
    """Index of each entry of a symmetric matrix in its packed triangle."""
    place = np.empty((size, size), np.int64)
    k, j = np.triu_indices(size)
    place[k, j] = place[j, k] = np.arange(len(k))
    return place


def _iter_strips(
    words: Words, observed_words: Words | None, n_samples: int
) -> Iterator[InterleavedRows]:
    """Cut rows into strips, with the words of all features side by side."""
    n_words = -(-n_samples // LANES)
    for start in range(0, n_words, _STRIP):
        check_cancelled()
        span = slice(start, min(start + _STRIP, n_words))
        values = np.array(words[:, span].T, np.uint64, order="C")
        observed = np.empty((len(values), 0), np.uint64)
        if observed_words is not None:
            observed = np.array(observed_words[:, span].T, np.uint64, order="C")
        yield InterleavedRows(values, observed, min(LANES * _STRIP, n_samples - LANES * start))


def _estimate_strip(
    bits: InterleavedRows, model: LogisticParameters, tol: float, max_rounds: int
) -> LanePosteriors:
    """Posteriors of a strip, 0 in lanes without a row."""
    n_words = len(bits.values)
    found = LanePosteriors(
        np.zeros((n_words, model.place.max() + 1, LANES)),
        np.zeros((n_words, LANES)),
        np.zeros((n_words, LANES), np.int64),
    )
    estimate_posteriors(bits, model, float(tol), int(max_rounds), found)
    if not np.isfinite(found.bound).all():
        raise FitError(
            "Expected a finite bound of every row, got none with weights and offsets of up to "
            f"{np.abs(model.weights).max():.3g}. Check the fit."
        )
    return found
