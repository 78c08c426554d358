"""Check the groups of the rows of a fit, and that its model can use them."""

from __future__ import annotations

import numpy as np

from pipeline.data.datasets import Dataset
from pipeline.data.weights import RowWeights
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import find_models
from pipeline.models.support import check_parts

_MIN_ROWS = 2


def check_can_have_groups(model: Model) -> None:
    """Refuse groups of rows if the model has no parameters by group."""
    check_parts(model, ["groups"], find_models)


def list_groups(dataset: Dataset, split: str | None, weights: RowWeights | None) -> tuple[str, ...]:
    """Return the names of the groups of rows, and check that each has enough rows.

    Parameters
    ----------
    dataset, split
        The rows to fit; the groups are the segments of the dataset.
    weights
        The weights of the rows, if they have any.

    Raises
    ------
    FitError
        If a group has fewer than 2 rows with a weight above 0.
    """
    names = dataset.segment_names
    n_rows = np.zeros(len(names), np.int64)
    numbers = None if weights is None else dataset.iter_numbers(weights.column, split)
    for _, segments in dataset.iter_segments(split):
        if weights is not None and numbers is not None:
            segments = segments[weights.to_units(next(numbers)[1]) > 0]
        n_rows += np.bincount(segments, minlength=len(names))
    if n_rows.min() < _MIN_ROWS:
        name, n = names[int(n_rows.argmin())], int(n_rows.min())
        rows = f"{n} row{'s' * (n != 1)}" + ("" if split is None else f" of the split {split}")
        raise FitError(
            f"The group {name!r} has {rows}, but at least {_MIN_ROWS} are needed. Leave its rows "
            "out, or choose another column.",
            parameter="group",
        )
    return names
