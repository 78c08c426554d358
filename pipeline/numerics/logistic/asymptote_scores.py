"""Scores and information of items with asymptotes, summed over rows on shared nodes.

The parameters of an item are (w, b, logit g, logit s). Given x, its score is ∂ log P_i if the
answer is a one, ∂ log Q_i if it is a zero, and 0 if it is missing. So the score of a row at node l
is linear in its indicators of ones and of zeros, c_n = (t_n, m_n − t_n), and

    Σ_n E[s sᵀ | t_n] = Σ_l D_l (Σ_n R_nl c_n c_nᵀ) D_lᵀ,

where D_l holds the derivatives at the node, and R_nl are the responsibilities. A row costs
(2 n_features)² multiplications per node. Without missing values, the zeros follow from the ones,
and a row costs n_features². `trait_scores` explains the information (T. A. Louis).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.logistic.asymptotes import (
    Asymptotes,
    differentiate_curves,
    list_directions,
    sum_observed_curvature,
)
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import Nodes, iter_responsibilities
from pipeline.numerics.logistic.trait_scores import TraitScores

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]


class AsymptoteItems(NamedTuple):
    """Items with asymptotes, and the nodes of the prior of the traits."""

    items: TraitItems
    asymptotes: Asymptotes
    nodes: Nodes

    @property
    def eta(self) -> Floats:
        """w·x + b at the nodes, (n_features, n_nodes)."""
        return np.asarray(
            self.items.weights @ self.nodes.points.T + self.items.offsets[:, None], np.float64
        )

    def differentiate(self) -> tuple[Floats, Floats]:
        """Return ∂ log P and ∂ log Q at the nodes, (n_features, n_nodes, q + 3) each."""
        derivatives = differentiate_curves(self.eta, self.asymptotes.by_item)
        directions = list_directions(self.nodes.points)
        by_one, by_zero = (np.einsum("ail,alc->ilc", own, directions) for own in derivatives)
        return by_one, by_zero


def sum_asymptote_scores(
    X: Bits, observed: Bits | None, model: AsymptoteItems, row_weights: Floats | None = None
) -> TraitScores:
    """Sum scores and information over rows; `curvature` is the observed one.

    Parameters
    ----------
    X, observed
        Values and mask, (n_samples, n_features); None if all values are observed.
    model
        The items and nodes.
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    """
    by_one, by_zero = model.differentiate()
    n_features, n_nodes, width = by_one.shape
    # By the columns of answers in the products: ones and zeros, or ones alone.
    by_answer = by_one - by_zero if observed is None else np.concatenate([by_one, by_zero])
    spread = np.zeros((n_features, width, n_features, width))
    products = np.zeros((n_features * width,) * 2)
    counts = np.zeros((2 * n_features, n_nodes))
    for rows, shares, answers in _iter_answers(X, observed, model):
        scores = _score_rows(shares, answers, by_one, by_zero)
        weighted = scores
        if row_weights is not None:
            weighted = row_weights[rows, None] * scores
            shares = row_weights[rows, None] * shares
        products += weighted.T @ scores
        counts += answers.T @ shares
        columns = np.ascontiguousarray(answers[:, : len(by_answer)])
        for node, share in enumerate(shares.T):
            pairs = (columns * share[:, None]).T @ columns
            _add_node(spread, by_answer[:, node], pairs)
    ones, zeros = np.split(counts, 2)
    if observed is None:
        _add_constant(spread, by_answer, by_zero, ones, ones + zeros)
    eta, asymptotes = model.eta, model.asymptotes.by_item
    curvature = sum_observed_curvature(
        model.nodes.points,
        ones,
        ones + zeros,
        eta,
        asymptotes,
        differentiate_curves(eta, asymptotes),
    )
    return TraitScores(spread.reshape(products.shape), products, curvature)


def sum_asymptote_cluster_scores(
    X: Bits,
    observed: Bits | None,
    model: AsymptoteItems,
    row_weights: Floats,
    clusters: NDArray[np.intp],
) -> Floats:
    """Sum the scores of rows times their weights by cluster, (n_clusters, n_features (q + 3)).

    `clusters` are the indices of the rows' clusters, (n_samples,), counted from 0.
    """
    by_one, by_zero = model.differentiate()
    size = by_one.shape[0] * by_one.shape[2]
    total = np.zeros((clusters.max(initial=-1) + 1, size))
    for rows, shares, answers in _iter_answers(X, observed, model):
        scores = _score_rows(shares, answers, by_one, by_zero)
        np.add.at(total, clusters[rows], row_weights[rows, None] * scores)
    return total


def _iter_answers(
    X: Bits, observed: Bits | None, model: AsymptoteItems
) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield rows, their responsibilities, and their indicators of ones and of zeros."""
    for rows, shares in iter_responsibilities(
        X, observed, *model.items, model.nodes, model.asymptotes
    ):
        mask = np.ones_like(X[rows]) if observed is None else observed[rows]
        ones = X[rows] & mask
        yield rows, shares, np.concatenate([ones, mask - ones], axis=1).astype(np.float64)


def _score_rows(shares: Floats, answers: Floats, by_one: Floats, by_zero: Floats) -> Floats:
    """Return E[s | t_n], (n_rows, n_features width)."""
    n_features, n_nodes, width = by_one.shape
    scores = np.zeros((len(shares), n_features, width))
    for indicator, derivatives in zip(np.split(answers, 2, axis=1), (by_one, by_zero), strict=True):
        expected = shares @ derivatives.transpose(1, 0, 2).reshape(n_nodes, -1)
        scores += indicator[:, :, None] * expected.reshape(scores.shape)
    return scores.reshape(len(shares), -1)


def _add_node(spread: Floats, derivatives: Floats, pairs: Floats) -> None:
    """Add D C Dᵀ to the total, given the derivatives at a node by each column, (n_columns, width).

    The columns are those of all items, once or twice.
    """
    n_features, width = spread.shape[:2]
    for a in range(width):
        left = (derivatives[:, a, None] * pairs).reshape(-1, n_features, len(pairs)).sum(axis=0)
        for b in range(width):
            right = (left * derivatives[:, b]).reshape(n_features, -1, n_features)
            spread[:, a, :, b] += right.sum(axis=1)


def _add_constant(
    spread: Floats, by_answer: Floats, by_zero: Floats, ones: Floats, mass: Floats
) -> None:
    """Add the products with the scores of zeros, which all rows have: s = D t + (scores of zeros).

    `ones` and `mass` are expected numbers of ones and of rows at the nodes, (n_features, n_nodes).
    """
    width = spread.shape[1]
    for a in range(width):
        for b in range(width):
            mixed = (by_answer[:, :, a] * ones) @ by_zero[:, :, b].T
            spread[:, a, :, b] += mixed + (by_zero[:, :, a] * mass) @ by_zero[:, :, b].T
            spread[:, b, :, a] += mixed.T
