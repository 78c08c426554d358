"""Regressions of an Ising model as arrays: how they are made, penalised and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.arrays import Array, Indices, Words
from pipeline.data.blocks import BinaryBlock
from pipeline.models.state import Arrays
from pipeline.numerics.bits import kernels
from pipeline.numerics.logistic.node_regressions import Regressions, fill_residuals

_CHECK_ROWS = 4096


def take_complete_rows(block: BinaryBlock) -> BinaryBlock:
    """Return the rows of a block without missing values."""
    if block.observed_words is None:
        return block
    words = np.bitwise_and.reduce(block.observed_words, axis=0)
    is_complete = kernels.unpack_rows(words[None], block.n_samples)[:, 0]
    return replace(block.take_rows(np.flatnonzero(is_complete)), observed_words=None)


def make_regressions(
    targets: Indices,
    columns: Sequence[Indices],
    values: Sequence[Array],
    *,
    all_active: bool,
) -> Regressions:
    """Return regressions of targets on columns, with the coefficients (n_penalties, n) of each."""
    n_columns = np.array([len(own) for own in columns], np.int64)
    n_penalties = np.array([len(own) for own in values], np.int64)
    groups = np.repeat(np.arange(len(targets)), n_penalties)
    places = np.concatenate([[0], np.cumsum(1 + n_columns[groups])])
    flat = np.concatenate([own.ravel() for own in values]) if len(values) else np.zeros(0)
    is_active = (flat != 0) | all_active
    is_active[places[:-1]] = True
    return Regressions(
        targets,
        np.concatenate([[0], np.cumsum(n_columns)]),
        np.concatenate(columns) if len(columns) else np.zeros(0, np.int64),
        groups,
        places,
        flat,
        is_active,
        np.ones(len(groups), np.bool_),
    )


def read_regressions(working: Arrays) -> Regressions:
    """Return the regressions in a working state."""
    return Regressions(*(working[name] for name in Regressions._fields))


def place_values(own: Regressions, n_features: int) -> tuple[Array, Array]:
    """Return the coefficients of a regression of each target: slopes and intercepts by feature."""
    slopes, intercepts = np.zeros((n_features, n_features)), np.zeros(n_features)
    for r, target in enumerate(own.targets.tolist()):
        values = own.values[own.places[r] : own.places[r + 1]]
        intercepts[target] = values[0]
        slopes[target, own.columns[own.starts[r] : own.starts[r + 1]]] = values[1:]
    return slopes, intercepts


def count_neighbours(own: Regressions) -> Indices:
    """Return the number of slopes of each regression that are not 0, (n_regressions,)."""
    is_slope = own.values != 0
    is_slope[own.places[:-1]] = False
    return np.asarray(np.add.reduceat(is_slope, own.places[:-1], dtype=np.int64))


def sum_penalties(own: Regressions, scales: Array, lasso: Array, ridge: Array) -> Array:
    """Return the penalty per row of each regression, (n_regressions,)."""
    if not len(own.columns):
        return np.zeros(len(own.groups))
    n_columns = np.diff(own.starts)[own.groups]
    first = own.starts[own.groups]
    places = np.arange(len(own.values)) - np.repeat(own.places[:-1], 1 + n_columns) - 1
    is_slope = places >= 0
    columns = own.columns[np.where(is_slope, np.repeat(first, 1 + n_columns) + places, 0)]
    sizes = np.where(is_slope, np.abs(own.values) * scales[columns], 0.0)
    total = np.add.reduceat(sizes, own.places[:-1])
    squares = np.add.reduceat(sizes**2, own.places[:-1])
    return np.asarray(lasso * total + ridge * squares / 2)


def sum_products(words: Words, weights: Array, own: Regressions) -> Array:
    """Return Σ_n w (x_i − p_i) x_j of each regression and feature, in single precision."""
    total = np.zeros((len(own.targets), len(words)))
    for first in range(0, len(weights), _CHECK_ROWS):
        n = min(_CHECK_ROWS, len(weights) - first)
        residuals = np.empty((len(own.targets), n), np.float32)
        fill_residuals(words, weights, first, own, residuals)
        X = kernels.unpack_rows(words[:, first // 64 : (first + n + 63) // 64], n)
        total += residuals @ X.astype(np.float32)
    return total
