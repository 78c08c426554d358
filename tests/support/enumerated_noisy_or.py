"""Noisy-OR networks written out as formulas, all states of their hidden units enumerated."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pipeline.models.noisy_or.gibbs import MISSING

Parts = tuple[np.ndarray, ...]


def random_network(rng: np.random.Generator, sizes: tuple[int, ...]) -> tuple[Parts, Parts]:
    """f of units on those below, (n_above, n_below), and of leaks."""
    f = tuple(0.9 * rng.random((above, n)) for n, above in pairwise(sizes))
    leaks = [rng.uniform(0.01, 0.05, n) for n in sizes[:-1]]
    return f, (*leaks, rng.uniform(0.2, 0.5, sizes[-1]))


def enumerated(
    f: Parts, leaks: Parts, X: np.ndarray, groups: tuple[int, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """log P(x) and P(state | x) of each row, states counted with the lowest unit first.

    `groups` are the units of each exclusive group of the top layer.
    """
    sizes = [len(leak) for leak in leaks[1:]]
    states = np.arange(1 << sum(sizes))[:, None] >> np.arange(sum(sizes)) & 1
    layers = np.split(states, np.cumsum(sizes)[:-1], axis=1)
    on = [
        1 - (1 - leak) * _missed(above, g)
        for leak, above, g in zip(leaks[:-1], layers, f, strict=True)
    ]
    prior = sum(_log(p, layer).sum(axis=1) for p, layer in zip(on[1:], layers[:-1], strict=True))
    prior = prior + np.array([_log_top(leaks[-1], top, groups) for top in layers[-1]])
    logs = prior + np.stack([(_log(on[0], x) * (x != MISSING)).sum(axis=1) for x in X])
    total = np.logaddexp.reduce(logs, axis=1)
    return total, np.exp(logs - total[:, None])


def _log_top(p: np.ndarray, top: np.ndarray, groups: tuple[int, ...] | None) -> float:
    """Log prior of a state: each group has one of its units on, or none."""
    total, first = 0.0, 0
    for n in groups or (1,) * len(p):
        on = top[first : first + n].astype(bool)
        own = p[first : first + n]
        with np.errstate(divide="ignore"):
            total += np.log([1 - own.sum(), own[on].sum(), 0.0][min(on.sum(), 2)])
        first += n
    return total


def _missed(above: np.ndarray, f: np.ndarray) -> np.ndarray:
    return np.prod(1 - above[:, :, None] * f, axis=1)


def _log(p: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.log(np.where(values == 1, p, 1 - p))
