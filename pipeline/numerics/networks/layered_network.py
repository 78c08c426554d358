"""Networks of sigmoid layers: activations, scores, gradients and codes.

Tied weights, by `Layer`. Up: h_k = σ(W_kᵀ h_{k−1} + b_k) from h_0 = x. Down:
g_{k−1} = σ(W_k g_k + c_k) from g_L = h_L, so that g_0 = x̂. The gradient is propagated back from x̂
to the codes and on to x (back-propagation; D. E. Rumelhart, G. E. Hinton, R. J. Williams, Nature
323, 1986).

Three layers, by `ThreeLayerNetwork`: inputs x, hidden units h = σ(Wᵀx + b), outputs o = Vᵀh + c.
The target is a category, P(y = k) = exp(o_k) / Σ_l exp(o_l), or a number, y = o plus Gaussian noise
of variance 1. In both cases the gradient with respect to o is the target minus the prediction.

All arrays of a call have one type; training uses float32 for speed. Codes, hidden units and outputs
of given rows are summed in a fixed order and in double precision, so that a row's bits do not
depend on the other rows in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from pipeline.numerics.logistic.logistic_units import fill_probabilities
from pipeline.numerics.networks.boltzmann_rows import affine_outputs, apply_sigmoid

Numbers = NDArray[Any]
Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
Pull = Callable[[Numbers], Numbers]
"""Maps the mean codes of a batch, (n_components,), to the gradient that a penalty adds per row."""
_kernel = njit(nogil=True, cache=True, error_model="numpy")


class Layer(NamedTuple):
    """Parameters of a layer, or their gradient."""

    weights: Numbers  # W_k, (n_below, n_above)
    # Biases c_k (down) and b_k (up), (n_below,) and (n_above,).
    visible: Numbers
    hidden: Numbers


Layers = Sequence[Layer]


def count_parameters(sizes: Sequence[int]) -> int:
    """Count the parameters of a network with these layer sizes."""
    return sum(below * above + below + above for below, above in pairwise(sizes))


def split_into_layers(flat: Numbers, sizes: Sequence[int]) -> tuple[Layer, ...]:
    """View a flat array, (count_parameters(sizes),), as layers, lowest first."""
    layers, start = [], 0
    for below, above in pairwise(sizes):
        ends = start + np.cumsum([below * above, below, above])
        weights, visible, hidden = np.split(flat[start : ends[-1]], ends[:-1] - start)
        layers.append(Layer(weights.reshape(below, above), visible, hidden))
        start = int(ends[-1])
    return tuple(layers)


def flatten_layers(layers: Layers) -> Numbers:
    """Return the parameters as one flat array, the inverse of `split_into_layers`."""
    return np.concatenate([np.ravel(part) for layer in layers for part in layer])


def sigmoid(inputs: Numbers) -> Numbers:
    """Return 1 / (1 + exp(−input)) with the type of the input."""
    if inputs.dtype != np.float32:
        values: Numbers = expit(inputs)
        return values
    out = np.empty_like(inputs)
    fill_probabilities(inputs, inputs.shape[1], out)
    return out


def propagate_up(layers: Layers, x: Numbers) -> list[Numbers]:
    """Return x and the units of every layer, (n_rows, n_units) each."""
    values = [x]
    for layer in layers:
        values.append(sigmoid(values[-1] @ layer.weights + layer.hidden))
    return values


def propagate_down(layers: Layers, codes: Numbers) -> list[Numbers]:
    """Return the codes, then the reconstruction of every layer; the last one is logit x̂."""
    values = [codes]
    for k, layer in reversed([*enumerate(layers)]):
        inputs = values[-1] @ layer.weights.T + layer.visible
        values.append(sigmoid(inputs) if k else inputs)
    return values


def negative_cross_entropies(inputs: Numbers, targets: Numbers, mask: Numbers | None) -> Numbers:
    """Return Σ x log x̂ + (1 − x) log(1 − x̂) over the observed values of each row, (n_rows,)."""
    return _sum_observed(targets * inputs - np.logaddexp(0, inputs), mask)


def negative_squared_errors(inputs: Numbers, targets: Numbers, mask: Numbers | None) -> Numbers:
    """Return −½ Σ (x − x̂)² over the observed values of each row, (n_rows,)."""
    return _sum_observed(-0.5 * (targets - sigmoid(inputs)) ** 2, mask)


def _sum_observed(scores: Numbers, mask: Numbers | None) -> Numbers:
    sums: Numbers = (scores if mask is None else scores * mask).sum(axis=1, dtype=np.float64)
    return sums


def fill_gradient(
    layers: Layers,
    inputs: Numbers,
    targets: Numbers,
    mask: Numbers | None,
    gradient: Layers,
    *,
    squared: bool = False,
    pull: Pull | None = None,
) -> None:
    """Fill in the gradient of the score, summed over rows.

    Parameters
    ----------
    layers
        Parameters, lowest layer first.
    inputs, targets
        Input and desired output of the network, between 0 and 1, (n_rows, n_features).
    mask
        1 where the target counts, 0 elsewhere; None if all targets count.
    gradient
        Output with the shapes of `layers`; overwritten.
    squared
        Use the score of `negative_squared_errors` instead of `negative_cross_entropies`.
    pull
        Its result is added to the gradient with respect to each row's codes.
    """
    up = propagate_up(layers, inputs)
    down = propagate_down(layers, up[-1])
    back = sigmoid(down.pop())
    error = targets - back
    if squared:
        error *= back * (1 - back)
    if mask is not None:
        error *= mask
    for layer, layer_gradient, above in zip(layers, gradient, reversed(down), strict=True):
        np.matmul(error.T, above, out=layer_gradient.weights)
        np.sum(error, axis=0, out=layer_gradient.visible)
        error = error @ layer.weights
        if pull is not None and above is up[-1]:
            error += pull(above.mean(axis=0))
        error *= above * (1 - above)
    _fill_encoder_gradient(layers, up, error, gradient)


def _fill_encoder_gradient(
    layers: Layers, up: list[Numbers], error: Numbers, gradient: Layers
) -> None:
    """Add the gradient of the way up, given `error`, the gradient by the inputs of the codes."""
    for k in range(len(layers) - 1, -1, -1):
        below = up[k]
        gradient[k].weights[:] += below.T @ error
        np.sum(error, axis=0, out=gradient[k].hidden)
        if k:
            error = (error @ layers[k].weights.T) * (below * (1 - below))


def encode_layers(layers: Layers, means: Array, X: Bits, observed: Bits | None) -> Array:
    """Return the units of the last layer, (n_samples, n_components).

    The parameters other than the layers are as for `affine_outputs`.
    """
    first = layers[0]
    values = affine_outputs(first.weights, first.hidden, means, X, observed)
    apply_sigmoid(values)
    for layer in layers[1:]:
        inputs = np.empty((len(values), len(layer.hidden)))
        _fill_inputs(layer.weights, layer.hidden, values, inputs)
        apply_sigmoid(inputs)
        values = inputs
    return values


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_inputs(weights: Array, hidden: Array, values: Array, inputs: Array) -> None:
    for n in range(len(values)):
        total = inputs[n]
        total[:] = hidden
        for i in range(values.shape[1]):
            value, unit_weights = values[n, i], weights[i]
            for j in range(len(total)):
                total[j] += value * unit_weights[j]


class ThreeLayerNetwork(NamedTuple):
    """Parameters, all of one type.

    Attributes
    ----------
    weights, biases
        W, (n_features, n_hidden), and b, (n_hidden,).
    outputs, output_biases
        V, (n_hidden, n_outputs), and c, (n_outputs,).
    """

    weights: Numbers
    biases: Numbers
    outputs: Numbers
    output_biases: Numbers

    def flatten(self) -> Numbers:
        """Return all parameters as one flat array, (n_numbers,)."""
        return np.concatenate([part.ravel() for part in self])

    def unflatten(self, flat: Numbers) -> ThreeLayerNetwork:
        """Return a network with these shapes whose arrays are views of `flat`."""
        ends = np.cumsum([part.size for part in self])[:-1]
        parts = zip(np.split(flat, ends), self, strict=True)
        return ThreeLayerNetwork(*(values.reshape(part.shape) for values, part in parts))


def score_gradient(
    network: ThreeLayerNetwork, X: Numbers, targets: Numbers, is_category: bool
) -> ThreeLayerNetwork:
    """Return the gradient of the mean score of rows.

    `X`, 0 where missing, is (n_samples, n_features). `targets`, (n_samples, n_outputs), are 1 at
    the category of the row, or the number.
    """
    hidden, predicted = _forward_pass(network, X, is_category)
    error = (targets - predicted) * X.dtype.type(1 / len(X))
    hidden_error = (error @ network.outputs.T) * hidden * (1 - hidden)
    return ThreeLayerNetwork(
        X.T @ hidden_error, hidden_error.sum(axis=0), hidden.T @ error, error.sum(axis=0)
    )


def _forward_pass(
    network: ThreeLayerNetwork, X: Numbers, is_category: bool
) -> tuple[Numbers, Numbers]:
    """Return the hidden units, and the category probabilities or the expected number."""
    hidden = expit(X @ network.weights + network.biases)
    outputs = hidden @ network.outputs + network.output_biases
    return hidden, np.exp(log_softmax(outputs, axis=1)) if is_category else outputs


def row_scores(outputs: Numbers, targets: Numbers, is_category: bool) -> Array:
    """Return the score of each row, (n_samples,), nats.

    The score is log P(y) for a category, and −(y − o)²/2, the log-density up to a constant, for a
    number. Outputs o and targets are (n_samples, n_outputs).
    """
    if is_category:
        scores: Array = (targets * log_softmax(outputs, axis=1)).sum(axis=1)
        return scores
    return np.asarray(-0.5 * ((targets - outputs) ** 2).sum(axis=1))


def compute_hidden_units(
    network: ThreeLayerNetwork, means: Array, X: Bits, observed: Bits | None
) -> Array:
    """Return h, (n_samples, n_hidden), with missing inputs at the mean of their feature.

    The other parameters are as for `affine_outputs`.
    """
    hidden: Array = expit(affine_outputs(network.weights, network.biases, means, X, observed))
    return hidden


def compute_outputs(network: ThreeLayerNetwork, hidden: Array) -> Array:
    """Return o = Vᵀh + c of each row, (n_samples, n_outputs)."""
    outputs = np.tile(network.output_biases, (len(hidden), 1))
    _add_products(network.outputs, hidden, outputs)
    return outputs


@_kernel
def _add_products(weights: Array, hidden: Array, outputs: Array) -> None:
    for n in range(len(outputs)):
        for j in range(hidden.shape[1]):
            for k in range(outputs.shape[1]):
                outputs[n, k] += hidden[n, j] * weights[j, k]
