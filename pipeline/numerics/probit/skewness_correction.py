"""The leading-order error of expectation propagation: the skewness of the tilted distributions.

At a fixed point the sites match two moments of every tilted distribution. The first cumulant they
do not match gives the leading correction of all results (Opper, Paquet & Winther 2013, JMLR 14,
2857: the second-order terms, to third cumulants, and for the mean the terms of the same size).
With s_i = w_iᵀ u standardised, κ_i and χ_i the tilted skewness and excess kurtosis of s_i,
ρ_ij = Corr(s_i, s_j), c_i = Cov(u, s_i), A = Cov(u)⁻¹ and R_i = Σ_{j≠i} κ_j ρ_ij³,

    G = Σ_{i≠j} κ_i κ_j ρ_ij² c_i c_jᵀ,    q_i = c_iᵀ A G A c_i,
    Δ Cov(u) = G / 2,    Δ log P(x) = Σ_i κ_i R_i / 12,
    Δ E(u) = Σ_i c_i (χ_i R_i / 6 + κ_i (q_i − 2 κ_i R_i) / 4).

In coordinates Lᵀ u, A = L Lᵀ, the pair sums are contractions of the skewness tensor
T = Σ_i κ_i t_i ⊗ t_i ⊗ t_i, where t_i = Lᵀ c_i are unit vectors and ρ_ij = t_iᵀ t_j. That makes
the cost O(n K³ / 3 + K⁴ / 4) rather than O(n² K).
"""

import math

import numpy as np

from pipeline.numerics.probit.probit_sites import (
    CAVITY_MEAN,
    CAVITY_VARIANCE,
    EXCESS,
    MEAN,
    SLOPE,
    VARIANCE,
    Floats,
    Z,
    combine_rows,
    dot,
    kernel,
    set_tilted_cumulants,
)

# Above this share of a variance the expansion is not valid, and its terms are scaled back.
_MAX_CORRECTION_SHARE = 0.5


@kernel
def fill_skewness_terms(
    sites: Floats, units: Floats, tensor: Floats, G: Floats, shift: Floats
) -> float:
    """Write G and the shift of the mean in coordinates Lᵀ u; return the gain in log evidence.

    `units` (K, n) contains L⁻¹ w_i on entry. `tensor`, (K, K (K + 1) / 2), is scratch, and so are
    all fields of `sites` except the sites themselves.
    """
    kappa, chi, R, q = sites[CAVITY_MEAN], sites[CAVITY_VARIANCE], sites[SLOPE], sites[MEAN]
    set_tilted_cumulants(sites, kappa, chi)
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


@kernel
def _fill_contractions(
    t: Floats, kappa: Floats, tensor: Floats, R: Floats, pair: Floats, combination: Floats
) -> None:
    """Compute T, and R_i = T(t_i, t_i, t_i) − κ_i; `pair` and `combination` are scratch.

    Only the lower triangle of the matrix T[k] is stored, with off-diagonal entries times √2: the
    dot product of two such rows is then that of the two matrices.
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


@kernel
def _triangle_position(k: int, j: int) -> int:
    """Return the position of entry k, j ≤ k in a lower triangle stored row after row."""
    return k * (k + 1) // 2 + j


@kernel
def _count_orders(k: int, j: int, m: int) -> float:
    """Count the distinct orders of k ≥ j ≥ m."""
    if k == m:
        return 1.0
    return 3.0 if k == j or j == m else 6.0


@kernel
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


@kernel
def add_skewness_to_moments(
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


@kernel
def _quadratic_form(vector: Floats, G: Floats, first: int) -> float:
    """Return vectorᵀ G vector over the entries from `first` on."""
    total = 0.0
    for k in range(first, len(G)):
        total += vector[k] * dot(vector[first:], G[k, first:])
    return total
