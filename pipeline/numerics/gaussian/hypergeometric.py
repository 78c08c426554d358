"""Quantiles of the hypergeometric law: joint ones of independent features with fixed margins."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

# From this variance on, the rounded normal quantile differs from the exact one by at most 1.
_NORMAL_VARIANCE = 36.0


def joint_count_quantiles(
    n: NDArray[np.float64],
    ones_i: NDArray[np.float64],
    ones_j: NDArray[np.float64],
    z: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the joint count at a normal score: F⁻¹(Φ(z)), F hypergeometric.

    Parameters
    ----------
    n, ones_i, ones_j
        Rows and ones of each pair, all (n_pairs,).
    z
        Normal score of each pair, (n_pairs,).

    Returns
    -------
    ndarray
        Joint counts, (n_pairs,): exact for variances below 36, else the rounded normal quantile
        clipped to the possible range.
    """
    return np.asarray(_quantiles(n, ones_i, ones_j, z))


@njit(nogil=True, cache=True)
def _quantiles(n, ones_i, ones_j, z):  # type: ignore[no-untyped-def]
    joint = np.empty(len(z))
    for k in range(len(z)):
        joint[k] = _quantile(n[k], ones_i[k], ones_j[k], z[k])
    return joint


@njit(nogil=True, cache=True)
def _quantile(n, a, b, z):  # type: ignore[no-untyped-def]
    if n < 2 or a == 0 or b == 0:
        return max(0.0, a + b - n)
    mean = a * b / n
    variance = mean * (n - a) * (n - b) / (n * (n - 1))
    if variance >= _NORMAL_VARIANCE:
        near = np.rint(mean + math.sqrt(variance) * z)
        return min(max(near, max(0.0, a + b - n)), min(a, b))
    # Count the rarer value of each feature: the walk from zero then takes few steps.
    rare_a, rare_b = 2 * a > n, 2 * b > n
    fewer_a, fewer_b = n - a if rare_a else a, n - b if rare_b else b
    count = _walk_to_quantile(n, fewer_a, fewer_b, -z if rare_a != rare_b else z)
    if rare_a and rare_b:
        return n - fewer_a - fewer_b + count
    if rare_a:
        return b - count
    return a - count if rare_b else count


@njit(nogil=True, cache=True)
def _walk_to_quantile(n, a, b, z):  # type: ignore[no-untyped-def]
    """Sum probabilities from a count of zero until they reach Φ(z)."""
    target = 0.5 * math.erfc(-z / math.sqrt(2.0))
    probability = math.exp(
        math.lgamma(n - a + 1) + math.lgamma(n - b + 1)
        - math.lgamma(n + 1) - math.lgamma(n - a - b + 1)
    )  # fmt: skip
    total, count = probability, 0.0
    while total < target and count < min(a, b):
        probability *= (a - count) * (b - count) / ((count + 1) * (n - a - b + count + 1))
        count += 1
        total += probability
    return count
