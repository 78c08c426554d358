"""Leading eigenpairs of sparse symmetric matrices, also where eigenvalues lie close together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.spectra.linalg import FULL_SOLVER

Array = NDArray[np.float64]
Product = Callable[[Array], Array]

_FILTER_ROUNDS = 2
_EXTRA_PAIRS = 8  # than asked for, in these rounds: the bound must lie well below what is asked for
_ROUGH_TOLERANCE, _FINE_TOLERANCE = (
    1e-2,
    1e-10,
)  # of eigenvalues of polynomials: the latter leaves errors of 1e-13
_FILTER_GAIN = 1e3
_RESTARTS = 100
_MAX_DEGREE = 2000


class Eigenpairs(NamedTuple):
    """Eigenvalues, largest first, (n_pairs,), and their vectors, (n, n_pairs)."""

    values: Array
    vectors: Array


def leading_eigenpairs_except(
    matrix: scipy.sparse.csr_array, known: Array, n_pairs: int
) -> Eigenpairs:
    """Compute leading eigenpairs besides a known one.

    Small matrices are solved densely. Else Lanczos goes over Chebyshev polynomials of the matrix,
    which tell apart what lies above a bound, and leave all below it between −1 and 1 (Y. Saad,
    "Numerical Methods for Large Eigenvalue Problems", 2nd ed., section 7.4). The smallest Ritz
    value of one round, which is below the eigenvalue, is the bound of the next.

    Parameters
    ----------
    matrix
        Symmetric, with eigenvalues from −1 to 1, (n, n).
    known
        An eigenvector of eigenvalue 1, of length 1, (n,).
    n_pairs
        How many, below n.

    Raises
    ------
    FitError
        If Lanczos does not converge.
    """
    n = len(known)
    if n <= FULL_SOLVER or 2 * n_pairs >= n:
        deflated = matrix.toarray() - 2 * np.outer(known, known)
        at = (n - n_pairs, n - 1)
        values, vectors = scipy.linalg.eigh(deflated, subset_by_index=at)
        return Eigenpairs(values[::-1], vectors[:, ::-1])

    def times(x: Array) -> Array:
        product: Array = matrix @ x - (2 * (known @ x)) * known
        return product

    return _solve_with_filters(times, n, n_pairs)


def _solve_with_filters(times: Product, n: int, n_pairs: int) -> Eigenpairs:
    filtered, n_held = times, min(n_pairs + _EXTRA_PAIRS, n - 1)
    for _ in range(_FILTER_ROUNDS):
        found = _solve_in_subspace(times, _lanczos(filtered, n, n_held, _ROUGH_TOLERANCE))
        filtered = _chebyshev_filter(times, float(found.values[-1]))
    return _solve_in_subspace(times, _lanczos(filtered, n, n_pairs, _FINE_TOLERANCE))


def _lanczos(times: Product, n: int, n_pairs: int, tol: float) -> Array:
    operator = scipy.sparse.linalg.LinearOperator((n, n), times, dtype=np.float64)
    held, rng = min(2 * n_pairs + 20, n), np.random.default_rng(0)  # the same bytes each time
    how: dict[str, Any] = {"ncv": held, "maxiter": _RESTARTS, "tol": tol, "rng": rng}
    try:
        _, vectors = scipy.sparse.linalg.eigsh(operator, n_pairs, which="LA", **how)
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise FitError(
            "Expected the eigenvectors of the graph to converge, got fewer than were asked for. "
            "Fit with more neighbours by --set k, or fewer --components."
        ) from None
    return np.asarray(vectors)


def _solve_in_subspace(times: Product, basis: Array) -> Eigenpairs:
    """Solve within a subspace, given by an orthonormal basis (Rayleigh, Ritz)."""
    inner = basis.T @ np.column_stack([times(x) for x in basis.T])
    values, vectors = scipy.linalg.eigh((inner + inner.T) / 2)
    return Eigenpairs(values[::-1], basis @ vectors[:, ::-1])


def _chebyshev_filter(times: Product, bound: float) -> Product:
    """Map what lies from −1 to the bound to −1 to 1, and 1 to `_FILTER_GAIN`, if it can."""
    centre, half = (bound - 1) / 2, (bound + 1) / 2
    rate = np.arccosh(max((1 - centre) / half, 1 + 1e-12))
    degree = min(int(np.ceil(np.arccosh(_FILTER_GAIN) / rate)), _MAX_DEGREE)

    def filtered(x: Array) -> Array:
        before, now = x, (times(x) - centre * x) / half
        for _ in range(degree - 1):
            before, now = now, (2 / half) * (times(now) - centre * now) - before
        return now

    return filtered
