"""How many rows a sample needs on which a fit starts, and how many of them give the information."""

from __future__ import annotations

import numpy as np

from pipeline.models.base import Model
from pipeline.models.state import FitState

ROWS_PER_PARAMETER = 50
"""Rows per parameter of a sample whose optimum, or information, serves for all rows."""
ROWS_PER_CLASS = 50
"""Rows of the smallest class of a mixture in the sample."""
ROWS_PER_SEGMENT = 200
"""Rows of the smallest segment with parameters of its own in the sample."""


def count_information_rows(model: Model, state: FitState, n_features: int) -> float:
    """Count the rows whose information takes as long to sum as a pass over all rows."""
    n_rows = int(state.auxiliary["n_rows"])
    plain, both = (
        model.estimate_work(state.params, {**state.working, **more}, n_features, n_rows).nanoseconds
        for more in ({}, {"share": np.array(1.0)})
    )
    return n_rows * plain / max(both - plain, 1.0)
