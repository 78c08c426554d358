"""How far a model's answers are from the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_PROBABILITY = 1e-6
"""Probabilities are kept this far from 0 and 1, so that one sure but wrong bit stays finite."""


def reconstruction_losses(
    X: NDArray[np.uint8], observed: NDArray[np.bool_], probabilities: NDArray[np.float64]
) -> dict[str, float]:
    """Compare P(x = 1) with the bits.

    Parameters
    ----------
    X, observed, probabilities
        Bits, whether each was observed, and P(x = 1): (n_samples, n_features) each.

    Returns
    -------
    dict
        `wrong_bits`, the share of bits on the other side of ½, and `nll_per_bit` in nats.
    """
    certain = np.clip(probabilities, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    nats = -np.log(np.where(X == 1, certain, 1 - certain))
    wrong = (probabilities > 0.5) != (X == 1)
    return {
        "wrong_bits": float(wrong[observed].mean()),
        "nll_per_bit": float(nats[observed].mean()),
    }
