"""Rotations of weights: principal axes, varimax and promax."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.numerics.spectra.linalg import fix_signs

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
PROMAX_POWER = 4
_MAX_VARIMAX_ROUNDS, _VARIMAX_TOLERANCE = 1000, 1e-13


def turn_to_principal_axes(params: LatentTraitParams) -> LatentTraitParams:
    """Rotate the weights to their principal axes, and record the rotation in `axes`."""
    weights = principal_axes(params.weights)
    left, _, right = np.linalg.svd(params.weights.T @ weights)
    return replace(params.with_items(weights=weights), axes=left @ right)


def rotate_weights(weights: Array, rotation: str) -> tuple[Array, Array]:
    """Rotate weights by `principal`, `varimax` or `promax`; also return component correlations."""
    if rotation == "promax":
        return promax(weights)
    rotated = varimax(weights) if rotation == "varimax" else weights
    return rotated, np.eye(weights.shape[1])


def principal_axes(loadings: Array) -> Array:
    """Rotate loadings, (n_features, n_components), so that columns are orthogonal, longest first.

    The largest loadings of a column have a positive sum; those of an only column, all of them.
    """
    left, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    return fix_signs(left * lengths, power=1 if loadings.shape[1] == 1 else 3)


def varimax(loadings: Array) -> Array:
    """Rotate loadings to maximize the variance of their squares within columns.

    H. F. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika
    23, 1958, with rows scaled to length 1. Columns are ordered by their sum of squares.
    """
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    scaled = loadings / np.where(lengths > 0, lengths, 1.0)
    rotation, criterion = np.eye(loadings.shape[1]), 0.0
    for _ in range(_MAX_VARIMAX_ROUNDS):
        rotated = scaled @ rotation
        target = rotated**3 - rotated * (rotated**2).mean(axis=0)
        left, values, right = np.linalg.svd(scaled.T @ target)
        rotation = left @ right
        if values.sum() <= criterion * (1 + _VARIMAX_TOLERANCE):
            break
        criterion = values.sum()
    rotated = loadings @ rotation
    ordered = rotated[:, np.argsort(-(rotated**2).sum(axis=0), kind="stable")]
    return fix_signs(ordered, power=1 if loadings.shape[1] == 1 else 3)


def promax(loadings: Array) -> tuple[Array, Array]:
    """Simplify varimax loadings by letting the components correlate.

    A. E. Hendrickson, P. O. White, "Promax: a quick method for rotation to oblique simple
    structure", British Journal of Statistical Psychology 17, 1964, with power 4.

    Return the loadings, (n_features, n_components), and the correlations of the components,
    (n_components, n_components).
    """
    start = varimax(loadings)
    target = start * np.abs(start) ** (PROMAX_POWER - 1)
    transform = np.linalg.lstsq(start, target, rcond=None)[0]
    # Scale the columns of the transform so that all components have variance 1.
    transform = transform * np.sqrt(np.diag(np.linalg.inv(transform.T @ transform)))
    inverse = np.linalg.inv(transform)
    return start @ transform, inverse @ inverse.T
