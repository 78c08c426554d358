"""Parameters of noisy-OR networks, and what re-estimates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.noisy_or.gibbs import MAX_PROBABILITY, MISSING, NoisyOrNetwork, make_network
from pipeline.params import layer_arrays_field, optional_array_field

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
Bits = NDArray[np.uint8]

MIN_LEAK = 1e-4
"""Weight of a leak: with none, rows that no unit explains would have probability 0."""
_MIN_PROBABILITY = 1e-9  # of f


@dataclass(frozen=True)
class NoisyOrParams:
    """Parameters; the table of the module gives shapes."""

    weights: tuple[Array, ...] = layer_arrays_field("below", "above")
    leaks: tuple[Array, ...] = layer_arrays_field("below")
    activity: Array | None = optional_array_field("component")

    @classmethod
    def from_probabilities(
        cls, f: Sequence[Array], f_of_leaks: Sequence[Array], activity: Array | None = None
    ) -> NoisyOrParams:
        """Take f = 1 − e^−w of weights and leaks, kept within what sweeps can compute with."""
        bounded = [
            [-np.log1p(-np.clip(a, _MIN_PROBABILITY, MAX_PROBABILITY)) for a in part]
            for part in (f, f_of_leaks)
        ]
        return cls(tuple(bounded[0]), tuple(bounded[1]), activity)

    @property
    def f(self) -> tuple[Array, ...]:
        """Probability that a unit alone turns one below it on, (n_below, n_above) a layer."""
        return tuple(-np.expm1(-w) for w in self.weights)

    @property
    def f_of_leaks(self) -> tuple[Array, ...]:
        """Probability that a unit is on where all above it are off, (n_units,) a layer."""
        return tuple(-np.expm1(-w) for w in self.leaks)

    @property
    def network(self) -> NoisyOrNetwork:
        """As kernels take them."""
        return make_network(tuple(f.T for f in self.f), self.f_of_leaks)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of units, from the features up."""
        return tuple(map(len, self.leaks))


def unpack_rows(block: BinaryBlock) -> Bits:
    """Unpack rows, `MISSING` where not observed: (n_samples, n_features)."""
    X, observed = block.unpack_values(), block.unpack_mask()
    return X if observed is None else np.where(observed == 1, X, MISSING).astype(np.uint8)


def split_into_layers(X: Bits, states: Bits, sizes: Sequence[int]) -> list[Array]:
    """Part units into layers, from the features up, (n_samples, n_units) each."""
    parts = np.split(states, np.cumsum(sizes[1:])[:-1], axis=1)
    return [np.where(X == MISSING, 0, X).astype(np.float64), *(p.astype(np.float64) for p in parts)]


def sum_unit_statistics(
    params: NoisyOrParams, X: Bits, states: Bits
) -> tuple[Array, dict[str, NDArray[Any]]]:
    """Sum over rows what eq. 9 takes, their hidden units given.

    Returns
    -------
    tuple
        log P(x, units) of each row, (n_samples,), and by name, for each layer k of those below:
        `hits_k` Σ S_i S_j / g_i, (n_below, n_above), `on_k` Σ S_j where i was observed, of the same
        shape, `alone_k` Σ S_i / g_i and `seen_k`, rows in which i was observed, (n_below,); for the
        top layer alone the last two.
    """
    seen = (X != MISSING).astype(np.float64)
    layers, nats = split_into_layers(X, states, params.sizes), np.zeros(len(X))
    sums: dict[str, NDArray[Any]] = {}
    for k, (below, leaks) in enumerate(zip(layers, params.leaks, strict=True)):
        is_top = k == len(params.weights)
        u = leaks + (0.0 if is_top else layers[k + 1] @ params.weights[k].T)
        g = -np.expm1(-u)
        of_units = np.where(below == 1, np.log(g), -u)
        counts = seen if k == 0 else np.ones_like(below)
        nats += (of_units * counts).sum(axis=1)
        share = below / g
        sums |= {f"alone_{k}": share.sum(axis=0), f"seen_{k}": counts.sum(axis=0)}
        if not is_top:
            sums |= {f"hits_{k}": share.T @ layers[k + 1], f"on_{k}": counts.T @ layers[k + 1]}
    return nats, sums


def reestimate(
    params: NoisyOrParams,
    sums: Arrays,
    alpha: float,
    beta: float,
    layers: Sequence[int],
    learns_leaks: bool,
) -> NoisyOrParams:
    """Take eq. 9 of some layers' weights, and of the top layer's prior.

    A leak, and so the prior, is the weight of a unit that is always on.
    """
    f, leaks = [*params.f], [*params.f_of_leaks]
    for k in layers:
        f[k] = _update_probabilities(f[k], sums[f"hits_{k}"], sums[f"on_{k}"], alpha, beta)
    top = len(f)
    for k in (*(layers if learns_leaks else ()), top):
        step = _update_probabilities(leaks[k], sums[f"alone_{k}"], sums[f"seen_{k}"], alpha, beta)
        leaks[k] = np.maximum(step, -np.expm1(-MIN_LEAK))
    return NoisyOrParams.from_probabilities(f, leaks, params.activity)


def _update_probabilities(f: Array, hits: Array, on: Array, alpha: float, beta: float) -> Array:
    step: Array = (alpha - 1 + 2 * f + f * hits) / (alpha + beta + on)
    return step


def log_prior(params: NoisyOrParams, alpha: float, beta: float, learns_leaks: bool) -> float:
    """Give log Π f^(α − 1) (1 − f)^(β − 1) of all that eq. 9 moves: its penalty."""
    leaks = params.f_of_leaks if learns_leaks else params.f_of_leaks[-1:]
    parts = (*params.f, *leaks)
    return float(sum(((alpha - 1) * np.log(f) + (beta - 1) * np.log1p(-f)).sum() for f in parts))


def remove_units(params: NoisyOrParams, dead: NDArray[np.bool_]) -> NoisyOrParams:
    """Take hidden units away, `dead`, (n_hidden,), but leave one in every layer."""
    parts = np.split(~dead, np.cumsum(params.sizes[1:])[:-1])
    for part in parts:
        part[0] |= not part.any()
    keeps = [np.full(params.sizes[0], True), *parts]
    weights = [w[np.ix_(*pair)] for w, pair in zip(params.weights, pairwise(keeps), strict=True)]
    leaks = [leak[keep] for leak, keep in zip(params.leaks, keeps, strict=True)]
    activity = None if params.activity is None else params.activity[np.concatenate(parts)]
    return NoisyOrParams(tuple(weights), tuple(leaks), activity)
