"""Standard errors of tetrachoric correlations and of the loadings made of them.

By the delta method (U. Olsson, Psychometrika 44 (1979), eqs. 20–22): with ρ the correlation, t the
thresholds and φ₂ the bivariate density at them, a row of bits moves ρ_ij by

    A_ij (x_i x_j − p_ij) − B_ij (x_i − p_i) − B_ji (x_j − p_j),
    A = 1 / φ₂,   B_ij = A_ij Φ((ρ_ij t_i − t_j) / √(1 − ρ_ij²)),

over the share of rows in which both are observed. A row that moves R by D moves an eigenvector v of
eigenvalue λ by (λ − R)⁺ D v, and λ by vᵀ D v: sums over rows of D v (D v)ᵀ give the errors of
loadings, and no matrix is made anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled

Array = NDArray[np.float64]

_BATCH_ENTRIES = 2**21
_MIN_DENSITY = 1e-12


class CorrelationInfluence(NamedTuple):
    """How bits move correlations: matrices (n_features, n_features), 0 where a pair tells nothing.

    Attributes
    ----------
    joint
        A over the share of rows with both observed.
    single
        B over this share: of feature i, for its pair with j.
    constant
        What is the same in every row, joint p_ij − single p_i − singleᵀ p_j.
    """

    joint: Array
    single: Array
    constant: Array


def correlation_influence(
    correlation: Array, n: Array, ones_i: Array, ones_j: Array, both: Array, n_rows: int
) -> CorrelationInfluence:
    """Find how the bits of a row move each correlation.

    Parameters
    ----------
    correlation
        (n_features, n_features).
    n, ones_i, ones_j, both
        Rows with both observed, ones among them of either, and of both: like `correlation`.
    n_rows
        Rows in all.
    """
    told = (n > 0) & (ones_i > 0) & (ones_i < n) & (ones_j > 0) & (ones_j < n)
    np.fill_diagonal(told, False)
    rows = np.maximum(n, 1)
    p_i, p_j = ones_i / rows, ones_j / rows
    t_i, t_j = (-scipy.special.ndtri(np.where(told, p, 0.5)) for p in (p_i, p_j))
    rho = np.clip(correlation, -1 + 1e-9, 1 - 1e-9)
    spread = np.sqrt(1 - rho**2)
    density = np.exp(-(t_i**2 - 2 * rho * t_i * t_j + t_j**2) / (2 * spread**2))
    density /= 2 * np.pi * spread
    joint = np.where(told, n_rows / rows / np.maximum(density, _MIN_DENSITY), 0.0)
    single = joint * scipy.special.ndtr((rho * t_i - t_j) / spread)
    constant = joint * both / rows - single * p_i - single.T * p_j
    return CorrelationInfluence(joint, single, constant)


def correlation_standard_errors(
    moved: CorrelationInfluence, n: Array, ones_i: Array, ones_j: Array, both: Array, n_rows: int
) -> Array:
    """Give standard errors of correlations, (n_features, n_features); not a number where none.

    Parameters
    ----------
    moved
        `correlation_influence` of the same counts.
    n, ones_i, ones_j, both, n_rows
        As there.
    """
    rows = np.maximum(n, 1)
    variance = np.zeros(n.shape)
    cells = {(1, 1): both, (1, 0): ones_i - both, (0, 1): ones_j - both}
    cells[0, 0] = n - ones_i - ones_j + both
    for (a, b), count in cells.items():
        by = a * b * moved.joint - a * moved.single - b * moved.single.T - moved.constant
        variance += count / rows * by**2
    # What moves by row counts a row by the share that has the pair.
    errors = np.sqrt(variance / rows) * rows / n_rows
    errors = np.where(moved.joint > 0, errors, np.nan)
    np.fill_diagonal(errors, 0.0)
    return np.asarray(errors)


def sum_influence_products(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    moved: CorrelationInfluence,
    vectors: Array,
) -> Array:
    """Sum (D v)(D v)ᵀ over rows, less what their mean has of it.

    Parameters
    ----------
    X, observed
        (n_samples, n_features); observed is None where every value is.
    moved
        How bits move correlations.
    vectors
        Eigenvectors, (n_features, n_components).

    Returns
    -------
    moments
        (n_components, n_features, n_features).
    """
    n_features, q = vectors.shape
    found, sums = np.zeros((q, n_features, n_features)), np.zeros((q, n_features))
    height = max(1, _BATCH_ENTRIES // n_features)
    for start in range(0, len(X), height):
        check_cancelled()
        x = X[start : start + height].astype(np.float64)
        # Without missing values what depends on them alone is the same in every row.
        m = np.ones((1, n_features))
        if observed is not None:
            m = observed[start : start + height].astype(np.float64)
            x *= m
        for k, v in enumerate(vectors.T):
            xv, mv = x * v, m * v
            moves = x * (xv @ moved.joint - mv @ moved.single.T)
            moves -= m * (xv @ moved.single + mv @ moved.constant)
            found[k] += moves.T @ moves
            sums[k] += moves.sum(axis=0)
    return np.asarray(found - sums[:, :, None] * sums[:, None] / max(len(X), 1))


def loading_standard_errors(
    correlation: Array, values: Array, vectors: Array, moments: Array
) -> Array:
    """Give standard errors of √λ v, (n_features, n_components); 0 where λ is not above 0.

    Parameters
    ----------
    correlation
        R, (n_features, n_features).
    values, vectors
        Its leading eigenvalues and eigenvectors, (n_components,) and (n_features, n_components).
    moments
        Covariance of D v over rows, over their number, (n_components, n_features, n_features).
    """
    all_values, all_vectors = scipy.linalg.eigh(correlation)
    found = np.zeros(vectors.shape)
    for k, (value, v) in enumerate(zip(values, vectors.T, strict=True)):
        if value <= 0:
            continue
        gaps = value - all_values
        nearest = int(np.argmin(abs(gaps)))
        inverse = np.where(np.arange(len(gaps)) == nearest, 0.0, 1 / np.where(gaps == 0, 1, gaps))
        turn = np.sqrt(value) * (all_vectors * inverse) @ all_vectors.T
        turn += np.outer(v, v) / (2 * np.sqrt(value))
        variance = np.einsum("ij,jk,ik->i", turn, moments[k], turn, optimize=True)
        found[:, k] = np.sqrt(np.maximum(variance, 0.0))  # rounding
    return found
