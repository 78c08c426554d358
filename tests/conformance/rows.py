"""Rows for the laws, and what was fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from latentbits.functions import Fitted
from pipeline.data.features import Feature, split_values
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import FitState, fit_model
from pipeline.inference.sample import divide_among_segments, draw_model_rows, iter_sampling_tasks
from pipeline.models.structure import Structure
from storage.artifacts.artifacts import Artifact, ArtifactReader
from storage.dataset.chunks import unpack_rows
from tests.conformance.facts import Facts
from tests.support.strategies import DenseData, draw_probit_data, make_memory_rows, tables

N_FEATURES = 6
LEVELED = tuple(Feature(f"i{i}", tuple("0123"[:k])) for i, k in enumerate([3, 2, 4, 3, 2]))
MANY = 40  # enough for estimates that are right only for many features, such as those of PCA
SERIAL = SerialExecutor()

small_tables = tables(st.just(N_FEATURES))


@lru_cache
def probit(n_features: int = N_FEATURES) -> DenseData:
    rng = np.random.default_rng(11)
    X, *_ = draw_probit_data(4000, n_features, 2, rng, (0.4, 0.8), 0.7)
    return DenseData(X, None, rng.integers(0, 3, len(X)))


@lru_cache
def fitted(facts: Facts, n_features: int = N_FEATURES, **more: Any) -> FitState:
    return fit_model(facts.make(**more), make_memory_rows(probit(n_features), [1000] * 4), SERIAL)


@lru_cache
def draw_levels() -> DenseData:
    """Planes of 600 rows of the features `LEVELED`, with missing values, in 3 segments."""
    rng = np.random.default_rng(5)
    slopes = np.array([[1.5, 0.0], [1.2, 0.8], [-0.5, 1.4], [1.0, 1.0], [0.0, -1.6]])
    y = rng.standard_normal((600, 2)) @ slopes.T + rng.logistic(size=(600, len(LEVELED)))
    levels = np.empty(y.shape, np.uint8)
    for i, feature in enumerate(LEVELED):
        levels[:, i] = np.searchsorted(np.linspace(-1, 1, len(feature.levels) + 1)[1:-1], y[:, i])
    observed = (rng.random(y.shape) < 0.9).astype(np.uint8)
    return DenseData(*split_values(levels, observed, LEVELED), np.arange(600) % 3)


@lru_cache
def fit_levels(facts: Facts) -> FitState:
    model = facts.make(**facts.leveled).with_structure(Structure(features=LEVELED))
    return fit_model(model, make_memory_rows(draw_levels()), SERIAL)


def with_column(kind: str) -> DenseData:
    """Rows whose column 2 is degenerate, by itself or beside column 1."""
    X, mask = probit().X[:400].copy(), np.ones((400, N_FEATURES), np.uint8)
    first_half = np.arange(400) < 200
    if kind == "complementary":
        X[:, 2] = 1 - X[:, 1]
    elif kind == "duplicated":
        X[:, 2] = X[:, 1]
    elif kind == "never observed":
        mask[:, 2] = 0
    elif kind == "observed once":
        mask[1:, 2] = 0
    elif kind == "never observed with another":
        mask[first_half, 1] = mask[~first_half, 2] = 0
    elif kind == "constant where another is observed":
        mask[first_half, 1] = 0
        X[~first_half, 2] = 1
    else:
        X[:, 2] = {"zeros": 0, "ones": 1, "a single one": np.arange(400) == 7}[kind]
    return DenseData(X, None if mask.all() else mask, np.arange(400) % 3)


@lru_cache
def varied(n_rows: int = 20_000) -> DenseData:
    """Rows of 4 segments, whose 2 sources are the stronger ones by turns."""
    rng = np.random.default_rng(3)
    mixing = rng.uniform(0.6, 1.2, (10, 2)) * np.where(np.arange(10)[:, None] % [2, 3], 1, -1)
    deviations = np.array([[1.6, 0.4], [0.4, 1.2], [1.2, 1.0], [0.4, 0.4]])
    segments = rng.choice(4, n_rows, p=[0.35, 0.3, 0.2, 0.15])
    y = rng.standard_normal((len(segments), 2)) * deviations[segments] @ mixing.T
    noise = rng.standard_normal(y.shape)
    return DenseData((y + noise > np.linspace(-0.6, 0.6, 10)).astype(np.uint8), None, segments)


def sampled(artifact: Artifact, n_rows: int) -> DenseData:
    """Draw rows as `flows.sample` does."""
    fit_ = Fitted.from_artifact(artifact)
    draws = [
        *iter_sampling_tasks(*divide_among_segments(fit_.params, n_rows), len(fit_.feature_names))
    ]
    reader = ArtifactReader.from_artifact(artifact)
    rows = np.vstack([draw_model_rows(fit_.model, reader, 0, drawn) for drawn in draws])
    segments = [np.repeat(drawn.segments or 0, drawn.n_rows) for drawn in draws]
    return DenseData(unpack_rows(rows, len(fit_.feature_names)), None, np.concatenate(segments))


def outcome(model: Any, data: DenseData, sizes: Sequence[int] | None = None) -> FitState | FitError:
    """A fit, or why it is refused."""
    try:
        return fit_model(model, make_memory_rows(data, sizes), SERIAL)
    except FitError as error:
        return error
