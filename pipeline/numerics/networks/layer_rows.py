"""Codes of rows by layers of sigmoid units: a row comes to the same bits whatever its neighbours.

Sums go over the units below in a fixed order, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.networks.boltzmann_rows import (
    BoltzmannMachine,
    apply_sigmoid,
    hidden_probabilities,
)
from pipeline.numerics.networks.layered_network import Layer

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

_kernel = njit(nogil=True, cache=True, error_model="numpy")


def encode_layers(layers: Sequence[Layer], X: Bits, observed: Bits | None) -> Array:
    """Give the units of the last layer, (n_samples, n_components).

    Parameters
    ----------
    layers
        Parameters, from the lowest layer up.
    X, observed
        Values and mask, (n_samples, n_features); what is missing is left out of the sums.
    """
    known = X if observed is None else X & observed
    values = hidden_probabilities(BoltzmannMachine(*layers[0]), known, None)
    for layer in layers[1:]:
        inputs = np.empty((len(values), len(layer.hidden)))
        _fill_inputs(layer.weights, layer.hidden, values, inputs)
        apply_sigmoid(inputs)
        values = inputs
    return values


@_kernel
def _fill_inputs(weights: Array, hidden: Array, values: Array, inputs: Array) -> None:
    for n in range(len(values)):
        total = inputs[n]
        total[:] = hidden
        for i in range(values.shape[1]):
            value, of_unit = values[n, i], weights[i]
            for j in range(len(total)):
                total[j] += value * of_unit[j]
