"""A normal prior of slopes that leaves the scale of the traits where it is.

A prior w_i ~ N(0, I / λ) on the slopes of P items pulls their common size towards 0. Only the N
rows hold the scale of the traits against it. With the penalty ½ λ Σ_i |w_i|², fits have

    Σ_n ⟨x_n x_nᵀ⟩ = N I + λ Σ_i w_i w_iᵀ,

so that with many items and few rows the traits of the fitted rows spread far beyond the variance 1
that scores of new rows assume. A prior with an estimated mean has the same effect, with the
variance of the slopes in place of their mean square. A prior that only compares slopes with each
other has none, but lets all slopes diverge if two equal items determine the trait.

This prior has the precision λ while λ Σ_i |w_i|² ≤ c N. Beyond, its precision is estimated as well:
the penalty is a function of u = λ Σ_i |w_i|²,

    ½ u for u ≤ c N,   ½ c N (1 + log(u / (c N))) above,

the logarithm that a normal distribution of estimated precision has. Its derivative is that of a
normal prior with the precision λ' = λ min(1, c N / u), so that λ' Σ_i |w_i|² ≤ c N: the variance of
each trait in the fitted rows is between 1 and 1 + c, and its standard deviation within 1.8 % of 1.
The penalty is concave in u. So an M-step with the precision λ' of the current slopes raises the
objective.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MAX_EXCESS = 0.036  # c


def limit_precision(precision: float, squares: float, n_rows: float) -> float:
    """Return λ', given λ, Σ_i |w_i|² and the number of rows of the population."""
    limit = _MAX_EXCESS * n_rows
    return precision if precision * squares <= limit else limit / squares


def compute_slope_penalty(precision: float, squares: float, n_rows: float) -> float:
    """Return the penalty, nats, with arguments as for `limit_precision`."""
    u, limit = precision * squares, _MAX_EXCESS * n_rows
    return 0.5 * u if u <= limit else 0.5 * limit * (1 + math.log(u / limit))


def differentiate_penalty_twice(
    precision: float, slopes: Floats, n_rows: float, n_priors: Floats | float = 1.0
) -> Floats:
    """Return the second derivatives of the penalty in slopes, (n, n).

    `n_priors` are the numbers of priors of each slope, (n,).
    """
    weighted = n_priors * slopes
    squares = float(weighted @ slopes)
    limited = limit_precision(precision, squares, n_rows)
    hessian: Floats = limited * np.diag(np.broadcast_to(n_priors, slopes.shape).astype(np.float64))
    if limited < precision:
        hessian -= 2 * limited / squares * np.outer(weighted, weighted)
    return hessian
