"""Affine functions of rows, with missing values at the means of their features.

Each row is summed in a fixed order, so that it has the same bits whatever other rows are in the
call.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.networks.boltzmann_rows import BoltzmannMachine, hidden_inputs

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

_kernel = njit(nogil=True, cache=True, error_model="numpy")


def affine_outputs(
    weights: Array, biases: Array, means: Array, X: Bits, observed: Bits | None
) -> Array:
    """Return Wᵀx + b of each row, (n_samples, n_outputs).

    Parameters
    ----------
    weights, biases
        W, (n_features, n_outputs), C order, and b, (n_outputs,).
    means
        Means of the features, (n_features,).
    X, observed
        Values (0 where missing) and mask, (n_samples, n_features); None if nothing is missing.
    """
    sums = hidden_inputs(BoltzmannMachine(weights, means, biases), X, None)
    if observed is not None:
        _add_missing(weights, means, observed, sums)
    return sums


@_kernel
def _add_missing(weights: Array, means: Array, observed: Bits, sums: Array) -> None:
    for n in range(len(sums)):
        for i in range(len(means)):
            if not observed[n, i]:
                for j in range(sums.shape[1]):
                    sums[n, j] += means[i] * weights[i, j]
