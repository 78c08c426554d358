"""Segments of a fitted model among those of other data: found by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.params import get_named_arrays

UNKNOWN_SEGMENT = -1
"""Index that no segment has: models take the mean of those they know."""


def get_fitted_segments(params: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the segments that have parameters of their own, as `Model` declares them.

    Returns
    -------
    tuple
        Their indices in the data fitted, and their rows there: (n_segments,) each, empty where a
        model has none.
    """
    if not any("segment" in dims for dims, _ in get_named_arrays(params).values()):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return params.segments, params.segment_rows


def draw_segments(params: Any, n_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw segments as often as the rows fitted are of them, (n_samples,)."""
    indices, rows = get_fitted_segments(params)
    return rng.choice(indices, n_samples, p=rows / rows.sum())


def map_fitted_segments(params: Any, names: Sequence[str]) -> dict[str, int]:
    """Give the index of each segment that has parameters of its own, by name.

    Parameters
    ----------
    params
        Fitted parameters.
    names
        Names of the segments of the data that were fitted.
    """
    indices, _ = get_fitted_segments(params)
    return {names[index]: index for index in indices.tolist()}


def find_segment_indices(known: Mapping[str, int], names: Sequence[str]) -> NDArray[np.int64]:
    """Give the model's index of every segment named, (n_segments,), `UNKNOWN_SEGMENT` where it has none."""
    return np.array([known.get(name, UNKNOWN_SEGMENT) for name in names], np.int64)


def describe_unknown_segments(known: Mapping[str, int], names: Sequence[str]) -> list[str]:
    """Warn of segments that the model has no parameters for, if it has any.

    One without a name is that of rows whose segment nobody gave, and nothing to warn of.
    """
    found = np.flatnonzero(find_segment_indices(known, names) == UNKNOWN_SEGMENT)
    unknown = [index for index in found.tolist() if names[index]]
    if not known or not unknown:
        return []
    text = "segments that were not fitted, taken as the mean of those that were: {segments}"
    return [FitWarning(text, segments=tuple(unknown)).render(segments=names)]
