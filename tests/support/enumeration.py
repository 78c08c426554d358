"""The oracle of models of few features: sums of P(row, state) over all rows and hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Levels = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def list_states(sizes: Sequence[int]) -> Levels:
    """List all states of variables with these numbers of levels; the last changes fastest."""
    return np.array([*product(*map(range, sizes))], np.uint8)


@dataclass(frozen=True)
class JointTable:
    """P(x, z) of all rows x and hidden states z, up to a constant factor.

    Attributes
    ----------
    rows
        All rows, (n_rows, n_features).
    joint
        P(x, z), (n_rows, n_states).
    """

    rows: Levels
    joint: Floats

    def is_consistent(self, levels: Levels, seen: Mask) -> Mask:
        """Return which rows have these levels where they were seen."""
        return (self.rows[:, seen] == levels[seen]).all(axis=1)

    def sum_states(self, levels: Levels, seen: Mask) -> Floats:
        """Return P(seen levels, z), (n_states,)."""
        found: Floats = self.joint[self.is_consistent(levels, seen)].sum(axis=0)
        return found

    def probability(
        self, levels: Mapping[int, int], given: Mapping[int, int] | None = None
    ) -> float:
        """Return P(these levels of some features | given levels of others)."""
        known = {} if given is None else dict(given)
        shares = []
        for own in ({**known, **levels}, known):
            is_alike = (self.rows[:, [*own]] == [*own.values()]).all(axis=1)
            shares.append(self.joint[is_alike].sum())
        return float(shares[0] / shares[1])

    def impute(self, levels: Levels, seen: Mask) -> Floats:
        """Return P(x_i ≥ c | other seen levels) of each feature i and level c > 0."""
        shares: list[float] = []
        for i, own in enumerate(self.rows.T):
            is_alike = self.is_consistent(levels, seen & (np.arange(len(seen)) != i))
            weights = self.joint[is_alike].sum(axis=1)
            above = own[is_alike, None] >= np.arange(1, own.max() + 1)
            shares += (weights @ above / weights.sum()).tolist()
        return np.array(shares)


def check_rows(
    table: JointTable, levels: Levels, seen: Mask, nats: Floats, codes: Floats, atol: float = 1e-12
) -> None:
    """Check log P(x) and P(z | x) of rows in which some levels were not seen."""
    for row, mask, own_nats, own_codes in zip(levels, seen, nats, codes, strict=True):
        expected = table.sum_states(row, mask)
        np.testing.assert_allclose(own_nats, np.log(expected.sum()), rtol=0, atol=atol)
        np.testing.assert_allclose(own_codes, expected / expected.sum(), rtol=0, atol=atol)


def impute_by_likelihood(
    score_rows: Callable[[Levels, Levels], Floats], X: Levels, observed: Levels
) -> Floats:
    """Return P(x_i = 1 | other values) of binary rows by their log-likelihoods with either value.

    `score_rows` takes values and what is observed of them.
    """
    found = np.empty(X.shape)
    for i in range(X.shape[1]):
        nats = []
        for value in (0, 1):
            own, mask = X.copy(), observed.copy()
            own[:, i], mask[:, i] = value, 1
            nats.append(score_rows(own, mask))
        found[:, i] = scipy.special.expit(nats[1] - nats[0])
    return found


def draw_incomplete_rows(sizes: Sequence[int], n_rows: int) -> tuple[Levels, Mask]:
    """Draw rows with more and with fewer missing levels; the first has none, the second only these.

    Returns the levels, and which were seen.
    """
    rng = np.random.default_rng(1)
    shares = np.array([1.0, 0.0, *rng.uniform(0, 1, n_rows - 2)])
    rows = list_states(sizes)
    seen = rng.random((n_rows, len(sizes))) < shares[:, None]
    return rows[rng.choice(len(rows), n_rows)], seen


def compute_pair_dependence(rows: Levels, shares: Floats, i: int, j: int) -> tuple[float, float]:
    """Return mutual information and correlation of two features of rows with these shares."""
    pairs = np.zeros((rows[:, i].max() + 1, rows[:, j].max() + 1))
    np.add.at(pairs, (rows[:, i], rows[:, j]), shares)
    entropies = [scipy.stats.entropy(own) for own in (pairs.sum(0), pairs.sum(1), pairs.ravel())]
    cov = np.cov(rows[:, [i, j]].T, aweights=shares, ddof=0)
    return entropies[0] + entropies[1] - entropies[2], cov[0, 1] / np.sqrt(np.diag(cov).prod())


def draw_wide_rows(sizes: tuple[int, ...], n_samples: int, seed: int) -> Levels:
    """Draw rows along a tree. Features 0 to 4 are equal, and the last 10 are constant."""
    rng = np.random.default_rng(seed)
    levels = np.empty((n_samples, len(sizes)), np.uint8)
    share = rng.random(n_samples)
    for i, size in enumerate(sizes):
        if i > 0:
            parent = int(rng.integers(max(0, i - 4), i))
            share = (levels[:, parent] + rng.random(n_samples)) / sizes[parent]
            share = np.where(rng.random(n_samples) < 0.3, rng.random(n_samples), share)
        levels[:, i] = np.minimum(size * share, size - 1)
    levels[:, 1:5], levels[:, -10:] = levels[:, :1], 1
    return levels


def list_spanning_trees(n: int) -> Iterator[list[tuple[int, int]]]:
    """List the edges of all labelled trees of n vertices, by their Prüfer codes."""
    for code in product(range(n), repeat=n - 2):
        degrees, edges = [1 + code.count(i) for i in range(n)], []
        for i in code:
            leaf = degrees.index(1)
            edges.append((leaf, i))
            degrees[leaf] -= 1
            degrees[i] -= 1
        left, right = (i for i in range(n) if degrees[i] == 1)
        yield [*edges, (left, right)]
