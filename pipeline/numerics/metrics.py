"""Reconstruction losses, and the similarity of mixing matrices."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError

MIN_PROBABILITY = 1e-6
"""Probabilities are clipped this far from 0 and 1, so that a wrong certain bit stays finite."""


def reconstruction_losses(
    X: NDArray[np.uint8], observed: NDArray[np.bool_], probabilities: NDArray[np.float64]
) -> dict[str, float]:
    """Compute the losses of P(x = 1) on bits.

    Parameters
    ----------
    X, observed, probabilities
        Bits, mask and P(x = 1), (n_samples, n_features) each.

    Returns
    -------
    dict
        `wrong_bits`, the share of bits on the wrong side of ½, and `nll_per_bit`, nats.
    """
    certain = np.clip(probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    nats = -np.log(np.where(X == 1, certain, 1 - certain))
    wrong = (probabilities > 0.5) != (X == 1)
    return {
        "wrong_bits": float(wrong[observed].mean()),
        "nll_per_bit": float(nats[observed].mean()),
    }


def mean_cosine_similarity(estimated: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Compare two mixing matrices up to the order, signs and lengths of their columns.

    Columns are matched one to one to maximize the sum of their absolute cosines. A column without a
    partner, or of zeros, counts as 0.

    Hyttinen, Barin-Pacela and Hyvärinen (2022), Binary independent component analysis: a
    non-stationarity-based approach, UAI, section 6.

    Parameters
    ----------
    estimated, reference
        Mixing matrices, (n_features, n_estimated) and (n_features, n_reference).

    Returns
    -------
    float
        Sum of the matched cosines over the larger number of columns, in [0, 1].

    Raises
    ------
    FitError
        If a matrix is empty or not finite, or the two differ in n_features.
    """
    left, right = (
        _normalize_columns(estimated, "estimated"),
        _normalize_columns(reference, "reference"),
    )
    if len(left) != len(right):
        raise FitError(
            f"The matrices have {len(left)} and {len(right)} features. Compare fits of the same "
            "features."
        )
    cosines = np.abs(left.T @ right)
    matched = cosines[scipy.optimize.linear_sum_assignment(cosines, maximize=True)]
    return float(min(matched.sum() / max(cosines.shape), 1.0))


def match_columns(
    estimated: NDArray[np.float64], reference: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Reorder columns and flip their signs to match a reference.

    Parameters
    ----------
    estimated, reference
        Matrices, (n_features, n_components) each.

    Returns
    -------
    ndarray
        Columns of `estimated`, matched as in `mean_cosine_similarity`.
    """
    cosines = _normalize_columns(reference, "reference").T @ _normalize_columns(
        estimated, "estimated"
    )
    targets, sources = scipy.optimize.linear_sum_assignment(np.abs(cosines), maximize=True)
    return estimated[:, sources] * np.where(cosines[targets, sources] < 0, -1.0, 1.0)


def _normalize_columns(mixing: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Scale every column to length 1, except columns of zeros."""
    if mixing.ndim != 2 or mixing.size == 0:
        raise FitError(
            f"The {name} matrix has the shape {mixing.shape}. Pass (n_features, n_components), "
            "with at least one row and one column."
        )
    if not np.isfinite(mixing).all():
        row, column = np.argwhere(~np.isfinite(mixing))[0]
        raise FitError(
            f"The {name} matrix has {mixing[row, column]} at row {row}, column {column}. Compare "
            "fits that have converged."
        )
    # Divided by the largest entry, squares neither overflow nor underflow.
    largest = np.abs(mixing).max(axis=0)
    scaled = mixing / np.where(largest > 0, largest, 1)
    lengths = np.linalg.norm(scaled, axis=0)
    directions: NDArray[np.float64] = scaled / np.where(lengths > 0, lengths, 1)
    return directions
