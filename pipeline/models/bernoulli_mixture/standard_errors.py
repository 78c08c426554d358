"""Standard errors of the Bernoulli mixture by the observed information (T. A. Louis, 1982).

The parameters are the log-odds λ_ki of p_ki and the log-weights α_k of π. Let r_k = P(k | x), u_ki
= m_i (x_i − p_ki), where m is the mask, and v_k = (u_k, 1). The score of a row is (r_k v_k)_k minus
a constant. The information is Σ_n diag(r_k m_i p_ki (1 − p_ki)) for λ and N (diag π − π πᵀ) for α,
minus the covariance of the component scores, diag_k(r_k v_k v_kᵀ) − (r_k v_k)(r_k v_k)ᵀ. Intervals
are symmetric in log-odds.
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
"""With more parameters, the information matrix is too large and there are no standard errors."""
MAX_ROWS = 20_000
"""Number of rows over which information is summed; more rows are sampled and scaled up."""
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
    """Compute the sums of the information over rows.

    Parameters
    ----------
    X, observed
        Values and mask, (n_samples, n_features); None if all values are observed.
    probabilities
        p, (n_components, n_features).
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
        mask = np.ones(X[rows].shape) if observed is None else observed[rows].astype(np.float64)
        v = np.ones((n_components, len(mask), width))
        v[:, :, :-1] = mask * (X[rows] - probabilities[:, None])
        values += r @ mask
        spread += np.swapaxes(v * r[:, :, None], 1, 2) @ v
        scores = np.moveaxis(v * r[:, :, None], 0, 1).reshape(len(mask), -1)
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
        Fitted parameters.
    sums
        Result of `sum_mixture_information`, for all rows.
    n_samples
        Number of rows.
    smoothing
        Pseudo-counts, which add information like rows.
    """
    n_components, n_features = probabilities.shape
    width = n_features + 1
    variances = probabilities * (1 - probabilities)
    diagonal = np.zeros((n_components, width))
    diagonal[:, :-1] = (sums["values"] + 2 * smoothing) * variances
    information = np.diag(diagonal.ravel()) - scipy.linalg.block_diag(*sums["spread"])
    information += sums["products"]
    at = np.arange(n_components) * width + n_features
    counted = n_samples + n_components * smoothing
    jacobian = np.diag(weights) - np.outer(weights, weights)
    information[np.ix_(at, at)] += counted * jacobian
    # Log-weights are determined up to a constant, so the last one is fixed.
    inverse = invert_information(information, np.delete(np.eye(len(information)), at[-1], axis=1))
    log_odds = np.sqrt(np.diag(inverse.covariance)).reshape(n_components, width)[:, :-1]
    unknown = inverse.find_unidentified((n_components, width, 1))[:, :-1]
    half_width = _TWO_SIDED * np.where(unknown, np.inf, log_odds)
    centre = scipy.special.logit(probabilities)
    interval = scipy.special.expit(np.stack([centre - half_width, centre + half_width]))
    weights_error = np.sqrt(np.diag(jacobian @ inverse.covariance[np.ix_(at, at)] @ jacobian))
    return MixtureErrors(np.where(unknown, np.nan, variances * log_odds), interval, weights_error)
