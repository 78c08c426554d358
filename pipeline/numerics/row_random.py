"""The numbers of `pipeline.random.RowRandom` within compiled code, one at a time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

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


@njit(nogil=True, cache=True, inline="always")
def word_at(state: np.uint64, draw: int) -> np.uint64:
    """Give the 64 bits that the draw of this index is made from."""
    return _mixed(state + np.uint64(draw + 1) * _GOLDEN)


@njit(nogil=True, cache=True)
def uniform_at(state: np.uint64, draw: int) -> float:
    """Give the draw of this index: that of `RowRandom.uniform` in the row and column."""
    return (float(word_at(state, draw) >> _HIGH) + 0.5) * 2.0**-53


@njit(nogil=True, cache=True)
def first_draws(key: np.uint64, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give the first draw of each row, (n_rows,): `RowRandom.uniform(rows, 1)` as a vector."""
    draws = np.empty(len(rows))
    for n in range(len(rows)):
        draws[n] = uniform_at(row_state(key, rows[n]), 0)
    return draws
