"""Z of a restricted Boltzmann machine, by enumeration or annealed importance sampling.

R. Salakhutdinov, I. Murray, "On the quantitative analysis of deep belief networks", ICML 2008,
section 4. Chains start from independent features (weights 0, biases b0) at β = 0 and reach the
machine at β = 1 through p_β(x) ∝ exp((1 − β) b0ᵀx + β bᵀx) Π_j (1 + exp(β a_j)), a = Wᵀx + c. Each
chain accumulates the log weight Σ log p_β'(x) / p_β(x); the mean of the weights is an unbiased
estimate of Z / Z_0.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.logistic.logistic_units import count_draw_words, fill_draws, row_states
from pipeline.numerics.networks.boltzmann_rows import (
    BoltzmannMachine,
    log_mean_exp,
    sum_softplus,
)
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Singles = NDArray[np.float32]

_MAX_ENUMERATED_UNITS = 20  # units of the smaller layer up to which Z is exact
_STATES_PER_TASK, _STATES_AT_ONCE = 1 << 16, 1 << 12
_CHAINS_PER_TASK = 100

_kernel = njit(nogil=True, cache=True, error_model="numpy")


def is_enumerable(machine: BoltzmannMachine) -> bool:
    """Return whether a layer is so small that log Z can be enumerated."""
    return bool(min(machine.weights.shape) <= _MAX_ENUMERATED_UNITS)


def enumerate_log_z(machine: BoltzmannMachine, map_items: MapFunction) -> float:
    """Compute log Z by summing over all states of the smaller layer."""
    n_states = 1 << min(machine.weights.shape)
    starts = [*range(0, n_states, _STATES_PER_TASK)]
    parts = [*map_items(partial(_sum_state_range, machine, n_states), starts)]
    return float(np.logaddexp.reduce(parts))


def _sum_state_range(machine: BoltzmannMachine, n_states: int, first: int) -> float:
    return log_sum_over_states(machine, first, min(first + _STATES_PER_TASK, n_states))


def estimate_log_z(
    machine: BoltzmannMachine,
    log_odds: Array,
    seed: int,
    n_chains: int,
    n_temperatures: int,
    map_items: MapFunction,
) -> tuple[float, float]:
    """Estimate log Z by annealed importance sampling.

    Returns
    -------
    tuple
        log Z and its standard error, estimated from the spread of the chains' weights.
    """
    weigh = partial(_anneal_log_weights, machine, log_odds, seed, n_chains, n_temperatures)
    weights = np.concatenate([*map_items(weigh, range(0, n_chains, _CHAINS_PER_TASK))])
    ratio, error = log_mean_exp(weights)
    independent = len(machine.hidden) * np.log(2) + np.logaddexp(0, log_odds).sum()
    return float(independent + ratio), float(error)


def _anneal_log_weights(
    machine: BoltzmannMachine,
    log_odds: Array,
    seed: int,
    n_chains: int,
    n_temperatures: int,
    first: int,
) -> Array:
    key, n_own = RowRandom(seed, first).key, min(_CHAINS_PER_TASK, n_chains - first)
    return run_annealing(machine, log_odds, key, n_own, n_temperatures).log_weights


def log_sum_over_states(machine: BoltzmannMachine, first: int, stop: int) -> float:
    """Return the log of the sum of exp(−E) over a range of states of the smaller layer.

    The other layer is summed out.

    Parameters
    ----------
    machine
        Parameters; a smaller layer of k units has 2^k states.
    first, stop
        Range of states; the bits of a state's number are its units.
    """
    weights, smaller, larger = machine
    if len(smaller) > len(larger):
        weights, smaller, larger = weights.T, larger, smaller
    bits = np.arange(len(smaller))
    sums = []
    for start in range(first, stop, _STATES_AT_ONCE):
        numbers = np.arange(start, min(start + _STATES_AT_ONCE, stop))
        states = (numbers[:, None] >> bits & 1).astype(np.float64)
        logs = states @ smaller
        _add_softplus(states @ weights + larger, logs)
        sums.append(np.logaddexp.reduce(logs))
    return float(np.logaddexp.reduce(sums))


@_kernel
def _add_softplus(inputs: Array, logs: Array) -> None:
    for n in range(len(inputs)):
        logs[n] += sum_softplus(inputs[n])


class AnnealedChains:
    """Chains that move from independent features to a machine.

    Attributes
    ----------
    units
        State of the chains, 0 or 1, (n_chains, n_features).
    log_weights
        Log importance weights, (n_chains,).
    """

    def __init__(
        self, machine: BoltzmannMachine, start: Array, key: np.uint64, n_chains: int
    ) -> None:
        """Draw the chains at β = 0, where features have the log-odds `start`, (n_features,)."""
        self._weights = machine.weights.astype(np.float32)
        self._back = np.ascontiguousarray(self._weights.T)
        self._machine, self._start = machine, start
        self._states, self._next = row_states(key, np.arange(n_chains)), 0
        self.units = self._draw_units(np.tile(start.astype(np.float32), (n_chains, 1)))
        self.log_weights = np.zeros(n_chains)

    def _draw_units(self, inputs: Singles) -> Singles:
        units = np.empty_like(inputs)
        fill_draws(inputs, inputs.shape[1], self._states, self._next, units)
        self._next += count_draw_words(inputs.shape[1])
        return units

    def resample(self, rng: np.random.Generator) -> None:
        """Resample the chains by their weights, so that each mode has its share of chains."""
        shares = np.cumsum(np.exp(self.log_weights - self.log_weights.max()))
        places = (rng.random() + np.arange(len(shares))) / len(shares)
        at = np.searchsorted(shares / shares[-1], places)
        self.units = self.units[np.minimum(at, len(shares) - 1)]
        self.log_weights = np.zeros(len(shares))

    def advance_to(self, before: float, beta: float) -> None:
        """Update the weights for the step from one β to the next, and take a Gibbs step."""
        visible, hidden = self._machine.visible, self._machine.hidden
        inputs = self.units @ self._weights + hidden.astype(np.float32)
        self.log_weights += (beta - before) * (self.units @ (visible - self._start))
        _add_ratios(inputs, before, beta, self.log_weights)
        self.gibbs_step(beta, inputs)

    def gibbs_step(self, beta: float, inputs: Singles | None = None) -> None:
        """Draw hidden units, then visible units, at this β."""
        visible, hidden = self._machine.visible, self._machine.hidden
        if inputs is None:
            inputs = self.units @ self._weights + hidden.astype(np.float32)
        on = self._draw_units(np.float32(beta) * inputs)
        biases = ((1 - beta) * self._start + beta * visible).astype(np.float32)
        self.units = self._draw_units(np.float32(beta) * (on @ self._back) + biases)


@_kernel
def _add_ratios(inputs: Singles, before: float, beta: float, log_weights: Array) -> None:
    """Add Σ_j log((1 + exp(β' a_j)) / (1 + exp(β a_j)))."""
    for n in range(len(inputs)):
        total, product = 0.0, 1.0
        for j in range(inputs.shape[1]):
            a = np.float64(inputs[n, j])
            above = 1.0 + exp_minus(abs(beta * a))
            total += (beta - before) * max(a, 0.0)
            product *= above / (1.0 + exp_minus(abs(before * a)))
            if j % 256 == 255:
                total, product = total + np.log(product), 1.0
        log_weights[n] += total + np.log(product)


def run_annealing(
    machine: BoltzmannMachine, start: Array, key: np.uint64, n_chains: int, n_temperatures: int
) -> AnnealedChains:
    """Anneal chains from independent features to the machine.

    Parameters
    ----------
    machine
        Parameters.
    start
        Log-odds of the independent features, (n_features,).
    key
        Key of the random draws.
    n_chains, n_temperatures
        Number of chains, and of steps from β = 0 to 1.
    """
    chains = AnnealedChains(machine, start, key, n_chains)
    betas = np.linspace(0, 1, n_temperatures + 1).tolist()
    for k, (before, beta) in enumerate(pairwise(betas)):
        if k % 100 == 0:
            check_cancelled()
        chains.advance_to(before, beta)
    return chains
