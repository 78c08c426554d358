"""Reconstruction losses, similarity of mixing matrices, neighbourhoods, and bounds of χ²."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError

MIN_PROBABILITY = 1e-6
"""Probabilities are clipped this far from 0 and 1, so that a wrong certain bit stays finite."""
Array = NDArray[np.float64]
Indices = NDArray[np.int64]
NOT_AMONG_OTHERS = -1
"""Place of a row that is not among the others."""


def reconstruction_losses(
    X: NDArray[np.uint8], observed: NDArray[np.bool_], probabilities: NDArray[np.float64]
) -> dict[str, float]:
    """Compute the losses of P(x = 1) on the observed bits, all (n_samples, n_features).

    Returns
    -------
    dict
        `wrong_bits`, the share of bits on the wrong side of ½, and `nll_per_bit`, nats.
    """
    wrong, nats = compute_bit_losses(X, probabilities)
    return {
        "wrong_bits": float(wrong[observed].mean()),
        "nll_per_bit": float(nats[observed].mean()),
    }


def compute_bit_losses(
    X: NDArray[np.uint8], probabilities: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return whether each bit is on the wrong side of ½, and its loss in nats; shapes as for X."""
    is_one = X == 1
    likelihoods = np.abs(probabilities - ~is_one)  # P(x)
    nats = np.log(np.clip(likelihoods, MIN_PROBABILITY, 1 - MIN_PROBABILITY, out=likelihoods))
    return (probabilities > 0.5) != is_one, np.negative(nats, out=nats)


def mean_cosine_similarity(estimated: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Compare two mixing matrices up to the order, signs and lengths of their columns.

    Columns are matched one to one to maximize the sum of their absolute cosines. A column without a
    partner, or of zeros, counts as 0. The result, in [0, 1], is the sum divided by the larger
    number of columns. The matrices are (n_features, n_estimated) and (n_features, n_reference).

    Hyttinen, Barin-Pacela and Hyvärinen (2022), Binary independent component analysis: a
    non-stationarity-based approach, UAI, section 6.
    """
    left = _normalize_columns(estimated, "estimated")
    right = _normalize_columns(reference, "reference")
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
    """Reorder columns and flip their signs to match a reference, as in `mean_cosine_similarity`.

    Both matrices are (n_features, n_components).
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


def find_nearest_places(distances: Array, k: int, own: Indices) -> Indices:
    """Find the k nearest neighbours of each row, the nearest first; ties go to the earlier row.

    Parameters
    ----------
    distances
        Distances of each row to the other rows, (n_rows, n_others), n_others > k.
    own
        Place of each row among the other rows, or `NOT_AMONG_OTHERS`, (n_rows,). A row is not its
        own neighbour.

    Returns
    -------
    Places among the other rows, (n_rows, k).
    """
    limits = np.partition(distances, k, axis=1)[:, k, None]
    is_nearer, is_tied = distances < limits, distances == limits
    room = k + 1 - is_nearer.sum(axis=1, keepdims=True)
    chosen = is_nearer | (is_tied & (np.cumsum(is_tied, axis=1, dtype=np.int32) <= room))
    places = np.nonzero(chosen)[1].reshape(-1, k + 1)
    order = np.argsort(np.take_along_axis(distances, places, axis=1), axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1)
    is_other = places != own[:, None]
    is_other[is_other.all(axis=1), -1] = False
    nearest: Indices = places[is_other].reshape(-1, k)
    return nearest


def trustworthiness(original: Array, coded: Array, k: int) -> float:
    """Measure whether neighbours in the codes are also neighbours in the data.

    1 − 2 / (n k (2n − 3k − 1)) Σ_i Σ_{j ∈ U_i} (r(i, j) − k), where U_i are the rows among the k
    nearest of row i in the codes that are not among its k nearest in the data, and r(i, j) is the
    rank of row j by its distance from row i in the data. With the two spaces exchanged, this is
    continuity: whether neighbours in the data are also neighbours in the codes. The result is in
    [0, 1], about 0.5 for random neighbours.

    Venna and Kaski (2001), Neighborhood preservation in nonlinear projection methods: an
    experimental study, ICANN.

    The distances of all rows in the two spaces are (n_rows, n_rows), and k is below n_rows / 2.
    """
    n = len(original)
    near = find_nearest_places(coded, k, np.arange(n))
    too_far = np.maximum(_distance_ranks(original, near) - k, 0).sum()
    return float(1 - 2 * too_far / (n * k * (2 * n - 3 * k - 1)))


def _distance_ranks(distances: Array, rows: Indices) -> Indices:
    """Return the ranks, from 1, of `rows` among all other rows by their distance from each row."""
    n = len(distances)
    places, own = np.arange(n), distances.diagonal()[:, None]
    ranks = np.empty(rows.shape, np.int64)
    for column, j in enumerate(rows.T[:, :, None]):
        limits = np.take_along_axis(distances, j, axis=1)
        precedes = (distances < limits) | ((distances == limits) & (places < j))
        own_precedes = (own < limits) | ((own == limits) & (places[:, None] < j))
        ranks[:, column] = 1 + precedes.sum(axis=1) - own_precedes[:, 0]
    return ranks


def majority_label(labels: Indices) -> Indices:
    """Return the most common of each row's labels of neighbours, the nearest first, (n_rows, k)."""
    votes = (labels[:, :, None] == labels[:, None, :]).sum(axis=2)
    return np.take_along_axis(labels, votes.argmax(axis=1)[:, None], axis=1)[:, 0]


def find_noncentrality(value: float, df: int, level: float) -> float:
    """Return the noncentrality (at least 0) for which P(χ² < value) is `level`."""
    is_central = scipy.special.chdtr(df, value) <= level
    return 0.0 if is_central else float(scipy.special.chndtrinc(value, df, level))
