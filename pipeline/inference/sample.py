"""Draw rows from a fitted model in tasks whose results do not depend on where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.matching import get_fitted_segments
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import check_can_sample, check_has_continuous_features
from pipeline.params import params_from_arrays

_CELLS_AT_ONCE = 1 << 21


class SamplingTask(NamedTuple):
    """A range of rows to draw."""

    key: int  # index of the range; key and seed determine the draws
    n_rows: tuple[int, ...]  # number of rows in each segment, in order
    segments: tuple[int, ...] = ()  # the model's indices of these segments; empty if it has none


def draw_model_rows(
    model: Model, arrays: Callable[[], Mapping[str, NDArray[Any]]], seed: int, task: SamplingTask
) -> NDArray[np.uint8]:
    """Draw the rows of a task, packed in little bit order, (n_rows, n_bytes).

    `arrays` returns the arrays of the parameters on the worker; `seed` is the same for all tasks.
    """
    params, rng, segments = _prepare_task(model, arrays, seed, task)
    X = check_can_sample(model).sample(params, sum(task.n_rows), rng, segments)
    return np.packbits(X, axis=1, bitorder="little")


def draw_model_rows_with_numbers(
    model: Model, arrays: Callable[[], Mapping[str, NDArray[Any]]], seed: int, task: SamplingTask
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw rows as `draw_model_rows` does, and values of continuous features.

    The values have the shape (n_rows, n_continuous).
    """
    params, rng, segments = _prepare_task(model, arrays, seed, task)
    able = check_has_continuous_features(model)
    X, numbers = able.sample_numbers(params, sum(task.n_rows), rng, segments)
    return np.packbits(X, axis=1, bitorder="little"), numbers.astype(np.float32)


def _prepare_task(
    model: Model, arrays: Callable[[], Mapping[str, NDArray[Any]]], seed: int, task: SamplingTask
) -> tuple[Any, np.random.Generator, NDArray[np.int64] | None]:
    """Return the parameters, the generator and the segments of a task."""
    params = params_from_arrays(model.params, arrays())
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(task.key,)))
    segments = np.repeat(task.segments, task.n_rows) if task.segments else None
    return params, rng, segments


def divide_among_segments(params: Any, n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide rows among a fitted model's segments in proportion to the fitted rows.

    Returns
    -------
    tuple
        Number of rows and index of each segment; if the model has none, all rows and no index.
    """
    indices, fitted_rows = get_fitted_segments(params)
    if not len(indices):
        return np.array([n_rows]), indices
    return count_rows_by_segment(fitted_rows.astype(np.float64), n_rows), indices


def iter_sampling_tasks(
    n_rows: NDArray[np.int64], segments: NDArray[np.int64], n_features: int
) -> Iterator[SamplingTask]:
    """Split rows, segment by segment, into tasks that depend only on these arguments.

    `n_rows` are the rows of each segment, (n_segments,), or of all rows, (1,). `segments` are the
    model's indices of the segments, empty if it has none.
    """
    edges = np.concatenate([[0], np.cumsum(n_rows)])
    size = max(64, _CELLS_AT_ONCE // max(n_features, 1))
    for key, start in enumerate(range(0, int(edges[-1]), size)):
        counts = np.diff(np.clip(edges, start, start + size))
        occupied = np.flatnonzero(counts)
        indices = tuple(segments[occupied].tolist()) if len(segments) else ()
        yield SamplingTask(key, tuple(counts[occupied].tolist()), indices)


def count_rows_by_segment(shares: NDArray[np.float64], n_rows: int) -> NDArray[np.int64]:
    """Divide rows among segments by their shares, but give each segment at least two rows."""
    if n_rows < 2 * len(shares):
        raise FitError(
            f"{n_rows} rows are too few: each of the {len(shares)} segments needs two. Draw at "
            f"least {2 * len(shares)}.",
            parameter="rows",
        )
    edges = np.rint(n_rows * np.cumsum(shares / shares.sum())).astype(np.int64)
    counts: NDArray[np.int64] = np.diff(edges, prepend=0)
    short = np.maximum(2 - counts, 0)
    counts += short
    for _ in range(short.sum()):
        counts[np.argmax(counts)] -= 1
    return counts


def feature_probabilities_by_unit(strengths: Sequence[Array]) -> list[Array]:
    """Return the probability that a unit alone turns a feature on, (n_features, n_units) per layer.

    The result is exact for one and two layers. In deeper networks it is an approximation, which
    treats the units in between as independent. `strengths` are the probabilities that a unit turns
    on a unit of the layer below, (n_below, n_units) per layer.
    """
    by_layer = [strengths[0]]
    for layer in strengths[1:]:
        off = [np.prod(1 - by_layer[-1] * unit, axis=1) for unit in layer.T]
        by_layer.append(1 - np.column_stack(off))
    return by_layer
