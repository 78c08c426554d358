"""Chow–Liu trees: the best distribution in which each feature depends on one other at the most.

C. K. Chow, C. N. Liu, IEEE Trans. Inf. Theory 14 (1968). Cells of pairs are smoothed by 1 of n + 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

Array = NDArray[np.float64]


def log_likelihood(train: NDArray[np.uint8], test: NDArray[np.uint8]) -> float:
    """Fit a tree to some rows; return the mean log-likelihood of others, nats a row."""
    joint = joint_shares(train)
    margins = np.stack([1 - np.diagonal(joint[1, 1]), np.diagonal(joint[1, 1])])
    parents = tree(information(joint, margins))
    total = 0.0
    for feature, parent in enumerate(parents):
        own = test[:, feature]
        if parent < 0:
            total += np.log(margins[own, feature]).sum()
        else:
            above = test[:, parent]
            pair = joint[:, :, feature, parent]
            total += np.log(pair[own, above] / pair.sum(axis=0)[above]).sum()
    return float(total / len(test))


def joint_shares(X: NDArray[np.uint8]) -> Array:
    """Return P(x_i = a, x_j = b), (2, 2, n_features, n_features)."""
    x = X.astype(np.float64)
    both, ones = x.T @ x, x.sum(axis=0)
    only = ones[:, None] - both
    cells = np.array([[len(x) - ones[:, None] - ones + both, only.T], [only, both]])
    return (cells + 1) / (len(x) + 4)


def information(joint: Array, margins: Array) -> Array:
    """Return the mutual information of pairs, nats, (n_features, n_features)."""
    apart = margins[:, None, :, None] * margins[None, :, None, :]
    return (joint * np.log(joint / apart)).sum(axis=(0, 1))


def tree(weights: Array) -> NDArray[np.int32]:
    """Return each feature's parent in the heaviest tree; the first has none, below 0."""
    # As the sparse graph takes 0 for no edge, lengths begin above it.
    lengths = 1 + weights.max() - weights
    spanning = minimum_spanning_tree(lengths)
    return breadth_first_order(spanning, 0, directed=False)[1]
