"""Joint probabilities of two hidden states, from counts of the two features behind which they are.

Noise of the features hides how strongly states depend on each other: of two pairs of features with
equal counts, the noisier ones have states that depend more strongly.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@njit(nogil=True, cache=True, error_model="numpy")
def fit_state_pairs(
    counts: Array, firsts: Indices, emissions: Array, n_passes: int, pairs: Array
) -> None:
    """Fit P(z_i = s, z_j = t) of i < j to the counts of x_i and x_j, given P(x | z).

    Each pass is one of EM for the pair alone, so pairs that no row has observed stay as they are.

    Parameters
    ----------
    counts
        Rows by pairs of observed levels, (n_levels in all, n_levels in all).
    firsts
        Place of the first level of each feature, and the number of levels in all,
        (n_features + 1,).
    emissions
        P(x_i = level | z_i = s), (n_features, n_states, n_levels).
    n_passes
        Number of passes.
    pairs
        Where fits begin, (n_features, n_features, n_states, n_states); replaced by the results.
    """
    n_features, n_states = emissions.shape[:2]
    gains = np.empty((n_states, n_states))
    for i in range(n_features):
        for j in range(i + 1, n_features):
            table = counts[firsts[i] : firsts[i + 1], firsts[j] : firsts[j + 1]]
            total = table.sum()
            if total <= 0:
                continue
            own = pairs[i, j]
            for _ in range(n_passes):
                gains[:] = 0.0
                for a in range(table.shape[0]):
                    for b in range(table.shape[1]):
                        expected = 0.0
                        for s in range(n_states):
                            for t in range(n_states):
                                expected += own[s, t] * emissions[i, s, a] * emissions[j, t, b]
                        if expected <= 0:
                            continue
                        ratio = table[a, b] / (total * expected)
                        for s in range(n_states):
                            for t in range(n_states):
                                gains[s, t] += ratio * emissions[i, s, a] * emissions[j, t, b]
                own *= gains
