"""The distribution of each value of a row given all others, in the mixture.

P(x_i | x_-i) = Σ_k w_k P(x_i | k) with w_k ∝ P(x, k) / P(x_i | k), or w_k ∝ P(x, k) if x_i is
missing. The division is a difference of logarithms, so no w_k is lost where P(k | x) underflows.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock, unpack_levels
from pipeline.models.bernoulli_mixture.e_step import MixtureTerms

_kernel = njit(nogil=True, cache=True, error_model="numpy")


def compute_plane_probabilities(
    block: BinaryBlock, n_planes: Counts, terms: MixtureTerms, probabilities: Array, joint: Array
) -> Array:
    """Return P(plane = 1 | values of all other features), (n_samples, n_planes in all).

    Parameters
    ----------
    block
        Rows whose planes are all observed where the value is.
    n_planes
        Planes of each feature that has any, (n_features,).
    terms
        The terms of the E-step, with a row per plane.
    probabilities
        P(plane = 1 | k), (n_components, n_planes in all).
    joint
        log P(x, k) of each row, (n_samples, n_components).
    """
    filled = np.empty((block.n_samples, block.n_features))
    if not filled.size:
        return filled
    levels, mask = unpack_levels(block, n_planes)
    observed = np.ones_like(levels) if mask is None else mask
    firsts = np.concatenate([[0], np.cumsum(n_planes)])
    planes = np.ascontiguousarray(probabilities.T)
    _fill_probabilities(
        levels, observed, firsts, terms.log_odds, terms.log_absent, planes, joint, filled
    )
    return filled


@_kernel
def _fill_probabilities(
    levels: NDArray[np.uint8],
    observed: NDArray[np.uint8],
    firsts: Counts,
    log_odds: Array,
    log_absent: Array,
    planes: Array,
    joint: Array,
    filled: Array,
) -> None:
    n_components = joint.shape[1]
    weights = np.empty(n_components)
    for row in range(len(levels)):
        for i in range(len(firsts) - 1):
            weights[:] = joint[row]
            if observed[row, i]:
                # A value has a term for each plane that it reaches, and for the next one.
                reached = min(levels[row, i] + 1, firsts[i + 1] - firsts[i])
                for c in range(reached):
                    plane = firsts[i] + c
                    is_one = c < levels[row, i]
                    for k in range(n_components):
                        weights[k] -= log_absent[plane, k] + is_one * log_odds[plane, k]
            largest, total = weights.max(), 0.0
            for k in range(n_components):
                weights[k] = math.exp(weights[k] - largest)
                total += weights[k]
            for plane in range(firsts[i], firsts[i + 1]):
                mean = 0.0
                for k in range(n_components):
                    mean += weights[k] * planes[plane, k]
                filled[row, plane] = min(mean / total, 1.0)
