"""Exact moments of restricted Boltzmann machines whose smaller layer has few units.

Moments are the means of (x, 1)(h, 1)ᵀ, (n_features + 1, n_components + 1): given the observed
values of rows, or under a machine. The log-likelihood of a row is its log weight, log Σ exp(−E)
over all units that are not observed, minus log Z. In a step of EM, the machine whose own moments
are those given the rows is the maximum of a concave function (A. P. Dempster, N. M. Laird, D. B.
Rubin, JRSS B 39, 1977).

Missing values of a row are summed over their states, or hidden units over theirs, whichever takes
less time; the other units are summed out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.networks.boltzmann_rows import (
    BoltzmannMachine,
    add_softplus,
    apply_sigmoid,
)
from pipeline.numerics.networks.unit_states import list_states

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

MAX_CELLS = 1 << 19
"""Largest number of states of rows, times units, that is held at once."""
HIDDEN_STATES_PER_VALUE_STATE = 8
"""Number of states of hidden units that take as long as one of missing values.

All rows share a matrix product over the former.
"""
_UNITS_AT_ONCE = 10  # whose states fit into the cache
_CURVATURE_STEPS = 20  # remembered by the optimizer


class RowMoments(NamedTuple):
    """Sums over rows: of the log weights, nats, and of the moments."""

    log_weight: float
    moments: Array


def sum_row_moments(machine: BoltzmannMachine, X: Bits, observed: Bits | None) -> RowMoments:
    """Sum log weights and moments of rows given their observed values.

    `X` and the mask are (n_samples, n_features); without a mask, all values are observed.
    """
    n_features, n_hidden = machine.weights.shape
    n_missing = np.zeros(len(X), np.int64)
    if observed is not None:
        n_missing = n_features - observed.sum(axis=1, dtype=np.int64)
    total, moments = 0.0, np.zeros((n_features + 1, n_hidden + 1))
    for n in np.unique(n_missing).tolist():
        rows = np.flatnonzero(n_missing == n)
        takes_values = n == 0 or HIDDEN_STATES_PER_VALUE_STATE << n <= 1 << n_hidden
        states = 1 << n if takes_values else 1 << n_hidden
        height = max(1, MAX_CELLS // (states * (n_features if takes_values else 1)))
        for first in range(0, len(rows), height):
            part = rows[first : first + height]
            mask = (
                np.ones((len(part), n_features), np.uint8) if observed is None else observed[part]
            )
            sum_part = _sum_over_values if takes_values else _sum_over_hidden
            log_weight, added = sum_part(machine, X[part].astype(np.float64), mask)
            total += log_weight
            moments += added
    return RowMoments(total, moments)


def _sum_over_values(machine: BoltzmannMachine, X: Array, mask: Bits) -> RowMoments:
    """Sum rows with the same number of missing values over the states of these values."""
    n_rows, n_missing = len(X), int((mask[0] == 0).sum())
    if n_missing:
        missing = np.argsort(mask, axis=1, kind="stable")[:, None, :n_missing]
        states = list_states(n_missing)[None]
        X = np.repeat(X[:, None], states.shape[1], axis=1)
        shape = (n_rows, states.shape[1], n_missing)
        np.put_along_axis(X, np.broadcast_to(missing, shape), np.broadcast_to(states, shape), 2)
        X = X.reshape(-1, X.shape[2])
    logs, hidden = X @ machine.visible, X @ machine.weights + machine.hidden
    add_softplus(hidden, logs)
    apply_sigmoid(hidden)
    log_weight, shares = _normalize_states(logs.reshape(n_rows, -1))
    weighted = shares.reshape(-1, 1) * _append_ones(hidden)
    return RowMoments(log_weight, np.vstack([X.T @ weighted, weighted.sum(axis=0)]))


def _sum_over_hidden(machine: BoltzmannMachine, X: Array, mask: Bits) -> RowMoments:
    """Sum rows over the states of the hidden units."""
    states, missing = list_states(len(machine.hidden)), 1.0 - mask
    visible = states @ machine.weights.T + machine.visible
    logs = states @ machine.hidden + X @ visible.T + missing @ np.logaddexp(0, visible).T
    log_weight, shares = _normalize_states(logs)
    apply_sigmoid(visible)
    hidden = _append_ones(states)
    units = X.T @ (shares @ hidden) + ((missing.T @ shares) * visible.T) @ hidden
    return RowMoments(log_weight, np.vstack([units, shares.sum(axis=0) @ hidden]))


def _append_ones(units: Array | Bits) -> Array:
    return np.column_stack([units, np.ones(len(units))])


def _normalize_states(logs: Array) -> tuple[float, Array]:
    """Return the sum over rows of log Σ exp(logs), and the shares of states; changes `logs`."""
    largest = logs.max(axis=1, keepdims=True)
    logs -= largest
    shares = np.exp(logs, out=logs)
    sums = shares.sum(axis=1, keepdims=True)
    shares /= sums
    return float((largest + np.log(sums)).sum()), shares


def compute_model_moments(machine: BoltzmannMachine) -> RowMoments:
    """Return log Z and the moments under the machine, from all states of its smaller layer."""
    weights, visible, hidden = machine
    if len(visible) < len(hidden):
        log_z, moments = compute_model_moments(BoltzmannMachine(weights.T, hidden, visible))
        return RowMoments(log_z, moments.T)
    n_inner = min(len(hidden), _UNITS_AT_ONCE)
    inner, first = list_states(n_inner), np.zeros((len(visible) + 1, len(hidden) + 1))
    total = RowMoments(-np.inf, first)
    for outer in list_states(len(hidden) - n_inner):
        states = np.column_stack([inner, np.broadcast_to(outer, (len(inner), len(outer)))])
        inputs, logs = states @ weights.T + visible, states @ hidden
        add_softplus(inputs, logs)
        apply_sigmoid(inputs)
        log_weight, shares = _normalize_states(logs[None])
        weighted = shares.T * _append_ones(states)
        part = RowMoments(log_weight, np.vstack([inputs.T @ weighted, weighted.sum(axis=0)]))
        total = _mix_moments(total, part)
    return total


def _mix_moments(one: RowMoments, other: RowMoments) -> RowMoments:
    """Return the moments over the states of both, and the log of their sum."""
    log_weight = np.logaddexp(one.log_weight, other.log_weight)
    shares = np.exp(np.array([one.log_weight, other.log_weight]) - log_weight)
    return RowMoments(float(log_weight), shares[0] * one.moments + shares[1] * other.moments)


def match_moments(
    machine: BoltzmannMachine,
    moments: Array,
    is_free: NDArray[np.bool_],
    weight_decay: float,
    max_steps: int,
) -> BoltzmannMachine:
    """Take steps towards the machine whose moments are the given ones; none makes it worse.

    Parameters
    ----------
    machine
        Where to start.
    moments
        Moments to match, means over rows.
    is_free
        Features whose parameters may change, (n_features,); the others keep theirs.
    weight_decay
        Factor of the sum of squared weights that is subtracted, halved, from the log-likelihood.
    max_steps
        Maximum number of L-BFGS steps.
    """
    start, shape = machine, machine.weights.shape
    means = np.where(is_free, moments[:-1, -1], 0.0)
    units = moments[-1, :-1]
    # Steps are those of the centred machine, whose parameters depend less on each other.
    packed = [start.weights[is_free].ravel(), (start.visible + start.weights @ units)[is_free]]
    theta = np.concatenate([*packed, start.hidden + means @ start.weights])
    sizes = np.cumsum([int(is_free.sum()) * shape[1], int(is_free.sum())])

    def unpack(theta: Array) -> BoltzmannMachine:
        free_weights, free_visible, hidden = np.split(theta, sizes)
        weights, visible = start.weights.copy(), start.visible.copy()
        weights[is_free] = free_weights.reshape(-1, shape[1])
        visible[is_free] = free_visible - weights[is_free] @ units
        return BoltzmannMachine(weights, visible, hidden - means @ weights)

    def evaluate(theta: Array) -> tuple[float, Array]:
        at = unpack(theta)
        log_z, own = compute_model_moments(at)
        gap = moments - own
        value = (moments[:-1, :-1] * at.weights).sum() + moments[:-1, -1] @ at.visible
        value += moments[-1, :-1] @ at.hidden - log_z - weight_decay * (at.weights**2).sum() / 2
        by_weight = gap[:-1, :-1] - np.outer(gap[:-1, -1], units) - np.outer(means, gap[-1, :-1])
        by_weight -= weight_decay * at.weights
        gradient = [by_weight[is_free].ravel(), gap[:-1, -1][is_free], gap[-1, :-1]]
        return -float(value), -np.concatenate(gradient)

    found: Any = scipy.optimize.minimize(
        evaluate,
        theta,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_steps, "maxcor": _CURVATURE_STEPS},
    )
    return unpack(found.x)
