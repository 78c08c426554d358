"""Gradient steps: optimizers, centring, and the contrastive-divergence gradient of a layer.

Steps go uphill and in place, in one pass over all parameters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.logistic.logistic_units import fill_draws
from pipeline.numerics.networks.layered_network import Layer, sigmoid

Numbers = NDArray[Any]
Singles = NDArray[np.float32]

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_sum_kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})


@_kernel
def momentum_step(
    parameters: Numbers, gradient: Numbers, velocity: Numbers, rate: Any, momentum: Any
) -> None:
    """Move by the velocity, `momentum` times the previous velocity plus `rate` times the gradient.

    Parameters and velocity, (n_numbers,), are changed in place; scalars have the arrays' type.
    """
    for k in range(len(parameters)):
        velocity[k] = momentum * velocity[k] + rate * gradient[k]
        parameters[k] += velocity[k]


@_kernel
def adam_step(
    parameters: Numbers,
    gradient: Numbers,
    first: Numbers,
    second: Numbers,
    rate: Any,
    gains: Any,
    floor: Any,
) -> None:
    """Take an Adam step: move each parameter by its mean gradient over its root mean square.

    Parameters
    ----------
    parameters, gradient, first, second
        (n_numbers,); all but the gradient are changed in place.
    rate
        Learning rate, corrected for running means that started at 0.
    gains
        Weights of the new gradient in its running mean, and of its square in the mean square.
    floor
        Added to the root mean square.
    """
    gain, gain_of_square = gains
    for k in range(len(parameters)):
        first[k] += gain * (gradient[k] - first[k])
        second[k] += gain_of_square * (gradient[k] * gradient[k] - second[k])
        parameters[k] += rate * first[k] / (math.sqrt(second[k]) + floor)


@_kernel
def centre_gradient(gradient: Layer, below: Numbers, above: Numbers) -> None:
    """Convert the gradient of a layer's weights to the gradient of the centred model's weights.

    With s and t the gradients of the biases below and above, which are the same in both models,
    this subtracts s λᵀ + μ tᵀ, in place. μ and λ are the means of the units `below` and `above`,
    (n_below,) and (n_above,). Entries of the gradient beyond these lengths are not touched.
    """
    weights, visible, hidden = gradient
    for i in range(len(below)):
        row, visible_gradient, mean = weights[i], visible[i], below[i]
        for j in range(len(above)):
            row[j] -= visible_gradient * above[j] + mean * hidden[j]


@_sum_kernel
def apply_centred_step(layer: Layer, move: Layer, below: Numbers, above: Numbers) -> None:
    """Apply a step `move` of the centred model to the plain parameters of `layer`, in place.

    The change of the weights times λ is subtracted from the biases below, and μ times it from the
    biases above. `below` and `above` are as for `centre_gradient`.
    """
    m = len(above)
    weights, visible, hidden = layer
    weight_steps, visible_steps, hidden_steps = move
    above_steps = hidden_steps[:m].copy()
    for i in range(len(below)):
        row, row_steps, mean = weights[i], weight_steps[i], below[i]
        for j in range(m):
            row[j] += row_steps[j]
            above_steps[j] -= mean * row_steps[j]
        total = visible_steps[i]
        for j in range(m):
            total -= row_steps[j] * above[j]
        visible[i] += total
    for j in range(m):
        hidden[j] += above_steps[j]


def fill_contrastive_gradient(
    layer: Layer, inputs: Singles, mask: Singles | None, states: NDArray[np.uint64], gradient: Layer
) -> tuple[Singles, Singles]:
    """Fill in the centred contrastive-divergence gradient of a layer, summed over rows.

    Hidden units are drawn given the input; the reconstruction and its hidden units are
    probabilities, as in G. E. Hinton, R. R. Salakhutdinov (Science 313, 2006, note 13), who train
    upper layers on the probabilities of the layer below. The gradient is ⟨v hᵀ⟩ of the input minus
    ⟨v hᵀ⟩ of the reconstruction, in the model centred at the rows' means (J. Melchior, A. Fischer,
    L. Wiskott, JMLR 17, 2016); the step should be centred as well.

    Parameters
    ----------
    inputs
        Values between 0 and 1, (n_rows, n_below); missing ones at the mean of their unit.
    mask
        1 where a value is observed, else 0; None if all are observed. Missing values are not
        reconstructed.
    states
        Random state of each row, (n_rows,).
    gradient
        Output with the shapes of `layer`; overwritten.

    Returns
    -------
    Means of the units below and above, (n_below,) and (n_above,).
    """
    hidden_inputs = inputs @ layer.weights + layer.hidden
    hidden, up = np.empty_like(hidden_inputs), sigmoid(hidden_inputs)
    fill_draws(hidden_inputs, hidden_inputs.shape[1], states, 0, hidden)
    back = sigmoid(hidden @ layer.weights.T + layer.visible)
    if mask is not None:
        back = np.where(mask, back, inputs)
    up_again = sigmoid(back @ layer.weights + layer.hidden)
    np.matmul(inputs.T, up, out=gradient.weights)
    gradient.weights[:] -= back.T @ up_again
    gradient.visible[:] = (inputs - back).sum(axis=0)
    gradient.hidden[:] = (up - up_again).sum(axis=0)
    means = inputs.mean(axis=0), up.mean(axis=0)
    centre_gradient(gradient, *means)
    return means
