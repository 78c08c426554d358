"""Leading eigenpairs of large symmetric matrices of which only products are to be had.

Block Lanczos: an orthonormal basis of the span of X, A X, A² X, … grows by one block a product, and
A projected onto it is solved densely (Rayleigh, Ritz). A basis that is full begins again with the
leading Ritz vectors (K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue
problems", SIAM J. Matrix Anal. Appl. 22, 2000; here by blocks, with full orthogonalisation). A
product with a block is one sweep over the matrix: single vectors would take many more sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.spectra.linalg import fix_signs

Array = NDArray[np.float64]
Product = Callable[[Array], Array]
"""Multiplies the matrix by a block of vectors, (n, width)."""

_EXTRA_VECTORS = 12
"""Vectors of a block beyond those asked for: these converge sooner where eigenvalues lie close."""
_MAX_BASIS_BLOCKS, _MAX_BASIS_BYTES = 24, 1 << 30
_TOLERANCE, _SMALL_EIGENVALUE_SHARE = 1e-8, 1e-3
_MAX_PRODUCTS = 500


class LeadingSpectrum(NamedTuple):
    """What is known of a spectrum.

    Attributes
    ----------
    values, vectors
        Leading eigenvalues, largest first, (n_leading,), and their vectors, (n, n_leading), signed
        by `fix_signs`.
    residuals
        ‖A v − λ v‖ of each: an eigenvalue of A lies as near to λ, (n_leading,).
    negative
        Sum of the negative Ritz values; that of all negative eigenvalues is no nearer to 0.
    n_products
        Products with a block that it took.
    """

    values: Array
    vectors: Array
    residuals: Array
    negative: float
    n_products: int


def max_basis_columns(n: int, n_leading: int) -> int:
    """Count the vectors of length n that the basis holds at the most."""
    width = n_leading + _EXTRA_VECTORS
    least = 3 * width + n_leading
    return min(max(least, min(_MAX_BASIS_BLOCKS * width, _MAX_BASIS_BYTES // (8 * n))), n - width)


def max_leading_pairs(n: int) -> int:
    """Count the eigenpairs that can be asked for: the basis has to have room to grow."""
    return n // 8 - _EXTRA_VECTORS


def compute_leading_spectrum(
    times: Product, n: int, n_leading: int, rng: np.random.Generator
) -> LeadingSpectrum:
    """Compute the leading eigenpairs of a symmetric matrix.

    Parameters
    ----------
    times
        Multiplies the matrix by a block of vectors.
    n
        Its size.
    n_leading
        Number of eigenpairs, up to `most_leading(n)`.
    rng
        Draws the first block.

    Raises
    ------
    FitError
        If too many are asked for, or residuals do not come down to 1e-8 of each eigenvalue (of a
        thousandth of the largest, where that is more).
    """
    if not 1 <= n_leading <= max_leading_pairs(n):
        raise FitError(
            f"--components: Expected 1 to {max_leading_pairs(n)}, as many as can be told apart of "
            f"{n} features, got {n_leading}. Take fewer."
        )
    block, _ = np.linalg.qr(rng.standard_normal((n, n_leading + _EXTRA_VECTORS)))
    basis, inner, negative = np.empty((n, 0)), np.empty((0, 0)), 0.0
    for n_products in range(1, _MAX_PRODUCTS + 1):
        image = times(block)
        basis = np.hstack([basis, block])
        along = basis.T @ image
        inner = _extend_projection(inner, along)
        block, coupling = _orthonormalize(basis, image - basis @ along)
        ritz, turns = scipy.linalg.eigh(inner)
        negative = min(negative, float(ritz[ritz < 0].sum()))
        values, leading = ritz[: -n_leading - 1 : -1], turns[:, : -n_leading - 1 : -1]
        residuals = np.linalg.norm(coupling @ leading[-len(coupling) :], axis=0)
        if (residuals <= _residual_tolerances(values)).all():
            return LeadingSpectrum(
                values, fix_signs(basis @ leading), residuals, negative, n_products
            )
        if len(inner) + len(coupling) > max_basis_columns(n, n_leading):
            kept = slice(-len(coupling) - n_leading, None)
            basis, inner = basis @ turns[:, kept], np.diag(ritz[kept])
    raise FitError(
        f"Expected eigenvectors to converge within {_MAX_PRODUCTS} products, got residuals up to "
        f"{residuals.max():.1e}. Leave out features, or take fewer --components."
    )


def _residual_tolerances(values: Array) -> Array:
    sizes = np.abs(values)
    allowed: Array = _TOLERANCE * np.maximum(sizes, _SMALL_EIGENVALUE_SHARE * sizes.max())
    return allowed


def _extend_projection(inner: Array, along: Array) -> Array:
    """Add a block to the projected matrix, given the products of basis and image."""
    n_old = len(inner)
    grown = np.empty((len(along), len(along)))
    grown[:n_old, :n_old] = inner
    grown[:, n_old:] = along
    grown[n_old:, :n_old] = along[:n_old].T
    grown[n_old:, n_old:] = (along[n_old:] + along[n_old:].T) / 2
    return grown


def _orthonormalize(basis: Array, left: Array) -> tuple[Array, Array]:
    """Give an orthonormal block of what is left outside of the basis, and its coefficients."""
    block, coefficients = np.linalg.qr(left - basis @ (basis.T @ left))
    # Where next to nothing is left, rounding errors lie within the basis.
    block, turn = np.linalg.qr(block - basis @ (basis.T @ block))
    return block, turn @ coefficients
