"""Posterior of a Gaussian latent given probit observations, one row at a time.

Prior y ~ N(m, diag(v)); P(x_i = 1 | y) = Φ(w_iᵀ y + b_i) for i = 1..n, independent given y. PCA of
clipped data, x_i = 1 iff (W y + ε)_i > t_i with ε_i ~ N(0, ψ_i), is w_i = W_i / √ψ_i and
b_i = −t_i / √ψ_i.

Expectation propagation (Minka 2001; Rasmussen & Williams 2006, section 3.6) replaces each factor
by a Gaussian site with precision τ_i and shift ν_i along w_i. In units of the prior, y = m + √v u,

    A = I + Σ_i τ_i w_i w_iᵀ,   E[u] = A⁻¹ Σ_i ν_i w_i,   Cov[u] = A⁻¹.

All sites are updated at once from one factorisation of A. Because every exact update has
0 ≤ τ_i < 1, A ≥ I and no cavity variance is ever negative. Rows on which these rounds oscillate
start again with sequential, damped rounds. A round costs O(n K²).

The fixed point is then corrected to leading order in the skewness of the tilted distributions, the
first cumulant that the sites do not match (Opper, Paquet & Winther 2013, JMLR 14, 2857, second
order). With s_i = w_iᵀ u standardised, κ_i and χ_i the tilted skewness and excess kurtosis of s_i,
ρ_ij = Corr(s_i, s_j), c_i = Cov(u, s_i), R_i = Σ_{j≠i} κ_j ρ_ij³ and

    G = Σ_{i≠j} κ_i κ_j ρ_ij² c_i c_jᵀ,   q_i = c_iᵀ A G A c_i,

    Δ Cov[u] = G / 2,   Δ log P(x) = Σ_i κ_i R_i / 12,
    Δ E[u] = Σ_i c_i (χ_i R_i / 6 + κ_i (q_i − 2 κ_i R_i) / 4).

The pair sums are contractions of the K x K x K tensor of posterior skewness, O(n K³ / 3) a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx

from pipeline.errors import FitError

Floats = NDArray[np.float64]

# Rows of a fitted model need 5 to 15 rounds; a row that needs more is one that oscillates.
_PARALLEL_ROUNDS = 15
_DAMPING = 0.8
# A correction beyond this share of a variance is outside its own expansion and is scaled back.
_LARGEST_CORRECTION = 0.5


class ProbitPosterior(NamedTuple):
    """Posterior moments of every row, and how far to trust them."""

    mean: Floats
    variance: Floats
    log_evidence: Floats
    rounds: NDArray[np.int64]
    converged: NDArray[np.bool_]
    correction: Floats


def probit_posterior(
    X: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    prior_mean: ArrayLike,
    prior_variance: ArrayLike,
    observed: ArrayLike | None = None,
    tol: float = 1e-5,
    max_rounds: int = 200,
) -> ProbitPosterior:
    """Approximate the posterior of y ~ N(m, diag(v)) given P(x_i = 1 | y) = Φ(w_iᵀ y + b_i).

    The result for a row depends on that row alone, to the last bit.

    Parameters
    ----------
    X
        (n_samples, n_features) of 0 and 1.
    weights
        (n_features, n_components), the w_i.
    offsets
        (n_features,), the b_i.
    prior_mean, prior_variance
        (n_components,), m and v; a variance of 0 fixes its component.
    observed
        Same shape as `X`; false where the value is missing and `X` is not read.
    tol
        Change between the last two rounds, summed over the means in prior standard deviations
        and the variances in prior variances.
    max_rounds
        Rounds after which a row is given up as not converged.

    Returns
    -------
    ProbitPosterior
        `mean` and `variance` (n_samples, n_components); `log_evidence` (n_samples,), the estimate
        of log P(x) in nats; `rounds`; `converged`, false where `max_rounds` was reached;
        `correction`, the largest relative change the skewness correction asked of a variance.
        The relative error left in the variances is about `correction` squared. Corrections
        above 0.5 are scaled back to 0.5: there the posterior is far from Gaussian.

    Raises
    ------
    FitError
        If shapes disagree, a value of `X` is not 0 or 1, a parameter is not finite, a prior
        variance is negative, or `tol` or `max_rounds` is not positive.
    """
    m, v = np.asarray(prior_mean, np.float64), np.asarray(prior_variance, np.float64)
    w, b = np.asarray(weights, np.float64), np.asarray(offsets, np.float64)
    binary, present = _binary_matrix(X, observed)
    _check_parameters(binary.shape[1], w, b, m, v)
    if not tol > 0 or max_rounds < 1:
        raise FitError(
            f"Expected tol > 0 and max_rounds >= 1, got tol={tol} and max_rounds={max_rounds}. "
            "Raise the one that is too small."
        )
    scale = np.sqrt(v)
    n_samples, n_components = len(binary), len(m)
    posterior = ProbitPosterior(
        mean=np.empty((n_samples, n_components)),
        variance=np.empty((n_samples, n_components)),
        log_evidence=np.empty(n_samples),
        rounds=np.empty(n_samples, np.int64),
        converged=np.empty(n_samples, np.bool_),
        correction=np.empty(n_samples),
    )
    whitened = np.ascontiguousarray((w * scale).T)
    _posteriors(binary, present, whitened, b + w @ m, _TAIL, tol, max_rounds, posterior)
    return posterior._replace(mean=m + scale * posterior.mean, variance=v * posterior.variance)


def _binary_matrix(
    X: ArrayLike, observed: ArrayLike | None
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """`X` and its mask as C-contiguous arrays, with values checked where they are observed."""
    values = np.asarray(X)
    mask = np.ones(values.shape, np.bool_) if observed is None else np.asarray(observed, np.bool_)
    if values.ndim != 2 or mask.shape != values.shape:
        raise FitError(
            f"Expected X and observed of one shape (n_samples, n_features), got {values.shape} "
            f"and {mask.shape}. Pass one row per sample."
        )
    wrong = mask & (values != 0) & (values != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise FitError(
            f"Expected X of 0 and 1, got {values[row, column]} in row {row}, column {column}. "
            "Binarise the data first, or mark the value as not observed."
        )
    binary = np.where(mask, values, 0).astype(np.uint8)
    return np.ascontiguousarray(binary), np.ascontiguousarray(mask)


def _check_parameters(n_features: int, w: Floats, b: Floats, m: Floats, v: Floats) -> None:
    """Raise unless the parameters are finite, fit together and fit `n_features`."""
    n_components = m.shape[0] if m.ndim == 1 else -1
    expected = ((n_features, n_components), (n_features,), (n_components,), (n_components,))
    shapes = (w.shape, b.shape, m.shape, v.shape)
    if shapes != expected:
        raise FitError(
            f"Expected weights ({n_features}, n_components), offsets ({n_features},) and priors "
            f"(n_components,), got {shapes}. Match the parameters to the columns of X."
        )
    if not all(np.isfinite(array).all() for array in (w, b, m, v)):
        raise FitError("Expected finite parameters, got NaN or infinity. Check the fit.")
    if (v < 0).any():
        raise FitError(
            f"Expected prior_variance >= 0, got {v.min()} at component {v.argmin()}. "
            "Pass variances, not logarithms."
        )


# --- the normal tail -----------------------------------------------------------------------------


def _tail_coefficients(degree: int = 24) -> Floats:
    """Powers of t = (x − 4) / (x + 4) for (x + 5/4) (h(x) − x), h(x) = φ(x) / Φ(−x), x ≥ 0.

    The hazard h in this form has no cancellation at any x; relative error 1e-14.
    """

    def excess(t: Floats) -> Floats:
        x = 4 * (1 + t) / (1 - t)
        near = math.sqrt(2 / math.pi) / erfcx(x / math.sqrt(2)) - x
        far = np.maximum(x, 3.0)
        fraction = far
        for k in range(300, 1, -1):  # Laplace's continued fraction
            fraction = far + k / fraction
        return np.asarray(np.where(x < 3, near, 1 / fraction) * (x + 1.25))

    return chebyshev.cheb2poly(chebyshev.chebinterpolate(excess, degree))


_TAIL = _tail_coefficients()
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


# --- kernels, one row at a time ------------------------------------------------------------------

# Sums may be reordered when compiled but never between runs: a row gives the same bits everywhere.
_options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
_kernel = njit(**_options, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# Rows of `sites`: what a row of data keeps of each observed site, mirrored so that its x is 1.
_OFFSET, _PRECISION, _SHIFT = 0, 1, 2  # b, τ, ν
_MEAN, _VARIANCE = 3, 4  # of w_iᵀ u under the approximation
_CAVITY_MEAN, _CAVITY_VARIANCE, _Z = 5, 6, 7  # P(x_i = 1) = Φ(z_i) under the cavity
_SLOPE, _CURVATURE, _EXCESS = 8, 9, 10  # d log Φ / dz, −d² log Φ / dz², slope + z
_N_FIELDS = 11


class _Row(NamedTuple):
    """Working memory of one row with n observed sites and K components."""

    sites: Floats  # (11, n)
    weights: Floats  # (K, n)
    directions: Floats  # (K, n), L⁻¹ w_i for A = L Lᵀ
    factor: Floats  # (K, K), below the diagonal L, on it 1 / L_kk, above it L⁻ᵀ
    linear: Floats  # (K,), L⁻¹ Σ ν_i w_i
    mean: Floats  # (K,), of u
    variance: Floats  # (K,)


@njit(**_options, cache=True)
def _posteriors(X, observed, weights, offsets, tail, tol, max_rounds, posterior):  # type: ignore[no-untyped-def]
    """Fill `posterior` row by row, with moments in units of the prior."""
    n_components = len(weights)
    square = np.empty((n_components, n_components))
    skewness = np.empty((n_components, n_components * (n_components + 1) // 2))
    features = np.empty(X.shape[1], np.int64)
    row = _allocate(n_components, X.shape[1])
    for sample in range(len(X)):
        n_observed = _list_observed(observed[sample], features)
        if n_observed != row.sites.shape[1]:
            row = _allocate(n_components, n_observed)
        _gather(X[sample], features, weights, offsets, row)
        rounds, change = _iterate(row, square, tail, tol, max_rounds)
        posterior.rounds[sample] = rounds
        posterior.converged[sample] = change < tol
        _cavities(row.sites, tail)
        evidence = _log_evidence(row.sites, row.factor, row.linear)
        evidence += _skewness_terms(row.sites, row.directions, row.linear, skewness, square)
        posterior.log_evidence[sample] = evidence
        posterior.correction[sample] = _correct(row, square)
        for k in range(n_components):
            posterior.mean[sample, k] = row.mean[k]
            posterior.variance[sample, k] = row.variance[k]


@_kernel
def _allocate(n_components, n):  # type: ignore[no-untyped-def]
    return _Row(
        np.empty((_N_FIELDS, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n_components)),
        np.empty(n_components),
        np.empty(n_components),
        np.empty(n_components),
    )


@_kernel
def _list_observed(observed, features):  # type: ignore[no-untyped-def]
    """Write the indices of the observed features; their number."""
    n = 0
    for feature in range(len(observed)):
        if observed[feature]:
            features[n] = feature
            n += 1
    return n


@_kernel
def _gather(x, features, weights, offsets, row):  # type: ignore[no-untyped-def]
    """Fill in weights and offsets, mirrored so that every site asks for a positive value."""
    signs = row.sites[_Z]
    for i in range(len(signs)):
        signs[i] = 2.0 * x[features[i]] - 1.0
        row.sites[_OFFSET, i] = signs[i] * offsets[features[i]]
    for k in range(len(weights)):
        for i in range(len(signs)):
            row.weights[k, i] = signs[i] * weights[k, features[i]]


@_kernel
def _iterate(row, covariance, tail, tol, max_rounds):  # type: ignore[no-untyped-def]
    """Rounds until the moments rest, parallel ones first; rounds used and the last change."""
    rounds, change = 0, np.inf
    while not change < tol and rounds < max_rounds:
        if rounds in (0, _PARALLEL_ROUNDS):
            _start(row)
        if rounds < _PARALLEL_ROUNDS:
            _match(row.sites, 1.0, tail)
        else:
            _sweep(row, covariance, 1.0 if rounds == _PARALLEL_ROUNDS else _DAMPING, tail)
        change = _refresh(row)
        rounds += 1
    return rounds, change


@_kernel
def _start(row):  # type: ignore[no-untyped-def]
    """Set the sites to nothing and the moments to the prior."""
    sites = row.sites
    for i in range(sites.shape[1]):
        sites[_PRECISION, i] = sites[_SHIFT, i] = sites[_MEAN, i] = sites[_VARIANCE, i] = 0.0
    for k in range(len(row.mean)):
        row.mean[k], row.variance[k] = 0.0, 1.0
        for j in range(len(row.mean)):
            row.factor[k, j] = 1.0 if k == j else 0.0
        for i in range(sites.shape[1]):
            sites[_VARIANCE, i] += row.weights[k, i] ** 2


@_kernel
def _sweep(row, covariance, step, tail):  # type: ignore[no-untyped-def]
    """Update the sites in turn, and the moments after every one."""
    centre, image = np.empty(len(row.mean)), np.empty(len(row.mean))
    for k in range(len(centre)):
        centre[k] = row.mean[k]
        for j in range(k + 1):
            covariance[j, k] = covariance[k, j] = _dot(row.factor[k, k:], row.factor[j, k:])
    site = np.empty((_N_FIELDS, 1))
    for i in range(row.sites.shape[1]):
        for field in range(_SHIFT + 1):
            site[field, 0] = row.sites[field, i]
        _absorb(site, row.weights, i, step, tail, covariance, centre, image)
        row.sites[_PRECISION, i], row.sites[_SHIFT, i] = site[_PRECISION, 0], site[_SHIFT, 0]


@_kernel
def _absorb(site, weights, i, step, tail, covariance, centre, image):  # type: ignore[no-untyped-def]
    """Update site i and with it the moments of u; `image` is scratch."""
    mean, variance = 0.0, 0.0
    for k in range(len(centre)):
        image[k] = 0.0
        for j in range(len(centre)):
            image[k] += weights[j, i] * covariance[k, j]
        mean += weights[k, i] * centre[k]
        variance += weights[k, i] * image[k]
    precision, shift = site[_PRECISION, 0], site[_SHIFT, 0]
    site[_MEAN, 0], site[_VARIANCE, 0] = mean, variance
    _match(site, step, tail)
    precision, shift = site[_PRECISION, 0] - precision, site[_SHIFT, 0] - shift
    gain = 1.0 / (1.0 + precision * variance)
    for k in range(len(centre)):
        centre[k] += gain * (shift - precision * mean) * image[k]
        for j in range(len(centre)):
            covariance[k, j] -= gain * precision * image[k] * image[j]


@_kernel
def _match(sites, step, tail):  # type: ignore[no-untyped-def]
    """Move sites to the moments of their tilted distributions (R&W eq. 3.58, 3.59)."""
    _cavities(sites, tail)
    for i in range(sites.shape[1]):
        c, g = sites[_CAVITY_VARIANCE, i], sites[_CURVATURE, i]
        scale = 1.0 / (1.0 + c * (1.0 - g))
        shift = sites[_SLOPE, i] * math.sqrt(1.0 + c) + sites[_CAVITY_MEAN, i] * g
        sites[_PRECISION, i] += step * (scale * g - sites[_PRECISION, i])
        sites[_SHIFT, i] += step * (scale * shift - sites[_SHIFT, i])


@_kernel
def _cavities(sites, tail):  # type: ignore[no-untyped-def]
    """Cavity moments (R&W eq. 3.56), z, and derivatives of log Φ(z)."""
    for i in range(sites.shape[1]):
        # The floor is reached only where rounding has eaten every digit, at |w_i|² of 1e14.
        scale = 1.0 / max(1.0 - sites[_PRECISION, i] * sites[_VARIANCE, i], 1e-14)
        c = scale * sites[_VARIANCE, i]
        m = scale * (sites[_MEAN, i] - sites[_VARIANCE, i] * sites[_SHIFT, i])
        sites[_CAVITY_VARIANCE, i], sites[_CAVITY_MEAN, i] = c, m
        sites[_Z, i] = (m + sites[_OFFSET, i]) / math.sqrt(1.0 + c)
    _tail_excess(sites, tail)
    for i in range(sites.shape[1]):
        z, excess = sites[_Z, i], sites[_EXCESS, i]
        slope = excess - z
        if z > 0.0:
            density = _DENSITY_AT_0 * math.exp(-0.5 * z * z)
            slope = density / (1.0 - density / (z + excess))
            excess = z + slope
        sites[_SLOPE, i], sites[_EXCESS, i] = slope, excess
        sites[_CURVATURE, i] = slope * excess


@_kernel
def _tail_excess(sites, tail):  # type: ignore[no-untyped-def]
    """Write h(|z|) − |z| into the excess, by Horner's rule, four powers a sweep of the sites."""
    z, ratio, excess = sites[_Z], sites[_SLOPE], sites[_EXCESS]
    for i in range(sites.shape[1]):
        ratio[i] = (abs(z[i]) - 4.0) / (abs(z[i]) + 4.0)
        excess[i] = tail[-1]
    for power in range(len(tail) - 5, -1, -4):
        a, b, c, d = tail[power], tail[power + 1], tail[power + 2], tail[power + 3]
        for i in range(sites.shape[1]):
            t = ratio[i]
            excess[i] = (((excess[i] * t + d) * t + c) * t + b) * t + a
    for i in range(sites.shape[1]):
        excess[i] /= abs(z[i]) + 1.25


@_kernel
def _refresh(row):  # type: ignore[no-untyped-def]
    """Moments of u and of every w_iᵀ u from the sites; the largest change of those of u."""
    _factorise(row.sites, row.weights, row.factor, row.linear)
    _project(row.sites, row.weights, row.directions, row.factor, row.linear)
    change = 0.0
    for k in range(len(row.mean)):
        inverse = row.factor[k, k:]
        mean, variance = _dot(inverse, row.linear[k:]), _dot(inverse, inverse)
        worst = max(abs(mean - row.mean[k]), abs(variance - row.variance[k]))
        change = worst if not worst <= change else change  # NaN stays
        row.mean[k], row.variance[k] = mean, variance
    return change


@_kernel
def _factorise(sites, weights, L, linear):  # type: ignore[no-untyped-def]
    """A = L Lᵀ, L⁻ᵀ and L⁻¹ Σ ν_i w_i."""
    weighted = sites[_EXCESS]
    for k in range(len(linear)):
        for i in range(len(weighted)):
            weighted[i] = sites[_PRECISION, i] * weights[k, i]
        for j in range(k):
            L[k, j] = L[j, j] * (_dot(weighted, weights[j]) - _dot(L[k, :j], L[j, :j]))
        pivot = 1.0 + _dot(weighted, weights[k]) - _dot(L[k, :k], L[k, :k])
        L[k, k] = 1.0 / math.sqrt(pivot)
        linear[k] = L[k, k] * (_dot(sites[_SHIFT], weights[k]) - _dot(L[k, :k], linear[:k]))
    for j in range(len(linear)):
        for k in range(j + 1, len(linear)):
            L[j, k] = -L[k, k] * (L[k, j] * L[j, j] + _dot(L[k, j + 1 : k], L[j, j + 1 : k]))


@_kernel
def _project(sites, weights, directions, factor, linear):  # type: ignore[no-untyped-def]
    """Directions L⁻¹ w_i, and with them mean and variance of every w_iᵀ u."""
    for i in range(sites.shape[1]):
        sites[_MEAN, i] = sites[_VARIANCE, i] = 0.0
    for k in range(len(linear)):
        _combine(factor[k, :k], directions, directions[k])
        for i in range(sites.shape[1]):
            along = factor[k, k] * (weights[k, i] - directions[k, i])
            directions[k, i] = along
            sites[_MEAN, i] += linear[k] * along
            sites[_VARIANCE, i] += along * along


@_kernel
def _log_evidence(sites, factor, linear):  # type: ignore[no-untyped-def]
    """EP's estimate of log P(x) (R&W eq. 3.65, written in cavity moments)."""
    total = 0.5 * _dot(linear, linear)
    for k in range(len(linear)):
        total += math.log(factor[k, k])
    for i in range(sites.shape[1]):
        c, m, z = sites[_CAVITY_VARIANCE, i], sites[_CAVITY_MEAN, i], sites[_Z, i]
        if z > 0.0:
            total += math.log1p(-0.5 * math.erfc(z * math.sqrt(0.5)))
        else:
            total += math.log(_DENSITY_AT_0 / sites[_SLOPE, i]) - 0.5 * z * z
        precision, shift = sites[_PRECISION, i], sites[_SHIFT, i]
        gain = 1.0 + precision * c
        total += 0.5 * (
            math.log(gain) + (m * (precision * m - 2.0 * shift) - c * shift * shift) / gain
        )
    return total


@_kernel
def _skewness_terms(sites, u, linear, skewness, G):  # type: ignore[no-untyped-def]
    """Write G and, in `linear`, the shift of the mean, in coordinates Lᵀ u; gain in evidence."""
    _tilted_cumulants(sites)
    kappa, chi, R, q = sites[_CAVITY_MEAN], sites[_CAVITY_VARIANCE], sites[_SLOPE], sites[_MEAN]
    for k in range(len(u)):
        for i in range(len(kappa)):
            u[k, i] /= math.sqrt(sites[_VARIANCE, i]) if sites[_VARIANCE, i] > 0.0 else 1.0
    _contract_skewness(u, kappa, skewness, R, sites[_EXCESS], sites[_Z])
    _pair_sum(u, kappa, skewness, G, q, sites[_EXCESS], sites[_Z])
    for i in range(len(kappa)):
        q[i] = chi[i] * R[i] / 6.0 + kappa[i] * (0.25 * q[i] - 0.5 * kappa[i] * R[i])
    for k in range(len(u)):
        linear[k] = _dot(u[k], q)
    return _dot(kappa, R) / 12.0


@_kernel
def _tilted_cumulants(sites):  # type: ignore[no-untyped-def]
    """Skewness and excess kurtosis of the tilted w_iᵀ u, in place of the cavity moments."""
    for i in range(sites.shape[1]):
        c, g, z = sites[_CAVITY_VARIANCE, i], sites[_CURVATURE, i], sites[_Z, i]
        slope, excess = sites[_SLOPE, i], sites[_EXCESS, i]
        scale = c / (1.0 + c * (1.0 - g))
        third = g * excess - slope * (1.0 - g)
        fourth = 2.0 * g * (1.0 - g) - third * (excess + slope)
        if z < -100.0:  # the tail is exponential there and the differences cancel
            third, fourth = -2.0 / z**3, 6.0 / z**4
        sites[_CAVITY_MEAN, i] = third * scale * math.sqrt(scale)
        sites[_CAVITY_VARIANCE, i] = fourth * scale * scale


@_kernel
def _contract_skewness(u, kappa, skewness, R, pair, combination):  # type: ignore[no-untyped-def]
    """T = Σ_i κ_i u_i ⊗ u_i ⊗ u_i, and R_i = T(u_i, u_i, u_i) − κ_i; the last two are scratch.

    Of T[k] only the lower triangle is kept, entries off its diagonal times √2, so that the dot
    product of two such rows is that of the two matrices.
    """
    entries = np.empty(len(u))
    for i in range(len(R)):
        R[i] = -kappa[i]
    for k in range(len(u)):
        for j in range(k + 1):
            for i in range(len(R)):
                pair[i] = kappa[i] * u[k, i] * u[j, i]
            for l in range(j + 1):
                entries[l] = _dot(pair, u[l])
                skewness[k, _pair(j, l)] = entries[l] * (1.0 if l == j else math.sqrt(2.0))
                skewness[j, _pair(k, l)] = entries[l] * (1.0 if l == k else math.sqrt(2.0))
                skewness[l, _pair(k, j)] = entries[l] * (1.0 if j == k else math.sqrt(2.0))
                entries[l] *= (3.0 if k == j else 6.0) if l < j else (1.0 if k == j else 3.0)
            _combine(entries[: j + 1], u, combination)
            for i in range(len(R)):
                R[i] += u[k, i] * u[j, i] * combination[i]


@_kernel
def _pair(k, j):  # type: ignore[no-untyped-def]
    """Position of entry k, j ≤ k in a lower triangle stored row after row."""
    return k * (k + 1) // 2 + j


@_kernel
def _pair_sum(u, kappa, skewness, G, q, weighted, combination):  # type: ignore[no-untyped-def]
    """G of the module docstring in coordinates Lᵀ u, and q_i = u_iᵀ G u_i."""
    for i in range(len(q)):
        q[i] = 0.0
    for k in range(len(u)):
        for i in range(len(kappa)):
            weighted[i] = kappa[i] * kappa[i] * u[k, i]
        for j in range(k + 1):  # the sum over all i and j less its terms i = j
            G[k, j] = G[j, k] = _dot(skewness[k], skewness[j]) - _dot(weighted, u[j])
        _combine(G[k, :k], u, combination)
        for i in range(len(q)):
            q[i] += u[k, i] * (2.0 * combination[i] + G[k, k] * u[k, i])


@_kernel
def _correct(row, G):  # type: ignore[no-untyped-def]
    """Add L⁻ᵀ `row.linear` and the diagonal of L⁻ᵀ G L⁻¹ / 2; its largest share of a variance.

    Beyond _LARGEST_CORRECTION both are scaled back, which keeps the variances positive.
    """
    largest = 0.0
    for k in range(len(G)):
        G[k, k] = _quadratic(row.factor, G, k)
        largest = max(largest, abs(G[k, k]) / row.variance[k])
    scale = min(1.0, _LARGEST_CORRECTION / max(largest, _LARGEST_CORRECTION))
    for k in range(len(G)):
        row.mean[k] += scale * _dot(row.factor[k, k:], row.linear[k:])
        row.variance[k] += scale * G[k, k]
    return largest


@_kernel
def _quadratic(factor, G, k):  # type: ignore[no-untyped-def]
    """Half of f G f for f the columns of L⁻¹, which end at component k."""
    total = 0.0
    for j in range(k, len(G)):
        total += 0.5 * factor[k, j] * _dot(factor[k, k:], G[j, k:])
    return total


@_kernel
def _combine(coefficients, rows, out):  # type: ignore[no-untyped-def]
    """out = Σ_k coefficients[k] rows[k]."""
    for i in range(len(out)):
        out[i] = 0.0
    for k in range(len(coefficients)):
        for i in range(len(out)):
            out[i] += coefficients[k] * rows[k, i]


@_kernel
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total
