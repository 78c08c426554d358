"""Steps along a gradient, uphill, in place: one pass over the numbers of all parameters."""

from __future__ import annotations

import math
from typing import Any

from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.networks.layered_network import Layer

Numbers = NDArray[Any]

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_sum_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})


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
    gains: Any,
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
        Share of the new slope in its mean, and of its square in theirs: a pair.
    floor
        Added to the root.
    """
    gain, gain_of_square = gains
    for k in range(len(parameters)):
        first[k] += gain * (slope[k] - first[k])
        second[k] += gain_of_square * (slope[k] * slope[k] - second[k])
        parameters[k] += rate * first[k] / (math.sqrt(second[k]) + floor)


@_kernel
def centre_gradient(slope: Layer, below: Numbers, above: Numbers) -> None:
    """Turn the slope of the weights into that of weights around means.

    With s and t the slopes of the biases below and above, which are those of the centred model too,
    it loses s λᵀ + μ tᵀ.

    Parameters
    ----------
    slope
        Of the weights and biases of a layer; the weights' is changed in place. What lies beyond
        the means is left alone.
    below, above
        Means μ and λ, (n_below,) and (n_above,).
    """
    weights, visible, hidden = slope
    for i in range(len(below)):
        row, of_below, mean = weights[i], visible[i], below[i]
        for j in range(len(above)):
            row[j] -= of_below * above[j] + mean * hidden[j]


@_sum_kernel
def apply_centred_step(layer: Layer, move: Layer, below: Numbers, above: Numbers) -> None:
    """Move a model around means: its plain biases make up for what its weights do to the means.

    The plain biases below move by less of the weights' move times λ, those above by less of μ times
    it.

    Parameters
    ----------
    layer, move
        Plain parameters, changed in place, and a step of the centred model.
    below, above
        As for `centre_gradient`.
    """
    m = len(above)
    weights, visible, hidden = layer
    of_weights, of_visible, of_hidden = move
    of_above = of_hidden[:m].copy()
    for i in range(len(below)):
        row, moved, mean = weights[i], of_weights[i], below[i]
        for j in range(m):
            row[j] += moved[j]
            of_above[j] -= mean * moved[j]
        total = of_visible[i]
        for j in range(m):
            total -= moved[j] * above[j]
        visible[i] += total
    for j in range(m):
        hidden[j] += of_above[j]
