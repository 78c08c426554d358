"""Eigenpairs of symmetric matrices, signs, the nearest correlation matrix, and linear ICA."""

from __future__ import annotations

import threading
import warnings
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError

Matrix = NDArray[np.float64]

_N_LOWEST = 8
_EQUAL_SIZES = 1e-6
FULL_SOLVER = 1500
"""Matrices up to this size are decomposed completely; larger ones, into leading eigenpairs."""
_warnings_lock = threading.Lock()


def leading_eigenpairs(matrix: Matrix, n_leading: int) -> tuple[Matrix, Matrix]:
    """Compute leading eigenvalues of a symmetric matrix, largest first, and their eigenvectors.

    For n up to `FULL_SOLVER`, all eigenpairs are returned.

    Returns
    -------
    values, vectors
        (k,) and (n, k), k >= min(n_leading, n), columns signed by `fix_signs`.
    """
    n = len(matrix)
    if n <= FULL_SOLVER or 2 * n_leading >= n:
        values, vectors = scipy.linalg.eigh(matrix)
    else:
        values, vectors = _extreme_eigenpairs(matrix, n_leading, "LA", tol=1e-10)
    return values[::-1], fix_signs(vectors[:, ::-1])


def leading_eigenvalues(matrix: Matrix, n_leading: int) -> Matrix:
    """Compute only the eigenvalues that `leading_eigenpairs` returns."""
    if len(matrix) <= FULL_SOLVER:
        values: Matrix = scipy.linalg.eigh(matrix, eigvals_only=True)[::-1]
        return values
    return leading_eigenpairs(matrix, n_leading)[0]


def negative_share(matrix: Matrix, values: Matrix) -> float:
    """Compute the total size of the negative eigenvalues relative to the trace.

    If `values` has only leading eigenvalues, a few of the lowest are computed, and the result is a
    lower bound.
    """
    if len(values) < len(matrix):
        values, _ = _extreme_eigenpairs(matrix, _N_LOWEST, "SA", tol=1e-3)
    return float(-values[values < 0].sum() / np.trace(matrix))


def _extreme_eigenpairs(
    matrix: Matrix, n_pairs: int, which: Literal["LA", "SA"], tol: float
) -> tuple[Matrix, Matrix]:
    """Compute eigenpairs at one end of the spectrum by Lanczos; all of them if that fails."""
    # A fixed generator of start vectors makes the result reproducible.
    rng = np.random.default_rng(0)
    try:
        values, vectors = scipy.sparse.linalg.eigsh(matrix, n_pairs, which=which, rng=rng, tol=tol)
    except scipy.sparse.linalg.ArpackNoConvergence:
        return scipy.linalg.eigh(matrix)
    order = np.argsort(values)
    return values[order], vectors[:, order]


def fix_signs(columns: Matrix, power: int = 3) -> Matrix:
    """Flip columns so that the sum of their entries to an odd power is positive.

    With the third power, the largest entries decide. If the sum is 0 up to a millionth, so that
    rounding could decide, the entry of largest size is positive; among equal sizes, the first.
    """
    sizes = np.abs(columns)
    largest = sizes.max(axis=0, initial=0.0)
    scaled = columns / np.where(largest > 0, largest, 1.0)
    totals = (scaled**power).sum(axis=0)
    first = np.argmax(sizes >= (1 - _EQUAL_SIZES) * largest, axis=0)
    leading = columns[first, np.arange(columns.shape[1])]
    is_balanced = np.abs(totals) <= _EQUAL_SIZES * (np.abs(scaled) ** power).sum(axis=0)
    signs = np.sign(np.where(is_balanced, leading, totals))
    return columns * np.where(signs == 0, 1.0, signs)


def min_shrinkage(lowest: float) -> float:
    """Return the least τ that makes (1 − τ) C + τ I semi-definite, from the lowest eigenvalue of C.

    Shrinking keeps the unit diagonal and the eigenvectors (N. Higham, N. Strabić, V. Šego,
    "Restoring definiteness via shrinking", SIAM Review 58, 2016, with the identity as the target).
    """
    return max(0.0, -lowest / (1 - lowest))


def shrink_eigenvalues(values: Matrix, shrinkage: float) -> Matrix:
    """Return the eigenvalues of (1 − τ) C + τ I, given the eigenvalues of C."""
    moved: Matrix = (1 - shrinkage) * values + shrinkage
    return moved


def nearest_correlation(
    matrix: Matrix, tol: float = 1e-9, max_rounds: int = 1000
) -> tuple[Matrix, float]:
    """Find the nearest positive semi-definite matrix with unit diagonal, and its distance.

    Alternating projections with Dykstra's correction (Higham, IMA J. Numer. Anal. 2002, algorithm
    3.3), until the relative change of a round is at most `tol`. The matrix is symmetric with unit
    diagonal; distances are in the Frobenius norm.

    Raises
    ------
    FitError
        If it does not converge.
    """
    repaired, correction = matrix.copy(), np.zeros_like(matrix)
    for _ in range(max_rounds):
        shifted = repaired - correction
        projected = _project_semidefinite(shifted)
        correction = projected - shifted
        np.fill_diagonal(projected, 1.0)
        moved = np.linalg.norm(projected - repaired)
        repaired = projected
        if moved <= tol * np.linalg.norm(repaired):
            return repaired, float(np.linalg.norm(repaired - matrix))
    raise FitError(
        f"The nearest correlation matrix was not found within {max_rounds} rounds. "
        "Use {repair=none}."
    )


def _project_semidefinite(matrix: Matrix) -> Matrix:
    values, vectors = scipy.linalg.eigh(matrix)
    scaled = vectors * np.maximum(values, 0.0)
    positive: Matrix = scaled @ vectors.T
    return (positive + positive.T) / 2


def fast_ica(X: NDArray[Any], n_components: int, seed: int) -> tuple[Matrix, bool]:
    """Find the mixing of independent sources of variance 1 by scikit-learn's `FastICA`.

    A. Hyvärinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE
    Transactions on Neural Networks 10, 1999: all components at once, with log cosh.

    `X` is (n_samples, n_features), with at least as many dimensions as components. `seed`, below
    2³², sets the initial values. Return the mixing, (n_features, n_components), and whether the
    iterations converged.

    Raises
    ------
    FitError
        If the rows are too few or too similar.
    """
    from sklearn.decomposition import FastICA  # takes half a second, and is needed only here

    settings = {"whiten": "unit-variance", "whiten_solver": "eigh", "random_state": seed}
    linear = FastICA(n_components, **settings)
    # Warning filters apply to the whole process, and fits may run in several threads.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence and about dimensions left out
        try:
            linear.fit(X.astype(np.float64))
        except ValueError as error:  # NaN after a division by 0
            raise FitError(
                f"FastICA cannot separate {n_components} components with {len(X):,} rows. "
                "Fit more rows, or fewer components."
            ) from error
    return linear.mixing_, linear.n_iter_ < linear.max_iter
