"""Rotations of loadings: principal axes, varimax, promax."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.spectra.linalg import fix_signs

Matrix = NDArray[np.float64]

_MAX_ROUNDS = 1000
_TOLERANCE = 1e-13
PROMAX_POWER = 4


def principal_axes(loadings: Matrix) -> Matrix:
    """Turn loadings so that columns are orthogonal, longest first, signed by `fix_signs`.

    Parameters
    ----------
    loadings
        (n_features, n_components).
    """
    left, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    return fix_signs(left * lengths)


def varimax(loadings: Matrix) -> Matrix:
    """Turn loadings so that the variance of their squares within columns is largest.

    Kaiser (1958), The varimax criterion for analytic rotation in factor analysis, Psychometrika 23,
    on rows scaled to length 1. Columns are ordered by their sum of squares.

    Parameters
    ----------
    loadings
        (n_features, n_components).
    """
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    scaled = loadings / np.where(lengths > 0, lengths, 1.0)
    turn, reached = np.eye(loadings.shape[1]), 0.0
    for _ in range(_MAX_ROUNDS):
        turned = scaled @ turn
        target = turned**3 - turned * (turned**2).mean(axis=0)
        left, values, right = np.linalg.svd(scaled.T @ target)
        turn = left @ right
        if values.sum() <= reached * (1 + _TOLERANCE):
            break
        reached = values.sum()
    rotated = loadings @ turn
    return fix_signs(rotated[:, np.argsort(-(rotated**2).sum(axis=0), kind="stable")])


def promax(loadings: Matrix) -> tuple[Matrix, Matrix]:
    """Make varimax loadings simpler by letting the components correlate.

    Hendrickson & White (1964), Promax: a quick method for rotation to oblique simple structure,
    British Journal of Statistical Psychology 17, with power 4.

    Parameters
    ----------
    loadings
        (n_features, n_components).

    Returns
    -------
    pattern, correlation
        Loadings, (n_features, n_components), and correlations of the components, (n_components,
        n_components), of variance 1 each.
    """
    start = varimax(loadings)
    target = start * np.abs(start) ** (PROMAX_POWER - 1)
    turn = np.linalg.lstsq(start, target, rcond=None)[0]
    # Components x = T⁻¹ᵀ… of variance 1: the columns of the transform are scaled to give that.
    turn = turn * np.sqrt(np.diag(np.linalg.inv(turn.T @ turn)))
    inverse = np.linalg.inv(turn)
    return start @ turn, inverse @ inverse.T
