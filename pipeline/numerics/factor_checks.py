"""Checks of the parameters of models in which a value depends on w_iᵀ u + b_i."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError

Floats = NDArray[np.float64]


def check_weights(n_features: int, weights: Floats, offsets: Floats) -> None:
    """Raise unless weights and offsets are finite and those of `n_features`.

    Raises
    ------
    FitError
        If they are not.
    """
    if weights.shape[:-1] != (n_features,) or offsets.shape != (n_features,):
        raise FitError(
            f"Expected weights ({n_features}, n_components) and offsets ({n_features},), "
            f"got {weights.shape} and {offsets.shape}. Pass the parameters of these features."
        )
    if not (np.isfinite(weights).all() and np.isfinite(offsets).all()):
        raise FitError("Expected finite weights and offsets, got NaN or infinity. Check the fit.")
