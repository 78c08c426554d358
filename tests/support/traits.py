"""Answers drawn from a latent-trait model, and their log-likelihood by Gauss–Hermite quadrature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_N_NODES = {1: 101, 2: 41}
_LIGHT = -40.0  # logarithm of weights of nodes that are left out


class DrawnAnswers(NamedTuple):
    """Levels of graded items, NaN if missing, and the truth.

    Attributes
    ----------
    X
        Levels 0, 1, … of all items, (n_rows, n_items).
    traits
        Traits of the rows, (n_rows, q).
    slopes, offsets
        Slopes, (n_items, q), and offsets of the planes, (n_items, n_levels − 1).
    """

    X: Floats
    traits: Floats
    slopes: Floats
    offsets: Floats


def draw_answers(
    observed: NDArray[np.bool_], q: int, n_levels: int, rng: np.random.Generator
) -> DrawnAnswers:
    """Draw answers to items with slopes of length 0.8 to 2; a quarter of them is reversed.

    With two traits, slopes have random directions.
    """
    n_rows, n_items = observed.shape
    traits = rng.standard_normal((n_rows, q))
    angles = rng.uniform(0, np.pi, n_items)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    if q == 1:
        directions = np.where(rng.random((n_items, 1)) < 0.25, -1.0, 1.0)
    slopes = rng.uniform(0.8, 2, (n_items, 1)) * directions
    steps = np.linspace(0.8, -0.8, n_levels - 1) if n_levels > 2 else np.zeros(1)
    offsets = rng.standard_normal((n_items, 1)) + steps
    noise = rng.logistic(size=observed.shape)
    logits = (traits @ slopes.T)[:, :, None] + offsets + noise[:, :, None]
    X = (logits > 0).sum(axis=2).astype(float)
    return DrawnAnswers(np.where(observed, X, np.nan), traits, slopes, offsets)


def sum_log_likelihood(X: Floats, slopes: Floats, offsets: Floats) -> float:
    """Return the log-likelihood of graded answers, nats."""
    q = slopes.shape[1]
    nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NODES[q])
    points = np.stack(np.meshgrid(*[nodes] * q, indexing="ij"), -1).reshape(-1, q)
    log_weights = np.log(weights / weights.sum())
    log_weights = np.add.reduce(np.meshgrid(*[log_weights] * q, indexing="ij")).reshape(-1)
    points, log_weights = points[log_weights > _LIGHT], log_weights[log_weights > _LIGHT]
    above = scipy.special.expit((slopes @ points.T)[:, :, None] + offsets[:, None])
    edges = [np.ones((*above.shape[:2], 1)), above, np.zeros((*above.shape[:2], 1))]
    joined = np.concatenate(edges, axis=2)
    log_probabilities = np.log(np.maximum(joined[:, :, :-1] - joined[:, :, 1:], 1e-300))
    total = np.tile(log_weights, (len(X), 1))
    for level in range(log_probabilities.shape[2]):
        total += np.equal(X, level).astype(float) @ log_probabilities[:, :, level]
    return float(scipy.special.logsumexp(total, axis=1).sum())


def count_sign_changes(slopes: Floats, truth: Floats) -> int:
    """Return how many slopes on one trait have another sign than most of those that agree."""
    agree = slopes.reshape(-1) * truth.reshape(-1) > 0
    return int(min(agree.sum(), (~agree).sum()))
