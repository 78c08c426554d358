"""Parameters of noisy-OR networks, and how they are learned from a sample of rows.

Learning starts from several random networks. Every row of the sample keeps its hidden units from
epoch to epoch. If chains restarted in every epoch, they would not reach the units that explain a
row best, and the weights would not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Bits
from pipeline.data.blocks import BinaryBlock
from pipeline.executors.base import MapFunction
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.central_work import label_map, make_local_map
from pipeline.learning.convergence import describe_starts
from pipeline.models.noisy_or.gibbs import (
    MAX_PROBABILITY,
    MISSING,
    NoisyOrNetwork,
    compute_none_on,
    find_group_starts,
    log_top_probabilities,
    make_network,
    sample_posterior_means,
    sample_states,
)
from pipeline.params import NumberRange, layer_arrays_field, optional_array_field
from pipeline.random import RowRandom

Arrays = Mapping[str, NDArray[Any]]

MIN_LEAK = 1e-4
"""Smallest weight of a leak; without leaks, rows that no unit explains would have probability 0."""
FIRST_WEIGHTS = (0.05, 0.15)
"""Range of small initial weights, and of initial priors."""
RESTARTED_F, RESTARTED_PRIOR = 0.85, 0.05
"""f of a restarted unit for the ones of a row, and its prior."""
GROUP_SWEEPS = 15
"""Sweeps for each state of an exclusive group before chains start."""
_MIN_PROBABILITY = 1e-9  # of f
_FIRST_ACTIVITY = 0.5
_MIN_ACTIVITY, _MIN_CAUSED = 1e-3, 0.05  # smallest share of rows, and largest f, of a live unit
_RESTARTED_EPOCHS = 20  # with all rows at once
_MAX_FAILED_RESTARTS = 3
_JOINT_TURNS = 5  # all layers together learn for this many times the epochs of one layer
_EXCLUSIVE_EPOCHS = 5  # with all rows at once, after units were made to exclude each other
_SAME_STANDARD_ERRORS = 3  # starts whose scores differ by less are equally good
_FINAL_EPOCHS = 20  # epochs with all rows at once
_MAX_SETTLED_FLIPS = 0.05  # mean flip probability below which a layer counts as settled


@dataclass(frozen=True)
class NoisyOrParams:
    """Parameters; the table in `model.py` gives shapes."""

    weights: tuple[Array, ...] = layer_arrays_field(
        "below", "above", allowed=NumberRange(minimum=0)
    )
    leaks: tuple[Array, ...] = layer_arrays_field("below", allowed=NumberRange(above=0))
    activity: Array | None = optional_array_field("component")
    exclusive_groups: NDArray[np.int64] | None = optional_array_field("component")

    @classmethod
    def from_probabilities(
        cls,
        f: Sequence[Array],
        f_of_leaks: Sequence[Array],
        activity: Array | None = None,
        exclusive_groups: NDArray[np.int64] | None = None,
    ) -> NoisyOrParams:
        """Make the parameters from f = 1 − e^−w, clipped to the range that sweeps can handle.

        Priors of an exclusive group that are above 1 together are reduced in proportion.
        """
        weights, leaks = (
            [-np.log1p(-np.clip(a, _MIN_PROBABILITY, MAX_PROBABILITY)) for a in part]
            for part in (f, f_of_leaks)
        )
        params = cls(tuple(weights), tuple(leaks), activity, exclusive_groups)
        if exclusive_groups is None:
            return params
        prior, groups = params.f_of_leaks[-1], params.group_sizes
        total = np.repeat(np.add.reduceat(prior, find_group_starts(groups)), groups)
        leaks[-1] = -np.log1p(-prior * np.minimum(1, MAX_PROBABILITY / total))
        return replace(params, leaks=tuple(leaks))

    def replace_probabilities(
        self, f: Sequence[Array], f_of_leaks: Sequence[Array]
    ) -> NoisyOrParams:
        """Return parameters with other f, clipped as in `from_probabilities`."""
        kept = (self.activity, self.exclusive_groups)
        return NoisyOrParams.from_probabilities(f, f_of_leaks, *kept)

    @property
    def f(self) -> tuple[Array, ...]:
        """Probability that a unit alone turns a unit below on, (n_below, n_above) per layer."""
        return tuple(-np.expm1(-w) for w in self.weights)

    @property
    def f_of_leaks(self) -> tuple[Array, ...]:
        """Probability that a unit is on if all above are off, (n_units,) per layer."""
        return tuple(-np.expm1(-w) for w in self.leaks)

    @property
    def network(self) -> NoisyOrNetwork:
        """The parameters, as the kernels take them."""
        return make_network(tuple(f.T for f in self.f), self.f_of_leaks, self.group_sizes)

    @property
    def group_sizes(self) -> NDArray[np.int64]:
        """Number of units of each exclusive group of the top layer; 1 for independent units."""
        n_top = len(self.leaks[-1])
        if self.exclusive_groups is None:
            return np.ones(n_top, np.int64)
        numbers = self.exclusive_groups[-n_top:]
        is_first = np.append(True, (np.diff(numbers) != 0) | (numbers[1:] == 0))
        return np.diff(np.append(np.flatnonzero(is_first), n_top))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of units of each layer, the features first."""
        return tuple(map(len, self.leaks))


def unpack_rows(block: BinaryBlock) -> Bits:
    """Return the rows, (n_samples, n_features), with `MISSING` for missing values."""
    X, observed = block.unpack_values(), block.unpack_mask()
    return X if observed is None else np.where(observed == 1, X, MISSING).astype(np.uint8)


def _split_into_layers(X: Bits, states: Bits, sizes: Sequence[int]) -> list[Array]:
    """Return the units of each layer, (n_samples, n_units), the features first."""
    parts = np.split(states, np.cumsum(sizes[1:])[:-1], axis=1)
    return [np.where(X == MISSING, 0, X).astype(np.float64), *(p.astype(np.float64) for p in parts)]


def sum_unit_statistics(
    params: NoisyOrParams, X: Bits, states: Bits
) -> tuple[Array, dict[str, NDArray[Any]]]:
    """Compute the sums of eq. 9 over rows, given their hidden units.

    Returns
    -------
    tuple
        log P(x, units) of each row, (n_samples,), and the sums by name, for each layer k: `hits_k`
        Σ S_i S_j / g_i and `on_k` Σ S_j over rows where i is observed, (n_below, n_above);
        `alone_k` Σ S_i / g_i and `seen_k`, the number of rows where i is observed, (n_below,). The
        top layer has only the last two.
    """
    mask = (X != MISSING).astype(np.float64)
    layers, nats = _split_into_layers(X, states, params.sizes), np.zeros(len(X))
    sums: dict[str, NDArray[Any]] = {}
    for k, (below, leaks) in enumerate(zip(layers, params.leaks, strict=True)):
        is_top = k == len(params.weights)
        u = leaks + (0.0 if is_top else layers[k + 1] @ params.weights[k].T)
        g = -np.expm1(-u)
        counts = mask if k == 0 else np.ones_like(below)
        if is_top:
            nats += log_top_probabilities(np.exp(-leaks), params.group_sizes, below)
        else:
            nats += (np.where(below == 1, np.log(g), -u) * counts).sum(axis=1)
        share = below / g
        sums |= {f"alone_{k}": share.sum(axis=0), f"seen_{k}": counts.sum(axis=0)}
        if not is_top:
            sums |= {f"hits_{k}": share.T @ layers[k + 1], f"on_{k}": counts.T @ layers[k + 1]}
    return nats, sums


def start_chains(params: NoisyOrParams, X: Bits, rng: RowRandom, rows: NDArray[np.int64]) -> Bits:
    """Return first states of the hidden units of rows, (n_samples, n_hidden): off, if independent.

    A sweep hardly ever changes the state of an exclusive group that has turned on many units below.
    So each state is held for some sweeps of all other units, and one is drawn by log P(x, units) at
    their end. A single layer does not need this.
    """
    network, n_hidden = params.network, sum(params.sizes[1:])
    kept, top = np.zeros((len(X), n_hidden), np.uint8), n_hidden - params.sizes[-1]
    if len(params.weights) == 1:
        return kept
    powers = np.ones(GROUP_SWEEPS)
    for group, n_units in enumerate(network.groups):
        total, others = np.full(len(X), -np.inf), kept[:, top:].copy()
        signs = np.where(np.arange(len(network.groups)) == group, -1, 1)
        held = network._replace(groups=signs * network.groups)
        first = top + int(network.groups[:group].sum())
        for state in range(n_units + 1 if n_units > 1 else 0):
            own = rng.stream(f"group {group} state {state}")
            units = np.zeros_like(kept)
            units[:, top:] = others
            units[:, first : first + n_units] = np.arange(n_units) == state
            sample_states(held, X, units, own.key, rows, 0.0, powers)
            nats, _ = sum_unit_statistics(params, X, units)
            total = np.logaddexp(total, nats)
            is_kept = own.stream("kept").uniform(rows, 1)[:, 0] < np.exp(nats - total)
            kept[is_kept] = units[is_kept]
    return kept


def sample_means(
    params: NoisyOrParams,
    X: Bits,
    rng: RowRandom,
    rows: NDArray[np.int64],
    n_first: int,
    n_sweeps: int,
) -> tuple[Array, Array]:
    """Average the hidden units of rows over two chains, as `sample_posterior_means`.

    With exclusive groups in the top layer of several, chains start as in `start_chains`.
    """
    starts = None
    if params.exclusive_groups is not None and len(params.weights) > 1:
        starts = np.stack([start_chains(params, X, rng.stream(f"start {k}"), rows) for k in (0, 1)])
    return sample_posterior_means(params.network, X, rng.key, rows, n_first, n_sweeps, starts)


def reestimate(
    params: NoisyOrParams,
    sums: Arrays,
    alpha: float,
    beta: float,
    layers: Sequence[int],
    learns_leaks: bool,
) -> NoisyOrParams:
    """Apply eq. 9 to the weights of some layers, and to the prior of the top layer.

    A leak is the weight of a unit that is always on; the prior is the leak of the top layer. In an
    exclusive group, the priors of the units and of none of them on get α and β of a Dirichlet
    distribution, which is Beta(α, β) for a single unit.
    """
    f, leaks = [*params.f], [*params.f_of_leaks]
    for k in layers:
        f[k] = _update_probabilities(f[k], sums[f"hits_{k}"], sums[f"on_{k}"], alpha, beta)
    top = len(f)
    others = (alpha - 1) * (np.repeat(params.group_sizes, params.group_sizes) - 1)
    for k in (*(layers if learns_leaks else ()), top):
        seen = sums[f"seen_{k}"] + (others if k == top else 0)
        step = _update_probabilities(leaks[k], sums[f"alone_{k}"], seen, alpha, beta)
        leaks[k] = np.maximum(step, -np.expm1(-MIN_LEAK))
    return params.replace_probabilities(f, leaks)


def _update_probabilities(f: Array, hits: Array, on: Array, alpha: float, beta: float) -> Array:
    step: Array = (alpha - 1 + 2 * f + f * hits) / (alpha + beta + on)
    return step


def log_prior(params: NoisyOrParams, alpha: float, beta: float, learns_leaks: bool) -> float:
    """Return log Π f^(α − 1) (1 − f)^(β − 1) of all parameters that eq. 9 updates."""
    *leaks, prior = params.f_of_leaks
    parts = (*params.f, *(leaks if learns_leaks else ()))
    beta_part = sum(((alpha - 1) * np.log(f) + (beta - 1) * np.log1p(-f)).sum() for f in parts)
    none = compute_none_on(1 - prior, params.group_sizes)
    return float(beta_part + (alpha - 1) * np.log(prior).sum() + (beta - 1) * np.log(none).sum())


def remove_units(params: NoisyOrParams, dead: NDArray[np.bool_]) -> NoisyOrParams:
    """Remove the hidden units in `dead`, (n_hidden,), but keep at least one per layer."""
    parts = np.split(~dead, np.cumsum(params.sizes[1:])[:-1])
    for part in parts:
        part[0] |= not part.any()
    masks = [np.full(params.sizes[0], True), *parts]
    weights = [w[np.ix_(*pair)] for w, pair in zip(params.weights, pairwise(masks), strict=True)]
    leaks = [leak[mask] for leak, mask in zip(params.leaks, masks, strict=True)]
    of_units = np.concatenate(parts)
    activity = None if params.activity is None else params.activity[of_units]
    groups = None if params.exclusive_groups is None else params.exclusive_groups[of_units]
    return NoisyOrParams(tuple(weights), tuple(leaks), activity, groups)


class LearnedNetwork(NamedTuple):
    """A network, with the hidden units, (n_samples, n_hidden), of the rows it was learned from.

    `score` is the mean of log P(x, units), nats.
    """

    params: NoisyOrParams
    states: Bits
    score: float


def learn_from_starts(
    model: Any,
    layers: Sequence[int],
    X: Bits,
    seed: int,
    n_starts: int,
    map_items: MapFunction,
) -> tuple[LearnedNetwork, dict[str, int | float]]:
    """Learn from several random starts in parallel, and continue with the best.

    `model` has the settings; `layers` are the units per layer from the data up. `X`, (n_samples,
    n_features), has `MISSING` for missing values. `seed` is the seed of all draws, and `map_items`
    maps over the `n_starts` starts. Return the network, and the diagnostics of the starts: scores
    whose difference may be due to the draws count as equal.
    """
    learn = partial(_learn_one_start, model, tuple(layers), X, seed)
    map_starts = label_map(map_items, "starts", n_starts)
    networks: list[LearnedNetwork] = list(map_starts(learn, range(n_starts)))
    scores = [network.score for network in networks]
    best = networks[int(np.argmax(scores))]
    nats, _ = sum_unit_statistics(best.params, X, best.states)
    noise = _SAME_STANDARD_ERRORS * float(nats.std()) / np.sqrt(len(X))
    finish = partial(_finish_start, model, X, seed, n_starts)
    finished: LearnedNetwork
    (finished,) = label_map(make_local_map(map_items), "best start", 1)(finish, [best])
    return finished, describe_starts(scores, [score + noise for score in scores])


def _finish_start(
    model: Any, X: Bits, seed: int, n_starts: int, best: LearnedNetwork
) -> LearnedNetwork:
    best = _restart_dead_units(model, X, seed, best)
    learner = _EpochLearner(model, X, RowRandom(seed, n_starts), best.params, best.states)
    return learner.learn_from_all_rows(_FINAL_EPOCHS)


def is_dead_unit(params: NoisyOrParams) -> NDArray[np.bool_]:
    """Return which hidden units are hardly ever on, or turn nothing on, (n_hidden,)."""
    largest = np.concatenate([f.max(axis=0) for f in params.f])
    activity = np.ones(len(largest)) if params.activity is None else params.activity
    dead: NDArray[np.bool_] = (activity < _MIN_ACTIVITY) | (largest < _MIN_CAUSED)
    return dead


def _restart_dead_units(model: Any, X: Bits, seed: int, best: LearnedNetwork) -> LearnedNetwork:
    """Restart dead units of the lowest layer as causes of rows that are badly explained.

    The network with the best score of all is returned.
    """
    rng, n_failures = np.random.default_rng([seed, len(X)]), 0
    while n_failures < _MAX_FAILED_RESTARTS:
        dead = np.flatnonzero(is_dead_unit(best.params)[: best.params.sizes[1]])
        if not len(dead):
            break
        nats, _ = sum_unit_statistics(best.params, X, best.states)
        shares = nats.max() - nats
        total = shares.sum()
        rows = rng.choice(len(X), len(dead), p=shares / total if total > 0 else None)
        params = best.params
        for unit, row in zip(dead, rows, strict=True):
            params = restart_unit_by_row(params, int(unit), X[row], rng)
        states = best.states.copy()
        states[:, dead] = 0
        states[rows, dead] = 1
        learner = _EpochLearner(model, X, RowRandom(seed, int(rows[0])), params, states)
        restarted = learner.learn_from_all_rows(_RESTARTED_EPOCHS)
        is_better = restarted.score > best.score
        best, n_failures = (restarted, 0) if is_better else (best, n_failures + 1)
    return best


def restart_unit_by_row(
    params: NoisyOrParams, unit: int, x: Bits, rng: np.random.Generator
) -> NoisyOrParams:
    """Make a unit of the lowest layer the cause of all ones of a row, (n_features,)."""
    f, leaks = [*map(np.copy, params.f)], [*map(np.copy, params.f_of_leaks)]
    drawn = rng.uniform(FIRST_WEIGHTS[0], RESTARTED_F, len(x))
    f[0][:, unit] = np.where(x == 1, RESTARTED_F, np.where(x == 0, FIRST_WEIGHTS[0], drawn))
    if len(f) == 1:
        leaks[-1][unit] = RESTARTED_PRIOR
    else:
        f[1][unit] = rng.uniform(*FIRST_WEIGHTS, f[1].shape[1])
    return params.replace_probabilities(f, leaks)


def iter_networks(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> Iterator[NoisyOrParams]:
    """Learn from random start number `start` and yield the network after every epoch.

    The last epoch uses all rows at once. The other parameters are as for `learn_from_starts`.
    """
    learner, rng = _draw_learner(model, layers, X, seed, start)
    yield from learner.iter_epochs(rng)
    yield learner.learn_exclusive_groups(model.make_exclusive_groups(layers)).params


def _learn_one_start(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> LearnedNetwork:
    learner, rng = _draw_learner(model, layers, X, seed, start)
    for _ in learner.iter_epochs(rng):
        continue
    return learner.learn_exclusive_groups(model.make_exclusive_groups(layers))


def draw_first_network(
    sizes: Sequence[int], weights: tuple[float, float], leak: float, rng: np.random.Generator
) -> NoisyOrParams:
    """Draw a network with weights in a range; `sizes` are the units per layer, features first."""
    first = tuple(rng.uniform(*weights, pair) for pair in pairwise(sizes))
    prior = rng.uniform(*FIRST_WEIGHTS, sizes[-1])
    return NoisyOrParams(first, (*(np.full(n, leak) for n in sizes[:-1]), prior))


def exclude_units(params: NoisyOrParams, groups: NDArray[np.int64] | None) -> NoisyOrParams:
    """Make units exclude each other, given the number of each one's group, (n_components,).

    At first, the states of a group are equally probable. None leaves all units independent.
    """
    if groups is None:
        return params
    params = replace(params, exclusive_groups=groups)
    *leaks, prior = params.f_of_leaks
    n_units = np.repeat(params.group_sizes, params.group_sizes)
    return params.replace_probabilities(
        params.f, (*leaks, np.where(n_units > 1, 1 / (n_units + 1), prior))
    )


def _draw_learner(
    model: Any, layers: tuple[int, ...], X: Bits, seed: int, start: int
) -> tuple[_EpochLearner, np.random.Generator]:
    rng = np.random.default_rng([seed, start])
    params = draw_first_network((X.shape[1], *layers), FIRST_WEIGHTS, model.leak, rng)
    states = (rng.random((len(X), sum(layers))) < _FIRST_ACTIVITY).astype(np.uint8)
    return _EpochLearner(model, X, RowRandom(seed, start), params, states), rng


class _EpochLearner:
    """A network while it is learned from the rows of the sample."""

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
        """Learn from one batch per epoch, and yield the network after each."""
        n_layers, n_epochs = len(self._all_layers), self._model.epochs
        batches = _iter_batches(len(self._X), self._model.batch, rng)
        for epoch in range((n_layers + _JOINT_TURNS) * n_epochs):
            self.learn(self._choose_layers(epoch // n_epochs), next(batches))
            yield self._params

    def _choose_layers(self, turn: int) -> tuple[int, ...]:
        """Return the layers to learn: one after another, or those above settled layers."""
        if self._model.schedule == "paper":
            return (turn,) if turn < len(self._all_layers) else self._all_layers
        is_settled = np.concatenate([[True], self._flips[:-1] < _MAX_SETTLED_FLIPS])
        return tuple(np.flatnonzero(np.logical_and.accumulate(is_settled)).tolist())

    def learn(self, layers: Sequence[int], places: Any) -> float:
        """Draw the hidden units of some rows, re-estimate, and return the mean log P."""
        check_cancelled()
        model, X, states = self._model, self._X[places], self._states[places]
        key, rows = self._rng.stream(f"epoch {self._n_done}").key, np.arange(len(self._X))[places]
        powers = (model.settled, self._powers)
        flips = sample_states(self._params.network, X, states, key, rows, *powers)
        self._states[places], self._flips = states, flips.mean(axis=0)
        self._n_done += 1
        nats, sums = sum_unit_statistics(self._params, X, states)
        prior = (model.alpha, model.beta)
        learns_leaks = model.learns_leaks(self._params.sizes)
        self._params = reestimate(self._params, sums, *prior, layers, learns_leaks)
        return float(nats.mean())

    def learn_exclusive_groups(self, groups: NDArray[np.int64] | None) -> LearnedNetwork:
        """Learn from all rows at once, after units in `groups` were made to exclude each other.

        Units that exclude each other from the start compete before they cause anything, and chains
        would have to switch all units below at once.
        """
        self._params = exclude_units(self._params, groups)
        return self.learn_from_all_rows(1 if groups is None else _EXCLUSIVE_EPOCHS)

    def learn_from_all_rows(self, n_epochs: int) -> LearnedNetwork:
        """Learn from all rows at once, and record how often each unit is on."""
        for _ in range(n_epochs):
            score = self.learn(self._all_layers, slice(None))
        activity = self._states.mean(axis=0)
        params = replace(self._params, activity=activity)
        return LearnedNetwork(params, self._states, score)


def _iter_batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield batches of row numbers endlessly, in a new random order each time around."""
    while True:
        order = rng.permutation(n_rows)
        for first in range(0, max(n_rows - size, 0) + 1, size):
            yield order[first : first + size]
