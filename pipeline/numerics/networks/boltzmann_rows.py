"""Energies, likelihoods and hidden units of rows under a restricted Boltzmann machine.

E(x, h) = −xᵀWh − bᵀx − cᵀh over bits x and h (Sugiyama, eqs 36.6 and 36.7). Summed over h,
−F(x) = bᵀx + Σ_j log(1 + exp(a_j)) with a = Wᵀx + c, so that log P(x) = −F(x) − log Z.

Missing values of a row are replaced by their mean field given the observed values: x_i = σ(b_i +
Σ_j W_ij h_j) and h = σ(a) are iterated. `affine_outputs` computes a with missing values at the
means of their features instead. Everything is in double precision, and each row is summed in a
fixed order, so that its bits do not depend on the other rows in the call.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.row_random import draw_uniform, make_row_state

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

MAX_MEAN_FIELD_ROUNDS = 30
_MEAN_FIELD_TOLERANCE = 1e-9
_PRODUCT_LIMIT = 1e200  # above it, a product is turned into a logarithm before the next factor
_MAX_SUMMED_UNITS = 10  # over all states of which a row is summed
_NO_MASK = np.empty((0, 0), np.uint8)

_kernel = njit(nogil=True, cache=True, error_model="numpy")


class BoltzmannMachine(NamedTuple):
    """Parameters of a restricted Boltzmann machine."""

    weights: Array  # W, (n_features, n_components), C order
    # b and c: (n_features,) and (n_components,).
    visible: Array
    hidden: Array


def hidden_inputs(machine: BoltzmannMachine, X: Bits, observed: Bits | None) -> Array:
    """Return a = Wᵀx + c, (n_samples, n_components), with missing values at their mean field.

    X and the mask are (n_samples, n_features); without a mask, all values are observed.
    """
    inputs = np.empty((len(X), len(machine.hidden)))
    _fill_inputs(*machine, X, _mask_or_empty(observed), inputs)
    return inputs


def hidden_probabilities(machine: BoltzmannMachine, X: Bits, observed: Bits | None) -> Array:
    """Return σ(a), (n_samples, n_components); parameters as for `hidden_inputs`."""
    values = hidden_inputs(machine, X, observed)
    apply_sigmoid(values)
    return values


@_kernel
def apply_sigmoid(values: Array) -> None:
    """Replace inputs of units, (n_samples, n_units), by probabilities, in place."""
    for n in range(len(values)):
        for j in range(values.shape[1]):
            values[n, j] = _sigmoid(values[n, j])


def minus_free_energy(machine: BoltzmannMachine, X: Bits) -> Array:
    """Return −F(x) of each row, (n_samples,); no value may be missing."""
    energies = np.empty(len(X))
    _fill_energies(*machine, X, hidden_inputs(machine, X, None), energies)
    return energies


def estimate_observed_log_weight(
    machine: BoltzmannMachine,
    X: Bits,
    observed: Bits,
    key: np.uint64,
    rows: NDArray[np.int64],
    n_draws: int,
) -> tuple[Array, Array]:
    """Estimate log Σ exp(−F(x)), summed over the missing values of each row.

    Of at most 10 missing values, or hidden units, all states are summed over. Otherwise h is drawn
    from its mean field given the observed values, and weighted by the exact sum over x. If h has
    several modes given the observed values, draws may miss some, and the estimate is too low.

    Returns
    -------
    tuple
        The estimate and its standard error, (n_samples,) each; 0 for a sum over all states.
    """
    inputs = hidden_inputs(machine, X, observed)
    estimate, error = np.empty(len(X)), np.empty(len(X))
    _fill_estimates(*machine, X, observed, inputs, key, rows, n_draws, estimate, error)
    return estimate, error


def pseudo_likelihoods(machine: BoltzmannMachine, X: Bits, observed: Bits | None) -> Array:
    """Return Σ_i log P(x_i | the other values) over the observed values of each row, (n_samples,).

    If bit i flips, −F changes by ±b_i + Σ_j log(1 − h_j + h_j exp(±W_ij)) with the row's h, which
    needs no exponential per row and pair of units.
    """
    scores = np.empty(len(X))
    inputs = hidden_inputs(machine, X, observed)
    limit = math.log(_PRODUCT_LIMIT)
    weights = np.clip(np.ascontiguousarray(machine.weights.T), -limit, limit)
    up, down = np.exp(weights), np.exp(-weights)
    largest = np.nan_to_num(np.abs(weights).max(initial=1e-9), nan=1.0)
    run = max(1, int(limit / largest))
    _fill_pseudo_likelihoods(
        up, down, machine.visible, X, _mask_or_empty(observed), inputs, run, scores
    )
    return scores


def _mask_or_empty(observed: Bits | None) -> Bits:
    return _NO_MASK if observed is None else observed


@_kernel
def _sigmoid(x: float) -> float:
    e = exp_minus(abs(x))
    return float(1.0 / (1.0 + e) if x >= 0 else e / (1.0 + e))


@_kernel
def sum_softplus(inputs: Array) -> float:
    """Return Σ log(1 + exp(input)), with one logarithm per 512 factors."""
    total, product = 0.0, 1.0
    for start in range(0, len(inputs), 512):
        part = inputs[start : start + 512]
        product = 1.0
        for j in range(len(part)):
            total += max(part[j], 0.0)
            product *= 1.0 + exp_minus(abs(part[j]))
        total += math.log(product)
    return total


@_kernel
def add_softplus(inputs: Array, logs: Array) -> None:
    """Add Σ_j log(1 + exp(input)) to the entry of each row, in place.

    `inputs` is (n_samples, n_units), and `logs` (n_samples,).
    """
    for n in range(len(inputs)):
        logs[n] += sum_softplus(inputs[n])


@_kernel
def _fill_inputs(
    weights: Array, visible: Array, hidden: Array, X: Bits, observed: Bits, inputs: Array
) -> None:
    values = np.empty(len(visible))
    for n in range(len(X)):
        a = inputs[n]
        _sum_inputs(weights, hidden, X[n], a)
        if len(observed) and not observed[n].all():
            _iterate_mean_field(weights, visible, observed[n], values, a)


@_kernel
def _sum_inputs(weights: Array, hidden: Array, row: Bits, inputs: Array) -> None:
    inputs[:] = hidden
    for i in range(len(row)):
        if row[i]:
            unit_weights = weights[i]
            for j in range(len(inputs)):
                inputs[j] += unit_weights[j]


@_kernel
def _iterate_mean_field(
    weights: Array, visible: Array, observed: Bits, values: Array, inputs: Array
) -> None:
    """Iterate the mean field of a row's missing values and the hidden units."""
    missing = np.flatnonzero(observed == 0)
    observed_inputs, h = inputs.copy(), np.empty(len(inputs))
    for i in missing:
        values[i] = _sigmoid(visible[i])
    for _ in range(MAX_MEAN_FIELD_ROUNDS):
        inputs[:] = observed_inputs
        for i in missing:
            inputs += values[i] * weights[i]
        for j in range(len(h)):
            h[j] = _sigmoid(inputs[j])
        largest_change = 0.0
        for i in missing:
            previous = values[i]
            values[i] = _sigmoid(visible[i] + (weights[i] * h).sum())
            largest_change = max(largest_change, abs(values[i] - previous))
        if largest_change < _MEAN_FIELD_TOLERANCE:
            break


@_kernel
def _fill_energies(
    weights: Array, visible: Array, hidden: Array, X: Bits, inputs: Array, energies: Array
) -> None:
    for n in range(len(X)):
        energies[n] = _sum_biases_on(visible, X[n]) + sum_softplus(inputs[n])


@_kernel
def _sum_biases_on(visible: Array, row: Bits) -> float:
    total = 0.0
    for i in range(len(row)):
        if row[i]:
            total += visible[i]
    return total


@_kernel
def _fill_estimates(
    weights: Array,
    visible: Array,
    hidden: Array,
    X: Bits,
    observed: Bits,
    inputs: Array,
    key: np.uint64,
    rows: NDArray[np.int64],
    n_draws: int,
    estimate: Array,
    error: Array,
) -> None:
    observed_inputs, logs = np.empty(len(hidden)), np.empty(n_draws)
    for n in range(len(X)):
        missing = np.flatnonzero(observed[n] == 0)
        if len(missing) == 0:
            estimate[n], error[n] = _sum_biases_on(visible, X[n]) + sum_softplus(inputs[n]), 0.0
            continue
        _sum_inputs(weights, hidden, X[n], observed_inputs)
        if min(len(missing), len(hidden)) <= _MAX_SUMMED_UNITS:
            free = weights[missing]
            if len(missing) <= len(hidden):
                total = _log_sum_states(free, visible[missing], observed_inputs)
            else:
                total = _log_sum_states(free.T.copy(), observed_inputs, visible[missing])
            estimate[n], error[n] = _sum_biases_on(visible, X[n]) + total, 0.0
            continue
        start = _sum_biases_on(visible, X[n]) + sum_softplus(inputs[n])
        state = make_row_state(key, rows[n])
        for draw in range(n_draws):
            change = _draw_hidden(
                weights, visible, missing, observed_inputs, inputs[n], state, draw * len(hidden)
            )
            logs[draw] = start + change
        estimate[n], error[n] = log_mean_exp(logs)


@_kernel
def _log_sum_states(weights: Array, biases: Array, inputs: Array) -> float:
    """Return log Σ exp(−E) over all states of some units and of the units connected to them.

    `weights` is (n_units, n_others), `biases` (n_units,), and `inputs`, (n_others,), are those with
    all units off. From state to state, one unit changes (Gray code).
    """
    is_on, inputs = np.zeros(len(biases), np.bool_), inputs.copy()
    bias, largest = 0.0, sum_softplus(inputs)
    total = 1.0
    for state in range(1, 1 << len(biases)):
        unit = 0
        while state >> unit & 1 == 0:
            unit += 1
        is_on[unit] = not is_on[unit]
        sign = 1.0 if is_on[unit] else -1.0
        bias += sign * biases[unit]
        for j in range(len(inputs)):
            inputs[j] += sign * weights[unit, j]
        log = bias + sum_softplus(inputs)
        if log > largest:
            total, largest = total * math.exp(largest - log) + 1.0, log
        else:
            total += math.exp(log - largest)
    return float(largest + math.log(total))


@_kernel
def _draw_hidden(
    weights: Array,
    visible: Array,
    missing: NDArray[np.int64],
    observed_inputs: Array,
    inputs: Array,
    state: np.uint64,
    first: int,
) -> float:
    """Draw h and return its log weight, up to a term that all draws of the row share."""
    fields = visible[missing]
    total = 0.0
    for j in range(len(observed_inputs)):
        if draw_uniform(state, first + j) < _sigmoid(inputs[j]):
            total += observed_inputs[j] - inputs[j]
            for k in range(len(missing)):
                fields[k] += weights[missing[k], j]
    return total + sum_softplus(fields)


@_kernel
def log_mean_exp(logs: Array) -> tuple[float, float]:
    """Return the log of the mean of exp(logs), and its standard error."""
    largest = logs.max()
    shares = np.exp(logs - largest)
    mean = shares.mean()
    spread = math.sqrt(((shares - mean) ** 2).sum() / max(len(logs) - 1, 1) / len(logs))
    return largest + math.log(mean), spread / mean


@_kernel
def _fill_pseudo_likelihoods(
    up: Array,
    down: Array,
    visible: Array,
    X: Bits,
    observed: Bits,
    inputs: Array,
    run: int,
    scores: Array,
) -> None:
    h, not_h = np.empty(inputs.shape[1]), np.empty(inputs.shape[1])
    changes = np.empty(len(visible))
    # float64 like all other arrays; otherwise the loops are not vectorized
    values = np.empty(len(visible))
    for n in range(len(X)):
        row = X[n]
        for i in range(len(row)):
            values[i] = row[i]
        for j in range(len(h)):
            a = inputs[n, j]
            e = exp_minus(abs(a))
            likelier, less_likely = 1.0 / (1.0 + e), e / (1.0 + e)
            h[j] = likelier if a >= 0 else less_likely
            not_h[j] = less_likely if a >= 0 else likelier
        _fill_flip_changes(up, down, values, h, not_h, run, changes)
        for i in range(len(row)):
            changes[i] += -visible[i] if values[i] > 0.5 else visible[i]
            values[i] = exp_minus(abs(changes[i]))
        total, product = 0.0, 1.0
        for i in range(len(row)):
            if len(observed) and not observed[n, i]:
                continue
            total -= max(changes[i], 0.0)
            product *= 1.0 + values[i]
            if product > _PRODUCT_LIMIT:
                total, product = total - math.log(product), 1.0
        scores[n] = total - math.log(product)


@_kernel
def _fill_flip_changes(
    up: Array, down: Array, row: Array, h: Array, not_h: Array, run: int, changes: Array
) -> None:
    """Sum log(1 − h_j + h_j exp(±W_ij)) for all bits at once, `run` factors per logarithm."""
    products = np.ones(len(changes))
    for i in range(len(changes)):
        changes[i] = 0.0
    for j in range(len(h)):
        off, on, share, not_share = up[j], down[j], h[j], not_h[j]
        for i in range(len(products)):
            if_on, if_off = on[i], off[i]  # reading both avoids a branch
            products[i] *= not_share + share * (if_on if row[i] > 0.5 else if_off)
        if (j + 1) % run == 0 or j + 1 == len(h):
            for i in range(len(products)):
                changes[i] += math.log(products[i])
                products[i] = 1.0


def affine_outputs(
    weights: Array, biases: Array, means: Array, X: Bits, observed: Bits | None
) -> Array:
    """Return Wᵀx + b of each row, (n_samples, n_outputs), with missing values at their means.

    W is (n_features, n_outputs), in C order, and b (n_outputs,). The means are (n_features,). X, 0
    where missing, and its mask are (n_samples, n_features); the mask is None if nothing is missing.
    """
    sums = hidden_inputs(BoltzmannMachine(weights, means, biases), X, None)
    if observed is not None:
        _add_missing(weights, means, observed, sums)
    return sums


@_kernel
def _add_missing(weights: Array, means: Array, observed: Bits, sums: Array) -> None:
    for n in range(len(sums)):
        for i in range(len(means)):
            if not observed[n, i]:
                for j in range(sums.shape[1]):
                    sums[n, j] += means[i] * weights[i, j]
