"""Leading eigenpairs of large symmetric matrices by Lanczos methods.

`compute_leading_spectrum` needs only products of the matrix and a block of vectors (block Lanczos):
an orthonormal basis of the span of X, A X, A² X, … grows by one block per product, and A projected
onto it is solved densely (Rayleigh, Ritz). A full basis restarts with the leading Ritz vectors
(K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J.
Matrix Anal. Appl. 22, 2000; here by blocks, with full orthogonalisation). A product with a block is
one sweep over the matrix; single vectors would take many more sweeps.

`leading_eigenpairs_except` is for sparse matrices whose eigenvalues may lie close together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.spectra.linalg import FULL_SOLVER, fix_signs

Array = NDArray[np.float64]
Product = Callable[[Array], Array]
"""Multiplies the matrix by a block of vectors, (n, width)."""

_LEAST_WIDTH, _WIDTHS_PER_PAIR = 16, 0.25
"""Vectors of a block; eigenvalues that are equal as often are all found."""
_MAX_BASIS_BLOCKS, _MAX_BASIS_BYTES = 16, 1 << 30
_EXTRA_VECTORS = 12  # beyond which the basis has no room to grow
_TOLERANCE, _SMALL_EIGENVALUE_SHARE = 1e-8, 1e-3
_NOISE_TOLERANCE = 1e-3
_MAX_PRODUCTS = 1000
_SMALL_PROJECTION, _CHECK_INTERVAL = 128, 4
"""Products between checks of a larger projection, whose eigenpairs take as long as a product."""
_FILTER_ROUNDS = 2
_EXTRA_PAIRS = 8  # in these rounds: the bound must lie well below the requested eigenvalues
# Relative to eigenvalues of the polynomials; the fine one leaves errors of 1e-13.
_ROUGH_TOLERANCE, _FINE_TOLERANCE = 1e-2, 1e-10
_FILTER_GAIN = 1e3
_RESTARTS = 100
_MAX_DEGREE = 2000


class LeadingSpectrum(NamedTuple):
    """Leading eigenpairs and a bound on the negative eigenvalues.

    Attributes
    ----------
    values, vectors
        Leading eigenvalues, largest first, (n_leading,), and their vectors, (n, n_leading), signed
        by `fix_signs`.
    residuals
        ‖A v − λ v‖ of each, (n_leading,): A has an eigenvalue within this distance of λ.
    negative
        Sum of the negative Ritz values. The sum of all negative eigenvalues is at most this.
    n_products
        Number of products with a block.
    """

    values: Array
    vectors: Array
    residuals: Array
    negative: float
    n_products: int


def max_basis_columns(n: int, n_leading: int) -> int:
    """Return the maximum number of vectors of length n in the basis."""
    width = _choose_width(n_leading)
    least, wanted = 3 * width + n_leading, _MAX_BASIS_BLOCKS * width + 4 * n_leading
    return min(max(least, min(wanted, _MAX_BASIS_BYTES // (8 * n))), n - width)


def _choose_width(n_leading: int) -> int:
    return max(_LEAST_WIDTH, round(_WIDTHS_PER_PAIR * n_leading))


def max_leading_pairs(n: int) -> int:
    """Return the maximum number of eigenpairs: the basis needs room to grow."""
    return n // 8 - _EXTRA_VECTORS


def compute_leading_spectrum(
    multiply: Product, n: int, n_leading: int, rng: np.random.Generator, noise: Array | None = None
) -> LeadingSpectrum:
    """Compute up to `max_leading_pairs(n)` leading eigenpairs of a symmetric matrix, (n, n).

    Parameters
    ----------
    multiply
        Multiplies the matrix by a block of vectors.
    rng
        Generator of the first block.
    noise
        Eigenvalues of noise, largest first, at most (n_leading,). From the first eigenvalue on that
        is not above that of noise, residuals need to reach only 1e-3 of each eigenvalue.

    Raises
    ------
    FitError
        If too many eigenpairs are requested, or the residuals do not reach 1e-8 of each eigenvalue
        (or of a thousandth of the largest, if that is more).
    """
    if not 1 <= n_leading <= max_leading_pairs(n):
        raise FitError(
            f"{{components}} is {n_leading}, but {n} features allow only 1 to "
            f"{max_leading_pairs(n)} here. Choose fewer."
        )
    width, max_columns = _choose_width(n_leading), max_basis_columns(n, n_leading)
    block, _ = np.linalg.qr(rng.standard_normal((n, width)))
    memory, inner, negative = np.empty((n, max_columns), order="F"), np.empty((0, 0)), 0.0
    for n_products in range(1, _MAX_PRODUCTS + 1):
        image = multiply(block)
        basis = memory[:, : len(inner) + width]
        basis[:, len(inner) :] = block
        products = basis.T @ image
        inner = _extend_projection(inner, products)
        block, coupling = _orthonormalize(basis, image - basis @ products)
        is_full = len(inner) + width > max_columns
        is_small = len(inner) <= _SMALL_PROJECTION
        if len(inner) < n_leading or (n_products % _CHECK_INTERVAL and not (is_small or is_full)):
            continue
        ritz, turns = scipy.linalg.eigh(inner)
        negative = min(negative, float(ritz[ritz < 0].sum()))
        values, leading = ritz[: -n_leading - 1 : -1], turns[:, : -n_leading - 1 : -1]
        residuals = np.linalg.norm(coupling @ leading[-width:], axis=0)
        if (residuals <= _choose_tolerances(values, residuals, noise)).all():
            return LeadingSpectrum(
                values, fix_signs(basis @ leading), residuals, negative, n_products
            )
        if is_full:
            kept = slice(-width - n_leading, None)
            memory[:, : width + n_leading] = basis @ turns[:, kept]
            inner = np.diag(ritz[kept])
    raise FitError(
        f"The eigenvectors did not converge within {_MAX_PRODUCTS} products; residuals are up to "
        f"{residuals.max():.1e}. Leave out features, or fit fewer components."
    )


def _choose_tolerances(values: Array, residuals: Array, noise: Array | None) -> Array:
    sizes = np.abs(values)
    allowed: Array = _TOLERANCE * np.maximum(sizes, _SMALL_EIGENVALUE_SHARE * sizes.max())
    if noise is not None and (is_noise := (values + residuals)[: len(noise)] <= noise).any():
        first = is_noise.argmax()
        allowed[first:] = _NOISE_TOLERANCE * sizes[first:]
    return allowed


def _extend_projection(inner: Array, products: Array) -> Array:
    """Add a block to the projected matrix, given the products of basis and image."""
    n_old = len(inner)
    extended = np.empty((len(products), len(products)))
    extended[:n_old, :n_old] = inner
    extended[:, n_old:] = products
    extended[n_old:, :n_old] = products[:n_old].T
    extended[n_old:, n_old:] = (products[n_old:] + products[n_old:].T) / 2
    return extended


def _orthonormalize(basis: Array, remainder: Array) -> tuple[Array, Array]:
    """Return an orthonormal block of the part outside the basis, and its coefficients."""
    block, coefficients = np.linalg.qr(remainder - basis @ (basis.T @ remainder))
    # If almost nothing is left, rounding errors lie within the basis: project a second time.
    block, turn = np.linalg.qr(block - basis @ (basis.T @ block))
    return block, turn @ coefficients


class Eigenpairs(NamedTuple):
    """Eigenvalues, largest first, (n_pairs,), and their vectors, (n, n_pairs)."""

    values: Array
    vectors: Array


def leading_eigenpairs_except(
    matrix: scipy.sparse.csr_array, known: Array, n_pairs: int
) -> Eigenpairs:
    """Compute the leading eigenpairs other than a known one.

    Small matrices are solved densely. For others, Lanczos runs on Chebyshev polynomials of the
    matrix, which spread out the eigenvalues above a bound and leave all below it between −1 and 1
    (Y. Saad, "Numerical Methods for Large Eigenvalue Problems", 2nd ed., section 7.4). The smallest
    Ritz value of one round, which is below the eigenvalue, is the bound of the next.

    Parameters
    ----------
    matrix
        Symmetric, with eigenvalues from −1 to 1, (n, n).
    known
        Eigenvector of eigenvalue 1, of length 1, (n,).
    n_pairs
        Number of eigenpairs, below n.

    Raises
    ------
    FitError
        If Lanczos does not converge.
    """
    n = len(known)
    if n <= FULL_SOLVER or 2 * n_pairs >= n:
        deflated = matrix.toarray() - 2 * np.outer(known, known)
        index_range = (n - n_pairs, n - 1)
        values, vectors = scipy.linalg.eigh(deflated, subset_by_index=index_range)
        return Eigenpairs(values[::-1], vectors[:, ::-1])

    def multiply(x: Array) -> Array:
        product: Array = matrix @ x - (2 * (known @ x)) * known
        return product

    return _solve_with_filters(multiply, n, n_pairs)


def _solve_with_filters(multiply: Product, n: int, n_pairs: int) -> Eigenpairs:
    product, n_rough = multiply, min(n_pairs + _EXTRA_PAIRS, n - 1)
    for _ in range(_FILTER_ROUNDS):
        eigenpairs = _solve_in_subspace(multiply, _lanczos(product, n, n_rough, _ROUGH_TOLERANCE))
        product = _chebyshev_filter(multiply, float(eigenpairs.values[-1]))
    return _solve_in_subspace(multiply, _lanczos(product, n, n_pairs, _FINE_TOLERANCE))


def _lanczos(multiply: Product, n: int, n_pairs: int, tol: float) -> Array:
    operator = scipy.sparse.linalg.LinearOperator((n, n), multiply, dtype=np.float64)
    n_vectors, rng = min(2 * n_pairs + 20, n), np.random.default_rng(0)  # fixed: reproducible
    options: dict[str, Any] = {"ncv": n_vectors, "maxiter": _RESTARTS, "tol": tol, "rng": rng}
    try:
        _, vectors = scipy.sparse.linalg.eigsh(operator, n_pairs, which="LA", **options)
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise FitError(
            "The eigenvectors of the graph did not converge. "
            "Fit with more neighbours ({k}) or fewer {components}."
        ) from None
    return np.asarray(vectors)


def _solve_in_subspace(multiply: Product, basis: Array) -> Eigenpairs:
    """Solve within the subspace of an orthonormal basis (Rayleigh, Ritz)."""
    inner = basis.T @ np.column_stack([multiply(x) for x in basis.T])
    values, vectors = scipy.linalg.eigh((inner + inner.T) / 2)
    return Eigenpairs(values[::-1], basis @ vectors[:, ::-1])


def _chebyshev_filter(multiply: Product, bound: float) -> Product:
    """Map the interval from −1 to the bound to −1 to 1, and 1 to `_FILTER_GAIN` if possible."""
    centre, half = (bound - 1) / 2, (bound + 1) / 2
    rate = np.arccosh(max((1 - centre) / half, 1 + 1e-12))
    degree = min(int(np.ceil(np.arccosh(_FILTER_GAIN) / rate)), _MAX_DEGREE)

    def apply_filter(x: Array) -> Array:
        previous, current = x, (multiply(x) - centre * x) / half
        for _ in range(degree - 1):
            previous, current = (
                current,
                (2 / half) * (multiply(current) - centre * current) - previous,
            )
        return current

    return apply_filter
