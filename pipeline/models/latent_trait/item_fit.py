"""How well each item fits: observed and expected shares of ones at every sum score, S-X².

With N_k rows of score k, of which a share O_ik have item i and E_ik should,

    S-X²_i = Σ_k N_k (O_ik − E_ik)² / (E_ik (1 − E_ik)),   k = 1, …, n − 1

(M. Orlando, D. Thissen, Applied Psychological Measurement 24 (2000), eq. 5). Scores in which fewer
than one row with or without the item is expected are added to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.latent_nodes import Nodes

Array = NDArray[np.float64]

_MIN_EXPECTED = 1.0  # rows expected with and without an item in a cell


class ItemFit(NamedTuple):
    """S-X² of each item, (n_features,); 0 where no degree of freedom is left."""

    s_x2: Array
    df: NDArray[np.int64]


def item_fit_statistics(
    rows: NDArray[np.int64],
    ones: NDArray[np.int64],
    weights: Array,
    offsets: Array,
    nodes: Nodes,
) -> ItemFit:
    """Compare counts by sum score with the model's.

    Parameters
    ----------
    rows
        Rows of each score, (n_features + 1,).
    ones
        Those of them that have an item, (n_features + 1, n_features).
    weights, offsets, nodes
        The model, as in `limited_information`.
    """
    expected = item_probabilities_by_score(weights, offsets, nodes)
    found = np.zeros(len(offsets))
    df = np.zeros(len(offsets), np.int64)
    for i in range(len(offsets)):
        cells = _merge_cells(rows[1:-1], ones[1:-1, i], expected[1:-1, i] * rows[1:-1])
        df[i] = len(cells) - weights.shape[1] - 1
        if df[i] > 0:
            n, o, e = cells.T
            found[i] = (n * (o - e) ** 2 / (e * (n - e))).sum()
    return ItemFit(found, np.maximum(df, 0))


def item_probabilities_by_score(weights: Array, offsets: Array, nodes: Nodes) -> Array:
    """Give P(item | sum score), (n_features + 1, n_features).

    The distribution of the score of all other items, given a node, is that of all without one
    factor of its characteristic function; at an odd number of points none of them is 0.
    """
    n_features, share = len(offsets), np.exp(nodes.log_weights)
    n_points = n_features + 1 + n_features % 2
    P = scipy.special.expit(nodes.points @ weights.T + offsets)
    turn = np.exp(-2j * np.pi * np.arange(n_points // 2 + 1) / n_points) - 1
    whole = np.exp(sum(np.log1p(np.outer(p, turn)) for p in P.T))
    scores = np.fft.irfft(share @ whole, n_points)
    expected = np.zeros((n_features + 1, n_features))
    for i, p in enumerate(P.T):
        others = (share * p) @ (whole / (1 + np.outer(p, turn)))
        expected[1:, i] = np.fft.irfft(others, n_points)[:n_features]
    positive = np.maximum(scores[: n_features + 1], np.finfo(float).tiny)
    return np.clip(expected / positive[:, None], 0.0, 1.0)


def _merge_cells(rows: NDArray[np.int64], ones: NDArray[np.int64], expected: Array) -> Array:
    """Give rows, ones and expected ones of cells that are large enough, (n_cells, 3)."""
    ends, n, e = [0], 0.0, 0.0
    for k, (some, with_item) in enumerate(zip(rows.tolist(), expected.tolist(), strict=True), 1):
        n, e = n + some, e + with_item
        if min(e, n - e) >= _MIN_EXPECTED:
            ends.append(k)
            n = e = 0.0
    cells = np.column_stack([rows, ones, expected])
    return np.asarray(np.add.reduceat(cells, ends[:-1])) if ends[1:] else cells[:0]
