"""Logistic units, which are on with probability 1 / (1 + exp(−input)), and their softplus.

Probabilities and draws are in single precision. The loops over the units of a row have no branches,
so that LLVM vectorizes them. No sum is reordered, so that a row's bits do not depend on the other
rows in the call. Each SplitMix64 word of `pipeline.random.RowRandom` gives two draws of 24 bits:
from its low half for an even unit, from its high half for the odd unit that follows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.special import ndtr

from pipeline.numerics.intrinsics import make_fma, make_power_of_two
from pipeline.numerics.row_random import draw_word, make_row_state

Array = NDArray[np.float64]
Singles = NDArray[np.float32]
Words = NDArray[np.uint64]

_LN_2 = np.float32(math.log(2))
_LN_2_REST = np.float32(math.log(2) - float(np.float32(math.log(2))))
_LOG2_E = np.float32(1 / math.log(2))
_TO_INTEGER = np.float32(1.5 * 2.0**23)  # adding it leaves the nearest integer in the low bits
_CAP = np.float32(80)
_ONE, _TO_SHARE = np.float32(1), np.float32(2.0**-24)
_LEAST_SHARE = np.float32(2.0**-26)  # also when it is added, shares round to less than 1
_UNUSED_BITS = np.uint32(8)

_WIDE_DEVIATION = 1.5  # above this standard deviation, Gauss–Laguerre is more accurate
_NODES, _MASS = np.polynomial.hermite_e.hermegauss(30)
_SIDE_NODES, _SIDE_MASS = np.polynomial.laguerre.laggauss(30)
_SIDE_MASS = _SIDE_MASS * np.exp(_SIDE_NODES) * np.log1p(np.exp(-_SIDE_NODES))

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_inlined = njit(nogil=True, error_model="numpy", forceinline=True)


def _exp_coefficients(degree: int = 5) -> tuple[np.float32, ...]:
    """Return coefficients of a polynomial for exp(r), |r| <= log(2) / 2; relative error 2e-7."""
    t = chebyshev.chebpts1(4 * degree)
    half = math.log(2) / 2
    powers = chebyshev.cheb2poly(chebyshev.chebfit(t, np.exp(half * t), degree))
    return tuple(np.float32(c) for c in powers / half ** np.arange(degree + 1))


_EXP = _exp_coefficients()


_fma = make_fma(types.float32)
# Returns 2**k, given _TO_INTEGER + k.
_power_of_two = make_power_of_two(types.float32, 23, 127)


@_inlined
def _exp_minus(x: Any) -> Any:
    """Return exp(−x), with x clipped to ±80."""
    clipped = min(max(x, -_CAP), _CAP)
    shifted = _fma(clipped, -_LOG2_E, _TO_INTEGER)
    k = shifted - _TO_INTEGER
    r = _fma(k, -_LN_2_REST, _fma(k, -_LN_2, -clipped))
    p = _EXP[-1]
    for power in range(len(_EXP) - 2, -1, -1):
        p = _fma(p, r, _EXP[power])
    return _power_of_two(shifted) * p


@_kernel
def fill_probabilities(inputs: Singles, width: int, out: Singles, weight: Any = _ONE) -> None:
    """Compute the probability that each unit is on, times `weight`.

    `inputs` and `out` are (n_rows, at least width); columns from `width` on are not touched.
    """
    for row in range(len(inputs)):
        row_inputs, row_out = inputs[row], out[row]
        for j in range(width):
            row_out[j] = weight / (_ONE + _exp_minus(row_inputs[j]))


@_kernel
def fill_draws(inputs: Singles, width: int, states: Words, first: int, out: Singles) -> None:
    """Draw the units of each row, 0 or 1.

    `inputs`, `width` and `out` are as for `fill_probabilities`; `states` are from `row_states`,
    (n_rows,). The first random word has the number `first`; `count_draw_words(width)` words are
    used.
    """
    words = np.empty((width + 1) // 2, np.uint64)
    halves = words.view(np.uint32)  # the low half first
    for row in range(len(inputs)):
        row_inputs, row_out, state = inputs[row], out[row], states[row]
        for j in range(len(words)):
            words[j] = draw_word(state, first + j)
        for j in range(width):
            row_out[j] = _is_on(row_inputs[j], halves[j])


@_inlined
def _is_on(unit_input: Any, bits: Any) -> Any:
    """Return 1 if a draw u from (0, 1) is below the probability: u (1 + exp(−input)) < 1."""
    # CPUs convert signed integers faster.
    u = _fma(np.float32(np.int32(bits >> _UNUSED_BITS)), _TO_SHARE, _LEAST_SHARE)
    return _ONE if u * (_ONE + _exp_minus(unit_input)) < _ONE else np.float32(0)


def count_draw_words(width: int) -> int:
    """Return the number of random words that `width` draws use."""
    return (width + 1) // 2


@_kernel
def row_states(key: np.uint64, rows: NDArray[np.int64]) -> Words:
    """Return the random state of each row, (n_rows,), given the key of a `RowRandom`."""
    states = np.empty(len(rows), np.uint64)
    for n in range(len(rows)):
        states[n] = make_row_state(key, rows[n])
    return states


def mean_softplus(mean: Array, deviation: Array) -> Array:
    """Return E log(1 + exp(y)) for y ~ N(mean, deviation²), elementwise, to 1e-8.

    Narrow normals are integrated by Gauss–Hermite quadrature. For wide ones, E max(y, 0) has a
    closed form, and the rest, log(1 + exp(−|y|)), is integrated on either side of 0 by
    Gauss–Laguerre.
    """
    expectation, is_wide = np.empty(mean.shape), deviation > _WIDE_DEVIATION
    expectation[is_wide] = _mean_for_wide(mean[is_wide], deviation[is_wide])
    expectation[~is_wide] = _mean_for_narrow(mean[~is_wide], deviation[~is_wide])
    return expectation


def _mean_for_narrow(mean: Array, deviation: Array) -> Array:
    total = np.zeros_like(mean)
    for node, mass in zip(_NODES, _MASS / _MASS.sum(), strict=True):
        total += mass * np.logaddexp(0.0, mean + node * deviation)
    return total


def _mean_for_wide(mean: Array, deviation: Array) -> Array:
    standardized = mean / deviation
    total = mean * ndtr(standardized) + deviation * _density(standardized)
    for node, mass in zip(_SIDE_NODES, _SIDE_MASS, strict=True):
        density = _density(node / deviation - standardized) + _density(
            node / deviation + standardized
        )
        total += mass / deviation * density
    return np.asarray(total)


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))
