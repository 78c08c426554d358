"""Derivatives by central differences: the oracle of gradients and standard errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def differentiate(function: Callable[[Floats], Any], at: Floats, step: ArrayLike = 1e-5) -> Floats:
    """Return the slopes of a function by each entry of `at`, (*shape of its values, n_entries).

    `step` is the length of all steps, or of the step by each entry.
    """
    sizes = np.broadcast_to(step, at.shape)
    slopes = [
        (np.asarray(function(at + one)) - np.asarray(function(at - one))) / (2 * size)
        for one, size in zip(np.diag(sizes), sizes, strict=True)
    ]
    return np.stack(slopes, axis=-1)


def differentiate_twice(
    function: Callable[[Floats], float], at: Floats, step: ArrayLike = 1e-3
) -> Floats:
    """Return the Hessian of a function, from n² + n + 1 values of it."""
    sizes = np.broadcast_to(step, at.shape)
    center, moves = function(at), np.diag(sizes)
    # Second differences by one entry, and by the sum of two.
    own = np.array([function(at + a) + function(at - a) - 2 * center for a in moves])
    hessian = np.diag(own)
    for i, a in enumerate(moves):
        for j, b in enumerate(moves[:i]):
            both = function(at + a + b) + function(at - a - b) - 2 * center
            hessian[i, j] = hessian[j, i] = (both - own[i] - own[j]) / 2
    return hessian / np.outer(sizes, sizes)


def compute_sandwich(
    score_rows: Callable[[Floats], Floats],
    at: Floats,
    weights: Floats,
    clusters: NDArray[np.int64] | None = None,
    step: ArrayLike = 1e-3,
) -> Floats:
    """Return the covariance of estimates from weighted rows, which clusters may hold together.

    `score_rows` gives the log-likelihood of each row.
    """
    scores = weights[:, None] * differentiate(score_rows, at, step)
    factor = 1.0
    if clusters is not None:
        names = np.unique(clusters)
        scores = np.array([scores[clusters == name].sum(axis=0) for name in names])
        factor = len(names) / (len(names) - 1)
    hessian = differentiate_twice(lambda place: float(weights @ score_rows(place)), at, step)
    inverse = np.linalg.inv(-hessian)
    return factor * inverse @ scores.T @ scores @ inverse
