"""Rows for the laws, and what was fitted to them.

Rows are made from values by feature: levels counted from 0, or numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from latentbits.functions import Fitted
from pipeline.data.blocks import RowSource
from pipeline.data.features import (
    find_continuous,
    name_planes,
    split_levels,
    sum_planes,
)
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import FitState, fit_model
from pipeline.inference.sample import (
    divide_among_segments,
    draw_model_rows,
    draw_model_rows_with_numbers,
    iter_sampling_tasks,
)
from storage.artifacts.artifacts import Artifact, ArtifactReader
from storage.dataset.chunks import unpack_rows
from tests.conformance.facts import Facts
from tests.support.strategies import DenseData, bit_matrices, draw_gaussians, make_memory_rows
from tests.support.values import make_data as make_values

Floats = NDArray[np.float64]

MANY = 40  # enough for estimates that are right only for many features, such as those of PCA
N_VARIED_FEATURES = 10
CENTER, SCALE = 3.0, 2.0  # of continuous features
SERIAL = SerialExecutor()


def make_data(
    facts: Facts,
    values: Floats,
    seen: NDArray[np.bool_] | None = None,
    segments: NDArray[np.int64] | None = None,
) -> DenseData:
    """Rows with these values, (n_samples, n_features), and a mask of the same shape, or None."""
    counts = [len(feature.levels) for feature in facts.features]
    return make_values(values, counts, seen, segments=segments)


def cut_values(facts: Facts, x: Floats, thresholds: Floats) -> Floats:
    """Values by feature, given what is cut, or shown as it is, and the middle thresholds."""
    values = CENTER + SCALE * x
    for i, feature in enumerate(facts.features):
        if n_planes := feature.n_planes:
            steps = 0.8 * (np.arange(n_planes) - (n_planes - 1) / 2)
            values[:, i] = (x[:, i, None] > thresholds[i] + steps).sum(axis=1)
    return values


def find_highest(facts: Facts) -> Floats:
    """The highest level of each feature; 1 of continuous ones."""
    return np.maximum([float(feature.n_planes) for feature in facts.features], 1)


def reverse(facts: Facts, data: DenseData) -> DenseData:
    """The same rows with reversed levels, and numbers at the other side of `CENTER`."""
    highest = np.array([feature.n_planes for feature in facts.features], np.uint8)
    planes = split_levels(highest - sum_planes(data.X, facts.features), facts.features)
    numbers = None if data.numbers is None else 2 * np.float32(CENTER) - data.numbers
    return replace(data, X=planes * data.mask, numbers=numbers)


@st.composite
def small_tables(draw: st.DrawFn, facts: Facts) -> DenseData:
    """Few rows with or without missing values, in up to three segments."""
    shape = draw(st.integers(1, 150)), facts.n_features
    steps = draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, 11)))
    values = steps % (find_highest(facts) + 1)
    continuous = find_continuous(facts.features)
    values[:, continuous] = steps[:, continuous] / 4
    seen = draw(st.none() | bit_matrices(*map(st.just, shape)))
    segments = draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, 2)))
    return make_data(facts, values, None if seen is None else seen.astype(np.bool_), segments)


@lru_cache
def draw_probit_values(facts: Facts) -> tuple[Floats, NDArray[np.int64]]:
    """Values and segments of rows of a probit model."""
    rng = np.random.default_rng(11)
    x, _, thresholds, _ = draw_gaussians(facts.n_rows, facts.n_features, 2, rng, (0.4, 0.8), 0.7)
    return cut_values(facts, x, thresholds), rng.integers(0, 3, len(x))


@lru_cache
def probit(facts: Facts) -> DenseData:
    values, segments = draw_probit_values(facts)
    return make_data(facts, values, segments=segments)


def in_chunks(facts: Facts, n_chunks: int) -> RowSource:
    """The rows of `probit` in chunks of the same size."""
    return make_memory_rows(probit(facts), [facts.n_rows // n_chunks] * n_chunks)


def masked_probit(facts: Facts, n_rows: int, seed: int) -> DenseData:
    """The first rows of `probit`, a fifth of the values missing."""
    values, segments = (part[:n_rows] for part in draw_probit_values(facts))
    seen = np.random.default_rng(seed).random(values.shape) < 0.8
    return make_data(facts, values, seen, segments)


@lru_cache
def fitted(facts: Facts, **more: Any) -> FitState:
    return fit_model(facts.make(**more), in_chunks(facts, 2), SERIAL)


def with_column(facts: Facts, kind: str) -> DenseData:
    """Rows whose column 2 is degenerate, by itself or beside column 1."""
    values, seen = draw_probit_values(facts)[0][:400].copy(), np.ones((400, facts.n_features), bool)
    first_half, highest = np.arange(400) < 200, find_highest(facts)[2]
    if kind == "complementary":
        values[:, 2] = highest - values[:, 1]
    elif kind == "duplicated":
        values[:, 2] = values[:, 1]
    elif kind == "never observed":
        seen[:, 2] = False
    elif kind == "observed once":
        seen[1:, 2] = False
    elif kind == "never observed with another":
        seen[first_half, 1] = seen[~first_half, 2] = False
    elif kind == "constant where another is observed":
        seen[first_half, 1] = False
        values[~first_half, 2] = highest
    else:
        ones = {"zeros": 0, "ones": 1, "a single one": np.arange(400) == 7}[kind]
        values[:, 2] = highest * ones
    return make_data(facts, values, None if seen.all() else seen, np.arange(400) % 3)


def is_reported(facts: Facts, feature: int, reported: Sequence[int] | Sequence[str]) -> bool:
    """Whether a message names a feature, by its index or name."""
    return bool({feature, facts.features[feature].name} & {*reported})


@lru_cache
def varied(facts: Facts) -> DenseData:
    """Rows of 4 segments, whose 2 sources are the stronger ones by turns."""
    rng = np.random.default_rng(3)
    n_features = facts.n_features
    signs = np.where(np.arange(n_features)[:, None] % [2, 3], 1, -1)
    mixing = rng.uniform(0.6, 1.2, (n_features, 2)) * signs
    deviations = np.array([[1.6, 0.4], [0.4, 1.2], [1.2, 1.0], [0.4, 0.4]])
    segments = rng.choice(4, facts.n_varied, p=[0.35, 0.3, 0.2, 0.15])
    y = rng.standard_normal((len(segments), 2)) * deviations[segments] @ mixing.T
    noise = rng.standard_normal(y.shape)
    values = cut_values(facts, y + noise, np.linspace(-0.6, 0.6, n_features))
    return make_data(facts, values, segments=segments)


def draw_from(
    facts: Facts,
    params: Any,
    n_rows: int,
    seed: int,
    segments: NDArray[np.int64] | None = None,
    **more: Any,
) -> DenseData:
    """Rows that the model samples."""
    model, rng = facts.make(**more), np.random.default_rng(seed)
    if not find_continuous(facts.features):
        return DenseData(model.sample(params, n_rows, rng, segments), None, segments)
    X, numbers = model.sample_numbers(params, n_rows, rng, segments)
    return DenseData(X, None, segments, numbers=numbers.astype(np.float32))


def sampled(facts: Facts, artifact: Artifact, n_rows: int) -> DenseData:
    """Draw rows as `flows.sample` does."""
    fit_, n_planes = Fitted.from_artifact(artifact), len(name_planes(facts.features))
    tasks = [*iter_sampling_tasks(*divide_among_segments(fit_.params, n_rows), n_planes)]
    segments = np.concatenate([np.repeat(task.segments or 0, task.n_rows) for task in tasks])
    given = fit_.model, ArtifactReader.from_artifact(artifact), 0
    if not find_continuous(facts.features):
        bits, numbers = np.vstack([draw_model_rows(*given, task) for task in tasks]), None
    else:
        parts = [draw_model_rows_with_numbers(*given, task) for task in tasks]
        bits, numbers = (np.vstack(part) for part in zip(*parts, strict=True))
    return DenseData(unpack_rows(bits, n_planes), None, segments, numbers=numbers)


def outcome(model: Any, data: DenseData, sizes: Sequence[int] | None = None) -> FitState | FitError:
    """A fit, or why it is refused."""
    try:
        return fit_model(model, make_memory_rows(data, sizes), SERIAL)
    except FitError as error:
        return error
