"""Learning a noisy-OR network from a sample of rows, from several starts.

Every row of the sample keeps its hidden units from epoch to epoch. Units of chains that begin
anew in every epoch stay far from those that explain a row best, and so do the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.executors.cancellation import check_cancelled
from pipeline.models.noisy_or.gibbs import sample_states
from pipeline.models.noisy_or.likelihood import (
    enumerate_log_probabilities,
    estimate_log_probabilities,
)
from pipeline.models.noisy_or.params import NoisyOrParams, reestimate, sum_unit_statistics
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

MAX_HELD_OUT_UNITS = 64
"""Units of a layer at which the search for their number ends."""
_FIRST_WEIGHTS = (0.05, 0.15)
_FIRST_ACTIVITY = 0.5
_JOINT_TURNS = 5  # times the epochs of a layer
_FINAL_EPOCHS = 20  # epochs of all rows at once
_MAX_SETTLED_FLIPS = 0.05  # mean probability of a flip
_FEW_STARTS = 3
_SCORED_ROWS = 300  # rows held out
_MAX_ENUMERATED_UNITS, _CHAINS, _TEMPERATURES = 10, 10, 100
_MAX_FAILURES = 2  # doublings that end the search
_GAIN_STANDARD_ERRORS = 2  # of a gain, that it must be above


class LearnedNetwork(NamedTuple):
    """A network, the hidden units of the rows that it was learned from, and how well it does.

    Attributes
    ----------
    params
        The network.
    states
        (n_samples, n_hidden).
    score
        Mean of log P(x, units), nats.
    """

    params: NoisyOrParams
    states: Bits
    score: float


def learn_from_starts(
    model: Any, layers: Sequence[int], X: Bits, seed: int, n_starts: int, map_items: MapFunction
) -> LearnedNetwork:
    """Learn from several starts at a time, and go on with the best.

    Parameters
    ----------
    model
        Settings.
    layers
        Units of each layer from the data up.
    X
        Rows, `MISSING` where not observed.
    seed
        Of all draws.
    n_starts
        How many.
    map_items
        Spreads them.
    """
    found = [*map_items(partial(_learn_one_start, model, tuple(layers), X, seed), range(n_starts))]
    best = max(found, key=lambda start: start.score)
    return _EpochLearner(
        model, X, RowRandom(seed, n_starts), best.params, best.states
    ).learn_from_all_rows(_FINAL_EPOCHS)


def iter_networks(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> Iterator[NoisyOrParams]:
    """Learn from random weights, and give the network after every epoch, the last of all rows.

    The parameters are those of `learn_from_starts`; `start` numbers the start.
    """
    learner, rng = _draw_learner(model, layers, X, seed, start)
    yield from learner.iter_epochs(rng)
    yield learner.learn_from_all_rows(1).params


def _learn_one_start(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> LearnedNetwork:
    learner, rng = _draw_learner(model, layers, X, seed, start)
    for _ in learner.iter_epochs(rng):
        continue
    return learner.learn_from_all_rows(1)


def _draw_learner(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> tuple[_EpochLearner, np.random.Generator]:
    rng = np.random.default_rng([seed, start])
    sizes = (X.shape[1], *layers)
    weights = [
        rng.uniform(*_FIRST_WEIGHTS, (n, above)) for n, above in zip(sizes, layers, strict=False)
    ]
    leaks = [np.full(n, model.leak) for n in sizes[:-1]]
    prior = rng.uniform(*_FIRST_WEIGHTS, layers[-1])
    params = NoisyOrParams(tuple(weights), (*leaks, prior))
    states = (rng.random((len(X), sum(layers))) < _FIRST_ACTIVITY).astype(np.uint8)
    return _EpochLearner(model, X, RowRandom(seed, start), params, states), rng


class _EpochLearner:
    """A network on its way through epochs."""

    def __init__(
        self, model: Any, X: Bits, rng: RowRandom, params: NoisyOrParams, states: Bits
    ) -> None:
        self._model, self._X, self._rng = model, X, rng
        self._params, self._states, self._n_done = params, states.copy(), 0
        self._flips = np.ones(len(params.weights))
        self._powers = np.linspace(model.tempering, 1, model.sweeps)
        self._powers[-1] = 1

    @property
    def _all_layers(self) -> tuple[int, ...]:
        return tuple(range(len(self._params.weights)))

    def iter_epochs(self, rng: np.random.Generator) -> Iterator[NoisyOrParams]:
        """Learn from some rows at a time, and give the network after every epoch."""
        n_layers, n_epochs = len(self._all_layers), self._model.epochs
        batches = _iter_batches(len(self._X), self._model.batch, rng)
        for epoch in range((n_layers + _JOINT_TURNS) * n_epochs):
            self.learn(self._choose_layers(epoch // n_epochs), next(batches))
            yield self._params

    def _choose_layers(self, turn: int) -> tuple[int, ...]:
        """Learn layer after layer and then all, or each once those below it are at rest."""
        if self._model.schedule == "paper":
            return (turn,) if turn < len(self._all_layers) else self._all_layers
        at_rest = np.concatenate([[True], self._flips[:-1] < _MAX_SETTLED_FLIPS])
        return tuple(np.flatnonzero(np.logical_and.accumulate(at_rest)).tolist())

    def learn(self, layers: Sequence[int], at: Any) -> float:
        """Draw the hidden units of some rows anew, and re-estimate; give the mean log P."""
        check_cancelled()
        model, X, states = self._model, self._X[at], self._states[at]
        key, rows = self._rng.stream(f"epoch {self._n_done}").key, np.arange(len(self._X))[at]
        powers = (model.settled, self._powers)
        flips = sample_states(self._params.network, X, states, key, rows, *powers)
        self._states[at], self._flips, self._n_done = states, flips.mean(axis=0), self._n_done + 1
        nats, sums = sum_unit_statistics(self._params, X, states)
        prior = (model.alpha, model.beta)
        self._params = reestimate(self._params, sums, *prior, layers, model.leaks == "learned")
        return float(nats.mean())

    def learn_from_all_rows(self, n_epochs: int) -> LearnedNetwork:
        """Learn from all rows at once, and say how often units were on."""
        for _ in range(n_epochs):
            score = self.learn(self._all_layers, slice(None))
        activity = self._states.mean(axis=0)
        params = NoisyOrParams(self._params.weights, self._params.leaks, activity)
        return LearnedNetwork(params, self._states, score)


def _iter_batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Give rows, so many at a time, in one random order after another."""
    while True:
        order = rng.permutation(n_rows)
        for first in range(0, max(n_rows - size, 0) + 1, size):
            yield order[first : first + size]


def choose_layers(
    model: Any, X: Bits, held_out: Bits, seed: int, map_items: MapFunction
) -> tuple[tuple[int, ...], list[float]]:
    """Choose layers by rows held out: one, doubled until that gains nothing twice, then a second.

    Returns
    -------
    tuple
        The layers, and the score of each choice tried, nats a row.
    """
    n_starts, scores = min(model.starts, _FEW_STARTS), []

    def scored(layers: tuple[int, ...]) -> Array:
        learned = learn_from_starts(model, layers, X, seed, n_starts, map_items)
        some = held_out[:_SCORED_ROWS]
        nats = estimate_row_likelihoods(learned.params, some, np.arange(len(some)), RowRandom(seed))
        scores.append(float(nats.mean()))
        return nats

    layers: tuple[int, ...] = (1,)
    best, width, n_in_vain = scored(layers), 2, 0
    # A unit that is always on stands for leaks, so that two may gain nothing where four do.
    while width <= min(MAX_HELD_OUT_UNITS, X.shape[1]) and n_in_vain < _MAX_FAILURES:
        if _is_gain(more := scored((width,)), best):
            layers, best, n_in_vain = (width,), more, 0
        else:
            n_in_vain += 1
        width *= 2
    if (above := layers[0] // 2) > 1 and _is_gain(scored((*layers, above)), best):
        layers = (*layers, above)
    return layers, scores


def _is_gain(nats: Array, before: Array) -> bool:
    """Tell whether rows gain by more than chance has it."""
    gain = nats - before
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return bool(gain.mean() > _GAIN_STANDARD_ERRORS * error)


def estimate_row_likelihoods(
    params: NoisyOrParams, X: Bits, rows: NDArray[np.int64], rng: RowRandom
) -> Array:
    """Give log P(x) of rows, nats, exact where that is cheap: (n_samples,)."""
    network = params.network
    if network.n_hidden <= _MAX_ENUMERATED_UNITS:
        return enumerate_log_probabilities(network, X)
    key = rng.stream("judged").key
    return estimate_log_probabilities(network, X, key, rows, _CHAINS, _TEMPERATURES)[0]
