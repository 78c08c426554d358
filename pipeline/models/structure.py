"""What a fit knows about its rows and features besides their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Structure:
    """Groups of rows, and items that are known; empty if a fit knows nothing but the values.

    Attributes
    ----------
    groups
        Names of the groups; empty without `--group`. The segments of the rows are their groups.
    features
        Names of the features.
    known_items
        Known slopes and offsets side by side, (n_features, n_components + 1), NaN where the fit
        estimates them; None if all are estimated.
    """

    groups: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    known_items: NDArray[np.float64] | None = None
