"""Variational EM of a logistic latent-trait model, with the bound of Jaakkola and Jordan.

Tipping (Probabilistic visualisation of high-dimensional binary data, NIPS 1998): x ~ N(0, I_q) and
P(t_i = 1 | x) = σ(z_i), z_i = w_i·x + b_i, independent given x. For any ξ_i, tight at z_i = ±ξ_i,

    log P(t_i | x) >= log σ(ξ_i) − ξ_i / 2 + (t_i − ½) z_i + λ(ξ_i) (z_i² − ξ_i²),
    λ(ξ) = (½ − σ(ξ)) / (2 ξ) < 0,

which is quadratic in x. The posterior under it is N(μ, C),

    C = [I − 2 Σ λ(ξ_i) w_i w_iᵀ]⁻¹,   μ = C h,   h = Σ (t_i − ½ + 2 λ(ξ_i) b_i) w_i,

and integrating x out gives a lower bound on the row's log-likelihood,

    log P(t) >= ½ log det C + ½ hᵀ C h
                + Σ [log σ(ξ_i) − ξ_i / 2 − λ(ξ_i) ξ_i² + (t_i − ½) b_i + λ(ξ_i) b_i²].

A round sets ξ_i² = ⟨z_i²⟩, then C, μ and the bound, which never decreases; the first round uses the
moments of the prior. The M-step is a least-squares problem for each ŵ_i = (w_i, b_i), x̂ = (x, 1):

    [Σ_n −2 λ(ξ_in) ⟨x̂ x̂ᵀ⟩_n] ŵ_i = Σ_n (t_in − ½) ⟨x̂⟩_n,

with ξ_in² = ⟨z_in²⟩ under the last posterior. Missing values are left out of all sums.

On one core with AVX-512, a row of n features costs about 1.5 n nanoseconds per round with one or
two components, 2.3 n with three and 12 n with ten; the sums of the M-step cost one to two more
rounds.

The kernels work on packed rows, one word of each feature at a time, with one row per lane
(`logistic_lanes`). The bound on log p(t, x) is −½ x̂ᵀ S x̂ − ½ gap. The upper triangle of S, the
system, is summed over the features and then solved in place. A row whose bound has converged leaves
its lane and the other rows move up, so that the lanes in use are full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.information import check_weights
from pipeline.numerics.logistic.logistic_lanes import (
    CURVATURE,
    GAP,
    HEAD,
    LANE_KERNEL_OPTIONS,
    LANES,
    PRESENT,
    PRODUCT,
    SIGN,
    TILE,
    TILE_ROWS,
    VECTOR,
    Floats,
    Integers,
    Words,
    add_features,
    copy,
    dot_lanes,
    fill,
    fma,
    get_lane_row,
    get_moment,
    get_system_entry,
    kernel,
    set_present,
    set_signs,
)
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments

_STRIP = 64  # words per strip; memory does not grow with the rows
_FACTORS_PER_LOG = 1000  # a product of this many 1 + exp(−ξ) <= 2 does not overflow


class VariationalStatistics(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    curvature
        Upper triangles, row by row, of Σ −2 λ(ξ) ⟨x̂ x̂ᵀ⟩: (n_features, (q + 1)(q + 2) / 2).
    target
        Σ (t − ½) ⟨x̂⟩, (n_features, q + 1).
    moments
        Σ ⟨x̂ x̂ᵀ⟩, (q + 1, q + 1).
    bound, rounds
        Bound on the log-likelihood, nats, and number of rounds used.
    """

    curvature: Floats
    target: Floats
    moments: Floats
    bound: float
    rounds: int


class VariationalPosterior(NamedTuple):
    """Posterior of each row.

    Attributes
    ----------
    mean, covariance
        μ, (n_samples, q), and C, (n_samples, q, q).
    bound, rounds
        Bound on log P(t), nats, and number of rounds used, (n_samples,) each.
    """

    mean: Floats
    covariance: Floats
    bound: Floats
    rounds: Integers


class InterleavedRows(NamedTuple):
    """Packed rows, the words of all features side by side."""

    values: Words  # (n_words, n_features)
    observed: Words  # (n_words, n_features), or (n_words, 0) if all values are observed
    n_samples: int


class LogisticParameters(NamedTuple):
    """Parameters, and the place of entry (k, l) in a packed triangle."""

    weights: Floats  # (n_features, q + 1), ŵ_i
    forms: Floats  # (n_features, padded), coefficients of (ŵ_iᵀ x̂)² in x̂_k x̂_l, k <= l
    place: Integers  # (q + 1, q + 1)


class LanePosteriors(NamedTuple):
    """Posteriors; row l of word w has its posterior at [w, ..., l]."""

    system: Floats  # (n_words, packed, LANES): −C, −μ and a remainder
    bound: Floats  # (n_words, LANES)
    rounds: Integers  # (n_words, LANES)


class _LaneWorkspace(NamedTuple):
    rows: Integers  # (LANES,), row of the word in each lane
    bound: Floats  # (LANES,), bound of the previous round
    signs: Floats  # (q + 1, LANES), Σ_i (1 − 2 t_i) ŵ_i
    lanes: Floats  # memory of the lanes, see `logistic_lanes`


def variational_e_step(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None = None,
    *,
    tol: float = 1e-4,
    max_rounds: int = 20,
) -> VariationalStatistics:
    """E-step: compute the posterior of each row, and the sums of the M-step.

    Parameters
    ----------
    words
        Packed bits, (n_features, n_words), 0 where missing.
    observed_words
        Mask of the same shape; None if all values are observed.
    n_samples
        Number of rows.
    weights, offsets
        w, (n_features, q), and b, (n_features,).
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    tol
        A row stops once its bound changes by less, nats; with 0, it takes `max_rounds` rounds.
    max_rounds
        Maximum number of rounds.

    Returns
    -------
    Sums over the rows; the sums of several blocks can be added.
    """
    _check_arguments(words, observed_words, n_samples, weights, offsets, tol, max_rounds)
    model = _make_parameters(weights, offsets)
    curvature = np.zeros((len(weights), model.place.max() + 1))
    target, moments = np.zeros(model.weights.shape), np.zeros(model.place.shape)
    bound, rounds = 0.0, 0
    start = 0
    for bits in _iter_strips(words, observed_words, n_samples):
        posteriors, own_weights = _estimate_strip(bits, model, tol, max_rounds), None
        lane_weights = np.empty((0, LANES))
        if row_weights is not None:
            own_weights = row_weights[start : start + bits.n_samples]
            lane_weights = np.zeros((len(bits.values), LANES))
            lane_weights.ravel()[: bits.n_samples] = own_weights
            posteriors.bound[:] *= lane_weights
        start += bits.n_samples
        _add_statistics(bits, lane_weights, model, posteriors, curvature, target)
        moments += sum_trait_moments(*_unpack_gaussians(bits, model, posteriors), own_weights)
        bound += float(posteriors.bound.sum())
        rounds += int(posteriors.rounds.sum())
    return VariationalStatistics(curvature, target, moments, bound, rounds)


def variational_row_posterior(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    weights: Floats,
    offsets: Floats,
    tol: float = 1e-4,
    max_rounds: int = 20,
) -> VariationalPosterior:
    """Compute the posterior of each row, with parameters as for `variational_e_step`.

    The bits of a row's result depend on that row and the parameters alone.
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
        posteriors = _estimate_strip(bits, model, tol, max_rounds)
        rows = slice(start, start + bits.n_samples)
        posterior.mean[rows], posterior.covariance[rows] = _unpack_gaussians(
            bits, model, posteriors
        )
        posterior.bound[rows] = posteriors.bound.ravel()[: bits.n_samples]
        posterior.rounds[rows] = posteriors.rounds.ravel()[: bits.n_samples]
        start = rows.stop
    return posterior


def _unpack_gaussians(
    bits: InterleavedRows, model: LogisticParameters, posteriors: LanePosteriors
) -> tuple[Floats, Floats]:
    """Return the means, (n_rows, q), and covariances, (n_rows, q, q), of the rows of a strip."""
    size = len(model.place)
    solved = np.moveaxis(posteriors.system[:, model.place], 3, 1).reshape(-1, size, size)
    rows = -solved[: bits.n_samples, :-1]
    return rows[:, :, -1], rows[:, :, :-1]


def _check_arguments(
    words: Words,
    observed_words: Words | None,
    n_samples: int,
    weights: Floats,
    offsets: Floats,
    tol: float,
    max_rounds: int,
) -> None:
    n_features = len(words)
    check_weights(n_features, weights, offsets)
    if observed_words is not None and observed_words.shape != words.shape:
        raise FitError(
            f"`observed_words` has the shape {observed_words.shape}, but `words` has "
            f"{words.shape}. Pass the mask of these words."
        )
    if not 0 <= n_samples <= LANES * words.shape[1]:
        raise FitError(
            f"`n_samples` is {n_samples}, but the words hold {LANES * words.shape[1]} samples. "
            "Pass the number of samples of these words."
        )
    if not (tol >= 0 and max_rounds >= 1):
        raise FitError(
            f"`tol` is {tol} and `max_rounds` is {max_rounds}. Choose `tol` at least 0 and "
            "`max_rounds` at least 1."
        )


def _make_parameters(weights: Floats, offsets: Floats) -> LogisticParameters:
    """Join weights and offsets, and compute the quadratic form of each feature."""
    joined = np.ascontiguousarray(np.column_stack([weights, offsets]), np.float64)
    place = _triangle_places(joined.shape[1])
    k, j = np.triu_indices(len(place))
    forms = np.zeros((len(joined), -(-len(k) // TILE) * TILE))
    with np.errstate(over="ignore"):  # `_estimate_strip` raises an error
        forms[:, : len(k)] = np.where(k == j, 1, 2) * joined[:, k] * joined[:, j]
    return LogisticParameters(joined, forms, place)


def _triangle_places(size: int) -> Integers:
    """Return the index of each entry of a symmetric matrix in its packed triangle."""
    place = np.empty((size, size), np.int64)
    k, j = np.triu_indices(size)
    place[k, j] = place[j, k] = np.arange(len(k))
    return place


def _iter_strips(
    words: Words, observed_words: Words | None, n_samples: int
) -> Iterator[InterleavedRows]:
    """Yield strips of rows, with the words of all features side by side."""
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
    """Compute the posteriors of a strip, 0 in lanes without a row."""
    n_words = len(bits.values)
    posteriors = LanePosteriors(
        np.zeros((n_words, model.place.max() + 1, LANES)),
        np.zeros((n_words, LANES)),
        np.zeros((n_words, LANES), np.int64),
    )
    _estimate_posteriors(bits, model, float(tol), int(max_rounds), posteriors)
    if not np.isfinite(posteriors.bound).all():
        raise FitError(
            "The bound of a row is not finite, with weights and offsets of up to "
            f"{np.abs(model.weights).max():.3g}. Check the fit."
        )
    return posteriors


@njit(**LANE_KERNEL_OPTIONS, cache=True)
def _estimate_posteriors(
    bits: InterleavedRows,
    model: LogisticParameters,
    tol: float,
    max_rounds: int,
    out: LanePosteriors,
) -> None:
    """Compute posteriors; each row takes rounds until its own bound converges."""
    work = _allocate(model)
    for w in range(len(bits.values)):
        n_active, rounds = min(LANES, bits.n_samples - LANES * w), 0
        _start_word(bits.values[w], bits.observed[w], model, work)
        while n_active > 0:
            rounds += 1
            width = -(-n_active // VECTOR) * VECTOR
            _collect_system(bits.observed[w], model, work, width)
            _solve_system(model.place, work.lanes, width)
            n_active = _retire_lanes(n_active, rounds, tol, rounds == max_rounds, work, out, w)
            _set_moments(model.place, work.lanes, width)


@njit(**LANE_KERNEL_OPTIONS, cache=True)
def _add_statistics(
    bits: InterleavedRows,
    row_weights: Floats,
    model: LogisticParameters,
    posteriors: LanePosteriors,
    curvature: Floats,
    target: Floats,
) -> None:
    """Add the sums of the M-step to (n_features, packed) and (n_features, q + 1).

    ξ is set from the posteriors. `row_weights` are (n_words, LANES), or (0, LANES) if they are 1.
    """
    work, place, folded = _allocate(model), model.place, np.empty(VECTOR)
    rows, lanes, q = work.rows, work.lanes, len(model.place) - 1
    _number_lanes(rows, lanes)
    for w in range(len(bits.values)):
        for s in range(curvature.shape[1]):
            copy(posteriors.system[w, s], get_system_entry(lanes, s))
        _set_moments(place, lanes, len(rows))
        for s in range(curvature.shape[1]):
            fill(get_moment(lanes, s)[bits.n_samples - LANES * w :], 0.0)
        for i in range(len(target)):
            add_features(bits.observed[w], model.forms, i, i + 1, rows, lanes, len(rows))
            set_signs(bits.values[w, i], lanes)
            if len(row_weights) > 0:
                for lane in range(LANES):
                    lanes[LANES * (HEAD + CURVATURE) + lane] *= row_weights[w, lane]
                    lanes[LANES * SIGN + lane] *= row_weights[w, lane]
            for s in range(curvature.shape[1]):
                factor = get_lane_row(lanes, HEAD + CURVATURE)
                curvature[i, s] += dot_lanes(factor, get_moment(lanes, s), folded)
            for k in range(q + 1):
                mean = get_moment(lanes, place[k, q])
                target[i, k] -= 0.5 * dot_lanes(get_lane_row(lanes, SIGN), mean, folded)


@kernel
def _allocate(model: LogisticParameters) -> _LaneWorkspace:
    n_tiles = model.forms.shape[1] // TILE
    return _LaneWorkspace(
        np.empty(LANES, np.int64),
        np.empty(LANES),
        np.empty((len(model.place), LANES)),
        np.zeros(LANES * (HEAD + TILE_ROWS * n_tiles)),
    )


@kernel
def _number_lanes(rows: Integers, lanes: Floats) -> None:
    """Put each row of a word into the lane of its number."""
    for lane in range(LANES):
        rows[lane] = lane
        lanes[LANES * PRESENT + lane] = 1.0


@kernel
def _start_word(
    values: Words, observed: Words, model: LogisticParameters, work: _LaneWorkspace
) -> None:
    """Initialize the lanes of a word: rows, sums of signs, and moments of the prior."""
    lanes, place = work.lanes, model.place
    _number_lanes(work.rows, lanes)
    fill(work.bound, -np.inf)
    for k in range(len(place)):
        fill(work.signs[k], 0.0)
        for j in range(k + 1):
            fill(get_moment(lanes, place[j, k]), 1.0 if j == k else 0.0)
    for i in range(len(values)):
        if len(observed) > 0:
            set_present(observed[i], work.rows, lanes, LANES)
        set_signs(values[i], lanes)
        for k in range(len(place)):
            weight, total = model.weights[i, k], work.signs[k]
            for lane in range(LANES):
                total[lane] = fma(weight, lanes[LANES * SIGN + lane], total[lane])


@kernel
def _collect_system(
    observed: Words, model: LogisticParameters, work: _LaneWorkspace, width: int
) -> None:
    """Sum the system and the gap over the prior and the features.

    The blocks of S are I − 2 Σ λ w wᵀ, Σ (½ − t − 2 λ b) w and Σ (1 − 2 t) b − 2 λ b².
    """
    lanes, place, n_features = work.lanes, model.place, len(model.forms)
    q = len(place) - 1
    for k in range(q + 1):
        for j in range(k + 1):
            fill(get_system_entry(lanes, place[j, k]), 1.0 if j == k else 0.0)
    for k in range(q + 1):
        copy(work.signs[k], get_system_entry(lanes, place[k, q]))
    fill(get_lane_row(lanes, GAP), 0.0)
    for start in range(0, n_features, _FACTORS_PER_LOG):
        stop = min(start + _FACTORS_PER_LOG, n_features)
        fill(get_lane_row(lanes, PRODUCT), 1.0)
        add_features(observed, model.forms, start, stop, work.rows, lanes, width)
        for lane in range(width):
            lanes[LANES * GAP + lane] += 2.0 * math.log(lanes[LANES * PRODUCT + lane])
    for k in range(q + 1):
        for j in range(k):
            twice = get_system_entry(lanes, place[j, k])  # a form has 2 S_jk x̂_j x̂_k
            for lane in range(width):
                twice[lane] *= 0.5


@kernel
def _solve_system(place: Integers, lanes: Floats, width: int) -> None:
    """Solve by the sweep operator on packed triangles, for all columns but the last.

    The system becomes −C, −μ and c − μᵀ C⁻¹ μ; −log det C is added to the gap.
    """
    m = len(place)
    scaled, gap = get_lane_row(lanes, SIGN), get_lane_row(lanes, GAP)
    for k in range(m - 1):
        pivot = get_system_entry(lanes, place[k, k])
        for lane in range(width):
            # S >= I, so smaller values are rounding errors.
            value = pivot[lane] if pivot[lane] > 1.0 else 1.0
            gap[lane] += math.log(value)
            pivot[lane] = -1.0 / value
        for i in range(m):
            if i != k:
                left = get_system_entry(lanes, place[i, k])
                for lane in range(width):
                    scaled[lane] = left[lane] * pivot[lane]
                for j in range(i, m):
                    if j != k:
                        right = get_system_entry(lanes, place[j, k])
                        out = get_system_entry(lanes, place[i, j])
                        for lane in range(width):
                            out[lane] = fma(scaled[lane], right[lane], out[lane])
                for lane in range(width):
                    left[lane] = -scaled[lane]


@kernel
def _retire_lanes(
    n_active: int,
    rounds: int,
    tol: float,
    is_last: bool,
    work: _LaneWorkspace,
    out: LanePosteriors,
    w: int,
) -> int:
    """Output rows with a converged bound, move the others up, and return their number."""
    lanes, packed = work.lanes, out.system.shape[1]
    remainder, gap = get_system_entry(lanes, packed - 1), get_lane_row(lanes, GAP)
    n_remaining = 0
    for lane in range(n_active):
        row, bound = work.rows[lane], -0.5 * (remainder[lane] + gap[lane])
        if is_last or abs(bound - work.bound[lane]) < tol:
            out.bound[w, row], out.rounds[w, row] = bound, rounds
            for s in range(packed):
                out.system[w, s, row] = get_system_entry(lanes, s)[lane]
        else:
            work.rows[n_remaining], work.bound[n_remaining] = row, bound
            for k in range(len(work.signs)):
                work.signs[k, n_remaining] = work.signs[k, lane]
            for s in range(packed):
                get_system_entry(lanes, s)[n_remaining] = get_system_entry(lanes, s)[lane]
            n_remaining += 1
    return n_remaining


@kernel
def _set_moments(place: Integers, lanes: Floats, width: int) -> None:
    """Compute ⟨x̂ x̂ᵀ⟩ from a solved system."""
    q = len(place) - 1
    for k in range(q):
        mean, first = get_system_entry(lanes, place[k, q]), get_moment(lanes, place[k, q])
        for lane in range(width):
            first[lane] = -mean[lane]
        for j in range(k + 1):
            other = get_system_entry(lanes, place[j, q])
            covariance = get_system_entry(lanes, place[j, k])
            second = get_moment(lanes, place[j, k])
            for lane in range(width):
                second[lane] = fma(mean[lane], other[lane], -covariance[lane])
    fill(get_moment(lanes, place[q, q]), 1.0)
