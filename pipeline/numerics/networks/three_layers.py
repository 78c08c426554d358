"""A three-layer network: inputs x, hidden units h = σ(Wᵀx + b), outputs o = Vᵀh + c.

The target is a category, P(y = k) = exp(o_k) / Σ_l exp(o_l), or a number, y = o plus Gaussian noise
of variance 1. In both cases the gradient with respect to o is the target minus the prediction.
Hidden units and outputs are summed in a fixed order, so that a row has the same bits whatever other
rows are in the call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from pipeline.numerics.networks.affine_rows import affine_outputs

Numbers = NDArray[Any]
Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

_kernel = njit(nogil=True, cache=True, error_model="numpy")


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

    Parameters
    ----------
    network
        Parameters.
    X
        Inputs, (n_samples, n_features); 0 where missing.
    targets
        1 at the category of the row, or the number, (n_samples, n_outputs).
    is_category
        Whether the target is a category.
    """
    hidden, predicted = _forward_pass(network, X, is_category)
    error = (targets - predicted) * X.dtype.type(1 / len(X))
    through = (error @ network.outputs.T) * hidden * (1 - hidden)
    return ThreeLayerNetwork(
        X.T @ through, through.sum(axis=0), hidden.T @ error, error.sum(axis=0)
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
    number.

    Parameters
    ----------
    outputs
        o, (n_samples, n_outputs).
    targets, is_category
        As for `score_gradient`.
    """
    if is_category:
        scores: Array = (targets * log_softmax(outputs, axis=1)).sum(axis=1)
        return scores
    return np.asarray(-0.5 * ((targets - outputs) ** 2).sum(axis=1))


def compute_hidden_units(
    network: ThreeLayerNetwork, means: Array, X: Bits, observed: Bits | None
) -> Array:
    """Return h, (n_samples, n_hidden), with missing inputs at the mean of their feature.

    Parameters
    ----------
    network
        Parameters.
    means
        Means of the features, (n_features,).
    X, observed
        Values (0 where missing) and mask, (n_samples, n_features); None if nothing is missing.
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
