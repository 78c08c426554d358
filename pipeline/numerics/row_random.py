"""The numbers of `pipeline.random.RowRandom` within compiled code, one at a time."""

from __future__ import annotations

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_A, _B, _C, _HIGH = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@njit(nogil=True, cache=True, inline="always")
def _mixed(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> _A)) * _FIRST
    z = (z ^ (z >> _B)) * _SECOND
    return z ^ (z >> _C)


@njit(nogil=True, cache=True)
def row_state(key: np.uint64, row: int) -> np.uint64:
    """Give what the draws of a row come from; `key` is that of the `RowRandom`."""
    return _mixed(np.uint64(row) * _GOLDEN + key)


@njit(nogil=True, cache=True)
def uniform_at(state: np.uint64, draw: int) -> float:
    """Give the draw of this index: that of `RowRandom.uniform` in the row and column."""
    bits = _mixed(state + np.uint64(draw + 1) * _GOLDEN)
    return (float(bits >> _HIGH) + 0.5) * 2.0**-53
