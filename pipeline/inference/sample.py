"""Rows drawn from a fitted model, run by run, the same wherever a run is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.segments import get_fitted_segments
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import check_can_sample
from pipeline.params import params_from_arrays

_CELLS_AT_ONCE = 1 << 21


class SamplingTask(NamedTuple):
    """The work of one task.

    Attributes
    ----------
    key
        Index of the run of rows; together with the seed it decides the draws.
    n_rows
        Rows of each segment of it, in order.
    segments
        The model's indices of these segments; empty where it has none.
    """

    key: int
    n_rows: tuple[int, ...]
    segments: tuple[int, ...] = ()


def draw_model_rows(
    model: Model,
    arrays: Callable[[], Mapping[str, NDArray[Any]]],
    seed: int,
    draw: SamplingTask,
) -> NDArray[np.uint8]:
    """Draw the rows of a run, packed in little bit order: (n_rows, n_bytes).

    Parameters
    ----------
    model
        Hyperparameters.
    arrays
        Gives the parameters' arrays, where the task is.
    seed
        Seed of all runs.
    draw
        The run.

    Raises
    ------
    FitError
        If the model draws no rows.
    """
    params = params_from_arrays(model.params, arrays())
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(draw.key,)))
    segments = np.repeat(draw.segments, draw.n_rows) if draw.segments else None
    X = check_can_sample(model).sample(params, sum(draw.n_rows), rng, segments)
    return np.packbits(X, axis=1, bitorder="little")


def divide_among_segments(params: Any, n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide rows among the segments of a fitted model as the rows fitted were.

    Returns
    -------
    tuple
        Rows and index of each segment; all rows and no index where the model has none.

    Raises
    ------
    FitError
        If there are fewer than two rows a segment.
    """
    indices, fitted_rows = get_fitted_segments(params)
    if not len(indices):
        return np.array([n_rows]), indices
    return count_rows_by_segment(fitted_rows.astype(np.float64), n_rows), indices


def iter_sampling_tasks(
    n_rows: NDArray[np.int64], segments: NDArray[np.int64], n_features: int
) -> Iterator[SamplingTask]:
    """Cut rows, segment after segment, into runs that do not depend on where they are drawn.

    Parameters
    ----------
    n_rows
        Rows of each segment, or of all as (1,).
    segments
        The model's indices of the segments; empty where it has none.
    n_features
        Number of features: it decides the length of a run.
    """
    edges = np.concatenate([[0], np.cumsum(n_rows)])
    size = max(64, _CELLS_AT_ONCE // n_features)
    for key, start in enumerate(range(0, int(edges[-1]), size)):
        inside = np.diff(np.clip(edges, start, start + size))
        here = np.flatnonzero(inside)
        indices = tuple(segments[here].tolist()) if len(segments) else ()
        yield SamplingTask(key, tuple(inside[here].tolist()), indices)


def count_rows_by_segment(shares: NDArray[np.float64], n_rows: int) -> NDArray[np.int64]:
    """Divide rows among segments by their shares; each gets two at least, from the largest.

    Raises
    ------
    FitError
        If there are fewer than two rows a segment.
    """
    if n_rows < 2 * len(shares):
        raise FitError(
            f"Expected at least {2 * len(shares)}, two for each of {len(shares)} segments, got "
            f"{n_rows}. Ask for more.",
            parameter="rows",
        )
    edges = np.rint(n_rows * np.cumsum(shares / shares.sum())).astype(np.int64)
    counts: NDArray[np.int64] = np.diff(edges, prepend=0)
    short = np.maximum(2 - counts, 0)
    counts += short
    for _ in range(short.sum()):
        counts[np.argmax(counts)] -= 1
    return counts


Array = NDArray[np.float64]


def feature_probabilities_by_unit(strengths: Sequence[Array]) -> list[Array]:
    """Return the probability that a unit alone turns a feature on, (n_features, n_units) a layer.

    Units between are turned on one by one, and turn features on one by one: exact for one layer and
    two, an approximation beyond.
    """
    found = [strengths[0]]
    for between in strengths[1:]:
        off = [np.prod(1 - found[-1] * unit, axis=1) for unit in between.T]
        found.append(1 - np.column_stack(off))
    return found
