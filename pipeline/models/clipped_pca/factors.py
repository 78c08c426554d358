"""Exploratory factors of clipped PCA: their loadings, rotation, and how well they fit.

Minimum residuals and maximum likelihood fit the correlations off the diagonal, as the model with
noise does; principal components take part of the noise for loadings. The indices of fit are those
of `numerics.spectra.factor_analysis`. Those by normal theory take tetrachoric and polychoric
correlations for correlations of normal values, which are more exact: χ² is too large. Where
correlations have standard errors, there are indices that allow for them; see `standard_errors`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitError, FitWarning
from pipeline.numerics.spectra.factor_analysis import (
    compute_average_partials,
    compute_discrepancy,
    compute_normal_fit,
    count_degrees_of_freedom,
    differentiate_loadings,
    fit_factors,
    fit_minimum_residuals,
)
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.numerics.spectra.rotations import (
    differentiate_rotation,
    principal_axes,
    rotate_loadings,
)

LEAST_UNIQUE = 0.005
"""Smallest variance that the factors leave of a feature."""
_HEYWOOD_MARGIN = 1e-4
_MOST_NEGATIVE = -1e-8  # eigenvalue of a matrix that is semi-definite but for rounding
_MAX_AVERAGE_PARTIALS = 50
_MAX_ROUNDS, _ROUND_TOLERANCE = 500, 1e-6  # of correlations without data
_FUNCTIONS = {"minres": fit_minimum_residuals, "ml": fit_factors}


def check_number_of_factors(n_factors: int, n_features: int, estimator: str) -> None:
    """Refuse more factors than correlations can determine; `n_features` are those that vary."""
    if n_factors > (limit := find_most_factors(n_features)):
        raise FitError(
            f"{{components}} is {n_factors}, but the correlations of {n_features} features "
            f"determine at most {limit} factors. Set {{components}} to at most {limit}, or use "
            f"{{estimator=pca}} instead of {estimator}.",
            parameter="components",
        )


def find_most_factors(n_features: int) -> int:
    """Return the largest number of factors that leaves no negative degrees of freedom."""
    counts = range(n_features)
    return max((q for q in counts if count_degrees_of_freedom(n_features, q) >= 0), default=0)


def fit_loadings(
    correlation: Array, components: Array, estimator: str, is_unknown: NDArray[np.bool_]
) -> Array:
    """Return loadings, (n_features, n_components), by `minres` or `ml`, the largest columns first.

    `components` are loadings of principal components to start from. Minimum residuals leave out
    the pairs whose correlation `is_unknown`, as if they had those of the model.

    Raises
    ------
    FitError
        If the correlations are indefinite, which maximum likelihood does not allow.
    """
    if estimator == "ml" and (lowest := np.linalg.eigvalsh(correlation)[0]) < _MOST_NEGATIVE:
        raise FitError(
            f"Maximum likelihood needs correlations that are positive definite, but their lowest "
            f"eigenvalue is {lowest:.3g}. Use {{estimator=minres}}, or {{repair=nearest}}.",
            parameter="estimator",
        )
    if not components.shape[1]:
        return components
    loadings = _FUNCTIONS[estimator](correlation, components, LEAST_UNIQUE)
    for _ in range(_MAX_ROUNDS if estimator == "minres" and is_unknown.any() else 0):
        before = loadings @ loadings.T
        completed = np.where(is_unknown, before, correlation)
        loadings = fit_minimum_residuals(completed, loadings, LEAST_UNIQUE)
        if np.abs(loadings @ loadings.T - before)[is_unknown].max() < _ROUND_TOLERANCE:
            break
    return fix_signs(loadings[:, ::-1], power=1 if components.shape[1] == 1 else 3)


def rotate(params: Any, rotation: str) -> Any:
    """Return a `ClippedPCAParams` with rotated loadings, communalities and uniqueness."""
    loadings, correlation = rotate_loadings(params.loadings, rotation, normalize=True)
    communality: Array = (params.loadings**2).sum(axis=1)
    is_oblique = rotation in ("oblimin", "promax") and loadings.shape[1] > 1
    return replace(
        params,
        loadings=loadings,
        component_correlation=correlation if is_oblique else None,
        communality=communality,
        uniqueness=1 - communality,
    )


def differentiate_factors(
    params: Any, varying: NDArray[np.intp], estimator: str, rotation: str
) -> Array:
    """Return the derivatives of the loadings of features that vary by the correlations.

    Loadings are row by row, correlations those above the diagonal: (n_features n_factors, n_pairs).
    """
    own, rotated = np.ix_(varying, varying), params.loadings[varying]
    if estimator == "pca":
        loadings, by_correlation = _differentiate_components(
            params.correlation[own], rotated.shape[1]
        )
    else:
        loadings = find_orthogonal_loadings(params)[varying]
        fitted = correlate_features(params)[own]
        by_correlation = differentiate_loadings(fitted, loadings, is_ml=estimator == "ml")[1]
    axes = np.linalg.lstsq(rotated, loadings, rcond=None)[0].T

    def rotate_again(moved: Array) -> Array:
        if rotation == "none":
            root = np.sqrt(1 - (moved**2).sum(axis=1, keepdims=True)) if estimator == "ml" else 1.0
            return root * principal_axes(moved / root)
        return rotate_loadings(moved, rotation, normalize=True, axes=axes)[0]

    return differentiate_rotation(rotate_again, loadings, rotated) @ by_correlation


def _differentiate_components(correlation: Array, n_components: int) -> tuple[Array, Array]:
    """Return loadings of principal components, and their derivatives by the correlations.

    A change D of the correlations changes an eigenvector v of eigenvalue λ by (λ − R)⁺ D v, and λ
    by vᵀ D v.
    """
    values, vectors = np.linalg.eigh(correlation)
    i, j = np.triu_indices(len(values), 1)
    loadings, slopes = [], []
    for k in range(len(values) - 1, len(values) - 1 - n_components, -1):
        value, v = max(values[k], np.finfo(float).tiny), vectors[:, k]
        gaps = np.delete(value - values, k)
        others = np.delete(vectors, k, axis=1)
        turn = np.sqrt(value) * (others / np.where(gaps == 0, 1, gaps)) @ others.T
        turn += np.outer(v, v) / (2 * np.sqrt(value))
        loadings.append(np.sqrt(value) * v)
        slopes.append(turn[:, i] * v[j] + turn[:, j] * v[i])
    return np.column_stack(loadings), np.stack(slopes, axis=1).reshape(-1, len(i))


def find_orthogonal_loadings(params: Any) -> Array:
    """Return loadings on uncorrelated components that leave the correlations of the model."""
    loadings: Array = params.loadings
    if params.component_correlation is not None:
        loadings = loadings @ np.linalg.cholesky(params.component_correlation)
    return loadings


def correlate_features(params: Any) -> Array:
    """Return the correlations of the features in the model, (n_features, n_features)."""
    loadings = find_orthogonal_loadings(params)
    correlation = loadings @ loadings.T
    np.fill_diagonal(correlation, 1.0)
    return correlation


def warn_about_uniqueness(uniqueness: Array) -> tuple[FitWarning, ...]:
    """Warn about Heywood cases: features that the factors explain completely."""
    cases = np.flatnonzero(uniqueness <= LEAST_UNIQUE + _HEYWOOD_MARGIN)
    if not cases.size:
        return ()
    text = "features with a uniqueness near 0 (Heywood cases): {features}; fit fewer {components}, "
    text += "or leave out features that nearly repeat each other"
    return (FitWarning(text, tuple(cases.tolist())),)


def measure_fit(
    correlation: Array,
    fitted: Array,
    n_factors: int,
    common_rows: NDArray[Any],
    *,
    has_sampling_weights: bool,
) -> dict[str, Any]:
    """Return the indices of fit by name, or the reason why they are missing.

    Parameters
    ----------
    correlation, fitted
        Correlations of the features that vary, and those of the model, (n_features, n_features).
    n_factors
        Number of factors.
    common_rows
        Number of rows that observe both features, (n_features, n_features), 0 of pairs whose
        correlation is unknown.
    has_sampling_weights
        Whether numbers of rows are sums of sampling weights.
    """
    n_features = len(correlation)
    upper = np.triu_indices(n_features, 1)
    rows = np.asarray(common_rows, np.float64)[upper]
    residuals = (correlation - fitted)[upper][rows > 0]
    df = count_degrees_of_freedom(n_features, n_factors)
    found: dict[str, Any] = {
        "rmsr": float(np.sqrt((residuals**2).mean())) if residuals.size else 0.0,
        "n_parameters": n_features * (n_features - 1) // 2 - df,
    }
    n_averages = min(n_features // 3, _MAX_AVERAGE_PARTIALS) if (rows > 0).all() else 0
    averages = compute_average_partials(correlation, n_averages)
    if averages.size:
        found["map_components"] = int(np.argmin(averages)) + 1
        found["average_partials"] = averages.tolist()
    discrepancy = compute_discrepancy(correlation, fitted)
    if has_sampling_weights:
        reason = "the rows have sampling weights"
    elif not (rows > 0).all():
        reason = "some pairs of features have no correlation"
    elif discrepancy is None:
        reason = "the correlations are not positive definite"
    elif df < 1:
        reason = "as many parameters as correlations leave no degrees of freedom"
    else:
        n_rows = float(1 / (1 / rows).mean())
        normal = compute_normal_fit(correlation, discrepancy, n_factors, n_rows)
        found |= {f"normal_{name}": value for name, value in normal.items()}
        return {**found, "rmsea_missing": "the fit has no standard errors of correlations"}
    return {**found, "normal_missing": reason}
