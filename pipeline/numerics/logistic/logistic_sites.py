"""EM of a logistic latent-trait model by expectation propagation.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(z_i), z_i = w_i·x + b_i, independent given x. Of each row's
posterior a Gaussian N(μ, C) takes the place, in which a site exp(ν_i y_i − τ_i y_i² / 2) of
y_i = w_i·x stands for item i,

    C = [I + Σ τ_i w_i w_iᵀ]⁻¹,   μ = C Σ ν_i w_i.

A round takes site i out, puts the item itself in, and gives the site the mean and variance of y_i
that this has: all items at once, from the sites of Laplace's approximation on (Minka, UAI 2001;
Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 3.6). With cavity means
and variances m_i, s_i, means and variances μ_i, v_i under N(μ, C),

    log P(t) ≈ ½ μᵀ C⁻¹ μ + ½ log det C
               + Σ_i [log Z_i + ½ (m_i² / s_i + log s_i − μ_i² / v_i − log v_i)],
    Z_i = ∫ σ(±z_i) N(y_i; m_i, s_i) dy_i,

whose gradient, once sites match, is that of Σ log Z_i with cavities held:

    Σ_n ⟨t_in − σ(z_in)⟩ x̂_n = Σ_n (pull_in μ_n + lean_in C_n w_i, pull_in),

x̂ = (x, 1). The M-step is one step of Newton for each ŵ_i = (w_i, b_i) (Lange, Journal of the Royal
Statistical Society B 57, 1995), with the curvature Σ_n ⟨σ(z_in) σ(−z_in)⟩ ⟨x̂ x̂ᵀ⟩_n. No bound is
taken, so that weights of sparse items do not shrink. A value that is missing leaves all sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.site_kernels import (
    GaussianSites,
    HermiteRule,
    ItemMarginals,
    Signs,
    TiltedMoments,
    fill_logistic_parts,
    match_logistic_sites,
)

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_BATCH_ENTRIES = 2**15  # items times rows: 256 KiB an array
_BATCH_STEP, _MAX_BATCH_ROWS = 64, 256  # whole tiles of any BLAS; few empty rows beside few rows
_NODES = 12
_MAX_ROUNDS, _UNDAMPED_ROUNDS, _ROUND_TOLERANCE = (
    30,
    10,
    1e-4,
)  # rounds; change of a row's log-likelihood, nats
_MAX_STEPS, _MIN_GAIN = 30, 1e-2  # of Newton's method; nats
_MAX_STEP_LENGTH = 1.0  # step of the M-step: what z moves by, root mean square over the prior


class EPStatistics(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    gradient
        Of the log-likelihood by each (w_i, b_i), (n_features, q + 1).
    curvature
        Upper triangles, row by row: (n_features, (q + 1)(q + 2) / 2).
    log_likelihood, rounds
        Nats; rounds used.
    """

    gradient: Floats
    curvature: Floats
    log_likelihood: float
    rounds: int


class EPPosterior(NamedTuple):
    """Posterior of each row.

    Attributes
    ----------
    mean
        μ, (n_samples, q).
    covariance
        C, (n_samples, q, q).
    log_likelihood
        Nats, (n_samples,).
    """

    mean: Floats
    covariance: Floats
    log_likelihood: Floats


class _ItemForms(NamedTuple):
    """The model, and w wᵀ of each item as a lower triangle, row by row."""

    weights: Floats
    offsets: Floats
    forms: Floats


class _ConvergedBatch(NamedTuple):
    """Rows of a batch whose sites match."""

    posterior: EPPosterior
    tilted: TiltedMoments
    rounds: NDArray[np.int64]


def ep_e_step(X: Bits, observed: Bits | None, weights: Floats, offsets: Floats) -> EPStatistics:
    """E-step: match the sites of each row, and add up what the M-step needs.

    Parameters
    ----------
    X
        (n_samples, n_features) of 0 and 1.
    observed
        Same shape, 1 = observed; None when every value is there.
    weights, offsets
        w (n_features, q) and b (n_features,).
    """
    items, (n_features, q) = _make_item_forms(weights, offsets), weights.shape
    gradient = np.zeros((n_features, q + 1))
    curvature = np.zeros((n_features, (q + 1) * (q + 2) // 2))
    log_likelihood, rounds = 0.0, 0
    for rows, signs in _iter_sign_batches(X, observed):
        found, here = _match_sites(signs, items), slice(rows.stop - rows.start)
        _add_batch(found, here, items, gradient, curvature)
        log_likelihood += float(found.posterior.log_likelihood[here].sum())
        rounds += int(found.rounds[here].sum())
    return EPStatistics(gradient, curvature, log_likelihood, rounds)


def ep_posterior(X: Bits, observed: Bits | None, weights: Floats, offsets: Floats) -> EPPosterior:
    """Find the posterior of each row.

    The result for a row depends on that row alone, to the last bit, while BLAS has one thread.

    Parameters
    ----------
    X, observed, weights, offsets
        As for `ep_e_step`.
    """
    n, q, items = len(X), weights.shape[1], _make_item_forms(weights, offsets)
    out = EPPosterior(np.empty((n, q)), np.empty((n, q, q)), np.empty(n))
    for rows, signs in _iter_sign_batches(X, observed):
        for part, of_batch in zip(out, _match_sites(signs, items).posterior, strict=True):
            part[rows] = of_batch[: rows.stop - rows.start]
    return out


def ep_m_step(
    gradient: Floats, curvature: Floats, packed: Floats, prior_precision: float = 0.0
) -> Floats:
    """M-step: go a step of Newton's method for each item, cut where it is long.

    Parameters
    ----------
    gradient, curvature
        As in `EPStatistics`, summed over all rows.
    packed
        Weights and offsets of these sums side by side, (n_features, q + 1).
    prior_precision
        Of a prior N(0, I / precision) on each w_i; offsets have none.

    Returns
    -------
    NDArray
        As `packed`.
    """
    q = packed.shape[1] - 1
    slope, matrices = gradient.copy(), _unpack_triangles(curvature, q + 1)
    slope[:, :q] -= prior_precision * packed[:, :q]
    matrices[:, range(q), range(q)] += prior_precision
    # An item of hardly any curvature, as of steep weights, still has a solution.
    ridge = 1e-9 * np.trace(matrices, axis1=1, axis2=2)[:, None] + np.finfo(float).tiny
    matrices[:, range(q + 1), range(q + 1)] += ridge
    step = np.linalg.solve(matrices, slope[:, :, None])[:, :, 0]
    length = np.linalg.norm(step, axis=1, keepdims=True)
    cut: Floats = packed + step * np.minimum(
        1.0, _MAX_STEP_LENGTH / np.maximum(length, _MAX_STEP_LENGTH)
    )
    return cut


def _unpack_triangles(triangles: Floats, size: int) -> Floats:
    """Symmetric matrices from their upper triangles, row by row."""
    j, k = np.triu_indices(size)
    matrices = np.empty((len(triangles), size, size))
    matrices[:, j, k] = matrices[:, k, j] = triangles
    return matrices


def _make_item_forms(weights: Floats, offsets: Floats) -> _ItemForms:
    j, k = np.tril_indices(weights.shape[1])
    return _ItemForms(weights, offsets, weights[:, j] * weights[:, k])


def _iter_sign_batches(X: Bits, observed: Bits | None) -> Iterator[tuple[slice, Signs]]:
    """Cut rows into batches of one height, of signs (n_features, height); empty rows fill the last.

    BLAS takes other paths for other shapes, with sums in another order.
    """
    height = max(_BATCH_ENTRIES // X.shape[1] // _BATCH_STEP, 1) * _BATCH_STEP
    height = min(height, _MAX_BATCH_ROWS)
    for start in range(0, len(X), height):
        check_cancelled()
        rows = slice(start, min(start + height, len(X)))
        signs = np.zeros((X.shape[1], height), np.int8)
        here = signs[:, : rows.stop - start]
        here[:] = 2 * X[rows].T.astype(np.int8) - 1
        if observed is not None:
            here *= observed[rows].T.astype(np.int8)
        yield rows, signs


def _add_batch(
    found: _ConvergedBatch, here: slice, items: _ItemForms, gradient: Floats, curvature: Floats
) -> None:
    """Add a batch to the sums of the M-step."""
    mean, covariance = found.posterior.mean[here], found.posterior.covariance[here]
    pull, lean, slope = (part[:, here] for part in found.tilted)
    n, q = mean.shape
    extended = np.column_stack([mean, np.ones(n)])
    second = extended[:, :, None] * extended[:, None, :]
    second[:, :q, :q] += covariance
    leaning = (lean @ covariance.reshape(n, -1)).reshape(-1, q, q)
    gradient += pull @ extended
    gradient[:, :q] += (leaning @ items.weights[:, :, None])[:, :, 0]
    j, k = np.triu_indices(q + 1)
    curvature += slope @ second[:, j, k]


def _match_sites(signs: Signs, items: _ItemForms) -> _ConvergedBatch:
    """Have rounds until rows rest; those that rest have no more."""
    j, k = np.tril_indices(items.weights.shape[1])
    doubled = items.forms * np.where(j == k, 1, 2)
    sites, rule, n, q = (
        _laplace_sites(signs, items),
        _hermite_rule(),
        signs.shape[1],
        items.weights.shape[1],
    )
    tilted = TiltedMoments(*(np.zeros(signs.shape) for _ in TiltedMoments._fields))
    posterior = EPPosterior(np.empty((n, q)), np.empty((n, q, q)), np.full(n, np.inf))
    rounds, under_way = np.zeros(n, np.int64), np.ones(n, np.bool_)
    for done in range(_MAX_ROUNDS):
        found = EPPosterior(*_gaussians_from_sites(sites, items))
        second = found.covariance[:, j, k]
        marginals = ItemMarginals(items.weights @ found.mean.T, doubled @ second.T)
        rates = np.where(under_way, 1.0 if done < _UNDAMPED_ROUNDS else 0.5, 0.0)
        match_logistic_sites(
            signs, items.offsets, marginals, rule, rates, sites, tilted, found.log_likelihood
        )
        moved = np.abs(found.log_likelihood - posterior.log_likelihood) > _ROUND_TOLERANCE
        for part, now in zip(posterior, found, strict=True):
            part[under_way] = now[under_way]
        rounds += under_way
        under_way &= moved
        if not under_way.any():
            break
    return _ConvergedBatch(posterior, tilted, rounds)


def _hermite_rule() -> HermiteRule:
    nodes, weights = scipy.special.roots_hermitenorm(_NODES)
    return HermiteRule(nodes, weights / weights.sum() * np.exp(0.5 * nodes**2))


def _gaussians_from_sites(sites: GaussianSites, items: _ItemForms) -> tuple[Floats, Floats, Floats]:
    """μ, C, and ½ μᵀ C⁻¹ μ + ½ log det C of each row."""
    precision, pull = _posterior_precision(sites.precision, items), sites.shift.T @ items.weights
    covariance = np.linalg.inv(precision).astype(np.float64)
    mean = (covariance @ pull[:, :, None])[:, :, 0]
    log_det: Floats = np.linalg.slogdet(precision)[1].astype(np.float64)
    return mean, covariance, 0.5 * ((pull * mean).sum(axis=1) - log_det)


def _posterior_precision(site_precision: Floats, items: _ItemForms) -> Floats:
    """I + Σ τ_i w_i w_iᵀ, (n_rows, q, q)."""
    q = items.weights.shape[1]
    j, k = np.tril_indices(q)
    precision = np.empty((site_precision.shape[1], q, q))
    precision[:, j, k] = precision[:, k, j] = site_precision.T @ items.forms
    precision[:, range(q), range(q)] += 1.0
    return precision


def _laplace_sites(signs: Signs, items: _ItemForms) -> GaussianSites:
    """Sites of the Gaussians at the modes of the rows, found by Newton's method."""
    n, q = signs.shape[1], items.weights.shape[1]
    mode, step, gain = np.zeros((n, q)), np.zeros((n, q)), np.full(n, np.inf)
    value, slopes, log_p = np.full(n, -np.inf), np.empty(signs.shape), np.empty(n)
    sites = GaussianSites(np.zeros(signs.shape), np.zeros(signs.shape))
    for _ in range(_MAX_STEPS):
        under_way = gain >= _MIN_GAIN
        if not under_way.any():
            break
        trial = mode + step
        y = items.weights @ trial.T
        residual = y + items.offsets[:, None]
        fill_logistic_parts(signs, residual, slopes, log_p)
        reached = log_p - 0.5 * (trial**2).sum(axis=1)
        better = under_way & (reached >= value)
        mode[better], value[better] = trial[better], reached[better]
        np.copyto(sites.precision, slopes, where=better)
        np.copyto(sites.shift, residual + slopes * y, where=better)
        slope = residual.T @ items.weights - trial
        newton = np.linalg.solve(_posterior_precision(slopes, items), slope[:, :, None])[:, :, 0]
        gain = np.where(better, (newton * slope).sum(axis=1), np.where(under_way, gain / 2, gain))
        step = np.where(better[:, None], newton, step / 2)
    return sites
