"""Sums over states, and Gibbs chains, of bits that depend on each other in pairs.

log P(x) = Σ_i h_i x_i + Σ_i<j J_ij x_i x_j − log Z, with thresholds h and couplings J.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array, Bits
from pipeline.numerics.compilation import callee
from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.row_random import draw_uniform, make_row_state

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_callee = callee(nogil=True, error_model="numpy")


@_kernel
def sum_missing(thresholds: Array, couplings: Array, X: Bits, observed: Bits, out: Array) -> None:
    """Fill in log Σ exp(h x + ½ x J x) over the states of the missing values of each row.

    `X`, (n_samples, n_features), is 0 where `observed` is; `couplings` have a zero diagonal.
    """
    for row in range(len(X)):
        x = X[row].astype(np.float64)
        fields = thresholds + couplings @ x
        energy = ((thresholds + fields) * x).sum() / 2
        out[row] = _sum_states(couplings, np.flatnonzero(observed[row] == 0), fields, energy)


@_callee
def _sum_states(couplings: Array, free: NDArray[np.intp], fields: Array, energy: float) -> float:
    """Return log Σ exp of all states of some bits that are 0, given the fields of all bits.

    From state to state, one bit changes (Gray code).
    """
    is_on = np.zeros(len(free), np.bool_)
    largest, total = energy, 1.0
    for state in range(1, 1 << len(free)):
        bit = 0
        while state >> bit & 1 == 0:
            bit += 1
        is_on[bit] = not is_on[bit]
        sign = 1.0 if is_on[bit] else -1.0
        energy += sign * fields[free[bit]]
        row = couplings[free[bit]]
        for k in range(len(free)):
            fields[free[k]] += sign * row[free[k]]
        if energy > largest:
            total, largest = total * math.exp(largest - energy) + 1.0, energy
        else:
            total += math.exp(energy - largest)
    return largest + math.log(total)


@_kernel
def impute(thresholds: Array, couplings: Array, X: Bits, observed: Bits, out: Array) -> None:
    """Fill in P(x_i = 1 | observed values of all other features), (n_samples, n_features)."""
    for row in range(len(X)):
        missing = np.flatnonzero(observed[row] == 0)
        base = X[row].astype(np.float64)
        for i in range(len(base)):
            x = base.copy()
            x[i] = 0.0
            fields = thresholds + couplings @ x
            if len(missing) == 0 or (len(missing) == 1 and missing[0] == i):
                field = fields[i]
            else:
                others = missing[missing != i]
                off = _sum_states(couplings, others, fields.copy(), 0.0)
                on = _sum_states(couplings, others, fields + couplings[i], fields[i])
                field = on - off
            e = exp_minus(abs(field))
            out[row, i] = 1.0 / (1.0 + e) if field >= 0 else e / (1.0 + e)


@_kernel
def run_chains(
    thresholds: Array,
    couplings: Array,
    start: Array,
    key: np.uint64,
    first_draw: int,
    betas: Array,
    X: Bits,
    log_weights: Array,
) -> None:
    """Take a Gibbs sweep of each chain at each β after the first, in place.

    At β, the thresholds are those between `start`, (n_features,), at 0 and `thresholds` at 1, and
    the couplings are β J. `X`, (n_chains, n_features), holds the chains, whose draws are keyed by
    their row and begin with `first_draw`. Their log importance weights, (n_chains,), are added to
    `log_weights`; see `pipeline.models.rbm`.
    """
    n = X.shape[1]
    for chain in range(len(X)):
        state, draw = make_row_state(key, chain), first_draw
        x = X[chain]
        fields = couplings @ x.astype(np.float64)
        for step in range(1, len(betas)):
            beta = betas[step]
            if beta != betas[step - 1]:
                log = 0.0
                for i in range(n):
                    log += x[i] * (thresholds[i] + fields[i] / 2 - start[i])
                log_weights[chain] += (beta - betas[step - 1]) * log
            for i in range(n):
                field = (1 - beta) * start[i] + beta * (thresholds[i] + fields[i])
                e = exp_minus(abs(field))
                p = 1.0 / (1.0 + e) if field >= 0 else e / (1.0 + e)
                value = np.uint8(draw_uniform(state, draw) < p)
                draw += 1
                if value != x[i]:
                    sign = 1.0 if value else -1.0
                    for j in range(n):
                        fields[j] += sign * couplings[i, j]
                    x[i] = value


def resample(log_weights: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw as many chains by their weights, so that each mode has its share of them."""
    shares = np.cumsum(np.exp(log_weights - log_weights.max()))
    positions = (rng.random() + np.arange(len(shares))) / len(shares)
    return np.minimum(np.searchsorted(shares / shares[-1], positions), len(shares) - 1)
