"""Log Z of the restricted Boltzmann machine, its work spread over tasks."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import Map
from pipeline.numerics.networks.boltzmann_partition import (
    MOST_ENUMERATED,
    annealed,
    log_sum_of_states,
)
from pipeline.numerics.networks.boltzmann_rows import Machine, mean_of_exponentials
from pipeline.random import RowRandom

Array = NDArray[np.float64]

_STATES_A_TASK = 1 << 16
_CHAINS_A_TASK = 100


def is_enumerable(machine: Machine) -> bool:
    """Tell whether a layer is so small that log Z is exact."""
    return bool(min(machine.weights.shape) <= MOST_ENUMERATED)


def exact_log_z(machine: Machine, map_items: Map) -> float:
    """Sum over all states of the smaller layer."""
    n_states = 1 << min(machine.weights.shape)
    runs = [*range(0, n_states, _STATES_A_TASK)]
    parts = [*map_items(partial(_sum_of_run, machine, n_states), runs)]
    return float(np.logaddexp.reduce(parts))


def _sum_of_run(machine: Machine, n_states: int, first: int) -> float:
    return log_sum_of_states(machine, first, min(first + _STATES_A_TASK, n_states))


def estimated_log_z(
    machine: Machine,
    log_odds: Array,
    seed: int,
    n_chains: int,
    n_temperatures: int,
    map_items: Map,
) -> tuple[float, float]:
    """Estimate log Z by annealed importance sampling.

    Returns
    -------
    tuple
        log Z and its standard error, from how the chains' weights differ.
    """
    weigh = partial(_log_weights, machine, log_odds, seed, n_chains, n_temperatures)
    weights = np.concatenate([*map_items(weigh, range(0, n_chains, _CHAINS_A_TASK))])
    ratio, error = mean_of_exponentials(weights)
    independent = len(machine.hidden) * np.log(2) + np.logaddexp(0, log_odds).sum()
    return float(independent + ratio), float(error)


def _log_weights(
    machine: Machine, log_odds: Array, seed: int, n_chains: int, n_temperatures: int, first: int
) -> Array:
    key, n_here = RowRandom(seed, first).key, min(_CHAINS_A_TASK, n_chains - first)
    return annealed(machine, log_odds, key, n_here, n_temperatures).log_weights
