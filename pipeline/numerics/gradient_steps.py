"""Steps along a gradient, uphill, in place: one pass over the numbers of all parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Numbers = NDArray[Any]

_kernel = njit(nogil=True, cache=True, error_model="numpy")


@_kernel
def momentum_step(
    parameters: Numbers, slope: Numbers, velocity: Numbers, rate: Any, momentum: Any
) -> None:
    """Move by the velocity, which keeps a share of itself and gains `rate` times the slope.

    Parameters
    ----------
    parameters, slope, velocity
        (n_numbers,), the first and the last changed in place.
    rate, momentum
        Of the arrays' type.
    """
    for k in range(len(parameters)):
        velocity[k] = momentum * velocity[k] + rate * slope[k]
        parameters[k] += velocity[k]


@_kernel
def adam_step(
    parameters: Numbers,
    slope: Numbers,
    first: Numbers,
    second: Numbers,
    rate: Any,
    gains: Numbers,
    floor: Any,
) -> None:
    """Move each number by its mean slope over the root of its mean square.

    Parameters
    ----------
    parameters, slope, first, second
        (n_numbers,), all but the slope changed in place.
    rate
        Length of the step, corrected for means that began at 0.
    gains
        Share of the new slope in its mean, and of its square in theirs, (2,).
    floor
        Added to the root.
    """
    gain, gain_of_square = gains
    for k in range(len(parameters)):
        first[k] += gain * (slope[k] - first[k])
        second[k] += gain_of_square * (slope[k] * slope[k] - second[k])
        parameters[k] += rate * first[k] / (math.sqrt(second[k]) + floor)


@_kernel
def centre(slope: Numbers, below: Numbers, above: Numbers) -> None:
    """Turn a gradient into that of a model around means, in the parameters of the plain one.

    With s and t the slopes of the biases below and above, those of the weights lose s λᵀ + μ tᵀ;
    what they are then, times the means, is taken off those of the biases.

    Parameters
    ----------
    slope
        Of weights, with the biases of the units below as last column, those of the units above as
        last row, (n_below + 1, n_above + 1); changed in place.
    below, above
        Means μ and λ, (n_below,) and (n_above,).
    """
    n, m = len(below), len(above)
    of_above = slope[n]
    taken = np.zeros(m, slope.dtype)
    for i in range(n):
        row = slope[i]
        of_below, mean, total = row[m], below[i], row[m]
        for j in range(m):
            row[j] -= of_below * above[j] + mean * of_above[j]
            taken[j] += mean * row[j]
        for j in range(m):
            total -= row[j] * above[j]
        row[m] = total
    for j in range(m):
        of_above[j] -= taken[j]
    of_above[m] = 0
