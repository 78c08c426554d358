"""EM of a logistic latent-trait model by expectation propagation.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(z_i), z_i = w_i·x + b_i, independent given x. Each row's posterior
is approximated by a Gaussian N(μ, C) in which a site exp(ν_i y_i − τ_i y_i² / 2) of y_i = w_i·x
replaces item i,

    C = [I + Σ τ_i w_i w_iᵀ]⁻¹,   μ = C Σ ν_i w_i.

A round replaces site i by the item itself, and matches the site to the resulting mean and variance
of y_i, for all items at once, starting from Laplace's approximation (Minka, UAI 2001; Rasmussen &
Williams, Gaussian Processes for Machine Learning, 2006, section 3.6). With cavity means and
variances m_i, s_i, and means and variances μ_i, v_i under N(μ, C),

    log P(t) ≈ ½ μᵀ C⁻¹ μ + ½ log det C
               + Σ_i [log Z_i + ½ (m_i² / s_i + log s_i − μ_i² / v_i − log v_i)],
    Z_i = ∫ σ(±z_i) N(y_i; m_i, s_i) dy_i,

whose gradient at convergence equals the gradient of Σ log Z_i with fixed cavities:

    Σ_n ⟨t_in − σ(z_in)⟩ x̂_n = Σ_n (r_in μ_n + s_in C_n w_i, r_in),

x̂ = (x, 1). The M-step takes one step of Newton with the curvature Σ_n ⟨σ(z_in) σ(−z_in)⟩ ⟨x̂ x̂ᵀ⟩_n.
This is not a bound, so the weights of sparse items do not shrink. Missing values are left out of
all sums.

In the kernels, a sign is 1 or −1 for a value and 0 where it is missing. Arrays are (n_features,
n_rows). Loops over rows have no branches, and no row's result depends on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.logistic_lanes import exp_minus, fill, fma, inlined
from pipeline.numerics.logistic.newton_step import NewtonStatistics
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Signs = NDArray[np.int8]

_BATCH_ENTRIES = 2**15  # items times rows: 256 KiB per array
# Batches are multiples of BLAS tiles, and short, so that few rows need few empty ones.
_BATCH_STEP, _MAX_BATCH_ROWS = 64, 256
_NODES = 12
_MAX_ROUNDS, _UNDAMPED_ROUNDS = 30, 10
_ROUND_TOLERANCE = 1e-4  # change of a row's log-likelihood, nats
_MAX_STEPS, _MIN_GAIN = 30, 1e-2  # of Newton's method; nats
_FACTORS = 512  # factors of at most 2 per logarithm: 2**512 does not overflow
_MIN_VARIANCE = 1e-8  # of w·x; items without weight have none
_MIN_CAVITY = 1e-9  # smallest share of the precision from the prior and other items


class EPPosterior(NamedTuple):
    """Each row's μ, (n_samples, q), C, (n_samples, q, q), and log P(t), (n_samples,)."""

    mean: Floats
    covariance: Floats
    log_likelihood: Floats


class ItemMarginals(NamedTuple):
    """Mean and variance of y = w·x of each item under each row's Gaussian."""

    mean: Floats
    variance: Floats


class GaussianSites(NamedTuple):
    """The sites exp(shift y − precision y² / 2), y = w·x."""

    precision: Floats
    shift: Floats


class TiltedMoments(NamedTuple):
    """Moments of each item and row for the M-step, 0 where missing."""

    mean_residual: Floats  # r, the mean of t − σ(z)
    residual_covariance: Floats  # s, the covariance of t − σ(z) with y, over the variance of y
    slope: Floats  # the mean of σ(z) σ(−z)


class HermiteRule(NamedTuple):
    """Nodes of a Gauss–Hermite rule, and their weights divided by the normal density."""

    nodes: Floats
    weights: Floats


class _NodeSums(NamedTuple):
    """Sums of one item over the nodes, (n_rows,): powers of the node, and the slope."""

    zeroth: Floats
    first: Floats
    second: Floats
    slope: Floats


class ItemForms(NamedTuple):
    """The model, and w wᵀ of each item as a lower triangle, row by row."""

    weights: Floats
    offsets: Floats
    forms: Floats


class _ConvergedBatch(NamedTuple):
    posterior: EPPosterior
    tilted: TiltedMoments
    rounds: NDArray[np.int64]


def ep_e_step(X: Bits, observed: Bits | None, weights: Floats, offsets: Floats) -> NewtonStatistics:
    """E-step: match the sites of each row, and compute the sums of the M-step.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    weights, offsets
        w, (n_features, q), and b, (n_features,).
    """
    items, (n_features, q) = make_item_forms(weights, offsets), weights.shape
    gradient = np.zeros((n_features, q + 1))
    curvature = np.zeros((n_features, (q + 1) * (q + 2) // 2))
    moments, log_likelihood, rounds = np.zeros((q + 1, q + 1)), 0.0, 0
    for rows, signs in iter_sign_batches(X, observed):
        batch, valid = _match_sites(signs, items), slice(rows.stop - rows.start)
        _add_batch(batch, valid, items, gradient, curvature)
        posterior = batch.posterior
        moments += sum_trait_moments(posterior.mean[valid], posterior.covariance[valid])
        log_likelihood += float(batch.posterior.log_likelihood[valid].sum())
        rounds += int(batch.rounds[valid].sum())
    return NewtonStatistics(gradient, curvature, moments, log_likelihood, rounds)


def ep_posterior(X: Bits, observed: Bits | None, weights: Floats, offsets: Floats) -> EPPosterior:
    """Compute the posterior of each row, with parameters as for `ep_e_step`.

    With a single BLAS thread, the bits of a row's result depend on that row alone.
    """
    n, q, items = len(X), weights.shape[1], make_item_forms(weights, offsets)
    out = EPPosterior(np.empty((n, q)), np.empty((n, q, q)), np.empty(n))
    for rows, signs in iter_sign_batches(X, observed):
        for part, values in zip(out, _match_sites(signs, items).posterior, strict=True):
            part[rows] = values[: rows.stop - rows.start]
    return out


def make_item_forms(weights: Floats, offsets: Floats) -> ItemForms:
    """Join the model and w wᵀ of each item."""
    j, k = np.tril_indices(weights.shape[1])
    return ItemForms(weights, offsets, weights[:, j] * weights[:, k])


def iter_sign_batches(
    X: Bits, observed: Bits | None, max_rows: int = _MAX_BATCH_ROWS
) -> Iterator[tuple[slice, Signs]]:
    """Yield batches of signs, (n_features, height), padded with empty rows to one height.

    All batches have one shape because BLAS sums in another order for other shapes.
    """
    height = max(_BATCH_ENTRIES // X.shape[1] // _BATCH_STEP, 1) * _BATCH_STEP
    height = min(height, max_rows)
    for start in range(0, len(X), height):
        check_cancelled()
        rows = slice(start, min(start + height, len(X)))
        signs = np.zeros((X.shape[1], height), np.int8)
        valid = signs[:, : rows.stop - start]
        valid[:] = 2 * X[rows].T.astype(np.int8) - 1
        if observed is not None:
            valid *= observed[rows].T.astype(np.int8)
        yield rows, signs


def _add_batch(
    batch: _ConvergedBatch, valid: slice, items: ItemForms, gradient: Floats, curvature: Floats
) -> None:
    mean, covariance = batch.posterior.mean[valid], batch.posterior.covariance[valid]
    residual, residual_covariance, slope = (part[:, valid] for part in batch.tilted)
    n, q = mean.shape
    extended = np.column_stack([mean, np.ones(n)])
    second = extended[:, :, None] * extended[:, None, :]
    second[:, :q, :q] += covariance
    weighted = (residual_covariance @ covariance.reshape(n, -1)).reshape(-1, q, q)
    gradient += residual @ extended
    gradient[:, :q] += (weighted @ items.weights[:, :, None])[:, :, 0]
    j, k = np.triu_indices(q + 1)
    curvature += slope @ second[:, j, k]


def _match_sites(signs: Signs, items: ItemForms) -> _ConvergedBatch:
    """Iterate each row until its log-likelihood converges."""
    j, k = np.tril_indices(items.weights.shape[1])
    doubled = items.forms * np.where(j == k, 1, 2)
    (sites, _), rule = laplace_sites(signs, items), _hermite_rule()
    n, q = signs.shape[1], items.weights.shape[1]
    tilted = TiltedMoments(*(np.zeros(signs.shape) for _ in TiltedMoments._fields))
    posterior = EPPosterior(np.empty((n, q)), np.empty((n, q, q)), np.full(n, np.inf))
    rounds, is_active = np.zeros(n, np.int64), np.ones(n, np.bool_)
    for round_number in range(_MAX_ROUNDS):
        gaussians = EPPosterior(*gaussians_from_sites(sites, items))
        second = gaussians.covariance[:, j, k]
        marginals = ItemMarginals(items.weights @ gaussians.mean.T, doubled @ second.T)
        rates = np.where(is_active, 1.0 if round_number < _UNDAMPED_ROUNDS else 0.5, 0.0)
        match_logistic_sites(
            signs, items.offsets, marginals, rule, rates, sites, tilted, gaussians.log_likelihood
        )
        has_moved = np.abs(gaussians.log_likelihood - posterior.log_likelihood) > _ROUND_TOLERANCE
        for part, current in zip(posterior, gaussians, strict=True):
            part[is_active] = current[is_active]
        rounds += is_active
        is_active &= has_moved
        if not is_active.any():
            break
    return _ConvergedBatch(posterior, tilted, rounds)


def _hermite_rule() -> HermiteRule:
    nodes, weights = scipy.special.roots_hermitenorm(_NODES)
    return HermiteRule(nodes, weights / weights.sum() * np.exp(0.5 * nodes**2))


def gaussians_from_sites(sites: GaussianSites, items: ItemForms) -> tuple[Floats, Floats, Floats]:
    """Return μ, C, and ½ μᵀ C⁻¹ μ + ½ log det C of each row."""
    precision, shift = _posterior_precision(sites.precision, items), sites.shift.T @ items.weights
    covariance = np.linalg.inv(precision).astype(np.float64)
    mean = (covariance @ shift[:, :, None])[:, :, 0]
    log_det: Floats = np.linalg.slogdet(precision)[1].astype(np.float64)
    return mean, covariance, 0.5 * ((shift * mean).sum(axis=1) - log_det)


def _posterior_precision(site_precision: Floats, items: ItemForms) -> Floats:
    """Return I + Σ τ_i w_i w_iᵀ, (n_rows, q, q)."""
    q = items.weights.shape[1]
    j, k = np.tril_indices(q)
    precision = np.empty((site_precision.shape[1], q, q))
    precision[:, j, k] = precision[:, k, j] = site_precision.T @ items.forms
    precision[:, range(q), range(q)] += 1.0
    return precision


def laplace_sites(signs: Signs, items: ItemForms) -> tuple[GaussianSites, Floats]:
    """Return the sites of Laplace's approximation, and the modes found by Newton's method.

    The modes are (n_rows, q). The means of the sites are a step of Newton away from them: nearly
    equal, unless very steep items keep Newton's method from converging.
    """
    n, q = signs.shape[1], items.weights.shape[1]
    mode, step, gain = np.zeros((n, q)), np.zeros((n, q)), np.full(n, np.inf)
    value, slopes, log_p = np.full(n, -np.inf), np.empty(signs.shape), np.empty(n)
    sites = GaussianSites(np.zeros(signs.shape), np.zeros(signs.shape))
    for _ in range(_MAX_STEPS):
        is_active = gain >= _MIN_GAIN
        if not is_active.any():
            break
        trial = mode + step
        y = items.weights @ trial.T
        residual = y + items.offsets[:, None]
        fill_logistic_parts(signs, residual, slopes, log_p)
        reached = log_p - 0.5 * (trial**2).sum(axis=1)
        is_better = is_active & (reached >= value)
        mode[is_better], value[is_better] = trial[is_better], reached[is_better]
        np.copyto(sites.precision, slopes, where=is_better)
        np.copyto(sites.shift, residual + slopes * y, where=is_better)
        slope = residual.T @ items.weights - trial
        newton = np.linalg.solve(_posterior_precision(slopes, items), slope[:, :, None])[:, :, 0]
        gain = np.where(
            is_better, (newton * slope).sum(axis=1), np.where(is_active, gain / 2, gain)
        )
        step = np.where(is_better[:, None], newton, step / 2)
    return sites, mode


@njit(nogil=True, cache=True, error_model="numpy")
def fill_logistic_parts(signs: Signs, z: Floats, slopes: Floats, log_p: Floats) -> None:
    """Replace z by t − σ(z), and compute σ(z) σ(−z) and log P(t) of each column."""
    product = np.ones(z.shape[1])
    fill(log_p, 0.0)
    for i in range(len(z)):
        _multiply_item_factors(signs[i], z[i], slopes[i], log_p, product)
        if i % _FACTORS == _FACTORS - 1:
            _take_logarithms(product, log_p)
    _take_logarithms(product, log_p)


@inlined
def _multiply_item_factors(
    signs: Signs, z: Floats, slopes: Floats, log_p: Floats, product: Floats
) -> None:
    for row in range(len(z)):
        sign = float(signs[row])
        present = sign * sign
        towards = sign * z[row]
        e = exp_minus(abs(towards))
        inverse = 1.0 / (1.0 + e)
        log_p[row] += min(towards, 0.0)
        product[row] *= 1.0 + present * e
        z[row] = sign * (e * inverse if towards > 0 else inverse)
        slopes[row] = present * e * inverse * inverse


@inlined
def _take_logarithms(product: Floats, log_p: Floats) -> None:
    for row in range(len(log_p)):
        log_p[row] -= math.log(product[row])
        product[row] = 1.0


@njit(nogil=True, cache=True, error_model="numpy")
def match_logistic_sites(
    signs: Signs,
    offsets: Floats,
    marginals: ItemMarginals,
    rule: HermiteRule,
    rates: Floats,
    sites: GaussianSites,
    tilted: TiltedMoments,
    log_likelihood: Floats,
) -> None:
    """Move each site towards its match by `rates`, (n_rows,), and add the log factors."""
    zeros = np.zeros(signs.shape[1])
    sums = _NodeSums(zeros, zeros.copy(), zeros.copy(), zeros.copy())
    for i in range(len(signs)):
        mean, variance = marginals.mean[i], marginals.variance[i]
        precision, shift = sites.precision[i], sites.shift[i]
        _integrate_item(signs[i], offsets[i], mean, variance, rule, precision, shift, sums)
        residual, covariance = tilted.mean_residual[i], tilted.residual_covariance[i]
        slope = tilted.slope[i]
        for row in range(len(rates)):
            present = float(signs[i, row]) ** 2
            v = max(variance[row], _MIN_VARIANCE)
            cavity = max(1.0 / v - precision[row], _MIN_CAVITY / v)
            centre = (mean[row] / v - shift[row]) / cavity
            first = sums.first[row] / sums.zeroth[row]
            spread = v * (sums.second[row] / sums.zeroth[row] - first * first)
            reached = mean[row] + math.sqrt(v) * first
            # By Stein's lemma, the moments of y give those of t − σ(z).
            residual[row] = present * (reached - centre) * cavity
            excess = (spread + (reached - centre) ** 2) * cavity - 1.0
            covariance[row] = present * (excess - residual[row] * (mean[row] - centre)) / v
            slope[row] = present * sums.slope[row] / sums.zeroth[row]
            log_likelihood[row] += present * (
                math.log(sums.zeroth[row])
                + 0.5 * (centre * centre * cavity - mean[row] * mean[row] / v)
            )
            rate = rates[row] * present
            precision[row] += rate * (max(1.0 / spread - cavity, 0.0) - precision[row])
            shift[row] += rate * (reached / spread - centre * cavity - shift[row])


@inlined
def _integrate_item(
    signs: Signs,
    offset: float,
    mean: Floats,
    variance: Floats,
    rule: HermiteRule,
    precision: Floats,
    shift: Floats,
    sums: _NodeSums,
) -> None:
    """Integrate the item times the cavity Gaussian, on nodes placed by the current marginal."""
    for total in sums:
        fill(total, 0.0)
    for node in range(len(rule.nodes)):
        x, weight = rule.nodes[node], rule.weights[node]
        for row in range(len(mean)):
            v = max(variance[row], _MIN_VARIANCE)
            cavity = max(1.0 / v - precision[row], _MIN_CAVITY / v)
            y = fma(math.sqrt(v), x, mean[row])
            gap = y - (mean[row] / v - shift[row]) / cavity
            towards = float(signs[row]) * (y + offset)
            e = exp_minus(abs(towards))
            inverse = 1.0 / (1.0 + e)
            mass = weight * exp_minus(0.5 * gap * gap * cavity)
            mass *= inverse if towards > 0 else e * inverse
            sums.zeroth[row] += mass
            sums.first[row] = fma(mass, x, sums.first[row])
            sums.second[row] = fma(mass * x, x, sums.second[row])
            sums.slope[row] = fma(mass, e * inverse * inverse, sums.slope[row])
