"""Parameters of clipped PCA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.params import array_field, optional_array_field

Array = NDArray[np.float64]

MIN_NOISE = 1e-3
"""Smallest ψ: below it a feature would fix a combination of the components exactly."""


@dataclass(frozen=True)
class ClippedPCAParams:
    """Parameters; the module's table gives shapes.

    `status` is the `PairStatus` of every pair; `null_eigenvalues` the 95 % quantiles of the null
    spectra, empty unless `n_components` was chosen by them. Standard errors are not a number where
    the data do not tell.
    """

    loadings: Array = array_field("feature", "component")
    eigenvalues: Array = array_field("eigenvalue")
    thresholds: Array = array_field("feature")
    null_eigenvalues: Array = array_field("null_eigenvalue")
    correlation: Array | None = optional_array_field("feature", "feature_j")
    status: NDArray[np.uint8] | None = optional_array_field("feature", "feature_j")
    loadings_error: Array | None = optional_array_field("feature", "component")
    thresholds_error: Array | None = optional_array_field("feature")
    correlation_error: Array | None = optional_array_field("feature", "feature_j")


def communalities(params: ClippedPCAParams) -> Array:
    """Give the share of each feature's variance that the components explain, (n_features,)."""
    communalities: Array = (params.loadings**2).sum(axis=1)
    return communalities


def probit_weights(params: ClippedPCAParams) -> tuple[Array, Array]:
    """Write P(s_i = 1 | y) = Φ(w_i·y + b_i): weights and offsets with the noise divided out."""
    communality = communalities(params)
    shrink = np.sqrt(np.minimum(1.0, (1 - MIN_NOISE) / np.maximum(communality, MIN_NOISE)))
    noise = np.sqrt(np.maximum(1 - communality, MIN_NOISE))
    return params.loadings * (shrink / noise)[:, None], -params.thresholds / noise
