"""Standard errors of couplings, which are means of coefficients of two regressions.

The influence of a row on the coefficients of regression i is H_i⁻¹ s_i(x), with the information H_i
of all rows and the score s_i of the row. That on J_ij is the mean of its influences on b_ij and
b_ji, and the variance of J_ij is the sum of the squared influences of all rows (the sandwich
estimator of H. White, Econometrica 50, 1982; it also holds if the regressions are not exact).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.arrays import Array, Indices, Words
from pipeline.numerics.bits import kernels
from pipeline.numerics.logistic.node_regressions import Regressions

_VALUES_AT_ONCE = 1 << 22
MAX_INVERSES = 1 << 25
"""Most entries of the inverses of the information of all regressions."""


def invert_information(own: Regressions, information: Array) -> Array:
    """Return H⁻¹ of every regression, flattened; all coefficients are active."""
    places, inverses = own.square_places, np.empty_like(information)
    for r, n in enumerate(np.diff(own.places).tolist()):
        part = slice(places[r], places[r + 1])
        lower = np.tril(information[part].reshape(n, n))
        full = lower + np.tril(lower, -1).T + 1e-8 * np.trace(lower) / n * np.eye(n)
        inverses[part] = np.linalg.inv(full).ravel()
    return inverses


def find_partners(own: Regressions) -> Indices:
    """Return the place of b_ji for that of every b_ij, or its own place if there is none."""
    places = {
        (target, column): own.places[r] + 1 + k
        for r, target in enumerate(own.targets.tolist())
        for k, column in enumerate(own.columns[own.starts[r] : own.starts[r + 1]].tolist())
    }
    partners = np.arange(len(own.values))
    for (i, j), place in places.items():
        partners[place] = places.get((j, i), place)
    return partners


def sum_squared_influences(
    words: Words, weights: Array, own: Regressions, inverses: Array, partners: Indices
) -> Array:
    """Return Σ_n w_n of the squared influence of row n on each coefficient, (n_coefficients,)."""
    total, square_places = np.zeros(len(own.values)), own.square_places
    n_words = max(1, _VALUES_AT_ONCE // (64 * max(len(own.values), 1)))
    for first in range(0, -(-len(weights) // 64), n_words):
        own_weights = weights[64 * first : 64 * (first + n_words)]
        X = kernels.unpack_rows(words[:, first : first + n_words], len(own_weights)).astype(float)
        influences = np.empty((len(X), len(total)))
        for r, target in enumerate(own.targets.tolist()):
            columns = own.columns[own.starts[r] : own.starts[r + 1]]
            part = slice(own.places[r], own.places[r + 1])
            inverse = inverses[square_places[r] : square_places[r + 1]]
            influences[:, part] = _find_influences(
                X[:, target], X[:, columns], own.values[part], inverse
            )
        total += own_weights @ ((influences + influences[:, partners]) / 2) ** 2
    return total


def _find_influences(y: Array, X: Array, values: Array, inverse: Array) -> Array:
    """Return H⁻¹ s of each row, (n_rows, n_coefficients)."""
    residuals = y - expit(values[0] + X @ values[1:])
    scores = np.column_stack([residuals, residuals[:, None] * X])
    influences: NDArray[np.float64] = scores @ inverse.reshape(len(values), -1)
    return influences
