"""Where the EM of a hidden tree starts.

At first, most variables have the state of their parent. Features are noisy, each in its own way, so
two of them may depend on each other more strongly than two neighbours do. So the first tree is not
that of the features: distances along a tree add up, which gives the noise of each feature. After a
short run, the noise is known better. Counts of pairs of features then give the joint probabilities
of pairs of states, and these give the next tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.arrays import Array, Counts
from pipeline.models.trees.tree_starts import N_SHARE_POWERS, add_noise, weight_pairs
from pipeline.numerics.trees.dependence import compute_table_information
from pipeline.numerics.trees.spanning_tree import (
    ROOT,
    find_maximum_spanning_tree,
    move_root_to_center,
    order_from_root,
)
from pipeline.numerics.trees.state_pairs import fit_state_pairs

_TILT = 3.0
"""Standard deviation over states of log P(highest) − log P(lowest level)."""
_PAIR_PASSES = 20  # in which joint probabilities of states are fitted to counts
_MIN_PAIR = 1e-6  # probability of a pair of states where another tree starts
_NOISE = 0.1  # standard deviation of the log-weights of pairs; most errors of trees are near ties
_FEW_ROWS = 0.1  # for which pairs count that no row observes
_NOISE_ERRORS, _EDGE_ERRORS = 3.0, 2.0
"""Standard errors in upper bounds of the distance of noise, and of that of an edge."""
_STAY = 0.9
"""How often a variable has the state of its parent, besides by chance."""


def make_transitions(parents: Counts, n_states: int) -> Array:
    """Return P(z_i = a | z_pa(i) = b) at [i, b, a], (n_features, n_states, n_states)."""
    table = np.full((n_states, n_states), (1 - _STAY) / n_states)
    table += _STAY * np.eye(n_states)
    transitions: Array = table * (parents != ROOT)[:, None, None]
    return transitions


def draw_emissions(
    margins: Sequence[Array],
    parents: Counts,
    correlation: Array,
    n_states: int,
    rng: np.random.Generator,
) -> Array:
    """Draw P(x_i = level | z_i) at the start, (n_features, n_states, n_levels).

    In each state, the margins of a feature are tilted towards its high or its low levels. Tilts of
    neighbours in the tree are as similar as the features. "High" is the end of the levels that
    fewer rows have, so that reversing levels changes nothing.

    Parameters
    ----------
    margins
        Share of each level of each feature, (n_levels,) each.
    parents
        The tree, (n_features,).
    correlation
        Of each feature with its parent, (n_features,); any number at the root.
    n_states
        Number of states.
    rng
        Draws the tilts.
    """
    signs = np.array([1.0 if own[0] >= own[-1] else -1.0 for own in margins])
    tilts = rng.standard_normal((len(parents), n_states)) * (n_states > 1)
    emissions = np.zeros((len(parents), n_states, max(map(len, margins))))
    for i in order_from_root(parents).tolist():
        if (parent := parents[i]) != ROOT:
            strength = np.clip(np.abs(correlation[i]), 0.0, 1.0)
            sign = np.sign(correlation[i]) * signs[i] * signs[parent]
            tilts[i] = np.sqrt(1 - strength) * tilts[i]
            tilts[i] += sign * np.sqrt(strength) * tilts[parent]
        scores = signs[i] * np.linspace(-0.5, 0.5, len(margins[i]))
        own = margins[i] * np.exp(_TILT * np.outer(tilts[i], scores))
        emissions[i, :, : len(scores)] = own / own.sum(axis=1, keepdims=True)
    return emissions


def find_noisy_tree(cells: Array, n_levels: Counts) -> tuple[Counts, Array]:
    """Return the parents in the tree behind noisy features, and correlations with the parents.

    −log |correlation| of two features is a distance that adds up along the tree, if variables are
    binary. It is that of their states, and one for the noise of each of both features. If feature i
    lies between j and k, the noise of i is (d_ij + d_ik − d_jk) / 2; otherwise, this is larger. So
    it is the smallest of these (Choi, Tan, Anandkumar & Willsky 2011, "Learning latent tree
    graphical models", section 3). The one with the lowest upper bound is taken, as few rows may
    observe a pair.

    Parameters
    ----------
    cells
        Rows by pairs of observed levels, (n_levels in all, n_levels in all).
    n_levels
        Number of levels of each feature, (n_features,).
    """
    correlation, n_rows = _correlate_levels(cells, n_levels)
    least = 1 / np.sqrt(np.where(n_rows > 0, n_rows, max(float(n_rows.max()), 1.0)))
    # Few rows may agree by chance.
    strength = np.minimum(np.maximum(np.abs(correlation), least), 1 - 1 / (n_rows + 2))
    distances = -np.log(strength)
    variances = (1 - strength**2) / (np.maximum(n_rows, _FEW_ROWS) * strength**2)
    noise = np.zeros(len(n_levels))
    for i, (own, variance) in enumerate(zip(distances, variances, strict=True)):
        products = (own[:, None] + own - distances) / 2
        errors = np.sqrt(variance[:, None] + variance + variances) / 2
        bounds = products + _NOISE_ERRORS * errors
        bounds[i], bounds[:, i] = np.inf, np.inf
        np.fill_diagonal(bounds, np.inf)
        noise[i] = max(products.flat[np.argmin(bounds)], 0.0)
    between_states = np.maximum(distances - noise[:, None] - noise, 0.0)
    weights = -between_states - _EDGE_ERRORS * np.sqrt(variances)
    parents = move_root_to_center(find_maximum_spanning_tree(weights))
    return parents, correlation[parents, np.arange(len(parents))]


def _correlate_levels(cells: Array, n_levels: Counts) -> tuple[Array, Array]:
    """Return the correlation of each pair of features, and the number of rows that observe it."""
    firsts = np.cumsum(n_levels) - n_levels
    feature = np.repeat(np.arange(len(n_levels)), n_levels)
    is_own = (feature[:, None] == np.arange(len(n_levels))).astype(np.float64)
    scores = is_own * (np.arange(len(feature)) - firsts[feature])[:, None]
    n_rows = is_own.T @ cells @ is_own
    total = np.maximum(n_rows, 1.0)
    means = scores.T @ cells @ is_own / total
    variances = (scores**2).T @ cells @ is_own / total - means**2
    covariances = scores.T @ cells @ scores / total - means * means.T
    product = variances * variances.T
    correlation = np.zeros_like(product)
    np.divide(covariances, np.sqrt(np.maximum(product, 0.0)), correlation, where=product > 1e-12)
    return correlation, n_rows


def find_state_tree(
    pairs: Array,
    emissions: Array,
    counts: Array,
    n_levels: Counts,
    start: int,
    rng: np.random.Generator,
) -> tuple[Counts, Array]:
    """Return the parents and transitions of the tree of the states, given what features show.

    Parameters
    ----------
    pairs
        P(z_i, z_j) at the end of a run, (n_features, n_features, n_states, n_states).
    emissions
        P(x_i = level | z_i) at the end of the run, (n_features, n_states, n_levels).
    counts
        Rows by pairs of observed levels, (n_levels in all, n_levels in all).
    n_levels
        Number of levels of each feature, (n_features,).
    start
        Number of the start, which selects how much pairs count that few rows observe.
    rng
        Draws noise for the starts after the first ones.
    """
    pairs, firsts = pairs.copy(), np.cumsum([0, *n_levels])
    fit_state_pairs(counts, firsts, emissions, _PAIR_PASSES, pairs)
    pairs = np.maximum(pairs, _MIN_PAIR)
    pairs /= pairs.sum(axis=(2, 3), keepdims=True)
    above = np.triu(np.ones(pairs.shape[:2], np.bool_), 1)
    pairs = np.where(above[:, :, None, None], pairs, pairs.transpose(1, 0, 3, 2))
    n_rows = np.add.reduceat(np.add.reduceat(counts, firsts[:-1], axis=0), firsts[:-1], axis=1)
    weights = weight_pairs(compute_table_information(pairs), n_rows, start)
    if start >= N_SHARE_POWERS:
        weights = add_noise(weights, _NOISE, rng)
    parents = move_root_to_center(find_maximum_spanning_tree(weights))
    transitions = pairs[parents, np.arange(len(parents))]
    transitions /= transitions.sum(axis=2, keepdims=True)
    transitions[parents == ROOT] = 0.0
    return parents, transitions
