"""Fit of a loading pattern to polychoric correlations, by diagonally weighted least squares.

If items load on correlated traits with slopes a_i, the responses behind them, which levels cut,
have the correlations

    ρ_ij = a_iᵀ Φ a_j / √(t_i t_j),   t_i = 1 + a_iᵀ Φ a_i.

With e the polychoric correlations minus these, Γ / N the covariance of the polychoric correlations
and W the inverse of its diagonal, the free slopes and correlations of traits minimize N eᵀWe. If
the pattern holds, the minimum is distributed as Σ λ χ²₁ with λ the eigenvalues of

    UΓ,   U = W − WΔ(ΔᵀWΔ)⁻¹ΔᵀW,   Δ = ∂ρ / ∂parameters.

χ² is the minimum, scaled and shifted to the mean and the variance of a χ² distribution (T.
Asparouhov, B. Muthén, "Simple second order chi-square correction", 2010). This is the estimator
WLSMV of Mplus and lavaan; RMSEA, CFI and TLI are computed from this χ², and that of independent
items.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.gaussian.polychoric_influence import PolychoricInfluence
from pipeline.numerics.metrics import find_noncentrality

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROWS_AT_ONCE = 256
_RANK_TOLERANCE = 1e-10
_MIN_VARIANCE = 1e-6


class PairCovariance(NamedTuple):
    """N times the covariance of the correlations of pairs i < j, estimated from n_rows rows.

    `matrix` is Γ, (n_pairs, n_pairs), in the order of `np.triu_indices`.
    """

    matrix: Array
    n_rows: int

    def rescale(self, variances: Array) -> PairCovariance:
        """Return the covariance with other variances, (n_pairs,), where these are known."""
        own = np.diag(self.matrix)
        scale = np.sqrt(np.where(np.isfinite(variances), variances, own) / own)
        return self._replace(matrix=self.matrix * np.outer(scale, scale))

    def sum_squares(self, form: Array) -> tuple[float, float]:
        """Return tr UΓ and tr UΓUΓ, the latter without the bias of finitely many rows."""
        product = form @ self.matrix
        first = float(np.trace(product))
        return first, float((product * product.T).sum()) - first**2 / self.n_rows


def draw_covariance(
    correlation: Array,
    thresholds: Array,
    firsts: Indices,
    influence: PolychoricInfluence,
    observed: Array,
    n_rows: int,
    rng: np.random.Generator,
) -> PairCovariance:
    """Estimate Γ from the influence of rows that are drawn from the normal distribution.

    Parameters
    ----------
    correlation
        Polychoric correlations, (n_features, n_features). Negative eigenvalues count as 0.
    thresholds
        Of the planes, (n_planes,).
    firsts
        First plane of each feature, (n_features,).
    influence
        Influence of a row's bits on the correlations.
    observed
        Share of the rows with a value of each feature, (n_features,).
    n_rows
        Number of rows.
    rng
        Generator.
    """
    values, vectors = scipy.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    root /= np.linalg.norm(root, axis=1)[:, None]
    sizes = np.diff(np.append(firsts, len(thresholds)))
    upper = np.triu_indices(len(correlation), 1)
    total, squares = np.zeros(len(upper[0])), np.zeros((len(upper[0]),) * 2)
    for first in range(0, n_rows, _ROWS_AT_ONCE):
        x = rng.standard_normal((min(_ROWS_AT_ONCE, n_rows - first), len(values))) @ root.T
        bits = (np.repeat(x, sizes, axis=1) > thresholds).astype(np.float64)
        moves = _measure_influence(bits, firsts, influence)[:, upper[0], upper[1]]
        if (observed < 1).any():
            mask = (rng.random(x.shape) < observed) / observed
            moves *= mask[:, upper[0]] * mask[:, upper[1]]
        total += moves.sum(axis=0)
        squares += moves.T @ moves
    mean = total / n_rows
    return PairCovariance(squares / n_rows - np.outer(mean, mean), n_rows)


def _measure_influence(bits: Array, firsts: Indices, influence: PolychoricInfluence) -> Array:
    """Return the influence of rows on all correlations, (n_rows, n_features, n_features)."""
    n = len(firsts)
    joint = np.stack(
        [
            np.add.reduceat(
                (bits[:, first:last] @ influence.joint[first:last]) * bits, firsts, axis=1
            )
            for first, last in zip(firsts, np.append(firsts[1:], bits.shape[1]), strict=True)
        ],
        axis=1,
    )
    of_plane = bits[:, :, None] * influence.single
    single = np.add.reduceat(of_plane, firsts, axis=1).reshape(-1, n, n)
    return np.asarray(joint - single - single.swapaxes(1, 2) - influence.constant)


class PatternFit(NamedTuple):
    """Slopes, (n_features, n_traits), and correlations of the traits; residuals of all pairs."""

    slopes: Array
    trait_correlation: Array
    residuals: Array
    jacobian: Array


def fit_pattern(
    correlations: Array, weights: Array, slopes: Array, trait_correlation: Array, numbers: Indices
) -> PatternFit:
    """Fit slopes and correlations of traits to correlations of pairs i < j, (n_pairs,).

    Parameters
    ----------
    correlations, weights
        Of the pairs.
    slopes, trait_correlation
        Where to start. Correlations that start at 0 everywhere stay so.
    numbers
        Number of each slope; equal numbers are equal slopes, -1 is 0: (n_features, n_traits).
    """
    places, own = np.unique(numbers[numbers >= 0], return_index=True)
    is_free, n_slopes = numbers >= 0, len(places)
    order = np.searchsorted(places, numbers[is_free])
    lower = np.tril_indices(len(trait_correlation), -1)
    is_correlated = bool(trait_correlation[lower].any())
    upper, root = np.triu_indices(len(slopes), 1), np.sqrt(weights)

    def unpack(values: Array) -> tuple[Array, Array]:
        loads, phi = np.zeros(numbers.shape), np.eye(len(trait_correlation))
        loads[is_free] = values[:n_slopes][order]
        if is_correlated:
            phi[lower] = phi.T[lower] = values[n_slopes:]
        return loads, phi

    def imply(values: Array) -> Array:
        loads, phi = unpack(values)
        products = loads @ phi @ loads.T
        size = np.sqrt(np.maximum(1 + np.diag(products), _MIN_VARIANCE))  # Φ may be indefinite
        return np.asarray((products / np.outer(size, size))[upper])

    start = np.concatenate(
        [slopes[is_free][own], trait_correlation[lower] if is_correlated else []]
    )

    def weigh_residuals(values: Array) -> Array:
        return root * (correlations - imply(values))

    found = scipy.optimize.least_squares(
        weigh_residuals, start, jac="3-point", xtol=1e-10, ftol=1e-12, gtol=1e-10
    )
    jacobian = -np.asarray(found.jac, np.float64) / root[:, None]
    return PatternFit(*unpack(found.x), correlations - imply(found.x), jacobian)


def compute_pattern_indices(
    correlations: Array, covariance: PairCovariance, fit: PatternFit, n_features: int, n_rows: float
) -> dict[str, Any] | None:
    """Return χ², RMSEA with its 90 % interval, CFI, TLI and SRMR; None without degrees of freedom.

    `correlations` are those of the pairs i < j, and `n_rows` the number of rows they are from.
    """
    weights = 1 / np.diag(covariance.matrix)
    scaled = fit.jacobian * np.sqrt(weights)[:, None]
    left, sizes, _ = np.linalg.svd(scaled, full_matrices=False)
    left = left[:, sizes > _RANK_TOLERANCE * sizes.max()]
    df = len(correlations) - left.shape[1]
    if df < 1:
        return None
    root = np.sqrt(weights)
    form = root[:, None] * (np.eye(len(weights)) - left @ left.T) * root
    size = n_rows - 1
    chi2 = _adjust(size * float(weights @ fit.residuals**2), df, covariance.sum_squares(form))
    baseline_df = len(correlations)
    moments = covariance.sum_squares(np.diag(weights))
    baseline = _adjust(size * float(weights @ correlations**2), baseline_df, moments)
    excess = max(chi2 - df, 0.0)
    largest = max(baseline - baseline_df, excess)
    bounds = [find_noncentrality(chi2, df, level) for level in (0.95, 0.05)]
    return {
        "chi2": chi2,
        "chi2_df": df,
        "chi2_p": float(scipy.special.chdtrc(df, chi2)),
        "rmsea": float(np.sqrt(excess / (df * size))),
        "rmsea_interval": [float(np.sqrt(bound / (df * size))) for bound in bounds],
        "cfi": 1 - excess / largest if largest else 1.0,
        "tli": float((baseline / baseline_df - chi2 / df) / (baseline / baseline_df - 1)),
        "srmr": float(np.sqrt((fit.residuals**2).sum() * 2 / (n_features * (n_features + 1)))),
    }


def _adjust(statistic: float, df: int, moments: tuple[float, float]) -> float:
    """Scale and shift a statistic with these traces of UΓ to mean df and variance 2 df."""
    first, second = moments
    scale = np.sqrt(df / second)
    return float(scale * statistic + df - scale * first)
