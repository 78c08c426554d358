"""Predictive distributions of values that are linear in a latent variable, with normal noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]


def compute_predictive_probabilities(
    residuals: Array, slopes: Array, noise: Array, covariance: Array
) -> Array:
    """Return P(x ≤ value) for x = w·z + noise with a normal z, (n_samples, n).

    Parameters
    ----------
    residuals
        Values minus the expected values, (n_samples, n).
    slopes, noise
        w, (n, q), and the standard deviation of the noise, (n,).
    covariance
        Covariances of z in each row, (n_samples, q, q), or variances, (n_samples, q), if the
        components of z are taken as independent.
    """
    if covariance.ndim == 2:
        spread = covariance @ (slopes**2).T
    else:
        spread = np.einsum("ik,nkl,il->ni", slopes, covariance, slopes)
    probabilities: Array = ndtr(residuals / np.sqrt(noise**2 + spread))
    return probabilities
