"""A network of layers of sigmoid units, up and back down by the same weights: its score and slope.

Up: h_k = σ(W_kᵀ h_{k−1} + b_k) from h_0 = x. Down: g_{k−1} = σ(W_k g_k + c_k) from g_L = h_L, so
that g_0 = x̂. The slope goes back the same way, from x̂ up to the codes and down again to x
(back-propagation; D. E. Rumelhart, G. E. Hinton, R. J. Williams, Nature 323, 1986). All arrays of a
call are of one type, float32 where speed counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.logistic.logistic_units import fill_probabilities

Numbers = NDArray[Any]
Pull = Callable[[Numbers], Numbers]
"""Slope of a penalty on codes, (n_components,), by their means over the rows, (n_components,)."""


class Layer(NamedTuple):
    """Parameters of a layer, or their slopes.

    Attributes
    ----------
    weights
        W_k, (n_below, n_above).
    visible, hidden
        Biases c_k of the way down and b_k of the way up: (n_below,) and (n_above,).
    """

    weights: Numbers
    visible: Numbers
    hidden: Numbers


Layers = Sequence[Layer]


def count_parameters(sizes: Sequence[int]) -> int:
    """Count the parameters of layers between so many units."""
    return sum(below * above + below + above for below, above in pairwise(sizes))


def split_into_layers(flat: Numbers, sizes: Sequence[int]) -> tuple[Layer, ...]:
    """Give views of a flat array, (count_numbers(sizes),), as layers from the lowest up."""
    layers, at = [], 0
    for below, above in pairwise(sizes):
        ends = at + np.cumsum([below * above, below, above])
        weights, visible, hidden = np.split(flat[at : ends[-1]], ends[:-1] - at)
        layers.append(Layer(weights.reshape(below, above), visible, hidden))
        at = int(ends[-1])
    return tuple(layers)


def flatten_layers(layers: Layers) -> Numbers:
    """Undo `split_into_layers`."""
    return np.concatenate([np.ravel(part) for layer in layers for part in layer])


def sigmoid(inputs: Numbers) -> Numbers:
    """Give 1 / (1 + exp(−input)), of the same type."""
    if inputs.dtype != np.float32:
        values: Numbers = expit(inputs)
        return values
    out = np.empty_like(inputs)
    fill_probabilities(inputs, inputs.shape[1], out)
    return out


def propagate_up(layers: Layers, x: Numbers) -> list[Numbers]:
    """Give x and the units of every layer, (n_rows, n_units) each."""
    values = [x]
    for layer in layers:
        values.append(sigmoid(values[-1] @ layer.weights + layer.hidden))
    return values


def propagate_down(layers: Layers, codes: Numbers) -> list[Numbers]:
    """Give the codes and what every layer expects below it; last the inputs to x̂, not x̂."""
    values = [codes]
    for k, layer in reversed([*enumerate(layers)]):
        inputs = values[-1] @ layer.weights.T + layer.visible
        values.append(sigmoid(inputs) if k else inputs)
    return values


def negative_cross_entropies(inputs: Numbers, wanted: Numbers, seen: Numbers | None) -> Numbers:
    """Give Σ x log x̂ + (1 − x) log(1 − x̂) of each row over values that are seen, (n_rows,)."""
    return _sum_observed(wanted * inputs - np.logaddexp(0, inputs), seen)


def negative_squared_errors(inputs: Numbers, wanted: Numbers, seen: Numbers | None) -> Numbers:
    """Give −½ Σ (x − x̂)² of each row over values that are seen, (n_rows,)."""
    return _sum_observed(-0.5 * (wanted - sigmoid(inputs)) ** 2, seen)


def _sum_observed(scores: Numbers, seen: Numbers | None) -> Numbers:
    sums: Numbers = (scores if seen is None else scores * seen).sum(axis=1, dtype=np.float64)
    return sums


def fill_gradient(
    layers: Layers,
    given: Numbers,
    wanted: Numbers,
    seen: Numbers | None,
    slopes: Layers,
    *,
    squared: bool = False,
    pull: Pull | None = None,
) -> None:
    """Fill in the slope of the score, summed over rows.

    Parameters
    ----------
    layers
        Parameters, from the lowest layer up.
    given
        What goes in, (n_rows, n_features).
    wanted
        What should come out; shares between 0 and 1 will do.
    seen
        1 where that counts, 0 elsewhere; None where all does.
    slopes
        As the layers; overwritten.
    squared
        Whether the score is that of `negative_squared_errors` instead of `negative_cross_entropies`.
    pull
        Is added to the slope of each row's codes.
    """
    up = propagate_up(layers, given)
    down = propagate_down(layers, up[-1])
    back = sigmoid(down.pop())
    error = wanted - back
    if squared:
        error *= back * (1 - back)
    if seen is not None:
        error *= seen
    for layer, slope, above in zip(layers, slopes, reversed(down), strict=True):
        np.matmul(error.T, above, out=slope.weights)
        np.sum(error, axis=0, out=slope.visible)
        error = error @ layer.weights
        if pull is not None and above is up[-1]:
            error += pull(above.mean(axis=0))
        error *= above * (1 - above)
    _fill_encoder_gradient(layers, up, error, slopes)


def _fill_encoder_gradient(
    layers: Layers, up: list[Numbers], error: Numbers, slopes: Layers
) -> None:
    """Go on from the slope of the inputs to the codes, (n_rows, n_components)."""
    for k in range(len(layers) - 1, -1, -1):
        below = up[k]
        slopes[k].weights[:] += below.T @ error
        np.sum(error, axis=0, out=slopes[k].hidden)
        if k:
            error = (error @ layers[k].weights.T) * (below * (1 - below))
