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
_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


class _Row(NamedTuple):
    """Working memory of a row with n observed sites, each mirrored so that its x is 1."""

    weights: Floats  # (K, n)
    offsets: Floats  # (n,), like all of one dimension unless said
    precision: Floats  # τ
    shift: Floats  # ν
    mean: Floats  # of w_iᵀ u under the approximation
    variance: Floats
    cavity_mean: Floats
    cavity_variance: Floats
    z: Floats  # P(x_i = 1) = Φ(z_i) under the cavity
    excess: Floats  # slope + z, without the cancellation
    slope: Floats  # d log Φ(z) / dz
    curvature: Floats  # −d² log Φ(z) / dz², in (0, 1)
    directions: Floats  # (K, n), L⁻¹ w_i for A = L Lᵀ
    factor: Floats  # (K, K), below the diagonal L, on it 1 / L_kk, above it L⁻ᵀ
    linear: Floats  # (K,), L⁻¹ Σ ν_i w_i


@_kernel
def _posteriors(X, observed, weights, offsets, tail, tol, max_rounds, posterior):  # type: ignore[no-untyped-def]
    """Fill `posterior` row by row, with moments in units of the prior."""
    n_components = len(weights)
    square = np.empty((n_components, n_components))
    skewness = np.empty((n_components, n_components * n_components))
    row = _allocate(n_components, 0)
    for sample in range(len(X)):
        n_observed = 0
        for feature in range(X.shape[1]):
            n_observed += observed[sample, feature]
        if n_observed != len(row.offsets):
            row = _allocate(n_components, n_observed)
        _gather(X[sample], observed[sample], weights, offsets, row)
        mean, variance = posterior.mean[sample], posterior.variance[sample]
        rounds, change = _parallel_rounds(row, mean, variance, tail, tol, max_rounds)
        if not change < tol and rounds < max_rounds:
            rounds, change = _sequential_rounds(
                row, square, mean, variance, tail, tol, max_rounds, rounds
            )
        posterior.rounds[sample] = rounds
        posterior.converged[sample] = change < tol
        _cavities(row, 0, n_observed, tail)
        evidence = _log_evidence(row)
        posterior.log_evidence[sample] = evidence + _skewness_terms(row, skewness, square)
        posterior.correction[sample] = _correct(row, square, mean, variance)


@_kernel
def _allocate(n_components, n):  # type: ignore[no-untyped-def]
    wide = np.empty((2, n_components, n))
    sites = np.empty((11, n))
    return _Row(
        wide[0], sites[0], sites[1], sites[2], sites[3], sites[4], sites[5], sites[6], sites[7],
        sites[8], sites[9], sites[10], wide[1],
        np.empty((n_components, n_components)), np.empty(n_components),
    )  # fmt: skip


@_kernel
def _gather(x, observed, weights, offsets, row):  # type: ignore[no-untyped-def]
    site = 0
    for feature in range(len(x)):
        if observed[feature]:
            sign = 2.0 * x[feature] - 1.0
            row.offsets[site] = sign * offsets[feature]
            for k in range(len(weights)):
                row.weights[k, site] = sign * weights[k, feature]
            site += 1


@_kernel
def _start(row, mean, variance):  # type: ignore[no-untyped-def]
    """Set the sites to nothing and the moments to the prior."""
    for i in range(len(row.offsets)):
        row.precision[i] = row.shift[i] = row.mean[i] = row.variance[i] = 0.0
    for k in range(len(mean)):
        mean[k], variance[k] = 0.0, 1.0
        for i in range(len(row.offsets)):
            row.variance[i] += row.weights[k, i] ** 2


@_kernel
def _parallel_rounds(row, mean, variance, tail, tol, max_rounds):  # type: ignore[no-untyped-def]
    """Update all sites, then all moments; rounds used and the last change."""
    _start(row, mean, variance)
    rounds, change = 0, np.inf
    while not change < tol and rounds < min(max_rounds, _PARALLEL_ROUNDS):
        _match(row, 0, len(row.offsets), 1.0, tail)
        change = _refresh(row, mean, variance)
        rounds += 1
    return rounds, change


@_kernel
def _sequential_rounds(row, covariance, mean, variance, tail, tol, max_rounds, rounds):  # type: ignore[no-untyped-def]
    """Update the moments after every site; from the second round on, damped."""
    _start(row, mean, variance)
    centre, image = np.empty(len(mean)), np.empty(len(mean))
    for k in range(len(mean)):
        centre[k] = 0.0
        for j in range(len(mean)):
            covariance[k, j] = 1.0 if k == j else 0.0
    step, change = 1.0, np.inf
    while not change < tol and rounds < max_rounds:
        for i in range(len(row.offsets)):
            _absorb(row, i, step, tail, covariance, centre, image)
        change = _refresh(row, mean, variance)
        for k in range(len(mean)):  # afresh, so that rounding does not pile up over the rounds
            centre[k] = mean[k]
            for j in range(k + 1):
                covariance[j, k] = covariance[k, j] = _dot(row.factor[k, k:], row.factor[j, k:])
        rounds, step = rounds + 1, _DAMPING
    return rounds, change


@_kernel
def _absorb(row, i, step, tail, covariance, centre, image):  # type: ignore[no-untyped-def]
    """Update site i and the moments of u with it; `image` is scratch."""
    row.mean[i] = row.variance[i] = 0.0
    for k in range(len(centre)):
        image[k] = 0.0
        for j in range(len(centre)):
            image[k] += row.weights[j, i] * covariance[k, j]
        row.mean[i] += row.weights[k, i] * centre[k]
        row.variance[i] += row.weights[k, i] * image[k]
    precision, shift = row.precision[i], row.shift[i]
    _match(row, i, i + 1, step, tail)
    precision, shift = row.precision[i] - precision, row.shift[i] - shift
    gain = 1.0 / (1.0 + precision * row.variance[i])
    for k in range(len(centre)):
        centre[k] += gain * (shift - precision * row.mean[i]) * image[k]
        for j in range(len(centre)):
            covariance[k, j] -= gain * precision * image[k] * image[j]


@_kernel
def _match(row, first, last, step, tail):  # type: ignore[no-untyped-def]
    """Move sites [first, last) to the moments of their tilted distributions (R&W eq. 3.58, 3.59)."""
    _cavities(row, first, last, tail)
    for i in range(first, last):
        c, g = row.cavity_variance[i], row.curvature[i]
        scale = 1.0 / (1.0 + c * (1.0 - g))
        shift = row.slope[i] * math.sqrt(1.0 + c) + row.cavity_mean[i] * g
        row.precision[i] += step * (scale * g - row.precision[i])
        row.shift[i] += step * (scale * shift - row.shift[i])


@_kernel
def _cavities(row, first, last, tail):  # type: ignore[no-untyped-def]
    """Cavity moments (R&W eq. 3.56) and log Φ(z) to second order, for sites [first, last)."""
    for i in range(first, last):
        # The floor is reached only where rounding has eaten every digit, at |w_i|² of 1e14.
        scale = 1.0 / max(1.0 - row.precision[i] * row.variance[i], 1e-14)
        c = scale * row.variance[i]
        m = scale * (row.mean[i] - row.variance[i] * row.shift[i])
        row.cavity_variance[i], row.cavity_mean[i] = c, m
        row.z[i] = (m + row.offsets[i]) / math.sqrt(1.0 + c)
    _tail_excess(row.z[first:last], tail, row.slope[first:last], row.excess[first:last])
    for i in range(first, last):
        z, excess = row.z[i], row.excess[i]
        slope = excess - z
        if z > 0.0:
            density = math.exp(-0.5 * z * z) * _DENSITY_AT_0
            slope = density / (1.0 - density / (z + excess))
            excess = z + slope
        row.slope[i], row.excess[i] = slope, excess
        row.curvature[i] = slope * excess


@_kernel
def _tail_excess(z, tail, ratio, excess):  # type: ignore[no-untyped-def]
    """Write h(|z|) − |z| into `excess`, by Horner's rule over all sites; `ratio` is scratch."""
    for i in range(len(z)):
        ratio[i] = (abs(z[i]) - 4.0) / (abs(z[i]) + 4.0)
        excess[i] = 0.0
    for power in range(len(tail) - 1, -1, -1):
        for i in range(len(z)):
            excess[i] = excess[i] * ratio[i] + tail[power]
    for i in range(len(z)):
        excess[i] /= abs(z[i]) + 1.25


@_kernel
def _refresh(row, mean, variance):  # type: ignore[no-untyped-def]
    """Moments of u and of every w_iᵀ u from the sites; the change of those of u."""
    _factorise(row)
    _project(row)
    change = 0.0
    for k in range(len(mean)):
        diagonal = row.factor[k, k]
        m, v = diagonal * row.linear[k], diagonal * diagonal
        m += _dot(row.factor[k, k + 1 :], row.linear[k + 1 :])
        v += _dot(row.factor[k, k + 1 :], row.factor[k, k + 1 :])
        change = _worse(change, abs(m - mean[k]))
        change = _worse(change, abs(v - variance[k]))
        mean[k], variance[k] = m, v
    return change


@_kernel
def _factorise(row):  # type: ignore[no-untyped-def]
    """A = L Lᵀ, L⁻ᵀ and L⁻¹ Σ ν_i w_i."""
    L, linear, scratch = row.factor, row.linear, row.excess
    for k in range(len(linear)):
        for i in range(len(scratch)):
            scratch[i] = row.precision[i] * row.weights[k, i]
        for j in range(k):
            L[k, j] = L[j, j] * (_dot(scratch, row.weights[j]) - _dot(L[k, :j], L[j, :j]))
        pivot = 1.0 + _dot(scratch, row.weights[k]) - _dot(L[k, :k], L[k, :k])
        L[k, k] = 1.0 / math.sqrt(pivot)
        linear[k] = L[k, k] * (_dot(row.shift, row.weights[k]) - _dot(L[k, :k], linear[:k]))
    for j in range(len(linear)):
        for k in range(j + 1, len(linear)):
            L[j, k] = -L[k, k] * (L[k, j] * L[j, j] + _dot(L[k, j + 1 : k], L[j, j + 1 : k]))


@_kernel
def _project(row):  # type: ignore[no-untyped-def]
    """Directions L⁻¹ w_i, and with them mean and variance of every w_iᵀ u."""
    for i in range(len(row.mean)):
        row.mean[i] = row.variance[i] = 0.0
    for k in range(len(row.linear)):
        direction = row.directions[k]
        _combine(row.factor[k, :k], row.directions, direction)
        for i in range(len(direction)):
            direction[i] = row.factor[k, k] * (row.weights[k, i] - direction[i])
            row.mean[i] += row.linear[k] * direction[i]
            row.variance[i] += direction[i] ** 2


@_kernel
def _log_evidence(row):  # type: ignore[no-untyped-def]
    """EP's estimate of log P(x) (R&W eq. 3.65, written in cavity moments)."""
    total = 0.5 * _dot(row.linear, row.linear)
    for k in range(len(row.linear)):
        total += math.log(row.factor[k, k])
    for i in range(len(row.z)):
        c, m, z = row.cavity_variance[i], row.cavity_mean[i], row.z[i]
        if z > 0.0:
            total += math.log1p(-0.5 * math.erfc(z * math.sqrt(0.5)))
        else:
            total += math.log(_DENSITY_AT_0 / row.slope[i]) - 0.5 * z * z
        gain = 1.0 + row.precision[i] * c
        quadratic = m * (row.precision[i] * m - 2.0 * row.shift[i]) - c * row.shift[i] ** 2
        total += 0.5 * (math.log(gain) + quadratic / gain)
    return total


@_kernel
def _skewness_terms(row, skewness, G):  # type: ignore[no-untyped-def]
    """Write G and, in `row.linear`, the shift of the mean, in coordinates Lᵀ u; gain in evidence."""
    u, kappa, chi, R, q = row.directions, row.cavity_mean, row.cavity_variance, row.slope, row.mean
    _tilted_cumulants(row, kappa, chi)
    for k in range(len(u)):
        for i in range(len(kappa)):
            u[k, i] /= math.sqrt(row.variance[i]) if row.variance[i] > 0.0 else 1.0
    _contract_skewness(u, kappa, skewness, R, row.excess, row.z)
    _pair_sum(u, kappa, skewness, G, q, row.z, row.excess)
    for i in range(len(kappa)):
        q[i] = chi[i] * R[i] / 6.0 + kappa[i] * (0.25 * q[i] - 0.5 * kappa[i] * R[i])
    for k in range(len(u)):
        row.linear[k] = _dot(u[k], q)
    return _dot(kappa, R) / 12.0


@_kernel
def _tilted_cumulants(row, skewness, kurtosis):  # type: ignore[no-untyped-def]
    """Standardised third and fourth cumulants of the tilted distributions of w_iᵀ u."""
    for i in range(len(skewness)):
        c, g, slope, excess = row.cavity_variance[i], row.curvature[i], row.slope[i], row.excess[i]
        scale = c / (1.0 + c * (1.0 - g))
        third = g * excess - slope * (1.0 - g)
        fourth = 2.0 * g * (1.0 - g) - third * (excess + slope)
        if row.z[i] < -100.0:  # the tail is exponential there and the differences cancel
            third, fourth = -2.0 / row.z[i] ** 3, 6.0 / row.z[i] ** 4
        skewness[i], kurtosis[i] = third * scale * math.sqrt(scale), fourth * scale * scale


@_kernel
def _contract_skewness(u, kappa, skewness, R, pair, combination):  # type: ignore[no-untyped-def]
    """T = Σ_i κ_i u_i ⊗ u_i ⊗ u_i, and R_i = T(u_i, u_i, u_i) − κ_i; the last two are scratch."""
    K = len(u)
    entries = np.empty(K)
    for i in range(len(R)):
        R[i] = -kappa[i]
    for k in range(K):
        for j in range(k + 1):
            for i in range(len(R)):
                pair[i] = kappa[i] * u[k, i] * u[j, i]
            orders = 3.0 if k == j else 6.0  # in which a term with these indices occurs
            for l in range(j + 1):
                entry = _dot(pair, u[l])
                skewness[k, j * K + l] = skewness[k, l * K + j] = entry
                skewness[j, k * K + l] = skewness[j, l * K + k] = entry
                skewness[l, j * K + k] = skewness[l, k * K + j] = entry
                entries[l] = entry * (orders if l < j else orders // 2.0)
            _combine(entries[: j + 1], u, combination)
            for i in range(len(R)):
                R[i] += u[k, i] * u[j, i] * combination[i]


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
def _correct(row, G, mean, variance):  # type: ignore[no-untyped-def]
    """Add L⁻ᵀ `row.linear` and the diagonal of L⁻ᵀ G L⁻¹ / 2; its largest share of a variance.

    Beyond _LARGEST_CORRECTION both are scaled back, which keeps the variances positive.
    """
    largest = 0.0
    for k in range(len(mean)):
        G[k, k] = _quadratic(row.factor, G, k)
        largest = max(largest, abs(G[k, k]) / variance[k])
    scale = min(1.0, _LARGEST_CORRECTION / max(largest, _LARGEST_CORRECTION))
    for k in range(len(mean)):
        mean[k] += scale * _dot(row.factor[k, k:], row.linear[k:])
        variance[k] += scale * G[k, k]
    return largest


@_kernel
def _quadratic(factor, G, k):  # type: ignore[no-untyped-def]
    """Half of f G f for f the columns of L⁻¹, which end at component k."""
    total = 0.0
    for j in range(k, len(G)):
        total += 0.5 * factor[k, j] * _dot(factor[k, k:], G[j, k:])
    return total


@_kernel
def _worse(a, b):  # type: ignore[no-untyped-def]
    """The larger, or NaN if there is one."""
    return b if not b <= a and not a != a else a


@_kernel
def _combine(coefficients, rows, out):  # type: ignore[no-untyped-def]
    """out = Σ_k coefficients[k] rows[k], four rows at a time to spare loads and stores of `out`."""
    for i in range(len(out)):
        out[i] = 0.0
    whole = len(coefficients) // 4 * 4
    for k in range(0, whole, 4):
        a, b = coefficients[k], coefficients[k + 1]
        c, d = coefficients[k + 2], coefficients[k + 3]
        for i in range(len(out)):
            out[i] += (
                a * rows[k, i] + b * rows[k + 1, i] + c * rows[k + 2, i] + d * rows[k + 3, i]
            )
    for k in range(whole, len(coefficients)):
        for i in range(len(out)):
            out[i] += coefficients[k] * rows[k, i]


@_kernel
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total
