"""Match the segments of a fitted model to those of other data, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.params import get_named_arrays

UNKNOWN_SEGMENT = -1
"""Index of segments that were not fitted; models use the mean of the fitted segments."""


def get_fitted_segments(params: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the segments that have parameters of their own.

    Returns
    -------
    tuple
        Their indices in the fitted data and their numbers of rows, (n_segments,) each; empty if the
        model has no segments.
    """
    if not any("segment" in dims for dims, _ in get_named_arrays(params).values()):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return params.segments, params.segment_rows


def draw_segments(params: Any, n_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw segments in proportion to their fitted rows, (n_samples,)."""
    indices, rows = get_fitted_segments(params)
    return rng.choice(indices, n_samples, p=rows / rows.sum())


def map_fitted_segments(params: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the index of each segment that has parameters of its own, by name.

    Parameters
    ----------
    params
        Fitted parameters.
    names
        Names of the segments of the fitted data.
    """
    indices, _ = get_fitted_segments(params)
    return {names[index]: index for index in indices.tolist()}


def find_segment_indices(known: Mapping[str, int], names: Sequence[str]) -> NDArray[np.int64]:
    """Return the model's index of every named segment, (n_segments,), or `UNKNOWN_SEGMENT`."""
    return np.array([known.get(name, UNKNOWN_SEGMENT) for name in names], np.int64)


def describe_unknown_segments(known: Mapping[str, int], names: Sequence[str]) -> list[str]:
    """Return a warning that lists the segments without parameters, if the model has segments.

    A segment without a name holds rows whose segment was not given; it is left out of the warning.
    """
    indices = np.flatnonzero(find_segment_indices(known, names) == UNKNOWN_SEGMENT)
    unknown = [index for index in indices.tolist() if names[index]]
    if not known or not unknown:
        return []
    text = "segments that were not fitted, so the mean of all fitted segments is used: {segments}"
    return [FitWarning(text, segments=tuple(unknown)).render(segments=names)]
