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

from pipeline.executors.base import Map
from pipeline.executors.cancellation import check_wanted
from pipeline.models.noisy_or.gibbs import sample_states
from pipeline.models.noisy_or.likelihood import annealed_log_probabilities, log_probabilities
from pipeline.models.noisy_or.params import NoisyOrParams, re_estimated, sums_of
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]

MOST_BY_HELD_OUT = 64
"""Units of a layer at which the search for their number ends."""
_FIRST_WEIGHTS = (0.05, 0.15)
_FIRST_ON = 0.5
_TOGETHER = 5  # times the epochs of a layer
_WHOLE = 20  # epochs of all rows at once
_SETTLED_BELOW = 0.05  # mean probability of a flip
_FEW_STARTS = 3
_SCORED = 300  # rows held out
_ENUMERATED, _CHAINS, _TEMPERATURES = 10, 10, 100
_IN_VAIN = 2  # doublings that end the search
_ERRORS = 2  # of a gain, that it must be above


class Learned(NamedTuple):
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


def best_of_starts(
    model: Any, layers: Sequence[int], X: Bits, seed: int, n_starts: int, map_items: Map
) -> Learned:
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
    found = [*map_items(partial(_started, model, tuple(layers), X, seed), range(n_starts))]
    best = max(found, key=lambda start: start.score)
    return _Learner(model, X, RowRandom(seed, n_starts), best.params, best.states).whole(_WHOLE)


def networks_by_epoch(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> Iterator[NoisyOrParams]:
    """Learn from random weights, and give the network after every epoch, the last of all rows.

    The parameters are those of `best_of_starts`; `start` numbers the start.
    """
    learner, rng = _begun(model, layers, X, seed, start)
    yield from learner.epochs(rng)
    yield learner.whole(1).params


def _started(model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int) -> Learned:
    learner, rng = _begun(model, layers, X, seed, start)
    for _ in learner.epochs(rng):
        continue
    return learner.whole(1)


def _begun(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> tuple[_Learner, np.random.Generator]:
    rng = np.random.default_rng([seed, start])
    sizes = (X.shape[1], *layers)
    weights = [
        rng.uniform(*_FIRST_WEIGHTS, (n, above)) for n, above in zip(sizes, layers, strict=False)
    ]
    leaks = [np.full(n, model.leak) for n in sizes[:-1]]
    prior = rng.uniform(*_FIRST_WEIGHTS, layers[-1])
    params = NoisyOrParams(tuple(weights), (*leaks, prior))
    states = (rng.random((len(X), sum(layers))) < _FIRST_ON).astype(np.uint8)
    return _Learner(model, X, RowRandom(seed, start), params, states), rng


class _Learner:
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
    def _all(self) -> tuple[int, ...]:
        return tuple(range(len(self._params.weights)))

    def epochs(self, rng: np.random.Generator) -> Iterator[NoisyOrParams]:
        """Learn from some rows at a time, and give the network after every epoch."""
        n_layers, n_epochs = len(self._all), self._model.epochs
        batches = _batches(len(self._X), self._model.batch, rng)
        for epoch in range((n_layers + _TOGETHER) * n_epochs):
            self.learn(self._learnt_in(epoch // n_epochs), next(batches))
            yield self._params

    def _learnt_in(self, turn: int) -> tuple[int, ...]:
        """Learn layer after layer and then all, or each once those below it are at rest."""
        if self._model.schedule == "paper":
            return (turn,) if turn < len(self._all) else self._all
        at_rest = np.concatenate([[True], self._flips[:-1] < _SETTLED_BELOW])
        return tuple(np.flatnonzero(np.logical_and.accumulate(at_rest)).tolist())

    def learn(self, layers: Sequence[int], at: Any) -> float:
        """Draw the hidden units of some rows anew, and re-estimate; give the mean log P."""
        check_wanted()
        model, X, states = self._model, self._X[at], self._states[at]
        key, rows = self._rng.stream(f"epoch {self._n_done}").key, np.arange(len(self._X))[at]
        powers = (model.settled, self._powers)
        flips = sample_states(self._params.network, X, states, key, rows, *powers)
        self._states[at], self._flips, self._n_done = states, flips.mean(axis=0), self._n_done + 1
        nats, sums = sums_of(self._params, X, states)
        prior = (model.alpha, model.beta)
        self._params = re_estimated(self._params, sums, *prior, layers, model.leaks == "learned")
        return float(nats.mean())

    def whole(self, n_epochs: int) -> Learned:
        """Learn from all rows at once, and say how often units were on."""
        for _ in range(n_epochs):
            score = self.learn(self._all, slice(None))
        activity = self._states.mean(axis=0)
        params = NoisyOrParams(self._params.weights, self._params.leaks, activity)
        return Learned(params, self._states, score)


def _batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Give rows, so many at a time, in one random order after another."""
    while True:
        order = rng.permutation(n_rows)
        for first in range(0, max(n_rows - size, 0) + 1, size):
            yield order[first : first + size]


def chosen_layers(
    model: Any, X: Bits, held_out: Bits, seed: int, map_items: Map
) -> tuple[tuple[int, ...], list[float]]:
    """Choose layers by rows held out: one, doubled until that gains nothing twice, then a second.

    Returns
    -------
    tuple
        The layers, and the score of each choice tried, nats a row.
    """
    n_starts, scores = min(model.starts, _FEW_STARTS), []

    def scored(layers: tuple[int, ...]) -> Array:
        learned = best_of_starts(model, layers, X, seed, n_starts, map_items)
        some = held_out[:_SCORED]
        nats = judged(learned.params, some, np.arange(len(some)), RowRandom(seed))
        scores.append(float(nats.mean()))
        return nats

    layers: tuple[int, ...] = (1,)
    best, width, n_in_vain = scored(layers), 2, 0
    # A unit that is always on stands for leaks, so that two may gain nothing where four do.
    while width <= min(MOST_BY_HELD_OUT, X.shape[1]) and n_in_vain < _IN_VAIN:
        if _gains(more := scored((width,)), best):
            layers, best, n_in_vain = (width,), more, 0
        else:
            n_in_vain += 1
        width *= 2
    if (above := layers[0] // 2) > 1 and _gains(scored((*layers, above)), best):
        layers = (*layers, above)
    return layers, scores


def _gains(nats: Array, before: Array) -> bool:
    """Tell whether rows gain by more than chance has it."""
    gain = nats - before
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return bool(gain.mean() > _ERRORS * error)


def judged(params: NoisyOrParams, X: Bits, rows: NDArray[np.int64], rng: RowRandom) -> Array:
    """Give log P(x) of rows, nats, exact where that is cheap: (n_samples,)."""
    network = params.network
    if network.n_hidden <= _ENUMERATED:
        return log_probabilities(network, X)
    key = rng.stream("judged").key
    return annealed_log_probabilities(network, X, key, rows, _CHAINS, _TEMPERATURES)[0]
