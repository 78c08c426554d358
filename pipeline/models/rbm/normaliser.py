"""Log Z of the restricted Boltzmann machine, its work spread over tasks."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.numerics.networks.boltzmann_partition import (
    MAX_ENUMERATED_UNITS,
    log_sum_over_states,
    run_annealing,
)
from pipeline.numerics.networks.boltzmann_rows import BoltzmannMachine, log_mean_exp
from pipeline.random import RowRandom

Array = NDArray[np.float64]

_STATES_PER_TASK = 1 << 16
_CHAINS_PER_TASK = 100


def is_enumerable(machine: BoltzmannMachine) -> bool:
    """Tell whether a layer is so small that log Z is exact."""
    return bool(min(machine.weights.shape) <= MAX_ENUMERATED_UNITS)


def enumerate_log_z(machine: BoltzmannMachine, map_items: MapFunction) -> float:
    """Sum over all states of the smaller layer."""
    n_states = 1 << min(machine.weights.shape)
    runs = [*range(0, n_states, _STATES_PER_TASK)]
    parts = [*map_items(partial(_sum_state_range, machine, n_states), runs)]
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
        log Z and its standard error, from how the chains' weights differ.
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
    key, n_here = RowRandom(seed, first).key, min(_CHAINS_PER_TASK, n_chains - first)
    return run_annealing(machine, log_odds, key, n_here, n_temperatures).log_weights
