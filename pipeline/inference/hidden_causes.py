"""What hidden units turn on through the layers between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
