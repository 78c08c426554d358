"""The penalty of `prior_precision`, written out."""

import math

import numpy as np
from numpy.typing import ArrayLike


def penalize(slopes: ArrayLike, precision: float, n_rows: float) -> float:
    """Return the penalty of all slopes together, nats; `n_rows` are those of the smallest group."""
    u = precision * float((np.asarray(slopes) ** 2).sum())
    limit = 0.036 * n_rows
    return 0.5 * u if u <= limit else 0.5 * limit * (1 + math.log(u / limit))
