"""Rotations of loadings: principal axes, varimax, oblimin and promax.

An oblique rotation lets the components correlate: with loadings Λ and correlations Φ of the
components, Λ Φ Λᵀ is that of the loadings before it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.metrics import match_columns
from pipeline.numerics.spectra.linalg import fix_signs

Array = NDArray[np.float64]
PROMAX_POWER = 4
_MAX_VARIMAX_ROUNDS, _VARIMAX_TOLERANCE = 1000, 1e-10  # radians
_STEP = 1e-4  # of numeric derivatives
_MAX_OBLIMIN_STEPS, _OBLIMIN_TOLERANCE, _MAX_HALVINGS = 2000, 1e-8, 40


def rotate_loadings(
    loadings: Array, rotation: str, *, normalize: bool = False, axes: Array | None = None
) -> tuple[Array, Array]:
    """Rotate loadings, and return them with the correlations of the components.

    Parameters
    ----------
    loadings
        (n_features, n_components).
    rotation
        `varimax`, `oblimin` or `promax`; all others leave the loadings as they are.
    normalize
        See `promax`.
    axes
        Axes of unit length to start `oblimin` from, (n_components, n_components), in columns.

    Returns
    -------
    loadings, correlation
        (n_features, n_components) and (n_components, n_components).
    """
    uncorrelated = np.eye(loadings.shape[1])
    if loadings.shape[1] < 2:
        return loadings, uncorrelated
    if rotation == "promax":
        return promax(loadings, normalize=normalize)
    if rotation == "oblimin":
        return oblimin(loadings, axes)
    return varimax(loadings) if rotation == "varimax" else loadings, uncorrelated


def principal_axes(loadings: Array) -> Array:
    """Rotate loadings, (n_features, n_components), so that columns are orthogonal, longest first.

    The largest loadings of a column have a positive sum; those of an only column, all of them.
    """
    left, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    return fix_signs(left * lengths, power=1 if loadings.shape[1] == 1 else 3)


def varimax(loadings: Array) -> Array:
    """Rotate loadings to maximize the variance of their squares within columns.

    H. F. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika
    23, 1958, with rows scaled to length 1: the best rotation of each pair of columns in turn.
    Columns are ordered by their sum of squares.
    """
    lengths = _find_lengths(loadings)
    rotated, n = loadings / lengths, len(loadings)
    for _ in range(_MAX_VARIMAX_ROUNDS):
        largest = 0.0
        for pair in combinations(range(loadings.shape[1]), 2):
            x, y = rotated[:, pair].T
            u, v = x**2 - y**2, 2 * x * y
            sine = 2 * (u @ v - u.sum() * v.sum() / n)
            angle = np.arctan2(sine, u @ u - v @ v - (u.sum() ** 2 - v.sum() ** 2) / n) / 4
            cosine, sine = np.cos(angle), np.sin(angle)
            rotated[:, pair] = np.column_stack([cosine * x + sine * y, cosine * y - sine * x])
            largest = max(largest, abs(float(angle)))
        if largest < _VARIMAX_TOLERANCE:
            break
    rotated *= lengths
    ordered = rotated[:, np.argsort(-(rotated**2).sum(axis=0), kind="stable")]
    return fix_signs(ordered, power=1 if loadings.shape[1] == 1 else 3)


def promax(loadings: Array, *, normalize: bool = False) -> tuple[Array, Array]:
    """Simplify varimax loadings by letting the components correlate.

    A. E. Hendrickson, P. O. White, "Promax: a quick method for rotation to oblique simple
    structure", British Journal of Statistical Psychology 17, 1964, with power 4. With `normalize`,
    the powers are those of rows scaled to length 1, as in `fa` of R's psych; without, those of the
    loadings, as in `promax` of R.

    Return the loadings, (n_features, n_components), and the correlations of the components,
    (n_components, n_components).
    """
    start, lengths = varimax(loadings), np.ones((len(loadings), 1))
    if normalize:
        lengths = _find_lengths(loadings)
        start = start / lengths
    target = start * np.abs(start) ** (PROMAX_POWER - 1)
    transform = np.linalg.lstsq(start, target, rcond=None)[0]
    # Scale the columns of the transform so that all components have variance 1.
    transform = transform * np.sqrt(np.diag(np.linalg.inv(transform.T @ transform)))
    inverse = np.linalg.inv(transform)
    return lengths * (start @ transform), inverse @ inverse.T


def oblimin(loadings: Array, axes: Array | None = None) -> tuple[Array, Array]:
    """Rotate loadings to minimize the products of their squares across columns (γ = 0, quartimin).

    R. I. Jennrich, "A simple general method for oblique rotation", Psychometrika 67, 2002:
    projected gradient steps from these axes, or those of the loadings, with rows as they are.
    Columns are ordered by their sum of squares.

    Return the loadings, (n_features, n_components), and the correlations of the components,
    (n_components, n_components).
    """

    def rotate(axes: Array) -> tuple[Array, float, Array]:
        """Return the loadings on axes of length 1, the criterion, and its gradient by axes."""
        inverse = np.linalg.inv(axes)
        rotated = loadings @ inverse.T
        others = (rotated**2).sum(axis=1, keepdims=True) - rotated**2
        gradient = -(rotated.T @ (rotated * others) @ inverse).T
        return rotated, float((rotated**2 * others).sum()) / 4, gradient

    axes, step = np.eye(loadings.shape[1]) if axes is None else axes, 1.0
    rotated, criterion, gradient = rotate(axes)
    for _ in range(_MAX_OBLIMIN_STEPS):
        direction = gradient - axes * (axes * gradient).sum(axis=0)
        size = float((direction**2).sum())
        if size <= _OBLIMIN_TOLERANCE**2:
            break
        step *= 2
        for _ in range(_MAX_HALVINGS):
            moved = axes - step * direction
            moved /= np.linalg.norm(moved, axis=0)
            further = rotate(moved)
            if further[1] < criterion - step * size / 2:
                break
            step /= 2
        else:  # rounding hides the rest of the descent
            break
        axes, (rotated, criterion, gradient) = moved, further
    order = np.argsort(-(rotated**2).sum(axis=0), kind="stable")
    ordered, correlation = rotated[:, order], (axes.T @ axes)[np.ix_(order, order)]
    signed = fix_signs(ordered)
    signs = np.where((signed * ordered).sum(axis=0) < 0, -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    return signed, correlation * np.outer(signs, signs)


def differentiate_rotation(
    rotate: Callable[[Array], Array], loadings: Array, rotated: Array
) -> Array:
    """Return the derivatives of rotated loadings by loadings, each row by row.

    `loadings` and `rotated` are (n_features, n_components), and those of `rotate` may have other
    signs and another order of columns.
    """
    columns = []
    for step in _STEP * np.eye(loadings.size):
        check_cancelled()
        ends = (rotate(loadings + sign * step.reshape(loadings.shape)) for sign in (1.0, -1.0))
        above, below = (match_columns(end, rotated) for end in ends)
        columns.append((above - below).ravel() / (2 * _STEP))
    return np.stack(columns, axis=1)


def _find_lengths(loadings: Array) -> Array:
    """Return the length of each row, (n_features, 1), 1 of rows of zeros."""
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    return np.where(lengths > 0, lengths, 1.0)
