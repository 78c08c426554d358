"""Posterior of a Gaussian latent given probit observations, one row at a time.

Prior u ~ N(0, I); models with other prior moments are converted to units of the prior first. A
binary feature has P(x_i = 1 | u) = Φ(w_iᵀ u + b_i); `probit_sites` describes features with more
levels and continuous ones. All are independent given u. PCA of clipped data, x_i = 1 iff
(W u + ε)_i > t_i with ε_i ~ N(0, ψ_i), is w_i = W_i / √ψ_i and b_i = −t_i / √ψ_i.

Expectation propagation (Minka 2001; Rasmussen & Williams 2006, section 3.6) replaces each factor
by a Gaussian site with precision τ_i and shift ν_i along w_i:

    A = I + Σ_i τ_i w_i w_iᵀ,   E(u) = A⁻¹ Σ_i ν_i w_i,   Cov(u) = A⁻¹.

A round updates all sites at once from one factorisation of A, in O(n K²). Exact updates satisfy 0 ≤
τ_i < 1, so A ≥ I and no cavity variance can be negative. If these rounds oscillate on a row, it
starts again with damped rounds that update one site after the other.

Skewness correction. At a fixed point the sites match two moments of every tilted distribution. The
first cumulant they do not match gives the leading-order correction of all results (Opper, Paquet &
Winther 2013, JMLR 14, 2857: the second-order terms, to third cumulants, and for the mean the terms
of the same size). With s_i = w_iᵀ u standardised, κ_i and χ_i the tilted skewness and excess
kurtosis of s_i, ρ_ij = Corr(s_i, s_j), c_i = Cov(u, s_i), A = Cov(u)⁻¹ and R_i = Σ_{j≠i} κ_j ρ_ij³,

    G = Σ_{i≠j} κ_i κ_j ρ_ij² c_i c_jᵀ,    q_i = c_iᵀ A G A c_i,
    Δ Cov(u) = G / 2,    Δ log P(x) = Σ_i κ_i R_i / 12,
    Δ E(u) = Σ_i c_i (χ_i R_i / 6 + κ_i (q_i − 2 κ_i R_i) / 4).

In coordinates Lᵀ u, A = L Lᵀ, the pair sums are contractions of the skewness tensor
T = Σ_i κ_i t_i ⊗ t_i ⊗ t_i, where t_i = Lᵀ c_i are unit vectors and ρ_ij = t_iᵀ t_j. That makes
the cost O(n K³ / 3 + K⁴ / 4) rather than O(n² K). For n = 1 there is nothing to correct.

Accuracy of moments, against integration at 2 components over rows drawn from models with orthogonal
loadings: largest error of a mean or variance in units of the prior.

=============  ========  ==================================================
communalities  features  error
=============  ========  ==================================================
0.3 to 0.9     256       at most 1e-4
0.3 to 0.9     64        below 1e-3 for 99.6 % of rows, worst 1.3e-3
0.3 to 0.9     16        below 1e-3 for 80 % of rows, worst 8e-3
0.9 to 0.99    256       at most 7e-4
0.9 to 0.99    64        below 1e-3 for 85 % of rows, worst 2e-2
0.9 to 0.99    16        below 1e-3 for 36 % of rows, worst 3e-2
below 0.5      5 or more at most 7e-4
=============  ========  ==================================================

At 10 components and communalities 0.3 to 0.9 it was below 1e-3 on the 25 rows tried at 64 and 256
features. Without the correction, variances are off by up to 2e-2 at 64 features and 2e-3 at 256,
log evidence by 2e-2 and 7e-3.

Mean absolute error of log evidence in nats per row, with the correction and without it, over 18 to
120 rows of such models: 2 components against integration, 10 against `orthant`.

===========  =============  ==============  ===============
features     6              20              64
components   2              10              2
===========  =============  ==============  ===============
0.1 to 0.5   7e-6, 3e-4     < 6e-5, 3e-4    2e-6, 6e-4
0.3 to 0.9   3e-4, 7e-3     9e-5, 3e-3      3e-5, 2e-3
0.9 to 0.99  2e-3, 2e-2     1e-3, 2e-2      5e-4, 8e-3
===========  =============  ==============  ===============

For sources as strong as in Hyttinen, Barin-Pacela & Hyvärinen (2022), where some communalities are
0.999, it is 3e-3 with 6 features of 2 components, 2e-3 with 6 of 6, 3e-3 with 10 of 10, 4e-3 with
20 of 10 and 1e-3 with 100 of 10; without the correction 0.02 to 0.09. The next order of the
expansion (Σ κ_i κ_j ρ⁴ / 48 over fourth cumulants, and three more sums over three and four
features) left 1.0e-3, 0.4e-3, 1.3e-3 and 2.1e-3 in the first four cases, at O(n⁴) per row. The
order after it, 23 sums, left 3.6e-3, 0.5e-3 and 0.9e-3 in the first three: near 1 the series does
not converge, so higher orders are not used. `orthant` is exact up to 20 features, and
`probit_scores.quadrature_scores` up to 2 components.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from pipeline.numerics.probit.probit_sites import (
    CAVITY_MEAN,
    CAVITY_VARIANCE,
    EXCESS,
    MEAN,
    SITE_KERNEL_OPTIONS,
    SLOPE,
    VARIANCE,
    Floats,
    ProbitRow,
    ProbitRows,
    Z,
    allocate_workspace,
    combine_rows,
    dot,
    find_fixed_point,
    integrate_sites,
    make_rows,
    set_tilted_cumulants,
    site_callee,
)

# Mean absolute errors of log evidence were at most 0.21 of the mean correction (at communalities
# of 0.998 and 6 features), at most 0.1 at 0.99, and mostly below 0.05.
_REMAINING_ERROR_SHARE = 0.25
# Above this share of a variance the expansion is not valid, and its terms are scaled back.
_MAX_CORRECTION_SHARE = 0.5


class ProbitPosterior(NamedTuple):
    """Posterior moments of every row, and their estimated errors; see `probit_posterior`."""

    mean: Floats
    variance: Floats
    log_evidence: Floats
    rounds: NDArray[np.int64]
    converged: NDArray[np.bool_]
    correction: Floats
    evidence_error: Floats


def probit_posterior(
    levels: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    observed: ArrayLike | None = None,
    n_levels: NDArray[np.int64] | None = None,
    values: Floats | None = None,
    *,
    tol: float = 1e-5,
    max_rounds: int = 200,
) -> ProbitPosterior:
    """Approximate the posterior of u ~ N(0, I) given the levels and values of features.

    The result for a row depends on that row alone, to the last bit.

    Parameters
    ----------
    levels
        Levels counted from 0, (n_samples, n_ordinal); bits if all features are binary.
    weights
        The w_i, (n_features, n_components).
    offsets
        The b_ic, decreasing within a feature, (n_planes,).
    observed
        False where a level is missing and not read, (n_samples, n_ordinal).
    n_levels
        Number of levels of each feature, 1 of a continuous one, (n_features,); None if all are
        binary.
    values
        Values of w_iᵀ u + noise of the continuous features, NaN where missing,
        (n_samples, n_continuous); None if there are none.
    tol
        Largest change of a component in the last round: the change of its mean plus the change of
        its variance.
    max_rounds
        Maximum number of rounds; a row that needs more is not converged.

    Returns
    -------
    ProbitPosterior
        `mean` and `variance`, (n_samples, n_components). All others are (n_samples,):
        `log_evidence`, the estimate of log P(x) in nats, a log density of values; `rounds`;
        `converged`, false if `max_rounds` was reached; `correction`, the largest share of a
        variance that the skewness correction asked for; `evidence_error`, a bound on the mean error
        of `log_evidence`: a quarter of the correction, or all of `log_evidence` if the row is not
        converged. The error left in the moments is a fraction of `correction`, small if many
        features share the information. A correction above 0.5 is scaled back to 0.5; the posterior
        is then far from Gaussian.
    """
    rows = make_rows(
        levels, weights, offsets, observed, n_levels, values, tol=tol, max_rounds=max_rounds
    )
    return compute_posterior(rows)


def compute_posterior(rows: ProbitRows) -> ProbitPosterior:
    """Do as `probit_posterior` for checked rows."""
    n_samples, n_components = len(rows.levels), len(rows.weights)
    posterior = ProbitPosterior(
        mean=np.empty((n_samples, n_components)),
        variance=np.empty((n_samples, n_components)),
        log_evidence=np.empty(n_samples),
        rounds=np.empty(n_samples, np.int64),
        converged=np.empty(n_samples, np.bool_),
        correction=np.empty(n_samples),
        evidence_error=np.empty(n_samples),
    )
    _fill_posteriors(rows, posterior)
    return posterior


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_posteriors(rows: ProbitRows, posterior: ProbitPosterior) -> None:
    """Fill `posterior` row by row."""
    K, n_features = rows.weights.shape
    square, tensor = np.empty((K, K)), np.empty((K, K * (K + 1) // 2))
    features, row = np.empty(n_features, np.int64), allocate_workspace(K, n_features)
    for sample in range(len(rows.levels)):
        row, rounds, change = find_fixed_point(rows, sample, row, square, features)
        posterior.rounds[sample], posterior.converged[sample] = rounds, change < rows.tol
        posterior.log_evidence[sample] = integrate_sites(row)
        gain = fill_skewness_terms(row, tensor, square)
        posterior.log_evidence[sample] += gain
        posterior.evidence_error[sample] = abs(
            _REMAINING_ERROR_SHARE * gain if change < rows.tol else posterior.log_evidence[sample]
        )
        share = _add_skewness_to_moments(square, row.linear, row.factor, row.mean, row.variance)
        posterior.correction[sample] = share
        for k in range(K):
            posterior.mean[sample, k] = row.mean[k]
            posterior.variance[sample, k] = row.variance[k]


@site_callee
def fill_skewness_terms(row: ProbitRow, tensor: Floats, G: Floats) -> float:
    """Write G, and the shift of the mean into `row.linear`; return the gain in log evidence.

    Both are in coordinates Lᵀ u. `tensor`, (K, K (K + 1) / 2), is scratch, and so are
    `row.directions` and all fields of the sites except the sites themselves.
    """
    sites, units, shift = row.sites, row.directions, row.linear
    kappa, chi, R, q = sites[CAVITY_MEAN], sites[CAVITY_VARIANCE], sites[SLOPE], sites[MEAN]
    set_tilted_cumulants(sites, row.n_tails, kappa, chi)
    for k in range(len(units)):
        for i in range(len(kappa)):
            units[k, i] /= math.sqrt(sites[VARIANCE, i]) if sites[VARIANCE, i] > 0.0 else 1.0
    _fill_contractions(units, kappa, tensor, R, sites[EXCESS], sites[Z])
    _fill_pair_sums(units, kappa, tensor, G, q, sites[EXCESS], sites[Z])
    for i in range(len(kappa)):
        q[i] = chi[i] * R[i] / 6.0 + kappa[i] * (0.25 * q[i] - 0.5 * kappa[i] * R[i])
    for k in range(len(units)):
        shift[k] = dot(units[k], q)
    gain: float = dot(kappa, R) / 12.0
    return gain


@site_callee
def _fill_contractions(
    t: Floats, kappa: Floats, tensor: Floats, R: Floats, pair: Floats, combination: Floats
) -> None:
    """Compute T, and R_i = T(t_i, t_i, t_i) − κ_i; `pair` and `combination` are scratch.

    Only the lower triangle of the matrix T[k] is stored, with off-diagonal entries times √2, so
    that the dot product of two rows of `tensor` equals the inner product of the two matrices.
    """
    entries = np.empty(len(t))
    for i in range(len(R)):
        R[i] = -kappa[i]
    for k in range(len(t)):
        for j in range(k + 1):
            for i in range(len(R)):
                pair[i] = kappa[i] * t[k, i] * t[j, i]
            for m in range(j + 1):
                entry = dot(pair, t[m])
                tensor[k, _triangle_position(j, m)] = entry * (1.0 if m == j else math.sqrt(2.0))
                tensor[j, _triangle_position(k, m)] = entry * (1.0 if m == k else math.sqrt(2.0))
                tensor[m, _triangle_position(k, j)] = entry * (1.0 if j == k else math.sqrt(2.0))
                entries[m] = entry * _count_orders(k, j, m)
            combine_rows(entries[: j + 1], t, combination)
            for i in range(len(R)):
                R[i] += t[k, i] * t[j, i] * combination[i]


@site_callee
def _triangle_position(k: int, j: int) -> int:
    """Return the position of entry k, j ≤ k in a lower triangle stored row after row."""
    return k * (k + 1) // 2 + j


@site_callee
def _count_orders(k: int, j: int, m: int) -> float:
    """Count the distinct orders of k ≥ j ≥ m."""
    if k == m:
        return 1.0
    return 3.0 if k == j or j == m else 6.0


@njit(**SITE_KERNEL_OPTIONS, forceinline=True)  # by itself: the order of its sums stays
def _fill_pair_sums(
    t: Floats, kappa: Floats, tensor: Floats, G: Floats, q: Floats, weighted: Floats, out: Floats
) -> None:
    """Compute G in coordinates Lᵀ u and q_i = t_iᵀ G t_i; `weighted` and `out` are scratch."""
    for i in range(len(q)):
        q[i] = 0.0
    for k in range(len(t)):
        for i in range(len(kappa)):
            weighted[i] = kappa[i] * kappa[i] * t[k, i]
        for j in range(k + 1):  # the sum over all i and j, minus its terms i = j
            G[k, j] = G[j, k] = dot(tensor[k], tensor[j]) - dot(weighted, t[j])
        combine_rows(G[k, :k], t, out)
        for i in range(len(q)):
            q[i] += t[k, i] * (2.0 * out[i] + G[k, k] * t[k, i])


@site_callee
def _add_skewness_to_moments(
    G: Floats, shift: Floats, factor: Floats, mean: Floats, variance: Floats
) -> float:
    """Add the terms, in coordinates u, to the moments; return their largest share of a variance.

    `factor` holds L⁻ᵀ in its upper triangle; G is overwritten. Terms above `_MAX_CORRECTION_SHARE`
    are scaled back to it, which keeps all variances positive.
    """
    largest = 0.0
    for k in range(len(G)):
        G[k, k] = 0.5 * _quadratic_form(factor[k], G, k)
        largest = max(largest, abs(G[k, k]) / variance[k])
    scale = _MAX_CORRECTION_SHARE / max(largest, _MAX_CORRECTION_SHARE)
    for k in range(len(G)):
        mean[k] += scale * dot(factor[k, k:], shift[k:])
        variance[k] += scale * G[k, k]
    return largest


@site_callee
def _quadratic_form(vector: Floats, G: Floats, first: int) -> float:
    """Return vectorᵀ G vector over the entries from `first` on."""
    total = 0.0
    for k in range(first, len(G)):
        total += vector[k] * dot(vector[first:], G[k, first:])
    return total
