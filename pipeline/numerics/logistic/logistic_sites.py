"""EM of a logistic latent-trait model by expectation propagation.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(z_i), z_i = w_i·x + b_i, independent given x. Each row's posterior
is approximated by a Gaussian N(μ, C) in which a site exp(ν_i y_i − τ_i y_i² / 2) of y_i = w_i·x
replaces item i,

    C = [I + Σ τ_i w_i w_iᵀ]⁻¹,   μ = C Σ ν_i w_i.

A round replaces site i by the item itself, and matches the site to the resulting mean and variance
of y_i, for all items at once, starting from Laplace's approximation (Minka, UAI 2001; Rasmussen &
Williams, Gaussian Processes for Machine Learning, 2006, section 3.6). The sites of a row move by
half as much after each round that changes its likelihood more than the round before. With means and
variances μ_i, v_i of y_i under N(μ, C), and means and variances m_i, s_i under the cavity, the
Gaussian without site i,

    log P(t) ≈ ½ μᵀ C⁻¹ μ + ½ log det C + Σ_i log R_i,
    R_i = ∫ σ(±z_i) exp(τ_i y_i² / 2 − ν_i y_i) N(y_i; μ_i, v_i) dy_i.

Its gradient at convergence equals the gradient of the item with a fixed cavity,

    ⟨(t_i − σ(z_i)) x̂⟩ = (r_i μ + s_i C w_i, r_i),

x̂ = (x, 1), with the mean r_i of t_i − σ(z_i), and s_i its covariance with y_i over v_i. The M-step
takes one step of Newton with the curvature Σ_n ⟨σ(z_in) σ(−z_in)⟩ ⟨x̂ x̂ᵀ⟩_n. This is not a bound,
so the weights of sparse items do not shrink. Missing values are left out of all sums.

The kernel works on `_LANES` rows at a time, with one row per lane. Its memory is flat, with row r
at _LANES r, so that the compiler knows the distance between rows. First come rows for the current
item, then tiles of `_TILE` entries of a Gaussian, each with the same entries of the sums Σ τ w wᵀ
and Σ ν w. Entries are the upper triangle of C, row by row, padded with zeros, and then μ, padded
with zeros. A sign is 1 or −1 for a value and 0 where it is missing. Loops over lanes have no
branches, and no row's result depends on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg.blas import ssyrk
from scipy.special import expit, log_expit

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.intrinsics import wide_vectors
from pipeline.numerics.logistic.latent_nodes import RowPosterior
from pipeline.numerics.logistic.logistic_lanes import (
    FACTORS_PER_LOG,
    LANE_KERNEL_OPTIONS,
    Floats,
    Integers,
    copy,
    exp_minus,
    exp_small,
    fill,
    fma,
    inlined,
    kernel,
)
from pipeline.numerics.logistic.newton_step import NewtonStatistics
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments

Bits = NDArray[np.uint8]
Signs = NDArray[np.int8]

_BATCH_ENTRIES = 2**15  # items times rows: 256 KiB per array
_SCORED_ROWS = 1024  # per batch; their products are read and written once per batch
_LANES = 32
_VECTOR = 8  # lanes of the widest vectors
_TILE = 5
_MAX_ROUNDS, _MIN_RATE = 30, 0.05
_ROUND_TOLERANCE = 1e-4  # change of a row's log-likelihood, nats
_MAX_CORRECTION = 100.0  # of Laplace's approximation, nats
_MAX_LOG_LIKELIHOOD = 0.01  # larger values are no approximations of the logarithm of a chance
_MAX_SHIFT = 3.0  # of the mean from the mode, prior standard deviations
_MAX_STEPS, _MIN_GAIN = 30, 1e-2  # of Newton's method; nats
_MIN_VARIANCE = 1e-8  # of w·x; items without weight have none
_MIN_SHARE = 1e-9  # smallest share of the precision from the prior and other items
_MIN_SPREAD = 1e-9  # smallest variance of an item and a cavity, over v
# Longest logits at the mean, and between nodes. Only items that count as diverging reach them.
_MAX_LOGIT, _MAX_NODE_LOGIT = 300.0, 16.0
_FEW_FACTORS = 8  # per logarithm, outside Newton's method

# Rows of the current item: its sign, mean and variance of y, and its site,
_SIGN, _MEAN, _VARIANCE, _PRECISION, _SHIFT = range(5)
# the moments of `TiltedMoments`,
_RESIDUAL, _COVARIANCE, _SLOPE = range(5, 8)
# 0 for converged rows, else how far sites move, and sums and products over items,
_RATE, _LOG, _FACTOR, _SQUARE = range(8, 12)
# and what the nodes need: √v, v / s, the tilt b of `_place_nodes`, factors of exp(−logit) at the
# mean and from node to node, factors of the weight exp(τ y² / 2 − ν y), and sums of powers.
_ROOT, _SHARE, _TILT, _ODDS, _ODDS_STEP, _EVEN_STEP, _TILT_STEP = range(12, 19)
_ZEROTH, _FIRST, _SECOND = range(19, 22)
_HEAD = 22


def _node_weights(spacing: float, n: int) -> tuple[float, ...]:
    """Return weights of nodes 0, ±h, ..., ±n h with the normal moments up to degree 2 n + 1."""
    powers = 2.0 * (spacing * np.arange(n + 1)) ** (2 * np.arange(n + 1))[:, None]
    powers[:, 0] /= 2
    moments = np.cumprod([1.0, *range(1, 2 * n, 2)])
    return tuple(float(weight) for weight in np.linalg.solve(powers, moments))


# Equidistant nodes, where exponentials follow from node to node by multiplication. For an item and
# a cavity with standard deviations of y up to 5, they are as exact as 12 Gauss–Hermite nodes: up to
# 1e-9 below 0.5, 1e-6 at 1, 5e-5 at 2 and 4e-3 at 5.
_SPACING = 0.83
_NODE_WEIGHTS = _node_weights(_SPACING, 5)


class TiltedMoments(NamedTuple):
    """Moments of each item and row for the M-step, (n_features, n_rows), 0 where missing."""

    residual: Floats  # r, the mean of t − σ(z)
    covariance: Floats  # s, the covariance of t − σ(z) with y, over the variance of y
    slope: Floats  # the mean of σ(z) σ(−z)


class _LaneItems(NamedTuple):
    """The model in tiles.

    Attributes
    ----------
    offsets
        b, (n_features,).
    forms
        Coefficients of wᵀ C w in the upper triangle of C, padded, and w, padded.
    n_quadratic
        Number of tiles of a triangle.
    triangle
        Place of entry (k, l) in a packed triangle, (q + 1, q + 1).
    first_residual, first_log
        ½ − σ(b), and ½ log σ(b) σ(−b), (n_features,).
    first_covariance
        Laplace's covariance at x = 0 for a row without missing values, (q, q).
    """

    offsets: Floats
    forms: Floats
    n_quadratic: int
    triangle: Integers
    first_residual: Floats
    first_log: Floats
    first_covariance: Floats


class _Batch(NamedTuple):
    """Results of a batch of rows.

    Attributes
    ----------
    moments
        Moments of each item.
    mean, triangle
        μ, (q, n_rows), and the packed upper triangle of C, (q (q + 1) / 2, n_rows).
    log_likelihood, rounds
        log P(t), and number of rounds, (n_rows,) each.
    """

    moments: TiltedMoments
    mean: Floats
    triangle: Floats
    log_likelihood: Floats
    rounds: Integers

    def covariance(self) -> Floats:
        """Return C, (n_rows, q, q)."""
        n, q = self.mean.shape[1], len(self.mean)
        j, k = np.triu_indices(q)
        covariance = np.empty((n, q, q))
        covariance[:, j, k] = covariance[:, k, j] = self.triangle.T
        return covariance


class _Workspace(NamedTuple):
    """Memory of a group of rows."""

    lanes: Floats  # flat, see above
    sites: Floats  # (n_features, 2, _LANES), τ and ν
    solved: Floats  # packed triangle: −C, −μ and −μᵀ C⁻¹ μ
    log_det: Floats  # log det C⁻¹
    scaled: Floats
    mode: Floats  # (q, _LANES), the best point of Newton's method
    step: Floats  # (q, _LANES)
    value: Floats  # log-likelihood of the previous round, or log joint density at the mode
    evidence: Floats  # Laplace's approximation of log P(t)
    gain: Floats  # change of the log-likelihood in the previous round, or Newton decrement


def ep_e_step(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None = None,
) -> NewtonStatistics:
    """E-step: match the sites of each row, and compute the sums of the M-step.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    weights, offsets
        w, (n_features, q), and b, (n_features,).
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    """
    n_features, q = weights.shape
    gradient = np.zeros((n_features, q + 1))
    curvature = np.zeros((n_features, (q + 1) * (q + 2) // 2))
    moments, log_likelihood, rounds = np.zeros((q + 1, q + 1)), 0.0, 0
    items = _make_items(weights, offsets)
    height = max(_BATCH_ENTRIES // n_features, 1)
    for rows in _iter_batches(len(X), height):
        batch = _match_sites(X, observed, rows, items)
        own_weights, nats = None, batch.log_likelihood
        if row_weights is not None:
            own_weights = row_weights[rows]
            nats = own_weights * nats
            parts = (own_weights * part for part in batch.moments)
            batch = batch._replace(moments=TiltedMoments(*parts))
        _add_batch(batch, weights, gradient, curvature)
        moments += sum_trait_moments(batch.mean.T, batch.covariance(), own_weights)
        log_likelihood += float(nats.sum())
        rounds += int(batch.rounds.sum())
    return NewtonStatistics(gradient, curvature, moments, log_likelihood, rounds)


def ep_posterior(X: Bits, observed: Bits | None, weights: Floats, offsets: Floats) -> RowPosterior:
    """Compute the posterior of each row, with parameters as for `ep_e_step`.

    The bits of a row's result depend on that row and the model alone.
    """
    n, q, items = len(X), weights.shape[1], _make_items(weights, offsets)
    out = RowPosterior.make_empty(n, q)
    for rows in _iter_batches(n, max(_BATCH_ENTRIES // len(weights), 1)):
        batch = _match_sites(X, observed, rows, items)
        out.mean[rows], out.covariance[rows] = batch.mean.T, batch.covariance()
        out.log_likelihood[rows] = batch.log_likelihood
    return out


def sum_ep_score_products(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None = None,
) -> Floats:
    """Return Σ_n r_n s_n s_nᵀ, the products of scores, with parameters as for `ep_e_step`.

    The parameters of a score are ordered by item, its weights first, then its offset. Products are
    in single precision, because the sums over rows have far larger sampling errors.
    """
    n_features, q = weights.shape
    products = np.zeros((n_features * (q + 1), n_features * (q + 1)), np.float32, order="F")
    items = _make_items(weights, offsets)
    for rows in _iter_batches(len(X), _SCORED_ROWS):
        batch = _match_sites(X, observed, rows, items)
        residual, covariance = batch.moments.residual.T, batch.moments.covariance.T
        scores = np.empty((len(residual), n_features, q + 1), np.float32)
        scores[:, :, :q] = residual[:, :, None] * batch.mean.T[:, None]
        scores[:, :, :q] += covariance[:, :, None] * (weights @ batch.covariance())
        scores[:, :, q] = residual
        if row_weights is not None:
            scores *= np.sqrt(row_weights[rows])[:, None, None]
        flat = scores.reshape(len(scores), -1).T
        products = ssyrk(1.0, flat, beta=1.0, c=products, overwrite_c=True)
    full = np.add(products, products.T, dtype=np.float64)  # below the diagonal, products are 0
    np.fill_diagonal(full, np.diagonal(products))
    return full


def _iter_batches(n_rows: int, height: int) -> Iterator[slice]:
    """Yield batches of rows; all but the last fill their lanes."""
    height = -(-height // _LANES) * _LANES
    for start in range(0, n_rows, height):
        check_cancelled()
        yield slice(start, min(start + height, n_rows))


def _add_batch(batch: _Batch, weights: Floats, gradient: Floats, curvature: Floats) -> None:
    q, n = batch.mean.shape
    covariance = batch.covariance()
    extended = np.column_stack([batch.mean.T, np.ones(n)])
    second = extended[:, :, None] * extended[:, None, :]
    second[:, :q, :q] += covariance
    weighted = (batch.moments.covariance @ covariance.reshape(n, -1)).reshape(-1, q, q)
    gradient += batch.moments.residual @ extended
    gradient[:, :q] += (weighted @ weights[:, :, None])[:, :, 0]
    j, k = np.triu_indices(q + 1)
    curvature += batch.moments.slope @ second[:, j, k]


def _make_items(weights: Floats, offsets: Floats) -> _LaneItems:
    n_features, q = weights.shape
    j, k = np.triu_indices(q)
    n_quadratic, n_linear = -(-len(j) // _TILE), -(-q // _TILE)
    forms = np.zeros((n_features, _TILE * (n_quadratic + n_linear)))
    forms[:, : len(j)] = np.where(j == k, 1, 2) * weights[:, j] * weights[:, k]
    forms[:, _TILE * n_quadratic : _TILE * n_quadratic + q] = weights
    triangle = np.empty((q + 1, q + 1), np.int64)
    j, k = np.triu_indices(q + 1)
    triangle[j, k] = triangle[k, j] = np.arange(len(j))
    slopes = expit(offsets) * expit(-offsets)
    return _LaneItems(
        np.array(offsets, np.float64),
        forms,
        n_quadratic,
        triangle,
        0.5 - expit(offsets),
        0.5 * (log_expit(offsets) + log_expit(-offsets)),
        np.linalg.inv(np.eye(q) + weights.T @ (weights * slopes[:, None])).astype(np.float64),
    )


def _match_sites(X: Bits, observed: Bits | None, rows: slice, items: _LaneItems) -> _Batch:
    """Iterate each row until its log-likelihood converges."""
    n, (n_features, q) = rows.stop - rows.start, (X.shape[1], len(items.triangle) - 1)
    signs = np.zeros((n_features, -(-n // _VECTOR) * _VECTOR), np.int8)
    signs[:, :n] = 2 * X[rows].T.astype(np.int8) - 1
    if observed is not None:
        signs[:, :n] *= observed[rows].T.astype(np.int8)
    width = signs.shape[1]
    batch = _Batch(
        TiltedMoments(*np.zeros((3, n_features, width))),
        np.zeros((q, width)),
        np.zeros((q * (q + 1) // 2, width)),
        np.zeros(width),
        np.zeros(width, np.int64),
    )
    _match_lanes(signs, items, batch)
    return _Batch(
        TiltedMoments(*(part[:, :n] for part in batch.moments)),
        batch.mean[:, :n],
        batch.triangle[:, :n],
        batch.log_likelihood[:n],
        batch.rounds[:n],
    )


@njit(**LANE_KERNEL_OPTIONS, cache=True)
def _match_lanes(signs: Signs, items: _LaneItems, batch: _Batch) -> None:
    wide_vectors()
    n_features, n_rows = signs.shape
    q, n_tiles = len(items.triangle) - 1, items.forms.shape[1] // _TILE
    work = _Workspace(
        np.zeros(_LANES * (_HEAD + 2 * _TILE * n_tiles)),
        np.zeros((n_features, 2, _LANES)),
        np.zeros((items.triangle[q, q] + 1, _LANES)),
        np.zeros(_LANES),
        np.zeros(_LANES),
        np.zeros((q, _LANES)),
        np.zeros((q, _LANES)),
        np.zeros(_LANES),
        np.zeros(_LANES),
        np.zeros(_LANES),
    )
    for start in range(0, n_rows, _LANES):
        width = min(_LANES, n_rows - start)
        _find_modes(signs[:, start : start + width], items, work)
        for lane in range(width):
            work.evidence[lane] = work.value[lane] - 0.5 * work.log_det[lane]
        fill(_row(work.lanes, _RATE), 1.0)
        fill(work.value, np.inf)
        fill(work.gain, np.inf)
        for round_number in range(_MAX_ROUNDS):
            _move_gaussian(items, work, width)
            _run_round(signs, items, work, batch.moments, start, width)
            if not _store_rows(items, work, batch, start, width, round_number):
                break
            _solve(items, work, width)


# Newton's method ------------------------------------------------------------------------------


@kernel
def _find_modes(signs: Signs, items: _LaneItems, work: _Workspace) -> None:
    """Set the sites to Laplace's approximation, and solve for its Gaussian.

    A step of Newton's method is the mean of that Gaussian. The first step is from x = 0.
    """
    width, q = signs.shape[1], len(items.triangle) - 1
    _start_newton(signs, items, work)
    for _ in range(_MAX_STEPS):
        _clear_sums(work.lanes)
        for i in range(len(signs)):
            _load_signs(signs[i], work.lanes)
            _set_mean(items, i, work.lanes, width)
            _expand_item(items.offsets[i], work.lanes, width)
            _add_quadratic(items, i, work.lanes, width)
            _add_linear(items, i, work.lanes, width)
            copy(_row(work.lanes, _PRECISION), work.sites[i, 0])
            copy(_row(work.lanes, _SHIFT), work.sites[i, 1])
            if i % FACTORS_PER_LOG == FACTORS_PER_LOG - 1 or i == len(signs) - 1:
                _take_logarithms(-1.0, work.lanes, width)
        _solve(items, work, width)
        is_active = False
        for lane in range(width):
            if work.gain[lane] < _MIN_GAIN:
                continue
            reached = _row(work.lanes, _LOG)[lane]
            for d in range(q):
                reached -= 0.5 * _mean_row(work.lanes, items, d)[lane] ** 2
            if reached >= work.value[lane]:
                work.value[lane] = reached
                work.gain[lane] = _measure_gain(items, work, lane)
                for d in range(q):
                    x = _mean_row(work.lanes, items, d)[lane]
                    work.mode[d, lane] = x
                    work.step[d, lane] = -work.solved[items.triangle[d, q], lane] - x
            else:
                work.gain[lane] *= 0.5
                for d in range(q):
                    work.step[d, lane] *= 0.5
            if work.gain[lane] >= _MIN_GAIN:
                is_active = True
                for d in range(q):
                    x = work.mode[d, lane] + work.step[d, lane]
                    _mean_row(work.lanes, items, d)[lane] = x
        if not is_active:
            break


@kernel
def _start_newton(signs: Signs, items: _LaneItems, work: _Workspace) -> None:
    """Set the mode to 0, and x to the first step from there, as if no value were missing."""
    width, q = signs.shape[1], len(items.triangle) - 1
    _clear_sums(work.lanes)
    log, shift = _row(work.lanes, _LOG), _row(work.lanes, _SHIFT)
    for i in range(len(signs)):
        _load_signs(signs[i], work.lanes)
        for lane in range(width):
            sign = work.lanes[_LANES * _SIGN + lane]
            log[lane] += 0.5 * sign * items.offsets[i] + sign * sign * items.first_log[i]
        for lane in range(width):
            sign = work.lanes[_LANES * _SIGN + lane]
            shift[lane] = fma(sign * sign, items.first_residual[i], 0.5 * sign)
        _add_linear(items, i, work.lanes, width)
    copy(log, work.value)
    fill(work.gain, np.inf)
    linear = _TILE * items.n_quadratic
    for d in range(q):
        fill(work.mode[d], 0.0)
        x = work.step[d]
        fill(x, 0.0)
        for k in range(q):
            slope = _sum_row(work.lanes, linear + k)
            for lane in range(width):
                x[lane] = fma(items.first_covariance[d, k], slope[lane], x[lane])
        copy(x, _mean_row(work.lanes, items, d))


@inlined
def _expand_item(offset: float, lanes: Floats, width: int) -> None:
    """Expand log P of the item at y to second order, and add its value and τ y²."""
    for lane in range(width):
        sign, y = lanes[_LANES * _SIGN + lane], lanes[_LANES * _MEAN + lane]
        present, towards = sign * sign, sign * (y + offset)
        e = exp_minus(abs(towards))
        inverse = 1.0 / (1.0 + e)
        slope = present * e * inverse * inverse
        residual = sign * (e * inverse if towards > 0 else inverse)
        lanes[_LANES * _PRECISION + lane] = slope
        lanes[_LANES * _SHIFT + lane] = fma(slope, y, residual)
        lanes[_LANES * _LOG + lane] += min(towards, 0.0)
        lanes[_LANES * _FACTOR + lane] *= fma(present, e, 1.0)
        square = lanes[_LANES * _SQUARE + lane]
        lanes[_LANES * _SQUARE + lane] = fma(slope * y, y, square)


@inlined
def _measure_gain(items: _LaneItems, work: _Workspace, lane: int) -> float:
    """Return (μ − x)ᵀ C⁻¹ (μ − x) for the solved Gaussian."""
    q = len(items.triangle) - 1
    gain = work.lanes[_LANES * _SQUARE + lane]
    for d in range(q):
        x = _mean_row(work.lanes, items, d)[lane]
        shift = _sum_row(work.lanes, _TILE * items.n_quadratic + d)[lane]
        gain += x * x - shift * (work.solved[items.triangle[d, q], lane] + 2 * x)
    return float(gain)


# A round --------------------------------------------------------------------------------------


@kernel
def _run_round(
    signs: Signs,
    items: _LaneItems,
    work: _Workspace,
    moments: TiltedMoments,
    start: int,
    width: int,
) -> None:
    """Match each site, store the moments of rows that have not converged, and sum the sites."""
    lanes, stop = work.lanes, start + width
    _clear_sums(lanes)
    for i in range(len(signs)):
        _load_signs(signs[i, start:stop], lanes)
        copy(work.sites[i, 0], _row(lanes, _PRECISION))
        copy(work.sites[i, 1], _row(lanes, _SHIFT))
        _set_mean(items, i, lanes, width)
        _set_variance(items, i, lanes, width)
        _place_nodes(items.offsets[i], lanes, width)
        _sum_over_nodes(lanes, width)
        _match_site(lanes, width)
        _add_quadratic(items, i, lanes, width)
        _add_linear(items, i, lanes, width)
        copy(_row(lanes, _PRECISION), work.sites[i, 0])
        copy(_row(lanes, _SHIFT), work.sites[i, 1])
        _store_active(lanes, _RESIDUAL, moments.residual[i, start:stop])
        _store_active(lanes, _COVARIANCE, moments.covariance[i, start:stop])
        _store_active(lanes, _SLOPE, moments.slope[i, start:stop])
        if i % _FEW_FACTORS == _FEW_FACTORS - 1 or i == len(signs) - 1:
            _take_logarithms(1.0, lanes, width)


@inlined
def _place_nodes(offset: float, lanes: Floats, width: int) -> None:
    """Prepare the sums over nodes y = μ ± h k √v, with the sign of the item.

    The weight exp(τ y² / 2 − ν y) there is exp(τ μ² / 2 − ν μ) exp(τ v (h k)² / 2 ± b h k), with
    the tilt b = (τ μ − ν) √v.
    """
    for lane in range(width):
        sign, mean = lanes[_LANES * _SIGN + lane], lanes[_LANES * _MEAN + lane]
        precision, shift = lanes[_LANES * _PRECISION + lane], lanes[_LANES * _SHIFT + lane]
        variance = max(lanes[_LANES * _VARIANCE + lane], _MIN_VARIANCE)
        root, share = math.sqrt(variance), min(precision * variance, 1.0 - _MIN_SHARE)
        tilt = sign * (fma(precision, mean, -shift) * root)
        towards = sign * (mean + offset)
        odds = exp_minus(min(abs(towards), _MAX_LOGIT))
        step = exp_minus(min(abs(_SPACING * tilt), _MAX_NODE_LOGIT))
        inverse = 1.0 / (odds * step)
        lanes[_LANES * _VARIANCE + lane] = variance
        lanes[_LANES * _ROOT + lane] = root
        lanes[_LANES * _SHARE + lane] = 1.0 - share
        lanes[_LANES * _TILT + lane] = tilt
        lanes[_LANES * _ODDS + lane] = odds if towards > 0 else inverse * step
        lanes[_LANES * _ODDS_STEP + lane] = exp_minus(min(_SPACING * root, _MAX_NODE_LOGIT))
        lanes[_LANES * _EVEN_STEP + lane] = exp_small(0.5 * _SPACING**2 * share)
        lanes[_LANES * _TILT_STEP + lane] = inverse * odds if tilt > 0 else step
        log = lanes[_LANES * _LOG + lane]
        lanes[_LANES * _LOG + lane] = log + (
            min(towards, 0.0) + mean * fma(0.5 * precision, mean, -shift)
        )


@inlined
def _sum_over_nodes(lanes: Floats, width: int) -> None:
    """Sum the weight times σ and powers of the node, and times σ² (1 − σ), without exponentials."""
    for lane in range(width):
        odds, odds_step = lanes[_LANES * _ODDS + lane], lanes[_LANES * _ODDS_STEP + lane]
        tilt_step = lanes[_LANES * _TILT_STEP + lane]
        inverse = 1.0 / (odds_step * tilt_step)
        odds_back, tilt_back = inverse * tilt_step, inverse * odds_step
        even_step = lanes[_LANES * _EVEN_STEP + lane]
        even_change, even = even_step * even_step, 1.0
        sigma = 1.0 / (1.0 + odds)
        zeroth = _NODE_WEIGHTS[0] * sigma
        first, second, slope = 0.0, 0.0, zeroth * fma(-sigma, sigma, sigma)
        high, low, above, below = odds, odds, 1.0, 1.0
        for k in range(1, len(_NODE_WEIGHTS)):
            high, low = high * odds_step, low * odds_back
            above, below = above * tilt_step, below * tilt_back
            even, even_step = even * even_step, even_step * even_change
            inverse = 1.0 / ((1.0 + high) * (1.0 + low))
            sigma_high, sigma_low = inverse * (1.0 + low), inverse * (1.0 + high)
            weight = _NODE_WEIGHTS[k] * even
            mass_high, mass_low = weight * above * sigma_high, weight * below * sigma_low
            both = mass_high + mass_low
            zeroth += both
            first = fma(_SPACING * k, mass_high - mass_low, first)
            second = fma((_SPACING * k) ** 2, both, second)
            slope = fma(mass_high, fma(-sigma_high, sigma_high, sigma_high), slope)
            slope = fma(mass_low, fma(-sigma_low, sigma_low, sigma_low), slope)
        lanes[_LANES * _ZEROTH + lane], lanes[_LANES * _FIRST + lane] = zeroth, first
        lanes[_LANES * _SECOND + lane], lanes[_LANES * _SLOPE + lane] = second, slope


@inlined
def _match_site(lanes: Floats, width: int) -> None:
    """Compute the moments of the item and its cavity, and move the site towards them."""
    for lane in range(width):
        sign, mean = lanes[_LANES * _SIGN + lane], lanes[_LANES * _MEAN + lane]
        precision, shift = lanes[_LANES * _PRECISION + lane], lanes[_LANES * _SHIFT + lane]
        present, root = sign * sign, lanes[_LANES * _ROOT + lane]
        share, tilt = lanes[_LANES * _SHARE + lane], lanes[_LANES * _TILT + lane]
        zeroth = lanes[_LANES * _ZEROTH + lane]
        of_variance, of_zeroth = 1.0 / lanes[_LANES * _VARIANCE + lane], 1.0 / zeroth
        # In units of √v from the mean.
        first = lanes[_LANES * _FIRST + lane] * of_zeroth
        spread = fma(lanes[_LANES * _SECOND + lane], of_zeroth, -first * first)
        spread = max(spread, _MIN_SPREAD)
        inverse = 1.0 / (share * spread)
        of_share, of_spread = inverse * spread, inverse * share
        gap = first - tilt * of_share
        # By Stein's lemma, the moments of t − σ(z) follow from the moments of y.
        residual = sign * (gap * share * (root * of_variance))
        excess = share * fma(gap, gap, spread) - 1.0
        covariance = present * of_variance * fma(gap, tilt, excess)
        # The bounds only matter to rows that leave the range of plausible values.
        lanes[_LANES * _RESIDUAL + lane] = min(max(residual, -1.0), 1.0)
        lanes[_LANES * _COVARIANCE + lane] = min(max(covariance, -1.0), 1.0)
        lanes[_LANES * _SLOPE + lane] *= present * of_zeroth
        factor = zeroth * max(lanes[_LANES * _ODDS + lane], 1.0)
        product = lanes[_LANES * _FACTOR + lane] * fma(present, factor - 1.0, 1.0)
        lanes[_LANES * _FACTOR + lane] = min(max(product, 1e-280), 1e280)
        rate = present * lanes[_LANES * _RATE + lane]
        matched = max(of_spread - share, 0.0) * of_variance
        lanes[_LANES * _PRECISION + lane] = fma(rate, matched - precision, precision)
        reached = fma(sign * root, first, mean)
        move = (reached * of_spread - mean) * of_variance
        lanes[_LANES * _SHIFT + lane] = fma(rate, move, shift)


@kernel
def _store_rows(
    items: _LaneItems, work: _Workspace, batch: _Batch, start: int, width: int, round_number: int
) -> bool:
    """Store the Gaussians that the round began with; return whether any row has not converged.

    Rows with items as steep as steps may leave the range of plausible values. They keep the results
    of the round before, or else Laplace's approximation.
    """
    lanes, q, is_active = work.lanes, len(items.triangle) - 1, False
    rate, log = _row(lanes, _RATE), _row(lanes, _LOG)
    for lane in range(width):
        if rate[lane] == 0.0:
            continue
        reached = log[lane]
        reached -= 0.5 * (work.log_det[lane] + work.solved[items.triangle[q, q], lane])
        distance = 0.0
        for d in range(q):
            distance += (_mean_row(lanes, items, d)[lane] - work.mode[d, lane]) ** 2
        is_plausible = abs(reached - work.evidence[lane]) < _MAX_CORRECTION
        is_plausible &= reached < _MAX_LOG_LIKELIHOOD and distance < q * _MAX_SHIFT**2
        if is_plausible or round_number == 0:
            for s in range(len(batch.triangle)):
                batch.triangle[s, start + lane] = _gaussian_row(lanes, s)[lane]
            for d in range(q):
                mean = _mean_row(lanes, items, d)[lane]
                batch.mean[d, start + lane] = mean if is_plausible else work.mode[d, lane]
            batch.log_likelihood[start + lane] = reached if is_plausible else work.evidence[lane]
            batch.rounds[start + lane] = round_number + 1
        change = abs(reached - work.value[lane])
        if not is_plausible or change <= _ROUND_TOLERANCE:
            rate[lane] = 0.0
            continue
        if change > work.gain[lane]:
            rate[lane] = max(0.5 * rate[lane], _MIN_RATE)
        is_active = True
        work.value[lane], work.gain[lane] = reached, change
    return is_active


# Lanes ----------------------------------------------------------------------------------------


@inlined
def _row(lanes: Floats, r: int) -> Floats:
    return lanes[_LANES * r : _LANES * (r + 1)]


@inlined
def _gaussian_row(lanes: Floats, s: int) -> Floats:
    """Return entry s of the Gaussian."""
    start = _LANES * (_HEAD + 2 * _TILE * (s // _TILE) + s % _TILE)
    return lanes[start : start + _LANES]


@inlined
def _sum_row(lanes: Floats, s: int) -> Floats:
    """Return entry s of the sums of sites."""
    start = _LANES * (_HEAD + 2 * _TILE * (s // _TILE) + _TILE + s % _TILE)
    return lanes[start : start + _LANES]


@inlined
def _mean_row(lanes: Floats, items: _LaneItems, d: int) -> Floats:
    """Return entry d of μ."""
    start = _LANES * (_HEAD + 2 * _TILE * (items.n_quadratic + d // _TILE) + d % _TILE)
    return lanes[start : start + _LANES]


@inlined
def _tile_rows(lanes: Floats, tile: int) -> Floats:
    return lanes[_LANES * (_HEAD + 2 * _TILE * tile) :]


@inlined
def _sum_tile_rows(lanes: Floats, tile: int) -> Floats:
    return lanes[_LANES * (_HEAD + 2 * _TILE * tile + _TILE) :]


@inlined
def _get_tile(form: Floats) -> Any:
    return form[0], form[1], form[2], form[3], form[4]


@inlined
def _load_signs(signs: Signs, lanes: Floats) -> None:
    for lane in range(len(signs)):
        lanes[_LANES * _SIGN + lane] = float(signs[lane])


@inlined
def _store_active(lanes: Floats, r: int, out: Floats) -> None:
    for lane in range(len(out)):
        is_active = lanes[_LANES * _RATE + lane] > 0
        out[lane] = lanes[_LANES * r + lane] if is_active else out[lane]


@inlined
def _clear_sums(lanes: Floats) -> None:
    """Start the sums over items."""
    fill(_row(lanes, _LOG), 0.0)
    fill(_row(lanes, _SQUARE), 0.0)
    fill(_row(lanes, _FACTOR), 1.0)
    n_tiles = (len(lanes) // _LANES - _HEAD) // (2 * _TILE)
    for tile in range(n_tiles):
        fill(_sum_tile_rows(lanes, tile)[: _LANES * _TILE], 0.0)


@inlined
def _take_logarithms(sign: float, lanes: Floats, width: int) -> None:
    for lane in range(width):
        lanes[_LANES * _LOG + lane] += sign * math.log(lanes[_LANES * _FACTOR + lane])
        lanes[_LANES * _FACTOR + lane] = 1.0


@inlined
def _set_mean(items: _LaneItems, i: int, lanes: Floats, width: int) -> None:
    """Compute w·μ."""
    out = _row(lanes, _MEAN)
    fill(out, 0.0)
    for tile in range(items.n_quadratic, items.forms.shape[1] // _TILE):
        form = _get_tile(items.forms[i, _TILE * tile :])
        _add_products(form, _tile_rows(lanes, tile), out, width)


@inlined
def _set_variance(items: _LaneItems, i: int, lanes: Floats, width: int) -> None:
    """Compute wᵀ C w."""
    out = _row(lanes, _VARIANCE)
    fill(out, 0.0)
    for tile in range(items.n_quadratic):
        form = _get_tile(items.forms[i, _TILE * tile :])
        _add_products(form, _tile_rows(lanes, tile), out, width)


@inlined
def _add_quadratic(items: _LaneItems, i: int, lanes: Floats, width: int) -> None:
    """Add τ w wᵀ to the sums, with off-diagonal entries doubled."""
    for tile in range(items.n_quadratic):
        form = _get_tile(items.forms[i, _TILE * tile :])
        _add_multiple(form, _row(lanes, _PRECISION), _sum_tile_rows(lanes, tile), width)


@inlined
def _add_linear(items: _LaneItems, i: int, lanes: Floats, width: int) -> None:
    """Add ν w to the sums."""
    for tile in range(items.n_quadratic, items.forms.shape[1] // _TILE):
        form = _get_tile(items.forms[i, _TILE * tile :])
        _add_multiple(form, _row(lanes, _SHIFT), _sum_tile_rows(lanes, tile), width)


@inlined
def _add_products(form: Any, tile: Floats, out: Floats, width: int) -> None:
    """Add the product of a tile of a form with a tile of the Gaussian."""
    for lane in range(width):
        total = fma(form[0], tile[lane], out[lane])
        total = fma(form[1], tile[lane + _LANES], total)
        total = fma(form[2], tile[lane + 2 * _LANES], total)
        total = fma(form[3], tile[lane + 3 * _LANES], total)
        out[lane] = fma(form[4], tile[lane + 4 * _LANES], total)


@inlined
def _add_multiple(form: Any, factors: Floats, tile: Floats, width: int) -> None:
    """Add a multiple of a tile of a form to a tile of the sums."""
    for lane in range(width):
        factor = factors[lane]
        tile[lane] = fma(form[0], factor, tile[lane])
        tile[lane + _LANES] = fma(form[1], factor, tile[lane + _LANES])
        tile[lane + 2 * _LANES] = fma(form[2], factor, tile[lane + 2 * _LANES])
        tile[lane + 3 * _LANES] = fma(form[3], factor, tile[lane + 3 * _LANES])
        tile[lane + 4 * _LANES] = fma(form[4], factor, tile[lane + 4 * _LANES])


@kernel
def _move_gaussian(items: _LaneItems, work: _Workspace, width: int) -> None:
    """Copy C and μ from the solved system to the tiles."""
    q, s = len(items.triangle) - 1, 0
    for j in range(q):
        for k in range(j, q + 1):
            source = work.solved[items.triangle[j, k]]
            out = _mean_row(work.lanes, items, j) if k == q else _gaussian_row(work.lanes, s)
            for lane in range(width):
                out[lane] = -source[lane]
            s += k < q


@kernel
def _solve(items: _LaneItems, work: _Workspace, width: int) -> None:
    """Solve for C and μ by the sweep operator on packed triangles."""
    place, solved, scaled, log_det = items.triangle, work.solved, work.scaled, work.log_det
    q, s = len(place) - 1, 0
    for j in range(q):
        for k in range(j, q + 1):
            linear = _TILE * items.n_quadratic + j
            source, out = _sum_row(work.lanes, linear if k == q else s), solved[place[j, k]]
            start = 1.0 if j == k else 0.0
            factor = -1.0 if k == q else (1.0 if j == k else 0.5)
            for lane in range(width):
                out[lane] = fma(factor, source[lane], start)
            s += k < q
    fill(solved[place[q, q]], 0.0)
    fill(log_det, 0.0)
    for k in range(q):
        pivot = solved[place[k, k]]
        for lane in range(width):
            # The precision is I or larger, so smaller values are rounding errors.
            value = max(pivot[lane], 1.0)
            log_det[lane] += math.log(value)
            pivot[lane] = -1.0 / value
        for i in range(q + 1):
            if i != k:
                left = solved[place[i, k]]
                for lane in range(width):
                    scaled[lane] = left[lane] * pivot[lane]
                for j in range(i, q + 1):
                    if j != k:
                        right, out = solved[place[j, k]], solved[place[i, j]]
                        for lane in range(width):
                            out[lane] = fma(scaled[lane], right[lane], out[lane])
                for lane in range(width):
                    left[lane] = -scaled[lane]
