"""States of binary units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def list_states(n_units: int, first: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
    """Return all states of some units, or a range of them, (n_states, n_units).

    The bits of a state's number are its units, so the first unit changes fastest.
    """
    numbers = np.arange(first, 1 << n_units if stop is None else stop)
    return (numbers[:, None] >> np.arange(n_units) & 1).astype(np.uint8)
