"""Factor analysis of a correlation matrix: estimators, number of factors, and indices of fit.

Maximum likelihood (K. G. Jöreskog, Psychometrika 32, 1967): given unique variances Ψ, the likeliest
loadings follow from the eigenvalues and eigenvectors of Ψ^−½ R Ψ^−½, so the likelihood is maximized
over Ψ alone. EM takes thousands of passes where a unique variance approaches 0 (a Heywood case), as
it does next to outliers.

Minimum residuals: the loadings that minimize the squares of the residual correlations off the
diagonal (H. H. Harman, W. H. Jones, Psychometrika 31, 1966). Given Ψ, the leading eigenpairs of
R − Ψ minimize all squares, so that the unique variances with the least sum leave a diagonal of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.metrics import find_noncentrality
from pipeline.numerics.spectra.linalg import leading_eigenpairs

Array = NDArray[np.float64]
_LEAST_VARIANCE, _ROTATION_SHARE = 1e-10, 1e-9


def fit_factors(correlations: Array, loadings: Array, least_unique: float) -> Array:
    """Find the likeliest loadings.

    Parameters
    ----------
    correlations
        R, (n_features, n_features).
    loadings
        Loadings to start from, (n_features, n_factors).
    least_unique
        Lower bound of unique variances.

    Returns
    -------
    ndarray of shape (n_features, n_factors)
        The loadings, with orthogonal columns in the metric of Ψ.
    """
    n_factors = loadings.shape[1]

    def solve(log_unique: Array) -> tuple[Array, float]:
        root = np.exp(log_unique / 2)
        values, vectors = np.linalg.eigh(correlations / np.outer(root, root))
        explained, others = values[-n_factors:], values[:-n_factors]
        found = root[:, None] * vectors[:, -n_factors:] * np.sqrt(np.maximum(explained - 1.0, 0.0))
        loss = log_unique.sum() + others.sum()
        loss += np.where(explained > 1, 1 + np.log(np.maximum(explained, 1.0)), explained).sum()
        return found, float(loss)

    def compute_loss(log_unique: Array) -> tuple[float, Array]:
        found, loss = solve(log_unique)
        unique = np.exp(log_unique)
        fitted = (found**2).sum(axis=1) + unique
        return loss, (fitted - np.diag(correlations)) / unique

    start = np.log(np.clip(1.0 - (loadings**2).sum(axis=1), least_unique, 1.0))
    return solve(_minimize(compute_loss, start, (float(np.log(least_unique)), 0.0)))[0]


def fit_minimum_residuals(correlations: Array, loadings: Array, least_unique: float) -> Array:
    """Find the loadings with the least squares of residual correlations.

    Parameters and result are those of `fit_factors`; the columns of the result are orthogonal.
    """
    n, n_factors = loadings.shape

    def solve(unique: Array) -> tuple[Array, Array]:
        reduced = correlations - np.diag(unique)
        values, vectors = scipy.linalg.eigh(reduced, subset_by_index=[n - n_factors, n - 1])
        return vectors * np.sqrt(np.maximum(values, 0.0)), reduced

    def compute_loss(unique: Array) -> tuple[float, Array]:
        found, reduced = solve(unique)
        residuals = reduced - found @ found.T
        return float((residuals**2).sum()) / 2, -np.diag(residuals)

    start = np.clip(1.0 - (loadings**2).sum(axis=1), least_unique, 1.0)
    return solve(_minimize(compute_loss, start, (least_unique, 1.0)))[0]


def _minimize(
    compute_loss: Callable[[Array], tuple[float, Array]], start: Array, bounds: tuple[float, float]
) -> Array:
    """Return the variables, within bounds, that minimize a loss given with its gradient."""

    def evaluate(variables: Array) -> tuple[float, Array]:
        check_cancelled()
        return compute_loss(variables)

    options: Any = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8}
    end = scipy.optimize.minimize(
        evaluate, start, jac=True, method="L-BFGS-B", bounds=[bounds] * len(start), options=options
    )
    return np.asarray(end.x, np.float64)


def count_degrees_of_freedom(n_features: int, n_factors: int) -> int:
    """Return the number of correlations minus that of the parameters of the loadings."""
    return ((n_features - n_factors) ** 2 - n_features - n_factors) // 2


def compute_average_partials(correlations: Array, n_most: int) -> Array:
    """Return the mean squared partial correlation without the first 1, 2, … components, (n_most,).

    The least one tells the number of components (W. F. Velicer, "Determining the number of
    components from the matrix of partial correlations", Psychometrika 41, 1976). The result ends
    where the components leave a feature no variance.
    """
    n = len(correlations)
    values, vectors = leading_eigenpairs(correlations, n_most)
    partial, averages = correlations.copy(), list[float]()
    for value, vector in zip(values[:n_most], vectors.T[:n_most], strict=True):
        partial -= value * np.outer(vector, vector)
        variances = np.diag(partial)
        if variances.min() <= _LEAST_VARIANCE:
            break
        squares = partial**2 / np.outer(variances, variances)
        averages.append(float((squares.sum() - n) / (n * (n - 1))))
    return np.array(averages)


def compute_discrepancy(correlations: Array, fitted: Array) -> float | None:
    """Return log|Σ| − log|R| + tr(R Σ⁻¹) − p; None if R or Σ is not positive definite."""
    if min(np.linalg.eigvalsh(matrix)[0] for matrix in (correlations, fitted)) <= _LEAST_VARIANCE:
        return None
    log_determinant = np.linalg.slogdet(fitted)[1] - np.linalg.slogdet(correlations)[1]
    return float(log_determinant + np.trace(np.linalg.solve(fitted, correlations)) - len(fitted))


def compute_normal_fit(
    correlations: Array, discrepancy: float, n_factors: int, n_rows: float
) -> dict[str, Any]:
    """Return χ², its p, RMSEA with its 90 % interval, TLI and BIC, as `fa` of R's psych does.

    They take the correlations for those of normal values: χ² is the discrepancy times the number of
    rows with the correction of M. S. Bartlett ("The effect of standardization on a χ²
    approximation in factor analysis", Biometrika 38, 1951).
    """
    p = len(correlations)
    df = count_degrees_of_freedom(p, n_factors)
    scale = n_rows - 1 - (2 * p + 5) / 6 - 2 * n_factors / 3
    chi2, baseline_df = scale * discrepancy, p * (p - 1) // 2
    baseline = -scale * np.linalg.slogdet(correlations)[1] / baseline_df
    bounds = [find_noncentrality(chi2, df, level) for level in (0.95, 0.05)]
    return {
        "chi2": chi2,
        "chi2_df": df,
        "chi2_p": float(scipy.special.chdtrc(df, chi2)),
        "rmsea": float(np.sqrt(max(chi2 / (df * n_rows) - 1 / (n_rows - 1), 0.0))),
        "rmsea_interval": [float(np.sqrt(bound / (df * (n_rows - 1)))) for bound in bounds],
        "tli": float((baseline - chi2 / df) / (baseline - 1)),
        "bic": float(chi2 - df * np.log(n_rows)),
    }


def differentiate_loadings(fitted: Array, loadings: Array, *, is_ml: bool) -> tuple[Array, Array]:
    """Return the derivatives of correlations by loadings, and those of the fit, the reverse.

    Correlations are those above the diagonal, loadings row by row: (n_pairs, n_features n_factors)
    and (n_features n_factors, n_pairs). Loadings of the fit change without a rotation. The model is
    taken to hold. Parameters are those of `make_discrepancy_form`.
    """
    n, n_factors = loadings.shape
    i, j = np.triu_indices(n, 1)
    pairs = np.arange(len(i))
    slopes: Array = np.zeros((len(i), n, n_factors))
    slopes[pairs, i], slopes[pairs, j] = loadings[j], loadings[i]
    slopes = slopes.reshape(len(i), n * n_factors)
    weighted = slopes.T
    if is_ml:
        inverse = np.linalg.inv(fitted)
        weighted = (inverse @ _spread(slopes.T, n) @ inverse)[:, i, j]
    # Rotations of the loadings change no correlation.
    followed = np.linalg.pinv(weighted @ slopes, rcond=_ROTATION_SHARE, hermitian=True) @ weighted
    return slopes, followed


def _spread(changes: Array, n: int) -> Array:
    """Return symmetric matrices, (n_matrices, n, n), from their entries above the diagonal."""
    i, j = np.triu_indices(n, 1)
    matrices = np.zeros((len(changes), n, n))
    matrices[:, i, j] = matrices[:, j, i] = changes
    return matrices


def make_discrepancy_form(
    fitted: Array, loadings: Array, *, is_ml: bool
) -> Callable[[Array], Array]:
    """Return the discrepancy that small changes of correlations leave after another fit, (n_rows,).

    The argument of the function are symmetric changes E of all correlations, (n_rows, n_features,
    n_features). Without another fit, the discrepancy is tr(Σ⁻¹ E Σ⁻¹ E) / 2. A fit takes out the
    part that loadings can follow: by maximum likelihood the most of the discrepancy, by minimum
    residuals the most of the squares of E.

    Parameters
    ----------
    fitted
        Σ, the correlations of the model, (n_features, n_features).
    loadings
        Loadings on uncorrelated factors, (n_features, n_factors).
    is_ml
        Whether the loadings are those of maximum likelihood.
    """
    n, inverse = len(loadings), np.linalg.inv(fitted)
    i, j = np.triu_indices(n, 1)
    slopes, followed = differentiate_loadings(fitted, loadings, is_ml=is_ml)

    def evaluate(changes: Array) -> Array:
        own = changes[:, i, j]
        products = inverse @ _spread(own - (own @ followed.T) @ slopes.T, n)
        sums: Array = np.einsum("nij,nji->n", products, products) / 2
        return sums

    return evaluate


def compute_asymptotic_fit(
    correlations: Array,
    fitted: Array,
    n_factors: int,
    n_rows: float,
    expected: tuple[float, float],
) -> dict[str, Any]:
    """Return χ², its p, RMSEA with its 90 % interval, and TLI, given what errors of R explain.

    `expected` are the means of N times the discrepancy if the model holds, of the model and of
    independent features. With correlations of normal values, they are degrees of freedom. χ² is
    N times the discrepancy, scaled to a mean of its degrees of freedom (A. Satorra, P. M. Bentler,
    "Corrections to test statistics and standard errors in covariance structure analysis", 1994).
    RMSEA and TLI are those of V. Savalei, "Improving fit indices in structural equation modeling
    with categorical data", Multivariate Behavioral Research 56, 2021.
    """
    p = len(correlations)
    df, baseline_df = count_degrees_of_freedom(p, n_factors), p * (p - 1) // 2
    discrepancy, independent = (
        compute_discrepancy(correlations, model) for model in (fitted, np.eye(p))
    )
    assert discrepancy is not None
    assert independent is not None
    excess, baseline = n_rows * discrepancy - expected[0], n_rows * independent - expected[1]
    scale = expected[0] / df
    chi2 = n_rows * discrepancy / scale
    bounds = [find_noncentrality(chi2, df, level) for level in (0.95, 0.05)]
    return {
        "chi2": chi2,
        "chi2_df": df,
        "chi2_p": float(scipy.special.chdtrc(df, chi2)),
        "rmsea": float(np.sqrt(max(excess, 0.0) / (df * n_rows))),
        "rmsea_interval": [float(np.sqrt(scale * b / (df * n_rows))) for b in bounds],
        "tli": float(1 - excess / df / (baseline / baseline_df)),
    }
