"""Check the groups of the rows of a fit, and adapt its model to them."""

from __future__ import annotations

import numpy as np

from pipeline.data.datasets import Dataset
from pipeline.data.weights import RowWeights
from pipeline.errors import FitError
from pipeline.models.base import Model, can_have_groups
from pipeline.models.registry import find_models
from pipeline.models.structure import Structure

_MIN_ROWS = 2


def check_can_have_groups(model: Model) -> None:
    """Refuse groups of rows if the model has no parameters by group."""
    if not can_have_groups(type(model)):
        able = [name for name, other in find_models().items() if can_have_groups(other)]
        raise FitError(
            f"{model.name} has no parameters by group. These models have: {', '.join(able)}.",
            parameter="group",
        )


def adapt_to_groups(
    model: Model, dataset: Dataset, split: str | None, weights: RowWeights | None
) -> Model:
    """Return the model for groups of rows.

    Parameters
    ----------
    model
        A model that `check_can_have_groups` accepts.
    dataset, split
        The rows to fit; `dataset.segment_by` made the groups its segments.
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
    return model.with_structure(Structure(groups=names, features=tuple(dataset.feature_names)))
