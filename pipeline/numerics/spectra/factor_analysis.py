"""Maximum likelihood factor analysis of a correlation matrix.

K. G. Jöreskog, Psychometrika 32, 1967: given unique variances Ψ, the likeliest loadings follow from
the eigenvalues and eigenvectors of Ψ^−½ R Ψ^−½, so the likelihood is maximized over Ψ alone. EM
takes thousands of passes where a unique variance approaches 0 (a Heywood case), as it does next to
outliers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
    bounds = [(np.log(least_unique), 0.0)] * len(start)
    options: Any = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8}
    end = scipy.optimize.minimize(
        compute_loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return solve(np.asarray(end.x, np.float64))[0]
