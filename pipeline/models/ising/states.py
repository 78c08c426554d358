"""States of a fitted Ising model: their energies, sums over missing values, draws, heat capacity.

At most 20 features are enumerated; states of more are drawn by Gibbs chains.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logit

from pipeline.arrays import Array, Bits
from pipeline.models.ising.moments import MAX_FEATURES
from pipeline.models.ising.params import IsingParams
from pipeline.numerics.networks.ising_states import resample, run_chains, sum_missing
from pipeline.numerics.networks.unit_states import list_states
from pipeline.random import RowRandom

MAX_ENUMERATED = 20
"""Most features whose states are enumerated, for log Z and samples."""
_STATES_AT_ONCE = 1 << 14
# For samples: number of chains, temperatures of the annealing, Gibbs sweeps between two rows.
_SAMPLING_CHAINS, _BURN_IN, _SWEEPS_BETWEEN_SAMPLES = 5000, 300, 10
# Chains, and Gibbs sweeps at each temperature.
_HEAT_CHAINS, _HEAT_SWEEPS = 1000, 5


def compute_log_z(params: IsingParams) -> Array | None:
    """Return log Z, (); None if there are too many features."""
    if len(params.shares) > MAX_ENUMERATED:
        return None
    nothing = np.zeros((1, len(params.shares)), np.uint8)
    return np.asarray(sum_over_missing(params, nothing, nothing)[0])


def sum_over_missing(params: IsingParams, X: Bits, mask: Bits) -> Array:
    """Return log Σ exp(h x + ½ x J x) over the missing values of each row, (n_samples,)."""
    nats = np.empty(len(X))
    sum_missing(params.thresholds, params.couplings, X, mask, nats)
    return nats


def measure_heat_capacity(params: IsingParams, temperatures: Array) -> Array | None:
    """Return the variance of the energy per feature and T², (n_temperatures,).

    At most 20 features are enumerated, and at most 200 simulated by Gibbs chains that cool down
    from the highest temperature. None if there are more.
    """
    p = len(params.shares)
    if p > MAX_FEATURES:
        return None
    found = np.empty(len(temperatures))
    if p <= MAX_ENUMERATED:
        nats = _list_nats(params)
        for k, t in enumerate(temperatures.tolist()):
            weights = np.exp((nats - nats.max()) / t)
            weights /= weights.sum()
            found[k] = weights @ (nats - weights @ nats) ** 2 / (p * t**2)
        return found
    rng = np.random.default_rng(0)
    X, draw = (rng.random((_HEAT_CHAINS, p)) < 0.5).astype(np.uint8), 0
    given = params.thresholds, params.couplings, np.zeros(p), RowRandom(0).key
    for k in np.argsort(-temperatures).tolist():
        betas = np.full(_HEAT_SWEEPS + 1, 1 / temperatures[k])
        run_chains(*given, draw, betas, X, np.zeros(len(X)))
        draw += p * _HEAT_SWEEPS
        found[k] = _sum_energies(params, X.astype(np.float64)).var() / (p * temperatures[k] ** 2)
    return found


def draw_states(params: IsingParams, n_samples: int, rng: np.random.Generator) -> Bits:
    """Draw rows, (n_samples, n_features): exactly of at most 20 features, else by Gibbs chains.

    Chains are annealed from independent features and resampled by their weights, as those of
    `pipeline.models.rbm`; then each yields one row every ten sweeps.
    """
    p = len(params.shares)
    if p <= MAX_ENUMERATED:
        nats = _list_nats(params)
        shares = np.cumsum(np.exp(nats - nats.max()))
        states = np.searchsorted(shares, rng.random(n_samples) * shares[-1], side="right")
        return np.asarray(states[:, None] >> np.arange(p) & 1, np.uint8)
    key, n_chains = RowRandom(int(rng.integers(2**63))).key, min(n_samples, _SAMPLING_CHAINS)
    chains = (rng.random((n_chains, p)) < params.shares).astype(np.uint8)
    given = params.thresholds, params.couplings, bound_logits(params.shares, 1.0), key
    weights, rows = np.zeros(n_chains), np.empty((n_samples, p), np.uint8)
    betas, draw = np.linspace(0, 1, _BURN_IN + 1), 0
    for first in range(0, n_samples, max(n_chains, 1)):
        run_chains(*given, draw, betas, chains, weights)
        draw += p * (len(betas) - 1)
        if not first:
            chains = chains[resample(weights, rng)]
            betas = np.ones(_SWEEPS_BETWEEN_SAMPLES + 1)
        rows[first : first + n_chains] = chains[: n_samples - first]
    return rows


def bound_logits(ones: Array, weight: float) -> Array:
    """Return the log-odds of features, with half a row added to each value if there are rows."""
    half = 0.5 if weight > 1 else 1e-6
    return np.asarray(logit((ones + half) / (weight + 2 * half)))


def _list_nats(params: IsingParams) -> Array:
    """Return h x + ½ x J x of all states, (2 ** n_features,)."""
    n_states = 1 << len(params.shares)
    return np.concatenate(
        [
            _sum_energies(params, list_states(len(params.shares), first, last).astype(np.float64))
            for first in range(0, n_states, _STATES_AT_ONCE)
            for last in [min(first + _STATES_AT_ONCE, n_states)]
        ]
    )


def _sum_energies(params: IsingParams, X: Array) -> Array:
    """Return minus the energies of states, h x + ½ x J x, (n_states,)."""
    nats: Array = X @ params.thresholds + np.einsum("ni,ni->n", X @ params.couplings, X) / 2
    return nats
