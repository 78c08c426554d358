"""log(1 + exp(y)) of a normal y: what a logistic likelihood expects, to 1e-8.

Narrow normals are integrated by Gauss–Hermite quadrature. Of wide ones, max(y, 0) has a closed
form, and what is left, log(1 + exp(−|y|)), is integrated on either side of 0 by Gauss–Laguerre.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

_WIDE_DEVIATION = 1.5  # standard deviation from which on Laguerre's nodes are the better ones
_NODES, _MASS = np.polynomial.hermite_e.hermegauss(30)
_SIDE_NODES, _SIDE_MASS = np.polynomial.laguerre.laggauss(30)
_SIDE_MASS = _SIDE_MASS * np.exp(_SIDE_NODES) * np.log1p(np.exp(-_SIDE_NODES))


def mean_softplus(mean: Array, deviation: Array) -> Array:
    """Give E log(1 + exp(y)), y ~ N(mean, deviation²), arrays of one shape."""
    found, is_wide = np.empty(mean.shape), deviation > _WIDE_DEVIATION
    found[is_wide] = _mean_for_wide(mean[is_wide], deviation[is_wide])
    found[~is_wide] = _mean_for_narrow(mean[~is_wide], deviation[~is_wide])
    return found


def _mean_for_narrow(mean: Array, deviation: Array) -> Array:
    total = np.zeros_like(mean)
    for node, mass in zip(_NODES, _MASS / _MASS.sum(), strict=True):
        total += mass * np.logaddexp(0.0, mean + node * deviation)
    return total


def _mean_for_wide(mean: Array, deviation: Array) -> Array:
    at = mean / deviation
    total = mean * ndtr(at) + deviation * _density(at)
    for node, mass in zip(_SIDE_NODES, _SIDE_MASS, strict=True):
        both = _density(node / deviation - at) + _density(node / deviation + at)
        total += mass / deviation * both
    return np.asarray(total)


def _density(at: Array) -> Array:
    return np.asarray(np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi))
