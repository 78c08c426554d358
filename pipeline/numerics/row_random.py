"""The random numbers of `pipeline.random.RowRandom` for compiled code, one at a time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_A, _B, _C, _HIGH = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@njit(nogil=True, cache=True, inline="always")
def _mix_bits(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> _A)) * _FIRST
    z = (z ^ (z >> _B)) * _SECOND
    return z ^ (z >> _C)


@njit(nogil=True, cache=True)
def make_row_state(key: np.uint64, row: int) -> np.uint64:
    """Return the random state of a row, given the key of its `RowRandom`."""
    return _mix_bits(np.uint64(row) * _GOLDEN_RATIO + key)


@njit(nogil=True, cache=True, inline="always")
def draw_word(state: np.uint64, draw: int) -> np.uint64:
    """Return the 64 random bits of the draw with this index."""
    return _mix_bits(state + np.uint64(draw + 1) * _GOLDEN_RATIO)


@njit(nogil=True, cache=True)
def draw_uniform(state: np.uint64, draw: int) -> float:
    """Return the draw with this index, as in that row and column of `RowRandom.uniform`."""
    return (float(draw_word(state, draw) >> _HIGH) + 0.5) * 2.0**-53


@njit(nogil=True, cache=True)
def draw_first_uniforms(key: np.uint64, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the first draw of each row, (n_rows,), as in `RowRandom.uniform(rows, 1)`."""
    draws = np.empty(len(rows))
    for n in range(len(rows)):
        draws[n] = draw_uniform(make_row_state(key, rows[n]), 0)
    return draws
