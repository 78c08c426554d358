"""Neighbours by given distances, their votes, and whether two spaces have the same neighbours.

Among equally near rows the earlier comes first. A row is not its own neighbour.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

NOT_AMONG_OTHERS = -1
"""Place of a row that is not among the others."""


def find_nearest_places(distances: Array, k: int, own: Indices) -> Indices:
    """Find the k nearest of each row, the nearest first.

    Parameters
    ----------
    distances
        Distances of each row to others, (n_rows, n_others), n_others > k.
    k
        Number of neighbours of a row.
    own
        Place of each row among the others, or `NOT_AMONG_OTHERS`, (n_rows,).

    Returns
    -------
    ndarray
        Places among the others, (n_rows, k).
    """
    least = np.partition(distances, k, axis=1)[:, k, None]
    nearer, tied = distances < least, distances == least
    room = k + 1 - nearer.sum(axis=1, keepdims=True)
    chosen = nearer | (tied & (np.cumsum(tied, axis=1, dtype=np.int32) <= room))
    places = np.nonzero(chosen)[1].reshape(-1, k + 1)
    order = np.argsort(np.take_along_axis(distances, places, axis=1), axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1)
    others = places != own[:, None]
    others[others.all(axis=1), -1] = False
    nearest: Indices = places[others].reshape(-1, k)
    return nearest


def trustworthiness(original: Array, coded: Array, k: int) -> float:
    """Measure how far neighbours in the codes are neighbours in the data.

    1 − 2 / (n k (2n − 3k − 1)) Σ_i Σ_{j ∈ U_i} (r(i, j) − k), where U_i are the rows among the k
    nearest of row i in the codes that are not among its k nearest in the data, and r(i, j) is the
    rank of row j by its distance from row i in the data. With the two spaces exchanged it is
    continuity: how far neighbours in the data are neighbours in the codes.

    Venna and Kaski (2001), Neighborhood preservation in nonlinear projection methods: an
    experimental study, ICANN.

    Parameters
    ----------
    original, coded
        Distances of all rows in the two spaces, (n_rows, n_rows).
    k
        Number of neighbours of a row, fewer than half of the rows.

    Returns
    -------
    float
        In [0, 1]; about 0.5 for random neighbours.
    """
    n = len(original)
    near = find_nearest_places(coded, k, np.arange(n))
    too_far = np.maximum(_distance_ranks(original, near) - k, 0).sum()
    return float(1 - 2 * too_far / (n * k * (2 * n - 3 * k - 1)))


def _distance_ranks(distances: Array, rows: Indices) -> Indices:
    """Return the ranks of given rows among all others, by distance from each row, from 1."""
    n = len(distances)
    places, own = np.arange(n), distances.diagonal()[:, None]
    ranks = np.empty(rows.shape, np.int64)
    for at, j in enumerate(rows.T[:, :, None]):
        limits = np.take_along_axis(distances, j, axis=1)
        before = (distances < limits) | ((distances == limits) & (places < j))
        is_before = (own < limits) | ((own == limits) & (places[:, None] < j))
        ranks[:, at] = 1 + before.sum(axis=1) - is_before[:, 0]
    return ranks


def majority_label(labels: Indices) -> Indices:
    """Return the most common label of each row's neighbours; among equals, that of the nearest.

    Parameters
    ----------
    labels
        Labels of the neighbours, the nearest first, (n_rows, k).
    """
    votes = (labels[:, :, None] == labels[:, None, :]).sum(axis=2)
    return np.take_along_axis(labels, votes.argmax(axis=1)[:, None], axis=1)[:, 0]
