"""A network of three layers: inputs, hidden units h = σ(Wᵀx + b), outputs o = Vᵀh + c.

What it is trained to give is a category, P(y = k) = exp(o_k) / Σ_l exp(o_l), or a number, y = o up
to Gaussian noise of variance 1. Both have the same slope by o: what was wanted less what was given.
Codes and outputs of a row are sums in a fixed order: the same bits whatever its neighbours.
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
    """Parameters, of one type.

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
        """Give all parameters one after another, (n_numbers,)."""
        return np.concatenate([part.ravel() for part in self])

    def unflatten(self, flat: Numbers) -> ThreeLayerNetwork:
        """Give a network of this one's shapes whose arrays are views of `flat`."""
        ends = np.cumsum([part.size for part in self])[:-1]
        parts = zip(np.split(flat, ends), self, strict=True)
        return ThreeLayerNetwork(*(values.reshape(part.shape) for values, part in parts))


def score_gradient(
    network: ThreeLayerNetwork, X: Numbers, wanted: Numbers, is_category: bool
) -> ThreeLayerNetwork:
    """Give the slope of the mean score of rows by every parameter.

    Parameters
    ----------
    network
        Parameters.
    X
        Inputs, (n_samples, n_features), missing ones 0.
    wanted
        1 at the category of the row, or the number, (n_samples, n_outputs).
    is_category
        Whether outputs are those of categories.
    """
    hidden, given = _forward_pass(network, X, is_category)
    error = (wanted - given) * X.dtype.type(1 / len(X))
    through = (error @ network.outputs.T) * hidden * (1 - hidden)
    return ThreeLayerNetwork(
        X.T @ through, through.sum(axis=0), hidden.T @ error, error.sum(axis=0)
    )


def _forward_pass(
    network: ThreeLayerNetwork, X: Numbers, is_category: bool
) -> tuple[Numbers, Numbers]:
    """Give hidden units, and probabilities of categories or the expected number."""
    hidden = expit(X @ network.weights + network.biases)
    outputs = hidden @ network.outputs + network.output_biases
    return hidden, np.exp(log_softmax(outputs, axis=1)) if is_category else outputs


def row_scores(outputs: Numbers, wanted: Numbers, is_category: bool) -> Array:
    """Give the score of each row, nats, (n_samples,).

    It is log P(y) of a category; of a number −(y − o)²/2, the log-density up to a constant.

    Parameters
    ----------
    outputs
        o, (n_samples, n_outputs).
    wanted, is_category
        As for `score_gradient`.
    """
    if is_category:
        found: Array = (wanted * log_softmax(outputs, axis=1)).sum(axis=1)
        return found
    return np.asarray(-0.5 * ((wanted - outputs) ** 2).sum(axis=1))


def compute_hidden_units(
    network: ThreeLayerNetwork, means: Array, X: Bits, observed: Bits | None
) -> Array:
    """Give h of each row, (n_samples, n_hidden), missing inputs at the mean of their feature.

    Parameters
    ----------
    network
        Parameters.
    means
        Of the features, (n_features,).
    X, observed
        Values, 0 where missing, and mask, (n_samples, n_features); no mask where none is missing.
    """
    hidden: Array = expit(affine_outputs(network.weights, network.biases, means, X, observed))
    return hidden


def compute_outputs(network: ThreeLayerNetwork, hidden: Array) -> Array:
    """Give o = Vᵀh + c of each row, (n_samples, n_outputs)."""
    outputs = np.tile(network.output_biases, (len(hidden), 1))
    _add_products(network.outputs, hidden, outputs)
    return outputs


@_kernel
def _add_products(weights: Array, hidden: Array, outputs: Array) -> None:
    for n in range(len(outputs)):
        for j in range(hidden.shape[1]):
            for k in range(outputs.shape[1]):
                outputs[n, k] += hidden[n, j] * weights[j, k]
