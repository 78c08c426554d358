"""Units that are on with probability 1 / (1 + exp(−input)): probabilities and keyed draws.

Numbers are of single precision. Loops go over the units of a row without branches, so that LLVM
turns them into vector instructions, and no sum is reordered: a row comes to the same bits whatever
its neighbours. Draws come from the SplitMix64 words of `pipeline.random.RowRandom`, two from each:
the low half for a unit of the first half of the layer, the high one for a unit of the second.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from pipeline.numerics.intrinsics import make_fma, make_power_of_two
from pipeline.numerics.row_random import draw_word, make_row_state

Singles = NDArray[np.float32]
Words = NDArray[np.uint64]

_LN_2 = np.float32(math.log(2))
_LN_2_REST = np.float32(math.log(2) - float(np.float32(math.log(2))))
_LOG2_E = np.float32(1 / math.log(2))
_TO_INTEGER = np.float32(1.5 * 2.0**23)  # added, leaves the nearest integer in the low bits
_CAP = np.float32(80)
_ONE, _TO_SHARE = np.float32(1), np.float32(2.0**-32)
_HALF_UP = np.float32(2.0**-33)
_NO_SHIFT, _SHIFT = np.uint64(0), np.uint64(32)

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_inlined = njit(nogil=True, error_model="numpy", forceinline=True)


def _exp_coefficients(degree: int = 5) -> tuple[np.float32, ...]:
    """Powers of r in exp(r) for |r| <= log(2) / 2; relative error 2e-7."""
    t = chebyshev.chebpts1(4 * degree)
    half = math.log(2) / 2
    powers = chebyshev.cheb2poly(chebyshev.chebfit(t, np.exp(half * t), degree))
    return tuple(np.float32(c) for c in powers / half ** np.arange(degree + 1))


_EXP = _exp_coefficients()


_fma = make_fma(types.float32)
# of k given as _TO_INTEGER + k
_power_of_two = make_power_of_two(types.float32, 23, 127)


@_inlined
def _exp_minus(x: Any) -> Any:
    """Return exp(−x), x cut to ±80."""
    cut = min(max(x, -_CAP), _CAP)
    shifted = _fma(cut, -_LOG2_E, _TO_INTEGER)
    k = shifted - _TO_INTEGER
    r = _fma(k, -_LN_2_REST, _fma(k, -_LN_2, -cut))
    p = _EXP[-1]
    for power in range(len(_EXP) - 2, -1, -1):
        p = _fma(p, r, _EXP[power])
    return _power_of_two(shifted) * p


@_kernel
def fill_probabilities(inputs: Singles, width: int, out: Singles, weight: Any = _ONE) -> None:
    """Fill the first units of each row with their probability of being on.

    Parameters
    ----------
    inputs
        (n_rows, at least width).
    width
        Number of units.
    out
        (n_rows, at least width); what lies behind the units stays.
    weight
        What probabilities are taken times, of single precision.
    """
    for row in range(len(inputs)):
        given, filled = inputs[row], out[row]
        for j in range(width):
            filled[j] = weight / (_ONE + _exp_minus(given[j]))


@_kernel
def fill_draws(inputs: Singles, width: int, states: Words, first: int, out: Singles) -> None:
    """Draw the first units of each row, 0 or 1.

    Parameters
    ----------
    inputs, width, out
        As for `fill_probabilities`.
    states
        What the draws of each row come from, `row_states` its key, (n_rows,).
    first
        Number of the first word to draw from; `words_of(width)` are used.
    """
    half = (width + 1) // 2
    words = np.empty(half, np.uint64)
    for row in range(len(inputs)):
        given, drawn, state = inputs[row], out[row], states[row]
        for j in range(half):
            words[j] = draw_word(state, first + j)
        _fill_half_words(words, _NO_SHIFT, given[:half], drawn[:half])
        _fill_half_words(words, _SHIFT, given[half:width], drawn[half:width])


@_inlined
def _fill_half_words(words: Words, shift: np.uint64, given: Singles, drawn: Singles) -> None:
    """Draw by 32 bits of each word, those from `shift` on."""
    for j in range(len(drawn)):
        drawn[j] = _is_on(given[j], np.uint32(words[j] >> shift))


@_inlined
def _is_on(given: Any, bits: Any) -> Any:
    """Compare a draw u from (0, 1) with the probability: u (1 + exp(−input)) < 1."""
    u = _fma(np.float32(bits), _TO_SHARE, _HALF_UP)
    return _ONE if u * (_ONE + _exp_minus(given)) < _ONE else np.float32(0)


def count_draw_words(width: int) -> int:
    """Count the words that draws of so many units are made from."""
    return (width + 1) // 2


@_kernel
def row_states(key: np.uint64, rows: NDArray[np.int64]) -> Words:
    """Give what the draws of rows come from; `key` is that of a `RowRandom`."""
    states = np.empty(len(rows), np.uint64)
    for n in range(len(rows)):
        states[n] = make_row_state(key, rows[n])
    return states
