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

_ROUNDS = 2
_MORE_PAIRS = 8  # than asked for, in these rounds: the bound must lie well below what is asked for
_ROUGHLY, _CLOSELY = 1e-2, 1e-10  # of eigenvalues of polynomials: the latter leaves errors of 1e-13
_GAIN = 1e3
_RESTARTS = 100
_MOST_DEGREES = 2000


class Eigenpairs(NamedTuple):
    """Eigenvalues, largest first, (n_pairs,), and their vectors, (n, n_pairs)."""

    values: Array
    vectors: Array


def leading_but_known(matrix: scipy.sparse.csr_array, known: Array, n_pairs: int) -> Eigenpairs:
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

    return _by_rounds(times, n, n_pairs)


def _by_rounds(times: Product, n: int, n_pairs: int) -> Eigenpairs:
    filtered, n_held = times, min(n_pairs + _MORE_PAIRS, n - 1)
    for _ in range(_ROUNDS):
        found = _rotated(times, _lanczos(filtered, n, n_held, _ROUGHLY))
        filtered = _chebyshev(times, float(found.values[-1]))
    return _rotated(times, _lanczos(filtered, n, n_pairs, _CLOSELY))


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


def _rotated(times: Product, basis: Array) -> Eigenpairs:
    """Solve within a subspace, given by an orthonormal basis (Rayleigh, Ritz)."""
    inner = basis.T @ np.column_stack([times(x) for x in basis.T])
    values, vectors = scipy.linalg.eigh((inner + inner.T) / 2)
    return Eigenpairs(values[::-1], basis @ vectors[:, ::-1])


def _chebyshev(times: Product, bound: float) -> Product:
    """Map what lies from −1 to the bound to −1 to 1, and 1 to `_GAIN`, if it can."""
    centre, half = (bound - 1) / 2, (bound + 1) / 2
    rate = np.arccosh(max((1 - centre) / half, 1 + 1e-12))
    degree = min(int(np.ceil(np.arccosh(_GAIN) / rate)), _MOST_DEGREES)

    def filtered(x: Array) -> Array:
        before, now = x, (times(x) - centre * x) / half
        for _ in range(degree - 1):
            before, now = now, (2 / half) * (times(now) - centre * now) - before
        return now

    return filtered
