"""Standard errors of the Bernoulli mixture by the observed information (T. A. Louis, 1982).

Parameters are log-odds λ_ki of p_ki and log-weights α_k of π. With r_k = P(k | x), u_ki = m_i
(x_i − p_ki) and v_k = (u_k, 1) the score of a row is (r_k v_k)_k less a constant, and the
information Σ_n diag(r_k m_i p_ki (1 − p_ki)), N (diag π − π πᵀ) of α, less the covariance of the
scores of single components, diag_k(r_k v_k v_kᵀ) − (r_k v_k)(r_k v_k)ᵀ. Intervals are symmetric in
log-odds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.information import invert_information

Array = NDArray[np.float64]

MAX_PARAMETERS = 1500
"""Their information is a matrix; of more there are no standard errors."""
MAX_ROWS = 20_000
"""Rows whose information is summed: of more a keyed sample, whose sums are scaled up."""
_BATCH_ENTRIES = 2**20
_TWO_SIDED = float(scipy.special.ndtri(0.975))


class MixtureErrors(NamedTuple):
    """Standard errors, and the ends of 95 % intervals of probabilities.

    Attributes
    ----------
    probabilities
        (n_components, n_features).
    interval
        (2, n_components, n_features).
    weights
        (n_components,).
    """

    probabilities: Array
    interval: Array
    weights: Array


def sum_mixture_information(
    X: NDArray[np.uint8], observed: NDArray[np.uint8] | None, probabilities: Array, posterior: Array
) -> dict[str, Array]:
    """Sum over rows what the information is made of.

    Parameters
    ----------
    X, observed
        (n_samples, n_features); observed is None where every value is.
    probabilities
        (n_components, n_features).
    posterior
        P(k | x), (n_samples, n_components).

    Returns
    -------
    dict
        `values`: Σ r_k m_i, (n_components, n_features); `spread`: Σ r_k v_k v_kᵀ, (n_components,
        n_features + 1, n_features + 1); `products`: Σ of scores by scores, (p, p).
    """
    n_components, n_features = probabilities.shape
    width = n_features + 1
    values = np.zeros(probabilities.shape)
    spread = np.zeros((n_components, width, width))
    products = np.zeros((n_components * width,) * 2)
    height = max(1, _BATCH_ENTRIES // (n_components * width))
    for start in range(0, len(X), height):
        check_cancelled()
        rows = slice(start, start + height)
        r = posterior[rows].T
        seen = np.ones(X[rows].shape) if observed is None else observed[rows].astype(np.float64)
        v = np.ones((n_components, len(seen), width))
        v[:, :, :-1] = seen * (X[rows] - probabilities[:, None])
        values += r @ seen
        spread += np.swapaxes(v * r[:, :, None], 1, 2) @ v
        scores = np.moveaxis(v * r[:, :, None], 0, 1).reshape(len(seen), -1)
        products += scores.T @ scores
    return {"values": values, "spread": spread, "products": products}


def compute_mixture_errors(
    probabilities: Array,
    weights: Array,
    sums: Mapping[str, NDArray[Any]],
    n_samples: int,
    smoothing: float,
) -> MixtureErrors:
    """Invert the information.

    Parameters
    ----------
    probabilities, weights
        The model.
    sums
        `sum_mixture_information` of all rows.
    n_samples
        Number of rows.
    smoothing
        Pseudo-counts, which inform as rows do.
    """
    n_components, n_features = probabilities.shape
    width = n_features + 1
    variances = probabilities * (1 - probabilities)
    own = np.zeros((n_components, width))
    own[:, :-1] = (sums["values"] + 2 * smoothing) * variances
    information = np.diag(own.ravel()) - scipy.linalg.block_diag(*sums["spread"])
    information += sums["products"]
    at = np.arange(n_components) * width + n_features
    counted = n_samples + n_components * smoothing
    turn = np.diag(weights) - np.outer(weights, weights)
    information[np.ix_(at, at)] += counted * turn
    # Log-weights are known but for a constant: the last is held.
    found = invert_information(information, np.delete(np.eye(len(information)), at[-1], axis=1))
    log_odds = np.sqrt(np.diag(found.covariance)).reshape(n_components, width)[:, :-1]
    unknown = found.find_unidentified((n_components, width, 1))[:, :-1]
    around = _TWO_SIDED * np.where(unknown, np.inf, log_odds)
    middle = scipy.special.logit(probabilities)
    interval = scipy.special.expit(np.stack([middle - around, middle + around]))
    of_weights = np.sqrt(np.diag(turn @ found.covariance[np.ix_(at, at)] @ turn))
    return MixtureErrors(np.where(unknown, np.nan, variances * log_odds), interval, of_weights)
