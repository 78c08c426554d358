"""Leading eigenvalues of random symmetric matrices, unfolded: alike for all kinds of noise.

Near the upper edge E of their spectrum the eigenvalues of a large real symmetric matrix of noise
are E − σ s_1 > E − σ s_2 > …, where only E and σ depend on the matrix: −s_1 follows the law of
Tracy and Widom (1996, On orthogonal and symplectic matrix ensembles). Here the s_k come from
tridiagonal matrices with the eigenvalues of the Gaussian orthogonal ensemble (Dumitriu & Edelman
2002, Matrix models for beta ensembles, J. Math. Phys. 43: table 1, β = 1). They are unfolded by the
semicircle, so that (2 / 3π) s^(3/2) eigenvalues are expected above one at s, deep in the spectrum
too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy

Array = npt.NDArray[np.float64]

_MAX_SIZE = 600
_MARGIN = 80


def count_above(s: npt.ArrayLike) -> Array:
    """Give the number of eigenvalues expected above the unfolded one."""
    return np.asarray(2 / (3 * np.pi) * np.maximum(s, 0.0) ** 1.5)


def unfold(count: npt.ArrayLike) -> Array:
    """Undo `count_above`."""
    return np.asarray((1.5 * np.pi * np.asarray(count)) ** (2 / 3))


def draw_edge_points(n: int, n_leading: int, n_draws: int, rng: np.random.Generator) -> Array:
    """Draw unfolded leading eigenvalues s_1 < s_2 < ….

    Parameters
    ----------
    n
        Size of the matrix; beyond 600 (or eight times `n_leading`) it makes no difference.
    n_leading
        Eigenvalues of each draw, at most n.
    n_draws
        Number of matrices.
    rng
        Source of the draws.

    Returns
    -------
    ndarray
        (n_draws, n_leading), rows ascending; negative beyond the edge.
    """
    n = min(n, max(_MAX_SIZE, 8 * n_leading))
    # Of density exp(−tr H² / 2), so with eigenvalues up to √(2n); √(2n − 1) leaves an error of
    # n^(−2/3) in the law of s_1 (Johnstone & Ma 2012, Fast approach to the Tracy–Widom law at the
    # edge of GOE and GUE, Ann. Appl. Probab. 22).
    size = n - 0.5
    n_kept = _count_relevant_rows(n, n_leading)
    degrees = np.arange(n - 1, n - n_kept, -1)
    values = np.empty((n_draws, n_leading))
    for draw in values:
        diagonal = rng.standard_normal(n_kept)
        beside = np.sqrt(rng.chisquare(degrees) / 2)
        leading = scipy.linalg.eigh_tridiagonal(
            diagonal, beside, eigvals_only=True, lapack_driver="sterf"
        )[: -n_leading - 1 : -1]
        # Matrices of correlations have a sure trace: all eigenvalues do not move together.
        trace = diagonal.sum() + np.sqrt(n - n_kept) * rng.standard_normal()
        draw[:] = (leading - trace / n) / np.sqrt(2 * size)
    return _unfold_semicircle(values, size)


def _count_relevant_rows(n: int, n_leading: int) -> int:
    """Size of the upper left part of the tridiagonal matrix that has the same leading eigenvalues.

    Eigenvectors decay once the rows left, n − m, are too few for an eigenvalue x: x² > 2 (n − m).
    """
    lowest = 1 - 0.575 * float(unfold(n_leading)) / n ** (2 / 3)
    return min(n, int(n * (1 - max(lowest, 0.0) ** 2)) + _MARGIN)


def _unfold_semicircle(x: Array, size: float) -> Array:
    inside = np.clip(x, -1.0, 1.0)
    above = size / np.pi * (np.arccos(inside) - inside * np.sqrt(1 - inside**2))
    return np.where(x < 1, unfold(above), 2 * size ** (2 / 3) * (1 - x))
