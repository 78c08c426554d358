"""Where the EM of a hidden tree starts: most variables have the state of their parent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.trees.spanning_tree import ROOT, order_from_root

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_TILT = 3.0
"""Standard deviation over states of log P(highest) − log P(lowest level)."""
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
