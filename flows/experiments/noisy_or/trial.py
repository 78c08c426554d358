"""One trial of noisy-OR networks: how fast a start learns, and what its units then stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import limit_blas_threads
from pipeline.models.noisy_or import NoisyOr, NoisyOrParams
from pipeline.models.noisy_or.estimation import iter_networks
from pipeline.models.noisy_or.gibbs import sample_posterior_means
from pipeline.models.noisy_or.likelihood import enumerate_log_probabilities
from pipeline.models.noisy_or.model import CODE_SWEEPS
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]


class NoisyOrTrial(NamedTuple):
    """What to learn from, and what to look at.

    Attributes
    ----------
    model
        Settings, with layers.
    X
        Rows to learn from, (n_samples, n_features).
    fresh
        Rows to see the way by, (n_fresh, n_features).
    rows, probabilities
        All rows that there are, (n_rows, n_features), and how likely each is, (n_rows,).
    asked
        Rows whose hidden units are wanted, (n_asked, n_features).
    epochs
        After which to look, counted from 1; the last is looked at in any case.
    seed, start
        Of the draws, and which start.
    """

    model: NoisyOr
    X: Bits
    fresh: Bits
    rows: Bits
    probabilities: Array
    code_rows: Bits
    epochs: Sequence[int]
    seed: int
    start: int


class NoisyOrResult(NamedTuple):
    """What a start came to.

    Attributes
    ----------
    epochs, bits, errors
        Mean of −log₂ P over the fresh rows after some epochs, with its standard error.
    bits_at_end
        Mean of −log₂ P over all rows, exact.
    params
        The network after the last epoch.
    means
        P(unit on | row) of the rows asked, (n_asked, n_hidden), by Gibbs sampling.
    """

    epochs: list[int]
    bits: Array
    errors: Array
    bits_at_end: float
    params: NoisyOrParams
    means: Array


def run_noisy_or_trial(trial: NoisyOrTrial) -> NoisyOrResult:
    """Learn from random weights, and look at the network on the way and at the end."""
    layers, wanted = trial.model.layers or (), {*trial.epochs}
    networks = iter_networks(trial.model, layers, trial.X, trial.seed, trial.start)
    seen: dict[int, Array] = {}
    with limit_blas_threads():
        for epoch, params in enumerate(networks, 1):
            if epoch in wanted:
                seen[epoch] = bits_per_row(params, trial.fresh)
        seen[epoch] = bits_per_row(params, trial.fresh)
        at_end = float(trial.probabilities @ bits_per_row(params, trial.rows))
    found = np.array([*seen.values()])
    errors = found.std(axis=1, ddof=1) / np.sqrt(len(trial.fresh))
    key = RowRandom(trial.seed, trial.start).stream("asked").key
    asked = (trial.code_rows, key, np.arange(len(trial.code_rows)))
    means, _ = sample_posterior_means(params.network, *asked, *CODE_SWEEPS)
    return NoisyOrResult([*seen], found.mean(axis=1), errors, at_end, params, means)


def bits_per_row(params: NoisyOrParams, X: Bits) -> Array:
    """Give −log₂ P of each row, (n_samples,), exact."""
    bits: Array = -enumerate_log_probabilities(params.network, X) / np.log(2)
    return bits
