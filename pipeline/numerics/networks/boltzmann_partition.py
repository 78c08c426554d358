"""Z of a restricted Boltzmann machine: by enumeration, or by annealed importance sampling.

R. Salakhutdinov, I. Murray, "On the quantitative analysis of deep belief networks", ICML 2008,
section 4. Chains go from independent features (weights 0, biases b0) at β = 0 to the machine at
β = 1 through p_β(x) ∝ exp((1 − β) b0ᵀx + β bᵀx) Π_j (1 + exp(β a_j)), a = Wᵀx + c. Each gathers the
log weight Σ log p_β'(x) / p_β(x), and the mean of exp of these is Z / Z_0 without bias.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.logistic.logistic_units import count_draw_words, fill_draws, row_states
from pipeline.numerics.networks.boltzmann_rows import BoltzmannMachine, sum_softplus

Array = NDArray[np.float64]
Singles = NDArray[np.float32]

MAX_ENUMERATED_UNITS = 20
"""Units of the smaller layer up to which Z is exact."""
STATES_AT_ONCE = 1 << 12
"""States that are enumerated at once."""

_kernel = njit(nogil=True, cache=True, error_model="numpy")


def log_sum_over_states(machine: BoltzmannMachine, first: int, stop: int) -> float:
    """Sum exp(−E) over some states of the smaller layer, each with all of the other; give the log.

    Parameters
    ----------
    machine
        Parameters; there are two to the power of its smaller layer's units states.
    first, stop
        Number of the first state, whose bits are those of the number, and of the last plus one.
    """
    weights, here, other = machine
    if len(here) > len(other):
        weights, here, other = weights.T, other, here
    bits = np.arange(len(here))
    found = []
    for start in range(first, stop, STATES_AT_ONCE):
        numbers = np.arange(start, min(start + STATES_AT_ONCE, stop))
        states = (numbers[:, None] >> bits & 1).astype(np.float64)
        logs = states @ here
        _add_softplus(states @ weights + other, logs)
        found.append(np.logaddexp.reduce(logs))
    return float(np.logaddexp.reduce(found))


@_kernel
def _add_softplus(inputs: Array, logs: Array) -> None:
    for n in range(len(inputs)):
        logs[n] += sum_softplus(inputs[n])


class AnnealedChains:
    """Chains on their way from independent features to a machine.

    Attributes
    ----------
    units
        Bits of the chains, 0 or 1, (n_chains, n_features).
    log_weights
        What each has gathered, (n_chains,).
    """

    def __init__(
        self, machine: BoltzmannMachine, start: Array, key: np.uint64, n_chains: int
    ) -> None:
        """Draw the chains at β = 0, where features have the log-odds `start`, (n_features,)."""
        self._weights = machine.weights.astype(np.float32)
        self._back = np.ascontiguousarray(self._weights.T)
        self._machine, self._from = machine, start
        self._states, self._next = row_states(key, np.arange(n_chains)), 0
        self.units = self._draw_units(np.tile(start.astype(np.float32), (n_chains, 1)))
        self.log_weights = np.zeros(n_chains)

    def _draw_units(self, inputs: Singles) -> Singles:
        drawn = np.empty_like(inputs)
        fill_draws(inputs, inputs.shape[1], self._states, self._next, drawn)
        self._next += count_draw_words(inputs.shape[1])
        return drawn

    def resample(self, rng: np.random.Generator) -> None:
        """Take chains as often as their weights say: modes then have their share of chains."""
        shares = np.cumsum(np.exp(self.log_weights - self.log_weights.max()))
        places = (rng.random() + np.arange(len(shares))) / len(shares)
        at = np.searchsorted(shares / shares[-1], places)
        self.units = self.units[np.minimum(at, len(shares) - 1)]
        self.log_weights = np.zeros(len(shares))

    def advance_to(self, before: float, beta: float) -> None:
        """Weigh the chains by the step from one β to the next, and let them take a Gibbs step."""
        visible, hidden = self._machine.visible, self._machine.hidden
        inputs = self.units @ self._weights + hidden.astype(np.float32)
        self.log_weights += (beta - before) * (self.units @ (visible - self._from))
        _add_ratios(inputs, before, beta, self.log_weights)
        self.gibbs_step(beta, inputs)

    def gibbs_step(self, beta: float, inputs: Singles | None = None) -> None:
        """Draw hidden units, then visible ones, at this β."""
        visible, hidden = self._machine.visible, self._machine.hidden
        if inputs is None:
            inputs = self.units @ self._weights + hidden.astype(np.float32)
        on = self._draw_units(np.float32(beta) * inputs)
        biases = ((1 - beta) * self._from + beta * visible).astype(np.float32)
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
    """Take chains from independent features to the machine.

    Parameters
    ----------
    machine
        Parameters.
    start
        Log-odds of the independent features, (n_features,).
    key
        Of the draws.
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
